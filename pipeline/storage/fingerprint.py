"""Fingerprints of inputs: of the content of a file, not of its time.

A copy or a ``touch`` does not change a fingerprint; one byte of a Shapefile's table does.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

from geo.core.trust import current_trust
from geo.sources.gdal_paths import file_of
from geo.sources.icechunk_store import POINTERS, is_repository
from geo.sources.input_files import input_files, side_cars
from geo.sources.mosaic import is_pattern
from pipeline.storage.files import text_digest
from pipeline.storage.input_cache import is_cached, local_copy
from pipeline.storage.location import Location, Storage, is_remote
from pipeline.storage.object_commit import fingerprint_objects
from pipeline.storage.web_state import web_state
from pipeline.storage.windows import copied_state

#: A larger cube on a disk is known by names, sizes and times: to hash it is to read all of it.
STATE_BYTES = 4 << 30
_CUBES = (".nc", ".nc4", ".zarr")
_CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 16


def fingerprint_file(path: str | Path, storage: Storage | None = None) -> str:
    """Hash all that a reader of an input reads: the file, its side-car files, a VRT's sources.

    Parameters
    ----------
    path : path
        A file or a directory (a Zarr store), local or on an object store; an http(s) URL, of
        which :func:`web_state` is hashed; a file in an archive, of which the archive is hashed.
        Of a copy by windows (:mod:`pipeline.storage.windows`), the state of its address is. Of a
        NetCDF or Zarr of more than :data:`STATE_BYTES`, names, sizes and times of its files are.
    storage : Storage, optional
        Connection settings of object stores.

    Returns
    -------
    str
        32 hexadecimal digits (blake2b, 128 bits), or ``"absent"``. For an address whose state
        cannot be asked for, another one each time: nothing made of it is ever up to date.

    Raises
    ------
    StorageError
        If a server or store cannot be reached.
    """
    storage = storage or Storage()
    large = _state_of_large(Path(path)) if str(path).lower().endswith(_CUBES) else None
    if large is not None:
        return large
    if is_cached(str(path)):
        copy = local_copy(str(path), storage)
        return "absent" if copy is None else fingerprint_file(copy)
    name = str(path)
    if is_remote(name) or name.lower().endswith(".vrt") or is_pattern(name):
        return _hash_input(str(path), storage)
    path = Path(path)
    place = storage.place(path)
    if isinstance(place, Location):
        return fingerprint_objects(place)
    state = copied_state(path)
    if is_repository(path):  # commits are immutable: which are current tells all
        return text_digest("".join(_state_hash(path / name) for name in POINTERS))
    if path.is_dir() and state is None:
        return _hash_directory(path)
    if path.is_dir():  # chunks that are here, and need not be
        return text_digest(json.dumps(["state", state]))
    if not path.is_file():
        return "absent"
    digest, parts = _new(), [path, *map(Path, side_cars(str(path)))]
    if state is not None:  # not all bytes are here, and need not be
        digest.update(json.dumps(["state", state]).encode())
        parts = parts[1:]
    for part in parts:
        _feed(digest, part, part.name[len(path.stem) :])
    return digest.hexdigest()


def _hash_input(path: str, storage: Storage) -> str:
    """Hash an input that is more than a file and its side-car files."""
    found = input_files(path, current_trust())
    urls = [f"{url} {web_state(url, storage)}" for url in found.urls]
    if urls == [f"{path} absent"]:
        return "absent"
    if not found.files and not urls:
        file = file_of(path)
        # What cannot be asked whether it changed has changed.
        return "absent" if file is not None else uuid.uuid4().hex
    digest = _new()
    if found.files and found.files[0] != path:
        digest.update(
            json.dumps(path.replace(found.files[0], "")).encode()
        )  # the member of an archive, the part of a file
    folder = os.path.dirname(os.path.realpath(found.files[0])) if found.files else ""
    for name in found.files:
        part = Path(name)
        for each in sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]:
            _feed(digest, each, os.path.relpath(os.path.realpath(each), folder))
    digest.update(json.dumps([urls, found.refused]).encode())
    return digest.hexdigest()


def fingerprint_value(value: Any) -> str:
    """Hash a JSON-able value, independently of the order of its keys.

    Returns
    -------
    str
        32 hexadecimal digits (blake2b, 128 bits).
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text_digest(text)


def _new() -> Any:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _hash_directory(directory: Path) -> str:
    digest = _new()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        _feed(digest, path, path.relative_to(directory).as_posix())
    return digest.hexdigest()


def _state_hash(path: Path) -> str:
    """Return the hash of a file or directory; empty where there is none."""
    if path.is_dir():
        return _hash_directory(path)
    return text_digest(path.read_bytes().hex()) if path.is_file() else ""


def _state_of_large(path: Path) -> str | None:
    """Return the state of a large cube on a disk, None for another one."""
    if not path.exists() or copied_state(path) is not None:
        return None
    parts = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [each.stat() for each in parts]
    if sum(each.st_size for each in stats) <= STATE_BYTES:
        return None
    names = [each.relative_to(path.parent).as_posix() for each in parts]
    rows = [[n, s.st_size, s.st_mtime_ns] for n, s in zip(names, stats, strict=True)]
    return text_digest(json.dumps(["large", rows]))


def _feed(digest: Any, path: Path, name: str) -> None:
    # With name and length, moving bytes from one file to the next changes the hash.
    digest.update(json.dumps([name, path.stat().st_size]).encode())
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
