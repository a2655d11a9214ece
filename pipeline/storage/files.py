"""Files that are whole or absent, what they hold in a few digits, and when they are on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def whole_file(path: Path, *, unique: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write into; it takes its name, on disk, when the block ends well.

    Parameters
    ----------
    path : Path
        What stands there is replaced, at the very end. Its directory is made.
    unique : bool
        Several processes may write it at the same time.

    Yields
    ------
    binary file
        Hidden beside ``path``; gone where the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = f".{os.getpid()}" if unique else ""
    partial = path.with_name(f".{path.name}{own}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)  # the renaming itself
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, unique: bool = False) -> None:
    """Write a text file (UTF-8) that is whole or absent."""
    with whole_file(path, unique=unique) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any, *, unique: bool = False) -> None:
    """Write a JSON file that is whole or absent."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", unique=unique)


def sync(path: Path) -> None:
    """Return when a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of what a file holds, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str, n_digit: int = 32) -> str:
    """Return a short digest of a text (blake2b), as hexadecimal digits, for keys and names."""
    return hashlib.blake2b(text.encode(), digest_size=n_digit // 2).hexdigest()
