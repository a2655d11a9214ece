"""Raster files that stay open: opened once, closed at the end, and read as ``rasterio`` does."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from affine import Affine

from geo.writers import raster_files
from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from tests.bands import write


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(1)
    found = [tmp_path / f"{name}.tif" for name in "abc"]
    for n, path in enumerate(found):
        values = rng.gamma(2.0, 10.0 * (n + 1), size=(20, 30)).astype(np.float32)
        where = {"crs": "EPSG:32738", "transform": Affine(10.0, 0, 500.0, 0, -10.0, 9000.0)}
        write(path, values, **where)
    return found


@pytest.fixture
def opened(monkeypatch):
    """Datasets by the order in which they are opened."""
    found, given = [], rasterio.open

    def keep(path, *more, **how):
        found.append(given(path, *more, **how))
        return found[-1]

    monkeypatch.setattr(raster_files.rasterio, "open", keep)
    return found


def test_a_file_is_opened_once_for_all_looks_and_closed_at_the_end(paths, opened):
    with RasterFiles() as files:
        for _ in range(2):
            grid = files.grid(paths[0])
            with files.open(paths[0]) as source:
                values = source.read(1)
            scale = files.scale(paths, ramp="spread")
        assert [each.name for each in opened] == [str(path) for path in paths]
        assert not any(each.closed for each in opened)
    assert all(each.closed for each in opened)
    assert scale == Scale.of_rasters(paths, ramp="spread")
    assert scale != Scale.of_rasters(paths, ramp="spread", low=1.0)
    with rasterio.open(paths[0]) as source:
        assert (values == source.read(1)).all()
        assert grid.shape == source.shape
        assert grid.bounds == tuple(source.bounds)
        assert grid.crs == source.crs


def test_scales_of_other_ends_and_ramps_are_others(paths):
    with RasterFiles() as files:
        wanted = [{}, {"low": 5.0}, {"high": 500.0}, {"ramp": "spread"}]
        found = [files.scale(paths[:1], **how) for how in wanted]
        assert found == [Scale.of_rasters(paths[:1], **how) for how in wanted]
        assert len(set(found)) == len(wanted)
        assert files.scale(paths[2:]) == Scale.of_rasters(paths[2:])


def test_of_too_many_files_the_one_that_waits_longest_is_closed(paths, opened):
    with RasterFiles(n_open=2) as files:
        for path in (paths[0], paths[1], paths[0], paths[2]):
            with files.open(path) as source:
                assert source.read(1).shape == (20, 30)
        assert [each.closed for each in opened] == [False, True, False]
        with files.open(paths[1]) as source:
            assert source.read(1).any()
        assert [each.closed for each in opened] == [True, True, False, False]


def test_files_are_closed_after_an_error(paths, opened):
    with pytest.raises(rasterio.RasterioIOError), RasterFiles() as files:
        files.scale([paths[0], paths[1].with_name("none.tif")])
    assert opened[0].closed
