"""Icechunk repositories, as icechunk writes them."""

from __future__ import annotations

import shutil
import sys

import pytest

from geo.core.errors import InputError
from geo.sources.raster_header import BandChoice
from geo.sources.registry import source_of
from pipeline.storage.fingerprint import fingerprint_file
from tests.geo.sources.source_conformance import SourceConformance
from tests.geo.sources.test_cubes import MONTHS, cube

icechunk = pytest.importorskip("icechunk")


def commit(data, path, message):
    """Write a cube to the branch ``main``, as a commit."""
    icechunk.set_logs_filter("error")
    place = icechunk.local_filesystem_storage(str(path))
    session = icechunk.Repository.open_or_create(place).writable_session("main")
    data.to_zarr(session.store, consolidated=False, mode="w")
    session.commit(message)
    return path


class TestIcechunk(SourceConformance):
    @pytest.fixture(params=["rain.icechunk", "rain.zarr"])
    def made(self, request, tmp_path):
        source = source_of(commit(MONTHS, tmp_path / request.param, "months"))
        own = MONTHS.rain.sortby("lat", ascending=False)
        days = own.time.dt.strftime("%Y-%m-%d").values
        return source, dict(zip(days.tolist(), own.values, strict=True))


def test_the_last_commit_is_read_and_its_fingerprint_tells(tmp_path):
    path = commit(cube(n=31), tmp_path / "a.icechunk", "first")
    choice = BandChoice(time="2024-01", aggregate="mean")
    before, mark = source_of(path, choice).read(), fingerprint_file(path)
    assert fingerprint_file(path) == mark
    commit(cube(n=31) + 1.0, path, "corrected")
    assert source_of(path, choice).read() == pytest.approx(before + 1.0, nan_ok=True)
    assert fingerprint_file(path) != mark


def test_without_icechunk_a_line_says_what_to_install(tmp_path, monkeypatch):
    path = commit(cube(n=3), tmp_path / "a.icechunk", "first")
    monkeypatch.setitem(sys.modules, "icechunk", None)
    with pytest.raises(InputError, match="pip install icechunk"):
        source_of(path)


def test_a_repository_without_the_branch_is_a_line(tmp_path):
    path = commit(cube(n=3), tmp_path / "a.icechunk", "first")
    shutil.rmtree(path / "refs" / "branch.main")
    with pytest.raises(InputError, match="cannot be opened"):
        source_of(path)
