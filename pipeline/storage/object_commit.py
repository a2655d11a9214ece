"""Atomic commit of stores on an object store.

An object store has no rename. Each writer uses a new prefix,
``<store>/v-<time>-<host>-<pid>-<random>/``, and finally puts ``<store>/complete.json``, which names
this prefix. A single PUT is atomic, so readers see the old store or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
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
from pipeline.storage.location import LINK, Location, Place, Storage, StorageError
from pipeline.storage.object_info import ObjectInfo
from pipeline.storage.zarr_store import ObjectStore

MARKER = "complete.json"
#: Time for which unreferenced objects are kept, for running readers and slow writers.
GRACE = timedelta(days=7)
_DEAD_GRACE = timedelta(hours=1)
_VERSION = re.compile(r"v\d*-")


def place_of(path: str | os.PathLike[str] | Location) -> Place:
    """Resolve a path with the environment's defaults: see `Storage.place`."""
    return Storage().place(path)


def write_link(path: Path, place: Location) -> None:
    """Make a local directory a link to a store on an object store."""
    write_json(path / LINK, {"url": place.url})


def zarr_at(place: Place, *, read_only: bool = False) -> Any:
    """Return the argument with which zarr opens or creates a store."""
    return place if isinstance(place, Path) else ObjectStore(place, read_only=read_only)


def finished_data(path: str | os.PathLike[str] | Location) -> Place:
    """Return where the files of a complete store lie; StoreError if an object store has none."""
    place = place_of(path)
    return place / str(read_object_marker(place)["data"]) if isinstance(place, Location) else place


def open_finished(path: str | os.PathLike[str] | Location) -> zarr.Group:
    """Open the group of a complete store for reading; StoreError if an object store has none."""
    at = zarr_at(finished_data(path), read_only=True)
    return zarr.open_group(at, mode="r", zarr_format=3)


def new_version() -> str:
    """Return a unique name with time, host and process of the writer."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"v-{now}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def staged_objects(
    place: Location, kind: str, version: int, fingerprint: str, beside: tuple[str, ...] = ()
) -> Iterator[Location]:
    """Yield a new prefix; make it the store at ``place`` if the block succeeds.

    A failure before the PUT of the pointer keeps the old store. If the result of this PUT is
    unknown, the new objects are kept.
    """
    data, before = place / new_version(), ""
    try:
        yield data
        written = data.list()
        found = {n: each for n, each in written.items() if n.split("/", 1)[0] not in beside}
        metadata = {
            name: hashlib.sha256((data / name).read()).hexdigest()
            for name in found
            if name.rsplit("/", 1)[-1] == "zarr.json"
        }
    except BaseException:
        no_retry = replace(data, storage=replace(data.storage, retries=0))
        with contextlib.suppress(StorageError, FileNotFoundError):
            no_retry.remove(no_retry.list())
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
    """Read the pointer of a store and check the objects that it lists.

    Raises
    ------
    StoreError
        If there is no store, or if an object is missing or has another size or (metadata)
        another content.
    """
    marker, found = _marker_and_objects(place)
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
    """Fingerprint a store by the ETags of its objects; ``"absent"`` if it is incomplete.

    An ETag changes with the content, so no object is read.
    """
    try:
        marker, found = _marker_and_objects(place)
    except StorageError:
        raise
    except StoreError:
        return "absent"
    # What changes by itself is in the list, and not in the marker.
    sizes = {name: each.size for name, each in found.items() if name in marker["files"]}
    if sizes != marker["files"]:
        return "absent"
    text = json.dumps([marker, {name: each.tag for name, each in found.items()}], sort_keys=True)
    return text_digest(text)


def remove_superseded(place: Location, current: set[str]) -> None:
    """Remove unreferenced versions under a prefix: old ones, and those of dead writers.

    A version is a prefix ``v-...`` (:func:`new_version`) or ``v0008-...`` (of a map).
    """
    found = place.list()
    host = f"-{socket.gethostname()}-"
    gone = []
    for name, each in found.items():
        version = name.split("/", 1)[0]
        if not _VERSION.match(version) or version in current:
            continue
        pid = version.rpartition(host)[2].split("-")[0] if host in version else ""
        # A dead writer's pointer may still have been put: keep its objects for an hour.
        dead = pid.isdigit() and not is_running(int(pid))
        if _older(each, _DEAD_GRACE if dead else GRACE):
            gone.append(name)
    place.remove(gone)


def is_running(pid: int) -> bool:
    """Return whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _older(each: ObjectInfo, age: timedelta) -> bool:
    return each.written is not None and datetime.now(UTC) - each.written > age


def _marker_and_objects(place: Location) -> tuple[dict[str, Any], Mapping[str, ObjectInfo]]:
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
