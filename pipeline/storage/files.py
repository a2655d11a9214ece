"""Atomic writing of files, digests, and fsync."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_write(path: Path, *, unique: bool = False) -> Iterator[BinaryIO]:
    """Yield a temporary file; flush it to disk and rename it if the block succeeds.

    Parameters
    ----------
    path : Path
        Final path; an existing file is replaced. Its directory is created.
    unique : bool
        Allow several processes to write it at the same time.

    Yields
    ------
    binary file
        A hidden file beside ``path``; removed if the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = f".{os.getpid()}" if unique else ""
    partial = path.with_name(f".{path.name}{suffix}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        fsync(path.parent)  # the rename itself
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def make_private(path: Path) -> None:
    """Make a directory that other users may not look into; one that exists stays as it is.

    Members of its group may where the umask lets them write: they share the map.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(0o770)
        if not path.stat().st_mode & 0o020:
            path.chmod(0o700)


def write_text(path: Path, text: str, *, unique: bool = False) -> None:
    """Write a text file (UTF-8) atomically."""
    with atomic_write(path, unique=unique) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any, *, unique: bool = False) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", unique=unique)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str, n_digit: int = 32) -> str:
    """Return a short digest of a text (blake2b), as hexadecimal digits, for keys and names."""
    return hashlib.blake2b(text.encode(), digest_size=n_digit // 2).hexdigest()
