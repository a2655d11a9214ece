"""Stores that are complete or invisible on an object store, and where a path leads.

A directory cannot be renamed there. A store is written under a prefix of its own,
``<store>/v-<time>-<host>-<pid>-<random>/``, and one object put last, ``<store>/complete.json``,
says which prefix is the store: a single PUT is atomic, and readers see the old store or the new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import zarr

from pipeline.core.errors import StoreError
from pipeline.storage.files import text_digest, write_json
from pipeline.storage.location import LINK, Location, ObjectInfo, Place, Storage, StorageError
from pipeline.storage.zarr_store import ObjectStore

MARKER = "complete.json"
#: What nobody refers to any more stays this long: for readers that began before, and slow writers.
GRACE = timedelta(days=7)


def place_of(path: str | os.PathLike[str] | Location) -> Place:
    """Say where something lies, with the environment's defaults: see `Storage.place`."""
    return Storage().place(path)


def write_link(path: Path, place: Location) -> None:
    """Let a local directory stand for a store elsewhere, as a symbolic link would."""
    write_json(path / LINK, {"url": place.url})


def zarr_at(place: Place, *, read_only: bool = False) -> Any:
    """Return what zarr opens or creates at a place."""
    return place if isinstance(place, Path) else ObjectStore(place, read_only=read_only)


def open_finished(path: str | os.PathLike[str] | Location) -> zarr.Group:
    """Open the group of a finished store for reading, wherever it lies.

    Raises
    ------
    StoreError
        If there is none, on an object store.
    """
    place = place_of(path)
    if isinstance(place, Location):
        place = place / str(read_object_marker(place)["data"])
    return zarr.open_group(zarr_at(place, read_only=True), mode="r", zarr_format=3)


def new_version() -> str:
    """Return a name that no other writer has, and that says whose it is."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"v-{now}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def staged_objects(
    place: Location, kind: str, version: int, fingerprint: str
) -> Iterator[Location]:
    """Give a prefix to write under; make it the store at ``place`` when the block ends well.

    What fails before the pointer is put leaves the old store standing; where it is not known
    whether the pointer was put, the new objects stay.
    """
    data, before = place / new_version(), ""
    try:
        yield data
        found = data.list()
        metadata = {
            name: hashlib.sha256((data / name).read()).hexdigest()
            for name in found
            if name.rsplit("/", 1)[-1] == "zarr.json"
        }
    except BaseException:
        hurried = replace(data, storage=replace(data.storage, retries=0))
        with contextlib.suppress(StorageError, FileNotFoundError):
            hurried.remove(hurried.list())
        raise
    marker = {
        "format": kind,
        "version": version,
        "fingerprint": fingerprint,
        "files": {name: each.size for name, each in found.items()},
        "metadata": metadata,
        "data": data.name,
    }
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        before = str(json.loads((place / MARKER).read())["data"])
    (place / MARKER).write(json.dumps(marker, indent=1).encode())
    remove_superseded(place, {data.name, before})


def read_object_marker(place: Location) -> dict[str, Any]:
    """Read the pointer of a store and check that all that it lists is there.

    Raises
    ------
    StoreError
        If there is no store, or an object has gone, has another size or (metadata) another
        content.
    """
    marker, found = _look(place)
    for name, size in marker["files"].items():
        if name not in found or found[name].size != size:
            state = f"has {found[name].size} bytes, not {size}" if name in found else "is missing"
            raise StoreError(_damaged(place, name, state))
    data = place / str(marker["data"])
    for name, digest in marker["metadata"].items():
        if hashlib.sha256((data / name).read()).hexdigest() != digest:
            raise StoreError(_damaged(place, name, "is damaged"))
    return marker


def fingerprint_objects(place: Location) -> str:
    """Fingerprint a store by the tags of its objects; ``"absent"`` where it is not complete.

    A tag changes with the content, so that an object written over is found without reading it.
    """
    try:
        marker, found = _look(place)
    except StorageError:
        raise
    except StoreError:
        return "absent"
    if {name: each.size for name, each in found.items()} != marker["files"]:
        return "absent"
    text = json.dumps([marker, {name: each.tag for name, each in found.items()}], sort_keys=True)
    return text_digest(text)


def remove_superseded(place: Location, current: set[str]) -> None:
    """Remove versions under a prefix that no pointer names: old ones, and those of the dead."""
    found = place.list()
    own = f"-{socket.gethostname()}-"
    gone = []
    for name, each in found.items():
        version = name.split("/", 1)[0]
        if not version.startswith("v-") or version in current:
            continue
        pid = version.rpartition(own)[2].split("-")[0] if own in version else ""
        # A dead writer's pointer may have been put all the same: only old objects go for sure.
        if _older(each, GRACE) or (pid.isdigit() and not runs(int(pid)) and _older(each, _BRIEF)):
            gone.append(name)
    place.remove(gone)


_BRIEF = timedelta(hours=1)


def runs(pid: int) -> bool:
    """Tell whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _older(each: ObjectInfo, age: timedelta) -> bool:
    return each.written is not None and datetime.now(UTC) - each.written > age


def _look(place: Location) -> tuple[dict[str, Any], Mapping[str, ObjectInfo]]:
    try:
        text = (place / MARKER).read()
    except FileNotFoundError as error:
        found = f"{place}: no finished store here (no {MARKER}); run the ingest stage first"
        raise StoreError(found) from error
    try:
        marker = dict(json.loads(text))
        data = place / str(marker["data"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(_damaged(place, MARKER, "is damaged")) from error
    return marker, data.list()


def _damaged(place: Location, name: str, state: str) -> str:
    return f"{place}: {name} {state}; delete the store and ingest again"
