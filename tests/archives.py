"""Archives of what earlier versions wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any


def unpack(path: Path, directory: Path) -> None:
    """Unpack one of the tests' own archives; Python 3.11.2, of Debian 12, knows no filters."""
    how: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(path) as archive:
        archive.extractall(directory, **how)
