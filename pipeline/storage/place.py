"""Read a file or an object alike."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.storage.files import file_digest
from pipeline.storage.location import PART_BYTES, Place


def read_place(place: Place) -> bytes:
    """Return the bytes of a file or an object; raise FileNotFoundError if there is none."""
    return place.read_bytes() if isinstance(place, Path) else place.read()


def place_digest(place: Place) -> str:
    """Return the SHA-256 of a file or an object, as 64 hexadecimal digits.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if isinstance(place, Path):
        return file_digest(place)
    found = place.info()
    if found is None:
        raise FileNotFoundError(place.url)
    digest = hashlib.sha256()
    for start in range(0, found.size, PART_BYTES):
        digest.update(place.read(start, min(start + PART_BYTES, found.size)))
    return digest.hexdigest()
