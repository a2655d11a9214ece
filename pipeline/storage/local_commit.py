"""Atomic commit of local directories: stage under a hidden name, rename at the end.

A store is written to ``.<name>.partial-<host>-<pid>-<random>`` beside its final path. After the
last byte is on disk, the marker ``complete.json`` is written, then the directory is renamed. A
writer that dies earlier leaves a hidden directory without a marker: no reader opens it, and the
next writer removes it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.core.signals import deferred_signals
from pipeline.storage.files import file_digest, fsync, write_text
from pipeline.storage.location import Location, Place, StorageError
from pipeline.storage.object_commit import (
    MARKER,
    is_running,
    place_of,
    read_object_marker,
    staged_objects,
)


@dataclass(frozen=True)
class Marker:
    """Marker of a complete store.

    Attributes
    ----------
    format : str
        Name of the format, ``"disagg-bags"`` say.
    version : int
        Version of the format.
    fingerprint : str
        Fingerprint of all inputs of the store.
    files : dict of str to int
        Size in bytes of each file, by path relative to the store.
    metadata : dict of str to str
        SHA-256 of each ``zarr.json``, and of ``version.json``, by path relative to the store.
    data : str
        On an object store, the prefix of these files in the store.
    """

    format: str
    version: int
    fingerprint: str
    files: dict[str, int]
    metadata: dict[str, str]
    data: str = ""


@contextlib.contextmanager
def staged(
    path: str | os.PathLike[str] | Location,
    kind: str,
    version: int,
    fingerprint: str,
    beside: tuple[str, ...] = (),
) -> Iterator[Place]:
    """Yield a hidden directory; commit it to ``path`` if the block succeeds.

    On an object store it is a prefix: see :mod:`object_commit`.

    Parameters
    ----------
    path : path-like
        Final path; the commit replaces an existing store.
    kind, version, fingerprint : str, int, str
        Content of the marker.
    beside : tuple of str
        Files and folders of the store that change by themselves later: not in the marker.

    Yields
    ------
    Path or Location
        An empty directory on the same file system as ``path``, or an empty prefix.
    """
    final = place_of(path)
    if isinstance(final, Location):
        with staged_objects(final, kind, version, fingerprint, beside) as data:
            yield data
        return
    made = [parent for parent in final.parents if not parent.exists()]
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(final)
    partial = final.with_name(f"{_stem(final)}{os.getpid()}-{uuid.uuid4().hex[:8]}")
    partial.mkdir()
    try:
        yield partial
        _write_marker(partial, kind, version, fingerprint, beside)
        _replace(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:  # the deepest first; non-empty ones stay
            with contextlib.suppress(OSError):
                parent.rmdir()


def read_marker(
    path: str | os.PathLike[str] | Location,
    kind: str,
    version: int | tuple[int, ...],
    *,
    free: str | tuple[str, ...] = "\0",
    remedy: str = "delete the store and ingest again",
) -> Marker:
    """Read the marker of a complete store and check the store against it.

    ``version`` is the one expected, or all that the caller reads. Users may edit files whose names
    end with ``free``. ``remedy`` is what they do about damage.

    Raises
    ------
    StoreError
        If the store is absent, incomplete or of another format or version, or if a file is
        missing or has another size or (metadata) another content.
    """
    store = place_of(path)
    if isinstance(store, Location):
        marker = Marker(**read_object_marker(store))
        _check_version(store, marker, kind, version)
        return marker
    if not store.is_dir():
        found = f"{store}: no store here; run the ingest stage first"
        raise StoreError(found)
    try:
        text = (store / MARKER).read_bytes()
    except FileNotFoundError as error:
        found = f"{store}: the store was never finished (no {MARKER}); {remedy}"
        raise StoreError(found) from error
    marker = checked_marker(store, text, _size_in(store), kind, version, free=free, remedy=remedy)
    for name, digest in marker.metadata.items():
        if file_digest(store / name) != digest:
            found = f"{store}: {name} is damaged; {remedy}"
            raise StoreError(found)
    return marker


def _size_in(store: Path) -> Callable[[str], int | None]:
    def size_of(name: str) -> int | None:
        try:
            return (store / name).stat().st_size
        except FileNotFoundError:
            return None

    return size_of


def checked_marker(
    store: Place,
    text: bytes,
    size_of: Callable[[str], int | None],
    kind: str,
    version: int | tuple[int, ...],
    *,
    free: str | tuple[str, ...],
    remedy: str,
) -> Marker:
    """Parse a marker, and check it against the sizes of the files; see `read_marker`.

    ``size_of`` gives the size in bytes of a file; None if there is none.
    """
    try:
        marker = Marker(**json.loads(text))
    except (ValueError, TypeError) as error:
        found = f"{store}: {MARKER} is damaged; {remedy}"
        raise StoreError(found) from error
    _check_version(store, marker, kind, version)
    for name, size in marker.files.items():
        now = size_of(name)
        if now != size and (now is None or not name.endswith(free)):
            state = "is missing" if now is None else f"has {now} bytes instead of {size}"
            found = f"{store}: {name} {state}; {remedy}"
            raise StoreError(found)
    return marker


def _check_version(store: Place, marker: Marker, kind: str, version: int | tuple[int, ...]) -> None:
    versions = version if isinstance(version, tuple) else (version,)
    if marker.format != kind or marker.version not in versions:
        newer = marker.format == kind and marker.version > versions[-1]
        remedy = "use the disagg that wrote it" if newer else "see `disagg migrate CONFIG`"
        found = (
            f"{store}: found format {marker.format} version {marker.version}, expected {kind} "
            f"version {versions[-1]}; {remedy}"
        )
        raise StoreError(found)


def is_current(
    path: str | os.PathLike[str] | Location, kind: str, version: int, fingerprint: str
) -> bool:
    """Return whether ``path`` has a complete, undamaged store of this fingerprint."""
    try:
        return read_marker(path, kind, version).fingerprint == fingerprint
    except StorageError:
        raise  # an unreachable store may exist
    except StoreError:
        return False


def remove_abandoned(path: str | os.PathLike[str]) -> int:
    """Remove partial directories of dead writers of ``path``; return their number.

    Only writers on this host can be known to be dead; those of other hosts are kept.
    """
    final = Path(path)
    stem = _stem(final)
    removed = 0
    for left in final.parent.glob(f"{glob.escape(stem)}*"):
        pid = left.name[len(stem) :].split("-")[0]
        if pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
            removed += 1
    return removed


def _stem(final: Path) -> str:
    return f".{final.name}.partial-{socket.gethostname()}-"


def _write_marker(
    store: Path, kind: str, version: int, fingerprint: str, beside: tuple[str, ...]
) -> None:
    files: dict[str, int] = {}
    metadata: dict[str, str] = {}
    for file in sorted(p for p in store.rglob("*") if p.is_file()):
        name = file.relative_to(store).as_posix()
        fsync(file)
        if name.split("/", 1)[0] in beside:
            continue
        files[name] = file.stat().st_size
        if file.name in ("zarr.json", "version.json"):  # what the rest is read by
            metadata[name] = file_digest(file)
    marker: dict[str, Any] = {
        "format": kind,
        "version": version,
        "fingerprint": fingerprint,
        "files": files,
        "metadata": metadata,
    }
    write_text(store / MARKER, json.dumps(marker, indent=1))


def _replace(partial: Path, final: Path) -> None:
    # A directory cannot be renamed over a non-empty one. The old store gets a name of the same
    # pattern first, so that `remove_abandoned` finds it after a crash between the two renames.
    aside = partial.with_name(f"{partial.name}-old")
    with deferred_signals():
        if final.exists():
            final.rename(aside)
        partial.rename(final)
    fsync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)
