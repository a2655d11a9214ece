"""Synchronise a local directory with a run whose ``output.dir`` is on an object store.

`Mirror.push` puts outputs under ``.versions/<id>/``, then ``manifest.json``, which lists the run's
objects: readers of the manifest see the old run or the complete new one. Then each map is copied to
its plain name (``rate_mean.tif``), for readers that open it directly. Checkpoints and finished
folds are put as soon as they are written, outside the manifest: each has its own fingerprint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.storage.files import file_digest
from pipeline.storage.location import LINK, Location, Storage, StorageError
from pipeline.storage.object_commit import GRACE, new_version, write_link
from pipeline.storage.pointer import MovedError, move_pointer, read_pointer

MANIFEST, VERSIONS = "manifest.json", ".versions"
FORMAT, VERSION = "disagg-output", 1
MARK = ".disagg-copy"  # in the local folder: the address of the run
#: Stages write these stores directly on the object store; the local folder has a link.
STORES = ("work/bags.zarr", "work/grid.zarr")
#: Folders whose files are uploaded as soon as they are written.
KEPT = ("work/checkpoint", "work/evaluate")
# What the manifest never has: published versions and the watch's state belong to this machine.
_APART = (*(f"{name}/" for name in (*STORES, *KEPT)), "published/", "work/seen.json")

_open: dict[Path, Mirror] = {}


class Mirror:
    """The local folder of a run on an object store.

    Parameters
    ----------
    local : Path
    place : Location
        The run's address.
    """

    def __init__(self, local: Path, place: Location) -> None:
        self.local, self.place = local, place
        self._manifest: dict[str, Any] = {"id": "", "files": {}, "dropped": []}
        self._tag = ""
        # Size and time of the local copy of each uploaded checkpoint.
        self._kept: dict[str, tuple[int, int]] = {}
        self._previous: dict[str, Any] = {}
        # Digest of each local file, with the size and time for which it is valid.
        self._digests: dict[str, tuple[tuple[int, int], str]] = {}

    def pull(self) -> None:
        """Download the files of the manifest and the checkpoints; remove other files.

        Raises
        ------
        StorageError
            If the store fails, or has damaged objects.
        """
        self._claim()
        for name in STORES:
            if not (self.local / name / LINK).is_file():
                shutil.rmtree(self.local / name, ignore_errors=True)
            write_link(self.local / name, self.place / name)
        self._manifest, self._tag = self._read_manifest()
        files = self._manifest["files"]
        for name, each in files.items():
            self._fetch(name, each)
        for name in self._names():
            if name not in files:  # from a stage whose push failed
                (self.local / name).unlink()
        self._kept = {}
        for folder in KEPT:
            for name, each in (self.place / folder).list().items():
                if not _inside(name):
                    found = f"{self.place / folder}: has an object {name}; remove it there"
                    raise StorageError(found)
                path = self.local / folder / name
                if not path.is_file() or path.stat().st_size != each.size:
                    (self.place / folder / name).download(path)
                self._kept[f"{folder}/{name}"] = _stamp(path)
        self._publish()

    def push(self) -> None:
        """Upload the folder, and make it the run that readers see, in one step.

        Raises
        ------
        StorageError
            If the store fails, or another run has written there since `pull`.
        """
        files, version = {}, new_version()
        old = self._manifest["files"]
        for name in self._names():
            digest = self._digest(name)
            if name in old and old[name]["sha256"] == digest:
                files[name] = old[name]
                continue
            files[name] = {
                "object": f"{VERSIONS}/{version}/{name}",
                "size": (self.place / VERSIONS / version / name).put(self.local / name),
                "sha256": digest,
            }
        if files != old:
            self._commit(files, version)
        self._publish()
        for folder in KEPT:
            self.keep(self.local / folder)
        self._sweep()

    def keep(self, folder: Path) -> None:
        """Upload new checkpoints of a folder, and remove deleted ones from the store."""
        head = folder.relative_to(self.local).as_posix()
        here = {
            path.relative_to(self.local).as_posix(): _stamp(path)
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        for name, stamp in here.items():
            if self._kept.get(name) != stamp:  # new or rewritten
                (self.place / name).put(self.local / name)
                self._kept[name] = stamp
        gone = [name for name in self._kept if name.startswith(f"{head}/") and name not in here]
        self.place.remove(gone)
        for name in gone:
            del self._kept[name]

    def _claim(self) -> None:
        """Raise StorageError if the folder is of another run: `pull` would remove its files."""
        self.local.mkdir(parents=True, exist_ok=True)
        mark = self.local / MARK
        known = mark.read_text(encoding="utf-8").strip() if mark.is_file() else ""
        if known != self.place.url:
            if known or self._names():
                what = "belongs to another run than" if known else "has files that are not of"
                found = (
                    f"{self.local}: {what} {self.place}; set another storage.scratch, and "
                    "output.dir to the address only"
                )
                raise StorageError(found)
            mark.write_text(f"{self.place.url}\n", encoding="utf-8")

    def _read_manifest(self) -> tuple[dict[str, Any], str]:
        where = self.place / MANIFEST
        text, tag = read_pointer(where)
        return (
            {"id": "", "files": {}, "dropped": []} if text is None else _parse(where, text)
        ), tag

    def _fetch(self, name: str, each: dict[str, Any]) -> None:
        path = self.local / name
        if path.is_file() and file_digest(path) == each["sha256"]:
            return
        source = self.place / each["object"]
        for _ in range(2):  # a second attempt mends damage in transit
            try:
                source.download(path)
            except FileNotFoundError as error:
                found = f"{source}: listed in the manifest, but missing; {_AGAIN}"
                raise StorageError(found) from error
            if file_digest(path) == each["sha256"]:
                return
        path.unlink()
        found = f"{source}: damaged (its SHA-256 differs from the manifest's); {_AGAIN}"
        raise StorageError(found)

    def _digest(self, name: str) -> str:
        path = self.local / name
        stamp = _stamp(path)
        if self._digests.get(name, ((0, 0), ""))[0] != stamp:
            self._digests[name] = (stamp, file_digest(path))
        return self._digests[name][1]

    def _names(self) -> list[str]:
        """List the local files that belong in the manifest."""
        paths = (path for path in self.local.rglob("*") if path.is_file())
        return sorted(filter(_listed, (path.relative_to(self.local).as_posix() for path in paths)))

    def _commit(self, files: dict[str, Any], version: str) -> None:
        old = self._manifest
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "id": version,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": files,
            "dropped": sorted({*old["files"], *old["dropped"]} - set(files)),
        }
        try:
            move_pointer(self.place / MANIFEST, manifest, self._tag)
        except MovedError as error:
            found = (
                f"{self.place}: another run has written here meanwhile; set another "
                "output.dir, or repeat the run to continue from there"
            )
            raise StorageError(found) from error
        self._previous = old["files"]
        self._manifest, self._tag = self._read_manifest()

    def _publish(self) -> None:
        """Copy the manifest's files to their plain names, unless this was done."""
        if not self._manifest["id"]:
            return
        mark = self.place / VERSIONS / "published.json"
        try:
            done = json.loads(mark.read())
        except (FileNotFoundError, ValueError):
            done = {}
        files = {k: v["object"] for k, v in self._manifest["files"].items() if "/" not in k}
        if done == files:
            return
        for name, key in files.items():
            if done.get(name) != key:
                (self.place / key).copy_to(self.place / name)
        self.place.remove(name for name in self._manifest["dropped"] if "/" not in name)
        mark.write(json.dumps(files, indent=1).encode())

    def _sweep(self) -> None:
        """Remove objects that have not been referenced for `GRACE`."""
        named = [*self._manifest["files"].values(), *self._previous.values()]
        used = {each["object"].partition("/")[2] for each in named}
        now = datetime.now(UTC)
        above = self.place / VERSIONS
        above.remove(
            name
            for name, each in above.list().items()
            if name not in used and "/" in name and each.written and now - each.written > GRACE
        )


@contextmanager
def mirrored(local: Path, url: str | None, storage: Storage) -> Iterator[Mirror | None]:
    """Synchronise a folder with an address during a run; without an address, do nothing."""
    if url is None:
        yield None
        return
    mirror = Mirror(local, Location(url, storage))
    mirror.pull()
    _open[local] = mirror
    try:
        yield mirror
    finally:
        del _open[local]


def keep(folder: Path) -> None:
    """Upload a folder of checkpoints if it is part of a mirrored run."""
    for local, mirror in list(_open.items()):
        if folder.is_relative_to(local):
            mirror.keep(folder)


def _parse(where: Location, text: bytes) -> dict[str, Any]:
    try:
        manifest = dict(json.loads(text))
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            found = f"{where}: not a manifest that this version can read; set another output.dir"
            raise StoreError(found)
        manifest["id"], manifest["dropped"]
        strange = [name for name in manifest["files"] if not _listed(name)]
        for each in manifest["files"].values():
            each["object"] + each["sha256"]  # texts, both
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        found = f"{where}: damaged; {_AGAIN}"
        raise StorageError(found) from error
    if strange:
        found = f"{where}: names {strange[0]}, which is no file of a run; {_AGAIN}"
        raise StorageError(found)
    return manifest


def _inside(name: str) -> bool:
    """Return whether a name leads to a visible file of the folder that it is relative to."""
    return not any(part.startswith(".") or not part for part in name.split("/"))


def _listed(name: str) -> bool:
    """Return whether a local file belongs in the manifest."""
    return _inside(name) and not name.startswith(_APART)


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


_AGAIN = "remove manifest.json there, and repeat the run"
