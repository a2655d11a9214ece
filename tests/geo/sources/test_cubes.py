"""Cubes that xarray writes: Zarr stores, and the steps of a period as one value."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from pyproj import CRS
from rasterio.shutil import copy

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
        either = "has 2 variables (rain, heat)" in found or "has 2 variables (heat, rain)" in found
        assert either
        assert "; choose one with the key `variable`" in found
        assert "has no variable 'rains'; did you mean 'rain'?" in said(path, variable="rains")
        choice = BandChoice(variable="heat", time="2024-01", aggregate="sum")
        assert source_of(path, choice).describe().bands[0].variable == "heat"


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap"])
def test_the_periods_of_other_calendars_are_xarrays(tmp_path, suffix, calendar):
    days = xr.date_range("2024-01-01", periods=400, calendar=calendar, use_cftime=True)
    data = cube(n=400).assign_coords(time=days)
    data["lat"].attrs = {"units": "degrees_north"}
    path = write(data, tmp_path / f"rain{suffix}")
    monthly = data.rain.resample(time="MS").sum(skipna=False)
    for month in range(12):
        choice = BandChoice(time=f"2024-{month + 1:02d}", aggregate="sum")
        found = source_of(path, choice).read()
        np.testing.assert_allclose(found, monthly.isel(time=month).values, rtol=1e-12)
    leap = BandChoice(time="2024-02-29", aggregate="sum")
    if calendar == "noleap":
        assert "has no step in 2024-02-29" in said(path, time="2024-02-29", aggregate="sum")
    else:
        # The last day of February has what the calendar has after it.
        last = "2024-02-29" if calendar == "all_leap" else "2024-02-30"
        expected = data.rain.sel(time=slice("2024-02-29", last)).sum("time", skipna=False).values
        np.testing.assert_allclose(source_of(path, leap).read(), expected, rtol=1e-12)
    holes = write(data.drop_isel(time=40), tmp_path / f"holes{suffix}")
    n = {"noleap": 28, "360_day": 30, "all_leap": 29}[calendar]
    wanted = f"has {n - 1} of {n} steps of 1 days in 2024-02-01"
    assert wanted in said(holes, time="2024-02", aggregate="sum")


def test_times_that_are_no_dates_are_refused(tmp_path):
    data = cube(n=31).drop_vars("time")
    days = ("time", np.arange(31.0), {"units": "fortnights since 2024-01-01"})
    path = write(data.assign_coords(time=days), tmp_path / "rain.nc")
    assert "has times that are no dates, such as 0" in said(path, time="2024-01", aggregate="sum")


UTM = CRS("EPSG:32629").to_cf()
#: Of a cube over degrees: how its file differs.
CF = {
    "plain": lambda d: d,
    "rows to the north": lambda d: d.isel(lat=slice(None, None, -1)),
    "columns to the west": lambda d: d.isel(lon=slice(None, None, -1)),
    "0 to 360": lambda d: moved(d, 360.0),
    "past 180": lambda d: wrapped(d),
    "transposed": lambda d: d.transpose("lon", "time", "lat"),
    "grid mapping": lambda d: mapped(d, CRS("EPSG:4326").to_cf()),
    "a scalar height": lambda d: d.assign_coords(height=2.0),
    "a member": lambda d: d.expand_dims(number=[7], axis=1),
    "bounds": lambda d: d.assign(lat_bnds=(("lat", "v"), np.zeros((8, 2)))).assign_coords(
        lat=("lat", d.lat.data, {**d.lat.attrs, "bounds": "lat_bnds"})
    ),
}


def moved(data, by):
    return data.assign_coords(lon=("lon", data.lon.data + by, data.lon.attrs))


def wrapped(data):
    lon = np.where(
        np.arange(9) < 4, 180 - 0.4 * (4 - np.arange(9)), -180 + 0.4 * (np.arange(9) - 4)
    )
    return data.assign_coords(lon=("lon", lon, data.lon.attrs))


def mapped(data, attrs):
    data = data.assign(crs=((), 0, attrs))
    data["rain"].attrs["grid_mapping"] = "crs"
    return data


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "scipy", "zarr"])
@pytest.mark.parametrize("name", list(CF))
def test_each_pixel_is_that_of_xarray_at_its_place(tmp_path, engine, name):
    """By coordinates: xarray's values next to the centre of each pixel of the source."""
    data = CF[name](cube("MS", n=3))
    data["rain"].attrs["long_name"] = "rain of a month"
    path = tmp_path / ("a.zarr" if engine == "zarr" else "a.nc")
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -9999}
    how = {"encoding": {"rain": packing}}
    if engine == "zarr":
        data.to_zarr(path, consolidated=False, **how)
    else:
        data.to_netcdf(path, engine=engine, **how)
    source = source_of(path)
    about = source.describe()
    assert (about.unit, about.description) == ("mm", "rain of a month")
    assert (about.times, about.crs.to_epsg()) == (("2024-01-01", "2024-02-01", "2024-03-01"), 4326)
    assert (about.north_up, about.shape) == (True, (8, 9))
    at = about.transform
    lon = at.c + at.a * (np.arange(9) + 0.5)
    lat = at.f + at.e * (np.arange(8) + 0.5)
    with xr.open_dataset(path, engine=engine, chunks=None, **(
        {"consolidated": False} if engine == "zarr" else {}
    )) as opened:  # fmt: skip
        own = opened.rain.squeeze(drop=True)
        place = {"lat": lat, "lon": lon if name != "past 180" else (lon + 180) % 360 - 180}
        own = own.sortby(["lat", "lon"]).sel(place, method="nearest", tolerance=0.01)
        own = own.transpose("time", "lat", "lon").astype(float)
        for time in about.times:
            expected = own.sel(time=time).values
            np.testing.assert_allclose(source.read(time=time), expected, rtol=1e-5)
            assert np.isnan(expected).any()


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_projected_cubes_have_their_crs_also_in_km(tmp_path, engine):
    values = np.arange(12.0).reshape(3, 4)
    for unit, by in (("m", 1000.0), ("km", 1.0)):
        x = ("x", by * (500 + np.arange(4.0)), {"standard_name": "projection_x_coordinate"})
        y = ("y", by * (900 - np.arange(3.0)), {"standard_name": "projection_y_coordinate"})
        for axis in (x, y):
            axis[2]["units"] = unit
        data = mapped(xr.Dataset({"rain": (("y", "x"), values)}, {"y": y, "x": x}), UTM)
        data.to_netcdf(tmp_path / f"{unit}.nc", engine=engine)
        source = source_of(tmp_path / f"{unit}.nc")
        assert source.crs.to_epsg() == 32629
        assert source.grid.bounds == (499_500.0, 897_500.0, 503_500.0, 900_500.0)
        np.testing.assert_array_equal(source.read(), values)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_levels_and_members_are_asked_for(tmp_path, suffix):
    data = cube(n=31).expand_dims(number=[0, 1, 2], hPa=[500.0, 850.0], axis=(1, 2)).copy()
    data["rain"] = data.rain * (1 + data.number) * data.hPa
    path = write(data, tmp_path / f"deep{suffix}")
    period = {"time": "2024-01", "aggregate": "mean"}
    found = said(path, **period)
    assert "has 3 numbers (0, 1, 2); choose one with the key `level`, such as" in found
    assert "`level: {number: 0}`" in found
    found = said(path, level=(("number", "2"),), **period)
    assert "has 2 hPas (500, 850); choose one with the key `level`" in found
    assert "has no number '9'" in said(path, level=(("number", "9"),), **period)
    source = source_of(path, BandChoice(level=(("number", "2"), ("hPa", "850")), **period))
    expected = data.rain.sel(number=2, hPa=850).mean("time")
    np.testing.assert_allclose(source.read(), expected.values, rtol=1e-12)
    assert source_of(path, BandChoice(level=(("", "850"), ("", "2")), **period)).read().any()


def test_geozarr_attributes_stand_for_coordinates(tmp_path):
    """As DHIS2's open-climate-service publishes: a transform and a code, no coordinates."""
    values = np.arange(24.0).reshape(2, 3, 4)
    attrs = {
        "proj:code": "EPSG:32629",
        "spatial:transform": [1000.0, 0.0, 5e5, 0.0, -1000.0, 9e5],
        "spatial:dimensions": ["y", "x"],
    }
    data = xr.Dataset(
        {"rain": (("time", "y", "x"), values)},
        {"time": pd.date_range("2024-01-01", periods=2)}, attrs,
    )  # fmt: skip
    source = source_of(write(data, tmp_path / "a.zarr"))
    assert source.crs.to_epsg() == 32629
    assert source.grid.bounds == (500_000.0, 897_000.0, 504_000.0, 900_000.0)
    np.testing.assert_array_equal(source.read(time="2024-01-02"), values[1])
    shifted = data.assign_attrs({"spatial:registration": "node"})
    source = source_of(write(shifted, tmp_path / "node.zarr"))
    assert source.grid.bounds == (499_500.0, 897_500.0, 503_500.0, 900_500.0)


def test_unsigned_bytes_of_netcdf_3(tmp_path):
    stored = np.random.default_rng(1).integers(0, 255, (8, 9)).astype("u1")
    stored[2, 3] = 255
    data = cube("MS", n=3).isel(time=0, drop=True)
    attrs = {"scale_factor": 0.1, "_FillValue": np.int8(-1), "_Unsigned": "true"}
    data["rain"] = (("lat", "lon"), stored.view("i1"), attrs)
    write(data, tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc", engine="scipy") as opened:
        found = source_of(tmp_path / "a.nc").read()
        np.testing.assert_allclose(found, opened.rain, rtol=1e-6)
        assert np.nanmax(found) > 12.8  # beyond a signed byte
        assert np.isnan(found[2, 3])


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


@pytest.mark.parametrize("name", ["uneven", "deep", "bare", "none"])
def test_a_store_that_is_no_grid_is_refused(tmp_path, name):
    data = cube("MS", n=2).isel(time=0, drop=True)
    made = {
        "uneven": lambda: data.assign_coords(lat=data.lat**2),
        "deep": lambda: data.expand_dims(level=2),
        "bare": lambda: data.drop_vars(["lat", "lon"]),
        "none": lambda: data.drop_vars("rain"),
    }[name]()
    words = {
        "uneven": "has uneven steps of lat",
        "deep": "has 2 levels (0, 1); choose one with the key `level`, such as `level: 0`",
        "bare": "has no coordinates",
        "none": "has no variable",
    }
    assert words[name] in said(write(made, tmp_path / "a.zarr"))


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    assert "is not a Zarr store that xarray can read" in said(tmp_path / "a.zarr")
    assert "no such file" in said(tmp_path / "b.zarr")


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_windows_and_anomalies_are_those_of_xarray(tmp_path, suffix, how):
    """Against rolling sums of months, and what a month differs by from its group."""
    data = cube(start="2019-10-01", n=1919)  # to the end of 2024
    path = write(data, tmp_path / f"rain{suffix}")
    grouped = data.rain.resample(time="MS")
    skip = how != "sum"
    total, days = grouped.sum(skipna=skip), grouped.count()
    window = total.rolling(time=3).sum(skipna=False)
    if how == "mean":
        window = window / days.rolling(time=3).sum()
    years = window.sel(time=slice("2020-01-01", "2023-12-31")).groupby("time.month")
    difference = window.groupby("time.month") - years.mean()
    scaled = difference.groupby("time.month") / years.std(ddof=1)
    for month in ("2024-02", "2024-11", "2022-01"):
        common = {"time": month, "aggregate": how, "window": 3}
        for climatology, expected in (
            (None, window),
            ((2020, 2023, False), difference),
            ((2020, 2023, True), scaled),
        ):
            source = source_of(path, BandChoice(**common, climatology=climatology))
            wanted = expected.sel(time=f"{month}-01").values
            np.testing.assert_allclose(source.read(), wanted, rtol=1e-9, atol=1e-9)
            tile = Tile(3, 4, 4, 3)
            np.testing.assert_array_equal(source.read(tile), source.read()[tile.slices])
    assert source.describe().unit == "1"
    found = said(path, time="2024-02", aggregate=how, climatology=(2018, 2023, False))
    assert (
        "has no step in 2018-02-01 to 2018-02-28 (it has 2019-10-01 to 2024-12-31), a part of"
        in (found)
    )
    assert "anomaly.from" in found


def test_a_pixel_where_all_years_are_the_same_is_standardised_too(tmp_path):
    data = cube("MS", start="2020-01-01", n=60)
    data["rain"][:, 0, 0], data["rain"][:, 0, 1] = 0.0, 0.0
    data["rain"][48, 0, 1] = 3.0
    path = write(data, tmp_path / "rain.nc")
    choice = BandChoice(time="2024-01", aggregate="sum", climatology=(2020, 2023, True))
    found = source_of(path, choice).read()
    assert found[0, 0] == 0.0
    assert np.isnan(found[0, 1])
    assert np.isfinite(found[1, 1])


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize(
    "limits",
    [
        {"valid_min": np.int16(100), "valid_max": np.int16(900)},
        {"valid_range": np.array([100, 900], np.int16)},
        {"valid_range": np.array([6.0, 14.0])},  # values: 0.01 * stored + 5
        {"valid_max": np.int16(900)},
    ],
)
def test_values_outside_the_valid_range_are_missing(tmp_path, suffix, limits):
    stored = np.random.default_rng(1).integers(-50, 1500, (8, 9)).astype(np.int16)
    stored[0, :4] = 99, 100, 900, 901
    data = cube("MS", n=3).isel(time=0, drop=True)
    attrs = {"scale_factor": 0.01, "add_offset": 5.0, **limits}
    data["rain"] = (("lat", "lon"), stored, attrs)
    path = write(data, tmp_path / f"a{suffix}")
    lower = -(2**15) if list(limits) == ["valid_max"] else 100
    expected = np.where((stored >= lower) & (stored <= 900), 0.01 * stored + 5.0, np.nan)
    np.testing.assert_allclose(source_of(path).read(), expected, rtol=1e-12)
    every = source_of(path, header=RasterHeader(nodata=()))
    np.testing.assert_allclose(every.read(), 0.01 * stored + 5.0, rtol=1e-12)


def test_the_valid_range_of_fractional_numbers_holds_its_ends(tmp_path):
    data = cube("MS", n=3).isel(time=0, drop=True).astype(np.float32)
    data["rain"][0, :3] = np.array([0.1, 0.3, 0.4])
    data["rain"].attrs["valid_range"] = [0.1, 0.3]  # of float64, as JSON has them
    found = source_of(write(data, tmp_path / "a.zarr")).read()
    assert np.isfinite(found[0, :3]).tolist() == [True, True, False]


@pytest.mark.parametrize("suffix", [".nc", ".tif"])
def test_one_of_scale_and_offset_of_a_packed_raster_is_asked_for(tmp_path, suffix, write_tif):
    """Kelvins that are packed: `offset: -273.15` is of the values, or of the stored numbers."""
    stored = np.arange(72, dtype=np.int16).reshape(8, 9)
    if suffix == ".tif":
        path = write_tif("a.tif", stored, scale=0.01, offset=280.0)
    else:
        data = cube("MS", n=3).isel(time=0, drop=True)
        attrs = {"scale_factor": 0.01, "add_offset": 280.0}
        data["rain"] = (("lat", "lon"), stored, attrs)
        path = write(data, tmp_path / "a.nc")
    with pytest.raises(InputError) as caught:
        source_of(path, header=RasterHeader(offset=-273.15))
    assert str(caught.value) == (
        f"{path}: is packed (scale 0.01, offset 280), so that `offset: -273.15` has two meanings; "
        "give both: `scale: 0.01, offset: 6.85` to change its values, "
        "`scale: 0.01, offset: -273.15` to change its packing"
    )
    with pytest.raises(InputError, match=r"`scale: 0\.02, offset: 560` to change its values"):
        source_of(path, header=RasterHeader(scale=2.0))
    for header in (RasterHeader(scale=0.01, offset=6.85), RasterHeader(scale=0.01)):
        wanted = 0.01 * stored + (280.0 if header.offset is None else header.offset)
        np.testing.assert_allclose(source_of(path, header=header).read(), wanted)


@pytest.mark.parametrize("version", ["ZARR_V2", "ZARR_V3"])
def test_zarr_stores_of_gdal_are_read(tmp_path, write_tif, version):
    """With the CRS in `_CRS`; its arrays of version 3 name no codecs."""
    stored = np.arange(72, dtype=np.float32).reshape(8, 9)
    tif = write_tif("a.tif", stored, crs="EPSG:32629", bounds=(5e5, 9e5, 509e3, 908e3))
    copy(tif, tmp_path / "a.zarr", driver="Zarr", FORMAT=version)
    if version == "ZARR_V3":
        for file in (tmp_path / "a.zarr").glob("*/zarr.json"):  # as GDAL 3.10 writes it
            metadata = json.loads(file.read_text())
            metadata.pop("codecs", None)
            file.write_text(json.dumps(metadata))
    source = source_of(tmp_path / "a.zarr")
    assert (source.crs.to_epsg(), source.grid.bounds) == (32629, (5e5, 9e5, 509e3, 908e3))
    np.testing.assert_array_equal(source.read(), stored)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(), stored)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_coordinates_of_two_dimensions_are_no_grid(tmp_path, suffix):
    data = cube("MS", n=3).isel(time=0, drop=True)
    lat, lon = np.meshgrid(data.lat.values, data.lon.values, indexing="ij")
    own = xr.Dataset({"rain": (("y", "x"), data.rain.values)})
    own = own.assign_coords(
        lat=(("y", "x"), lat, {"units": "degrees_north"}),
        lon=(("y", "x"), lon, {"units": "degrees_east"}),
    )
    found = said(write(own, tmp_path / f"a{suffix}"))
    assert "has coordinates of two dimensions (lat, lon): its pixels are no regular grid" in found
    assert "gdalwarp -geoloc -t_srs EPSG:4326 NETCDF:in.nc:rain out.tif" in found
    # Beside coordinates of its rows and columns they do no harm.
    both = own.assign_coords(y=("y", data.lat.values), x=("x", data.lon.values))
    source = source_of(write(both, tmp_path / f"both{suffix}"))
    np.testing.assert_array_equal(source.read(), data.rain.values)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_an_axis_of_another_name_is_named(tmp_path, suffix):
    data = cube("MS", n=3).isel(time=0, drop=True).expand_dims(level=[850, 500])
    path = write(data, tmp_path / f"a{suffix}")
    found = said(path, level=(("pressure", "500"),))
    assert "has no axis 'pressure' beside rows, columns and times, but level; " in found
    assert found.endswith("such as `level: {level: 500}`")


def test_a_band_of_a_netcdf_of_gdal_is_one_of_its_variables(tmp_path, write_tif):
    tif = write_tif("a.tif", np.arange(72, dtype=np.float32).reshape(8, 9))
    with rasterio.open(tif) as opened:
        profile, values = opened.profile, opened.read(1)
    with rasterio.open(tmp_path / "two.tif", "w", **{**profile, "count": 2}) as out:
        out.write(np.stack([values, values + 100]))
    copy(tmp_path / "two.tif", tmp_path / "a.nc", driver="netCDF")
    np.testing.assert_array_equal(
        source_of(tmp_path / "a.nc", BandChoice(band=2)).read(), values + 100
    )
    assert "has 2 band(s), but band 3 is requested" in said(tmp_path / "a.nc", band=3)
    assert "has 2 variables (Band1, Band2)" in said(tmp_path / "a.nc")


def test_a_variable_in_a_group_has_its_path(tmp_path):
    data = cube("MS", n=3).isel(time=0, drop=True)
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", group="science/data")
    for name in ("rain", "science/data/rain", "/science/data/rain"):
        found = source_of(tmp_path / "a.nc", BandChoice(variable=name)).read()
        np.testing.assert_array_equal(found, data.rain.values)
    assert "has no variable 'data/rain'" in said(tmp_path / "a.nc", variable="data/rain")
