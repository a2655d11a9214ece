"""Versions on an object store.

```
PREFIX/current.json                the pointer: which versions there are, the current one, what was
                                   withdrawn
PREFIX/versions/v0008-3f9a1c07/    the files of a version, version.json, complete.json
```

A version is written under a prefix that no other writer has. One conditional write of the pointer
makes it a version, and current, at once: of two publishers one comes first, and the other begins
again from there. The pointer has the SHA-256 of each ``version.json``, which has those of its
files.
What nothing names is removed after a week: a killed publisher's objects, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pipeline.core.errors import StoreError
from pipeline.products.products import EDITABLE
from pipeline.publishing.version_store import (
    ABOUT,
    KIND,
    READABLE,
    VERSION,
    Version,
    VersionStore,
)
from pipeline.storage.files import file_digest, text_digest
from pipeline.storage.local_commit import MARKER, checked_marker
from pipeline.storage.location import Location, Place, StorageError, StorageUnreachableError
from pipeline.storage.lock import SHORT_S, Lock
from pipeline.storage.object_commit import GRACE, remove_superseded
from pipeline.storage.pointer import MovedError, move_pointer, read_pointer

POINTER, FOLDER = "current.json", "versions"
POINTER_KIND, POINTER_VERSION = "disagg-versions", 1
RESTORE = "restore it from a back-up, or `disagg rollback` to another"
_LOOKS = 5  # at versions that others change meanwhile
_EMPTY: dict[str, Any] = {"versions": {}, "current": None, "withdrawn": []}
Result = TypeVar("Result")


class ObjectVersions(VersionStore):
    """Versions under a prefix, of which a pointer tells."""

    def __init__(self, place: Location) -> None:
        self.place: Location = place
        self._state: dict[str, Any] | None = None  # of the pointer, while it must not change
        self._tag = ""
        self._added: dict[str, dict[str, str]] = {}  # written, not yet in the pointer
        self._known: dict[str, Version] = {}  # what a prefix has never changes

    def paths(self) -> list[Place]:
        """See `VersionStore`."""
        return [self.place / each["path"] for each in self._pointer()["versions"].values()]

    def current_name(self) -> str | None:
        """See `VersionStore`."""
        name: str | None = self._pointer()["current"]
        return name

    def withdrawn(self) -> Set[str]:
        """See `VersionStore`."""
        return set(self._pointer()["withdrawn"])

    def read(self, path: Place) -> Version:
        """See `VersionStore`."""
        place = cast(Location, path)
        if place.url not in self._known:
            found = place.list()
            for name in (MARKER, ABOUT):
                if name not in found:
                    absent = f"{place}: {name} is missing; {RESTORE}"
                    raise StoreError(absent)
            sizes = {name: each.size for name, each in found.items()}
            text, about = (place / MARKER).read(), (place / ABOUT).read()
            marker = checked_marker(
                place, text, sizes.get, KIND, READABLE, free=EDITABLE, remedy=RESTORE
            )
            entry = next(
                each
                for each in self._pointer()["versions"].values()
                if self.place / each["path"] == place
            )
            if hashlib.sha256(about).hexdigest() != entry["sha256"]:
                damaged = f"{place / ABOUT}: is not what was published; {RESTORE}"
                raise StoreError(damaged)
            self._known[place.url] = Version(place, marker.fingerprint, json.loads(about))
        return self._known[place.url]

    def settled(self, read: Callable[[], Result], whole: Callable[[Result], bool]) -> Result:
        """Read by one state of the pointer; again if a version went away meanwhile."""
        if self._state is not None:
            return read()
        for look in range(_LOOKS):
            with self._fixed():
                found, state = read(), self._state
            if whole(found) or look == _LOOKS - 1 or self._pointer() == state:
                break
        return found

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `VersionStore`: no lock, for :meth:`commit` tells of another's change."""
        self._added = {}
        with self._fixed():
            try:
                yield
            finally:
                once = replace(self.place, storage=replace(self.place.storage, retries=0))
                for each in self._added.values():
                    with suppress(StorageError, FileNotFoundError):
                        (once / each["path"]).remove((once / each["path"]).list())

    def add(
        self, name: str, files: Mapping[str, Path], about: Mapping[str, Any], fingerprint: str
    ) -> Version:
        """See `VersionStore`."""
        entry = {"path": f"{FOLDER}/{name}-{uuid.uuid4().hex[:8]}"}
        self._added[name] = entry
        data = self.place / entry["path"]
        sizes = {target: (data / target).put(source) for target, source in files.items()}
        text = _json({"version": name, **about})
        sizes[ABOUT] = len(text)
        (data / ABOUT).write(text)
        marker = {
            "format": KIND,
            "version": VERSION,
            "fingerprint": fingerprint,
            "files": sizes,
            "metadata": {},
        }
        (data / MARKER).write(_json(marker))
        found = {name: each.size for name, each in data.list().items()}
        if any(found.get(name) != size for name, size in sizes.items()):
            message = f"{data}: objects are missing after they were written; publish again"
            raise StorageError(message)
        entry["sha256"] = hashlib.sha256(text).hexdigest()
        return Version(data, fingerprint, {"version": name, **about})

    def commit(self, current: Version | None, withdrawn: Set[str] | None = None) -> None:
        """See `VersionStore`: one conditional write."""
        state, added = self._pointer(), self._added
        # If the answer is lost for good, the write may still come: its objects have to stay.
        self._added = {}
        try:
            self._move(
                {
                    **state,
                    "versions": {**state["versions"], **added},
                    "current": state["current"] if current is None else current.name,
                    "withdrawn": state["withdrawn"] if withdrawn is None else sorted(withdrawn),
                }
            )
        except StorageUnreachableError:
            raise
        except (MovedError, StorageError):
            self._added = added
            raise

    def drop(self, versions: Sequence[Version]) -> None:
        """See `VersionStore`: first no pointer names them, then they go."""
        state, gone = self._pointer(), {version.name for version in versions}
        if gone:
            kept = {name: each for name, each in state["versions"].items() if name not in gone}
            self._move({**state, "versions": kept})
        for version in versions:
            place = cast(Location, version.path)
            place.remove(place.list())
        named = {Path(each["path"]).name for each in self._pointer()["versions"].values()}
        remove_superseded(self.place / FOLDER, named)

    def copy(self, version: Version) -> Path:
        """See `VersionStore`: a copy whose checksums are right, kept for a week."""
        place = cast(Location, version.path)
        above = self.place.storage.scratch_dir / FOLDER / text_digest(place.url, 16)
        folder = above / version.name
        with Lock(above.parent / ".lock").hold("a download", wait_s=SHORT_S):
            if not folder.is_dir():
                partial = above / ".partial"
                shutil.rmtree(partial, ignore_errors=True)
                for name, digest in {**version.about.get("files", {}), ABOUT: ""}.items():
                    if ".." in name.split("/") or name.startswith("/"):
                        found = f"{place / ABOUT}: names {name}, outside of the version; {RESTORE}"
                        raise StoreError(found)
                    _fetch(place / name, partial / name, digest)
                partial.rename(folder)
            os.utime(above)
            for old in above.parent.iterdir():
                if time.time() - old.stat().st_mtime > GRACE.total_seconds() and old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
        return folder

    def _pointer(self) -> dict[str, Any]:
        if self._state is not None:
            return self._state
        try:
            return self._parsed((self.place / POINTER).read())
        except FileNotFoundError:
            return _EMPTY

    @contextmanager
    def _fixed(self) -> Iterator[None]:
        """Keep to one state of the pointer while the block runs."""
        try:
            self._load()
            yield
        finally:
            self._state = None

    def _load(self) -> None:
        text, self._tag = read_pointer(self.place / POINTER)
        self._state = _EMPTY if text is None else self._parsed(text)

    def _move(self, state: dict[str, Any]) -> None:
        path = state["versions"].get(state["current"], {}).get("path")
        head = {
            "format": POINTER_KIND,
            "version": POINTER_VERSION,
            "current": state["current"],
            "path": path,
        }
        value = {**head, **state, "path": path}
        move_pointer(self.place / POINTER, value, self._tag, required=True)
        with suppress(StorageUnreachableError):  # it has moved: what comes next sees an old state
            self._load()

    def _parsed(self, text: bytes) -> dict[str, Any]:
        where = self.place / POINTER
        try:
            state = dict(json.loads(text))
            kind = (state["format"], state["version"])
            known = {key: state[key] for key in (*_EMPTY, "moves")}
            for each in known["versions"].values():
                each["path"] + each["sha256"]  # texts, both
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found = f"{where}: damaged; restore it from a back-up"
            raise StoreError(found) from error
        if kind != (POINTER_KIND, POINTER_VERSION):
            found = (
                f"{where}: found format {kind[0]} version {kind[1]}; use the disagg that wrote it"
            )
            raise StoreError(found)
        return known


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _fetch(source: Location, target: Path, digest: str) -> None:
    try:
        source.download(target)
    except FileNotFoundError as error:
        found = f"{source}: missing; {RESTORE}"
        raise StoreError(found) from error
    if digest and file_digest(target) != digest and not source.name.endswith(EDITABLE):
        found = f"{source}: its content is not what was published (checksum); {RESTORE}"
        raise StoreError(found)
