"""Fingerprints of inputs: of the content of a file, not of its time.

A copy or a ``touch`` does not change a fingerprint; one byte of a Shapefile's table does.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.storage.files import text_digest
from pipeline.storage.input_cache import SIDECARS, local_copy
from pipeline.storage.location import Location, Storage, is_object_address, is_remote
from pipeline.storage.object_commit import fingerprint_objects

_CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 16

_BESIDE_NAME = ("-wal", ".msk")  # an SQLite file's last writes; a raster's mask


def fingerprint_file(path: str | Path, storage: Storage | None = None) -> str:
    """Hash the content of a file and of its sidecar files.

    Parameters
    ----------
    path : path
        A file or a directory (a Zarr store), local or on an object store. For other URLs and
        GDAL's virtual paths, only the address is hashed.
    storage : Storage, optional
        Connection settings of object stores.

    Returns
    -------
    str
        32 hexadecimal digits (blake2b, 128 bits), or ``"absent"``.
    """
    storage = storage or Storage()
    if is_object_address(path):
        copy = local_copy(str(path), storage)
        return "absent" if copy is None else fingerprint_file(copy)
    if is_remote(str(path)):
        return text_digest(str(path))
    path = Path(path)
    place = storage.place(path)
    if isinstance(place, Location):
        return fingerprint_objects(place)
    if path.is_dir():
        return _hash_directory(path)
    if not path.is_file():
        return "absent"
    digest = _new()
    for part in [path, *_sidecars(path)]:
        _feed(digest, part, part.name[len(path.stem) :])
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


def _sidecars(path: Path) -> list[Path]:
    by_stem = [path.with_suffix(suffix) for suffix in SIDECARS.get(path.suffix.lower(), ())]
    by_name = [path.with_name(path.name + suffix) for suffix in _BESIDE_NAME]
    return [p for p in by_stem + by_name if p.is_file()]


def _hash_directory(directory: Path) -> str:
    digest = _new()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        _feed(digest, path, path.relative_to(directory).as_posix())
    return digest.hexdigest()


def _feed(digest: Any, path: Path, name: str) -> None:
    # With name and length, moving bytes from one file to the next changes the hash.
    digest.update(json.dumps([name, path.stat().st_size]).encode())
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
