"""Each source keeps the contract; ambiguity of what differs in more than times is an error."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio.shutil
import xarray as xr
from affine import Affine

from geo.core.errors import InputError
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import SOURCES, source_of
from tests.array_source import ArraySource, write_arrays
from tests.geo.sources.source_conformance import SourceConformance

VALUES = np.arange(20.0).reshape(4, 5)
HOLE = np.where(VALUES == 7, np.nan, VALUES)
MONTHS = {"2023-01-15": HOLE, "2023-02-15": HOLE + 100}


class TestGeoTiff(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        return source_of(write_tif("a.tif", np.nan_to_num(HOLE, nan=-9.0), nodata=-9)), {"": HOLE}


class TestPackedInTiles(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        stored = np.nan_to_num(HOLE, nan=99).astype(np.int16)
        tiles = {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate"}
        path = write_tif("a.tif", stored, nodata=99, scale=0.5, offset=-1, **tiles)
        return source_of(path), {"": HOLE * 0.5 - 1}


class TestDeclared(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        header = RasterHeader(nodata=(3.0, 7.0), crs="EPSG:32738", scale=2.0, offset=1.0, unit="m")
        source = source_of(write_tif("a.tif", VALUES, crs=None), header=header)
        about = source.describe()
        assert (about.unit, about.crs.to_epsg(), about.nodata) == ("m", 32738, (3.0, 7.0))
        return source, {"": np.where(np.isin(VALUES, (3, 7)), np.nan, VALUES * 2 + 1)}


class TestRotated(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        turned = Affine.rotation(20) @ Affine(1, 0, 40, 0, -1, -17)
        source = source_of(write_tif("r.tif", HOLE, transform=turned))
        assert (source.describe().grid, source.north_up) == (None, False)
        return source, {"": HOLE}


class TestVrt(SourceConformance):
    @pytest.fixture
    def made(self, write_tif, tmp_path):
        path = write_tif("a.tif", np.nan_to_num(HOLE, nan=-9.0), nodata=-9)
        rasterio.shutil.copy(path, tmp_path / "a.vrt", driver="VRT")
        return source_of(tmp_path / "a.vrt"), {"": HOLE}


class TestMonthsOfNetCdf(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path):
        return source_of(netcdf(tmp_path / "m.nc", "t2m")), MONTHS


class TestArraysFromOutside(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path, monkeypatch):
        monkeypatch.setitem(SOURCES.by_suffix, ".npz", ArraySource)
        months = {k: np.nan_to_num(v, nan=-1.0) for k, v in MONTHS.items()}
        at = Affine(1, 0, 40, 0, -1, -17)
        return source_of(write_arrays(tmp_path / "m.npz", "EPSG:4326", at, **months)), MONTHS


def netcdf(path, *names):
    axes = {
        "time": np.array(list(MONTHS), "datetime64[ns]"),
        "lat": ("lat", -17.5 - np.arange(4.0), {"units": "degrees_north"}),
        "lon": ("lon", 40.5 + np.arange(5.0), {"units": "degrees_east"}),
    }
    values = np.stack(list(MONTHS.values()))
    each = {name: (("time", "lat", "lon"), values) for name in names}
    xr.Dataset(each, axes).to_netcdf(path, engine="scipy")
    return path


def test_a_variable_is_never_guessed_and_its_times_are_kept(tmp_path):
    path = netcdf(tmp_path / "two.nc", "t2m", "tp")
    with pytest.raises(InputError, match=r"has 2 variables \(t2m, tp\); choose one with the key"):
        source_of(path)
    about = source_of(path, BandChoice(variable="tp")).describe()
    assert about.times == tuple(MONTHS)
    one = source_of(path, BandChoice(variable="tp", time="2023-02"))
    assert one.describe().times == ("2023-02-15",)
    np.testing.assert_array_equal(one.read(), MONTHS["2023-02-15"])
