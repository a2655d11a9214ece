"""Times of cubes by their bounds, and axes of times that are none of CF."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geo.sources.raster_header import BandChoice
from geo.sources.registry import source_of
from tests.geo.sources.test_cubes import cube, said, write

FREQ = {"months": "MS", "days": "D"}


def bounded(starts, stops, stamps):
    """Return a cube whose values are those of intervals, stamped at some times."""
    data = cube(n=len(starts)).assign_coords(time=stamps)
    data["time_bnds"] = (("time", "nv"), np.stack([starts, stops], axis=1))
    data["time"].attrs["bounds"] = "time_bnds"
    data["time"].encoding["units"] = "hours since 2020-01-01"
    return data


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
@pytest.mark.parametrize("step", ["months", "days"])
@pytest.mark.parametrize("stamp", ["first", "middle", "last"])
def test_a_value_is_of_the_period_of_its_interval(tmp_path, suffix, calendar, step, stamp):
    """Months of models are stamped at their end (CESM), days at 24:00."""
    n = {"months": 13, "days": 367}[step]
    how = {"calendar": calendar, "use_cftime": calendar != "standard"}
    edges = xr.date_range("2024-01-01", periods=n, freq=FREQ[step], **how).values
    starts, stops = edges[:-1], edges[1:]
    stamps = {"first": starts, "middle": starts + (stops - starts) / 2, "last": stops}[stamp]
    data = bounded(starts, stops, stamps)
    path = write(data, tmp_path / f"a{suffix}")
    own = data.rain.assign_coords(time=starts).sel(time="2024-02")
    source = source_of(path, BandChoice(variable="rain", time="2024-02", aggregate="mean"))
    np.testing.assert_allclose(source.read(), own.mean("time").values, rtol=1e-12)


def test_bounds_may_have_units_of_their_own(tmp_path):
    """Xarray writes the times of each variable since its own first day."""
    edges = pd.date_range("2021-10-01", periods=16, freq="MS")
    data = bounded(edges[:-1], edges[1:], edges[1:])
    data.time.encoding["units"] = "days since 2021-11-01"
    data.time_bnds.encoding["units"] = "hours since 2000-01-01"
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    assert source_of(tmp_path / "a.nc").describe().times[:2] == (
        "2021-10-16T12:00",
        "2021-11-16T00:00",
    )


def test_running_means_are_of_their_stamps(tmp_path):
    edges = pd.date_range("2024-01-01", periods=9, freq="MS")
    stamps = edges[2:-1]
    data = bounded(edges[:-3], edges[3:], stamps)
    source = source_of(write(data, tmp_path / "a.nc"))
    assert source.describe().times == tuple(stamps.strftime("%Y-%m-%d"))


def test_times_outside_their_bounds_are_refused(tmp_path):
    edges = pd.date_range("2024-01-01", periods=4, freq="MS")
    data = bounded(edges[:-1], edges[1:], edges[1:] + pd.Timedelta(days=9))
    found = said(write(data, tmp_path / "a.nc"))
    assert (
        "has a time of 2024-02-10 outside its bounds (time_bnds: 2024-01-01 to 2024-02-01); "
        "correct time_bnds, or remove it"
    ) in found


def test_climatological_times_are_of_no_period(tmp_path):
    """Twelve months of 1991 to 2020, as section 7.4 of CF writes them."""
    stamps = pd.date_range("2005-01-16", periods=12, freq="MS")
    first = pd.date_range("1991-01-01", periods=12, freq="MS")
    last = pd.date_range("2020-02-01", periods=12, freq="MS")
    data = bounded(first, last, stamps)
    data["time"].attrs = {"climatology": "time_bnds"}
    path = write(data, tmp_path / "a.nc")
    assert "has climatological times (time_bnds)" in said(path, time="2005-02", aggregate="mean")
    np.testing.assert_array_equal(source_of(path, BandChoice(time="2005-02")).read(), data.rain[0])


MONTHS = pd.date_range("2021-12-01", periods=3, freq="MS")
#: Values and attributes of axes that CF does not tell, what is said of them, and what to do.
AXES = {
    "numbers": (MONTHS.strftime("%Y%m").astype(int), {}, "no units", "format='%Y%m')"),
    "days": (MONTHS.strftime("%Y%m%d").astype(float), {}, "no units", "format='%Y%m%d')"),
    "CDO": (
        MONTHS.strftime("%Y%m%d").astype(float),
        {"units": "day as %Y%m%d.%f", "standard_name": "time"},
        "units 'day as %Y%m%d.%f'",
        "cdo -r copy in.nc out.nc",
    ),
    "text": (MONTHS.strftime("%Y-%m").values.astype("U7"), {}, "no units", "format='%Y-%m')"),
}


@pytest.mark.parametrize("name", list(AXES))
def test_times_that_are_none_of_cf_say_what_is_needed(tmp_path, name):
    values, attrs, about, remedy = AXES[name]
    data = cube("MS", n=3).assign_coords(time=("time", values, attrs))
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    found = said(tmp_path / "a.nc", time="2022-01", aggregate="sum")
    first = str(values[0]).removesuffix(".0")
    assert f"has times (time) that are none of CF: {first}" in found
    assert about in found
    assert "write them in days since a date" in found
    assert remedy in found
    assert f"or choose one: `level: {first}`" in found
    chosen = source_of(tmp_path / "a.nc", BandChoice(level=(("", first),)))
    np.testing.assert_array_equal(chosen.read(), data.rain[0])
