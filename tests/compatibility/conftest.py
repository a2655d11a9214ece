"""What 0.1.0 wrote, unpacked once; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.archives import unpack

ARCHIVE = Path(__file__).parent / "written_by_0.1.0.tar.xz"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what was written before, for tests that only read it."""
    directory = tmp_path_factory.mktemp("written")
    unpack(ARCHIVE, directory)
    return directory / "earlier"


@pytest.fixture
def earlier(unpacked: Path, tmp_path: Path) -> Path:
    """Copy it."""
    return shutil.copytree(unpacked, tmp_path / "earlier", symlinks=True)
