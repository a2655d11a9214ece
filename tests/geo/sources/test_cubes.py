"""Cubes that xarray writes: Zarr stores, and the steps of a period as one value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geo.core.errors import InputError
from geo.grids.grid import Grid, Tile
from geo.sources.align import aligned
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import open_source, source_of
from tests.geo.sources.source_conformance import SourceConformance

RNG = np.random.default_rng(8)
#: What makes the weeks, months and years of a calendar differ, and what xarray calls them.
SPANS = {
    "2024-02": ("2024-02-01", "2024-02-29"),
    "2024-W09": ("2024-02-26", "2024-03-03"),
    "2024-Q1": ("2024-01-01", "2024-03-31"),
    "2024": ("2024-01-01", "2024-12-31"),
    "2024-02-25/2024-03-02": ("2024-02-25", "2024-03-02"),
}


def cube(freq="D", start="2024-01-01", n=366, name="rain", *, up=False, turn=0.0):
    """Return a cube over Sierra Leone; rows run to the north if ``up``."""
    lat = np.linspace(9.9, 7.1, 8)
    axes = {
        "time": pd.date_range(start, periods=n, freq=freq),
        "lat": ("lat", lat[::-1] if up else lat, {"units": "degrees_north"}),
        "lon": ("lon", -13.3 + turn + 0.4 * np.arange(9), {"units": "degrees_east"}),
    }
    values = np.random.default_rng(8).gamma(2.0, 3.0, (n, 8, 9)).round(2)
    values[:, 2, 3] = np.nan
    values[n // 8, 5, 5] = np.nan
    own = xr.DataArray(values, axes, ("time", "lat", "lon"), attrs={"units": "mm"})
    return own.to_dataset(name=name)


def write(data, path, **how):
    """Write a cube as NetCDF 3 or Zarr."""
    if path.suffix == ".nc":
        data.to_netcdf(path, engine="scipy", **how)
    else:
        data.to_zarr(path, consolidated=False, **how)
    return path


def said(path, **choice):
    """Return the problems of opening a cube."""
    problems = []
    assert open_source(path, "covariates.rain", problems, BandChoice(**choice)) is None
    return "; ".join(map(str, problems))


MONTHS = cube("MS", n=3, up=True)


class TestZarr(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path):
        source = source_of(write(MONTHS, tmp_path / "a.zarr"))
        about = source.describe()
        assert (about.unit, about.crs.to_epsg(), about.north_up) == ("mm", 4326, True)
        own = MONTHS.rain.sortby("lat", ascending=False)
        days = own.time.dt.strftime("%Y-%m-%d").values
        return source, dict(zip(days.tolist(), own.values, strict=True))


class TestPackedZarr(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path):
        packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -9999}
        own = MONTHS.isel(time=0, drop=True)
        path = write(own, tmp_path / "a.zarr", encoding={"rain": packing})
        with xr.open_zarr(path, consolidated=False, chunks=None) as data:  # of float32
            np.testing.assert_allclose(source_of(path).read(), data.rain.values[::-1], rtol=1e-5)
        return source_of(path), {"": source_of(path).read()}


class TestAggregated(SourceConformance):
    @pytest.fixture(params=[".nc", ".zarr"])
    def made(self, request, tmp_path):
        path = write(cube(n=31), tmp_path / f"a{request.param}")
        source = source_of(path, BandChoice(time="2024-01", aggregate="mean"))
        return source, {"": source.read()}


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
def test_a_period_is_what_xarray_makes_of_its_steps(tmp_path, suffix, how):
    data = cube(up=suffix == ".zarr")
    path = write(data, tmp_path / f"rain{suffix}")
    north_up = data.rain.sortby("lat", ascending=False)
    for period, (first, last) in SPANS.items():
        source = source_of(path, BandChoice(time=period, aggregate=how))
        steps = north_up.sel(time=slice(first, last))
        expected = getattr(steps, how)("time", skipna=how != "sum")
        np.testing.assert_allclose(source.read(), expected.values, rtol=1e-12)
        tile = Tile(3, 4, 4, 3)
        np.testing.assert_allclose(source.read(tile), expected.values[tile.slices], rtol=1e-12)
    # The same by a second way of xarray's own: all months at once.
    monthly = getattr(north_up.resample(time="MS"), how)("time", skipna=how != "sum")
    for month in range(12):
        choice = BandChoice(time=f"2024-{month + 1:02d}", aggregate=how)
        np.testing.assert_allclose(
            source_of(path, choice).read(), monthly.isel(time=month).values, rtol=1e-12
        )


@pytest.mark.parametrize("freq", ["MS", "6h", "8D", "10D", "ME", "YS"])
def test_steps_of_other_lengths(tmp_path, freq):
    n = {"6h": 366 * 4, "8D": 46, "10D": 37}.get(freq, 12)
    start = {"YS": "2020-01-01"}.get(freq, "2024-01-01")
    data = cube(freq, start=start, n=n)
    path = write(data, tmp_path / "rain.nc")
    period = "2024" if freq == "YS" else "2024-Q2"
    first, last = {"2024": ("2024-01-01", "2024-12-31")}.get(period, ("2024-04-01", "2024-06-30"))
    found = source_of(path, BandChoice(time=period, aggregate="mean")).read()
    np.testing.assert_allclose(found, data.rain.sel(time=slice(first, last)).mean("time").values)


def test_longitudes_from_0_to_360_are_the_same_place(tmp_path):
    grid = Grid.from_bounds("EPSG:4326", (-13.3, 7.0, -10.3, 9.9), 0.1)
    choice = BandChoice(time="2024-02", aggregate="sum")
    west, east = (
        source_of(write(cube(turn=turn), tmp_path / f"{turn:g}{suffix}"), choice)
        for turn, suffix in ((0.0, ".nc"), (360.0, ".zarr"))
    )
    found = aligned(east, grid)
    assert np.isfinite(found).mean() > 0.9
    np.testing.assert_allclose(found, aligned(west, grid), rtol=1e-6)


def test_scale_nodata_and_crs_may_be_declared(tmp_path):
    header = RasterHeader(nodata=(9.0,), crs="EPSG:32629", scale=2.0, offset=-1.0, unit="cm")
    data = xr.Dataset(
        {"a": (("y", "x"), np.arange(12.0).reshape(3, 4))},
        {"y": [3e3, 2e3, 1e3], "x": [1e3, 2e3, 3e3, 4e3]},
    )
    path = write(data, tmp_path / "a.zarr")
    assert "has no coordinate reference system" in said(path)
    source = source_of(path, header=header)
    expected = np.where(data.a.values == 9, np.nan, data.a.values * 2 - 1)
    np.testing.assert_array_equal(source.read(), expected)
    assert (source.crs.to_epsg(), source.grid.res) == (32629, (1000.0, 1000.0))


def test_a_grid_mapping_tells_the_crs(tmp_path):
    rio = pytest.importorskip("rioxarray")
    assert rio
    axes = {"y": [3e3, 2e3, 1e3], "x": [1e3, 2e3, 3e3, 4e3]}
    data = xr.DataArray(np.ones((3, 4)), axes, ("y", "x"), name="a").rio.write_crs("EPSG:32629")
    assert source_of(write(data.to_dataset(), tmp_path / "a.zarr")).crs.to_epsg() == 32629


def test_what_a_period_lacks_is_one_line(tmp_path):
    data = cube(n=70)
    path = write(data, tmp_path / "rain.nc")
    found = said(path, time="2025-01", aggregate="sum")
    assert found.count("\n") == 0
    assert "has no step in 2025-01-01 to 2025-01-31 (it has 2024-01-01 to 2024-03-10)" in found
    assert f"covariates.rain ({path})" in found
    assert "has 10 of 31 steps of 1 days in 2024-03-01" in said(
        path, time="2024-03", aggregate="sum"
    )
    assert said(path, time="2024-03-01/2024-04-01", aggregate="sum")
    for lost in (31, 45, 59):  # the first day of February, one within, the last
        holes = write(data.drop_isel(time=lost), tmp_path / f"{lost}.nc")
        assert "has 28 of 29 steps" in said(holes, time="2024-02", aggregate="sum")
        for whole in ("2024-01",):
            assert source_of(holes, BandChoice(time=whole, aggregate="sum")).read().any()
    months = write(cube("MS", n=12).drop_isel(time=4), tmp_path / "months.nc")
    assert "has 2 of 3 months in 2024-04-01" in said(months, time="2024-Q2", aggregate="mean")
    assert "has steps of a month, longer than" in said(months, time="2024-W05", aggregate="mean")
    assert "`time: soon` is no period" in said(months, time="soon", aggregate="mean")
    decades = write(cube("10D", n=20), tmp_path / "decades.nc")
    assert "has steps of 10 days, longer than" in said(decades, time="2024-W05", aggregate="max")
    twice = xr.concat([data, data.isel(time=[3])], "time")
    assert "has a time twice" in said(
        write(twice, tmp_path / "twice.zarr"), time="2024-01", aggregate="sum"
    )
    still = write(data.isel(time=0, drop=True), tmp_path / "still.nc")
    assert "has no time axis" in said(still, time="2024-01", aggregate="sum")


def test_a_variable_is_asked_for(tmp_path):
    two = cube(n=31).assign(heat=cube(n=31).rain)
    for suffix in (".nc", ".zarr"):
        path = write(two, tmp_path / f"two{suffix}")
        found = said(path, time="2024-01", aggregate="sum")
        assert "has 2 variables (rain, heat); choose one with the key `variable`" in found
        assert "has no variable 'rains'; did you mean 'rain'?" in said(path, variable="rains")
        choice = BandChoice(variable="heat", time="2024-01", aggregate="sum")
        assert source_of(path, choice).describe().bands[0].variable == "heat"


def test_times_of_another_calendar_are_refused(tmp_path):
    data = cube(n=31).drop_vars("time")
    days = ("time", np.arange(31.0), {"units": "days since 2024-01-01", "calendar": "360_day"})
    path = write(data.assign_coords(time=days), tmp_path / "rain.nc")
    assert "has times that are no dates" in said(path, time="2024-01", aggregate="sum")


def test_only_the_chunks_of_a_window_are_read(tmp_path):
    path = write(cube(n=31), tmp_path / "a.zarr", encoding={"rain": {"chunks": (1, 4, 9)}})
    for chunk in (path / "rain" / "c").rglob("*"):
        # All but the upper rows of three days.
        if chunk.is_file() and not (chunk.parts[-2] == "0" and chunk.parts[-3] in ("4", "5", "6")):
            chunk.write_bytes(b"damaged")
    source = source_of(path, BandChoice(time="2024-01-05/2024-01-07", aggregate="sum"))
    expected = cube(n=31).rain[4:7, :4].sum("time", skipna=False)
    np.testing.assert_allclose(source.read(Tile(0, 0, 4, 9)), expected.values)
    with pytest.raises(InputError, match="cannot be read at row 4"):
        source.read(Tile(4, 0, 2, 9))


@pytest.mark.parametrize("name", ["uneven", "falling", "deep", "bare", "none"])
def test_a_store_that_is_no_grid_is_refused(tmp_path, name):
    data = cube("MS", n=2).isel(time=0, drop=True)
    made = {
        "uneven": lambda: data.assign_coords(lat=data.lat**2),
        "falling": lambda: data.isel(lon=slice(None, None, -1)),
        "deep": lambda: data.expand_dims(level=2),
        "bare": lambda: data.drop_vars(["lat", "lon"]),
        "none": lambda: data.drop_vars("rain"),
    }[name]()
    words = {
        "uneven": "has uneven steps of lat",
        "falling": "has falling lon",
        "deep": "has 2 steps of 'level'",
        "bare": "has no coordinates",
        "none": "has no variable",
    }
    assert words[name] in said(write(made, tmp_path / "a.zarr"))


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    assert "is not a Zarr store that xarray can read" in said(tmp_path / "a.zarr")
    assert "no such file" in said(tmp_path / "b.zarr")
