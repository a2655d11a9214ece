"""Temporary directories that are removed also where a process had to be killed.

A process that waits in a call into C can only be killed, and then unwinds nothing. So it notes its
temporary directories in a file that another process reads (:func:`note_in`), and that one removes
what is left (:func:`remove_noted`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOTES: list[int] = []


@contextmanager
def temporary_directory(prefix: str, inside: Path | None = None) -> Iterator[Path]:
    """Make a directory that exists while the block runs.

    Parameters
    ----------
    prefix : str
        Of its name.
    inside : Path, optional
        Directory to make it in; that of temporary files by default.

    Yields
    ------
    Path
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=inside) as name:
        directory = Path(name)
        for descriptor in _NOTES:
            os.write(descriptor, os.fsencode(directory.resolve()) + b"\0")
        yield directory


def note_in(descriptor: int) -> None:
    """Note all temporary directories of this process in an open file."""
    _NOTES.append(descriptor)


def remove_noted(descriptor: int) -> None:
    """Remove those of the noted directories that are left."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        noted = file.read().split(b"\0")
    for name in filter(None, noted):
        shutil.rmtree(os.fsdecode(name), ignore_errors=True)
