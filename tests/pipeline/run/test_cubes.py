"""Covariates that are cubes, with lags: the values of each period are what xarray makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pyproj import CRS

from geo.core.errors import InputError
from pipeline.cli.check import all_problems
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.reporting.asked import configuration
from pipeline.store.bag_store import BagStore
from tests.pipeline.series_inputs import CRS as UTM
from tests.pipeline.series_inputs import (
    MONTHS,
    RES,
    SIDE,
    elevation,
    rain,
    write_inputs,
    write_raster,
)
from tests.typed import edit

LAGGED = ("elevation", "rain", "wet", "wet_lag1", "wet_lag2", "heat")


def daily(last: str = "2024-06-30") -> xr.Dataset:
    """Return rain and heat of each day from November on, on the grid, rows to the north."""
    days = pd.date_range("2023-11-01", last)
    rng = np.random.default_rng(4)
    shape = (days.size, SIDE, SIDE)
    axes = {
        "time": days,
        "y": 9_000_000 - RES * (np.arange(SIDE)[::-1] + 0.5),
        "x": 500_000 + RES * (np.arange(SIDE) + 0.5),
    }
    whole = pd.date_range("2023-11-01", "2024-12-31").size
    values = {
        name: rng.gamma(2.0, 2.0, (whole, *shape[1:]))[: days.size] for name in ("rain", "t2m")
    }
    found = xr.Dataset({name: (("time", "y", "x"), each) for name, each in values.items()}, axes)
    found["crs"] = ((), 0, {"crs_wkt": CRS(UTM).to_wkt()})
    for name in values:
        found[name].attrs = {"units": "mm", "grid_mapping": "crs"}
    return found


def configured(
    directory: Path, cube: str = "days.zarr", n: int = 4, wet: str = "lag: [0, 1, 2]"
) -> Path:
    """Write the inputs, and two covariates of the cube beside the others."""
    config = write_inputs(directory, n)
    lines = (
        f"  wet:       {{path: {cube}, variable: rain, aggregate: sum, {wet}}}\n"
        f"  heat:      {{path: {cube}, variable: t2m, aggregate: max}}\n"
    )
    edit(config, {"time:        {step: month}": f"{lines}time:        {{step: month}}"})
    return config


def stored(config: Path, label: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Return names and values on the grid of what is stored of a period."""
    store = BagStore.open(config.parent / "out/work/bags.zarr", period=label)
    rows = store.read_rows(0, store.n_pix)
    return store.covariates, rows.x[np.argsort(rows.pixel)].T.reshape(-1, SIDE, SIDE)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of an ingest of four months."""
    directory = tmp_path_factory.mktemp("cube")
    config = configured(directory)
    daily("2024-04-30").to_zarr(directory / "days.zarr", consolidated=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    return config


def test_each_period_has_the_sums_and_lags_of_its_days(ingested: Path) -> None:
    data = daily().sortby("y", ascending=False)
    wet = data.rain.resample(time="MS").sum()
    heat = data.t2m.groupby(data.time.dt.strftime("%Y-%m")).max()
    for month, label in enumerate(MONTHS[:4]):
        names, found = stored(ingested, label)
        assert names == LAGGED
        np.testing.assert_allclose(found[0], elevation(), rtol=1e-6)
        np.testing.assert_allclose(found[1], rain(month), rtol=1e-6)
        for lag in range(3):
            first = pd.Timestamp(f"{label}-01") - pd.DateOffset(months=lag)
            np.testing.assert_allclose(found[2 + lag], wet.sel(time=first).values, rtol=1e-6)
        np.testing.assert_allclose(found[5], heat.sel(strftime=label).values, rtol=1e-6)
    series = json.loads((ingested.parent / "out/work/series.json").read_text())
    assert list(series["moving"]) == list(MONTHS[:4])


@pytest.mark.ci
def test_windows_and_anomalies_with_lags(tmp_path: Path) -> None:
    """Two months together, one month ago, against the same months of two years before."""
    anomaly = "window: 2, lag: [0, 1], anomaly: {from: 2022, to: 2023}"
    config = configured(tmp_path, n=3, wet=anomaly)
    days = pd.date_range("2021-11-01", "2024-03-31")
    rng = np.random.default_rng(4)
    axes = {name: axis for name, axis in daily().coords.items() if name != "time"}
    data = xr.Dataset(
        {
            name: (("time", "y", "x"), rng.gamma(2.0, 2.0, (days.size, SIDE, SIDE)))
            for name in ("rain", "t2m")
        },
        {**axes, "time": days},
    )
    data["crs"] = daily().crs
    for name in ("rain", "t2m"):
        data[name].attrs = {"units": "mm", "grid_mapping": "crs"}
    data.to_zarr(tmp_path / "days.zarr", consolidated=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    two = data.rain.sortby("y", ascending=False).resample(time="MS").sum().rolling(time=2).sum()
    mean = two.sel(time=slice("2022", "2023")).groupby("time.month").mean()
    expected = two.groupby("time.month") - mean
    for label, before in (("2024-01", "2023-12"), ("2024-03", "2024-02")):
        names, found = stored(config, label)
        assert names == ("elevation", "rain", "wet", "wet_lag1", "heat")
        for k, month in ((2, label), (3, before)):
            wanted = expected.sel(time=f"{month}-01").values
            np.testing.assert_allclose(found[k], wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.ci
def test_a_longer_or_corrected_cube_touches_only_the_periods_of_its_values(tmp_path: Path) -> None:
    config = configured(tmp_path, n=5)
    before = daily("2024-05-31")
    before.to_zarr(tmp_path / "days.zarr", consolidated=False)
    assert main(["ingest", str(config), "--quiet"]) == 0

    def written() -> dict[str, int]:
        place = tmp_path / "out/work/bags.zarr"
        found = next(place.rglob("periods/2024-01")).parent
        return {each.name: (each / "zarr.json").stat().st_mtime_ns for each in found.iterdir()}

    first = written()
    assert sorted(first) == list(MONTHS[:5])
    daily("2024-06-30").to_zarr(tmp_path / "days.zarr", consolidated=False, mode="w")
    assert main(["ingest", str(config), "--quiet"]) == 0
    assert written() == first  # a longer cube changes nothing of the past
    changed = daily("2024-06-30")
    changed["rain"][dict(time=changed.time.values == np.datetime64("2024-02-11"))] += 1.0
    changed.to_zarr(tmp_path / "days.zarr", consolidated=False, mode="w")
    assert main(["ingest", str(config), "--quiet"]) == 0
    now = written()
    # February, and what has it one and two months later.
    assert [label for label in first if now[label] != first[label]] == [
        label for label in first if label in ("2024-02", "2024-03", "2024-04")
    ]
    _, found = stored(config, "2024-04")
    expected = changed.sortby("y", ascending=False).rain.sel(time="2024-02").sum("time")
    np.testing.assert_allclose(found[4], expected.values, rtol=1e-6)


def test_what_a_cube_lacks_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    daily("2024-02-20").to_zarr(tmp_path / "days.zarr", consolidated=False)
    assert main(["ingest", str(config), "--quiet"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "wet" in line]
    assert len(said) == 3, said  # each lag
    # The latest month is looked at first: a file that is too short is found before all is read.
    assert "covariates.wet (" in said[0]
    assert "has no step in 2024-04-01 to 2024-04-30 (it has 2023-11-01 to 2024-02-20)" in said[0]
    daily("2024-04-30").isel(time=slice(40, None)).to_zarr(
        tmp_path / "days.zarr", consolidated=False, mode="w"
    )
    assert main(["ingest", str(config), "--quiet"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "wet" in line]
    assert len(said) == 2, said
    # `check` knows as much without a value read.
    found = [each for each in all_problems(config)[0] if "wet" in each.place]
    assert [each.place.partition(" (")[0] for each in found] == [
        "covariates.wet_lag1", "covariates.wet_lag2"
    ]  # fmt: skip
    assert found[0].found.startswith("2024-01: has 21 of 31 steps of 1 days in 2023-12-01 to ")
    assert found[1].found.startswith("2024-01, 2024-02: has no step in 2023-11-01 to 2023-11-30")
    assert "wet_lag1" in said[0]
    assert "has 21 of 31 steps of 1 days in 2023-12-01 to 2023-12-31" in said[0]
    assert "wet_lag2" in said[1]
    assert "and so for 1 more period" in said[1]


@pytest.mark.ci
def test_lags_of_files_by_period(tmp_path: Path) -> None:
    config = write_inputs(tmp_path, 3)
    edit(config, {'"rain_{period}.tif"}': '"rain_{period}.tif", lag: [0, 1]}'})
    with pytest.raises(InputError, match=r"covariates.rain_lag1.*no file .*rain_2023-12.tif"):
        load_config(config)
    write_raster(tmp_path / "rain_2023-12.tif", rain(-1))
    assert main(["ingest", str(config), "--quiet"]) == 0
    for month, label in enumerate(MONTHS[:3]):
        names, found = stored(config, label)
        assert names == ("elevation", "rain", "rain_lag1")
        np.testing.assert_allclose(found[1], rain(month), rtol=1e-6)
        np.testing.assert_allclose(found[2], rain(month - 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("wet", "said"),
    [
        ("lag: -1", "give a number of periods from 0 to 120"),
        ("lag: [1, 1]", "a lag twice"),
        ("lag: [1], band: 2", "aggregate with a band"),
        ("lag: 1, time: 2024", "of a layer that stands still"),
        ("time: soon", "`time: soon` is no period"),
        ("window: 2, time: 2024-01-01/2024-01-31", "given with first and last day"),
        ("anomaly: {from: 2020, to: 2020}", "give two years or more, the first one as from"),
        ("level: [1]", "give a value of the axis, such as level: 850"),
    ],
)
def test_what_is_no_lag_or_period_is_said(tmp_path: Path, wet: str, said: str) -> None:
    config = configured(tmp_path, wet=wet)
    daily("2024-01-31").to_zarr(tmp_path / "days.zarr", consolidated=False)
    with pytest.raises(InputError) as raised:
        load_config(config)
    assert said in str(raised.value)


def test_a_name_that_a_lag_would_take_twice_is_said(tmp_path: Path) -> None:
    config = configured(tmp_path)
    edit(config, {"  heat: ": "  wet_lag1: "})
    with pytest.raises(InputError, match="'wet_lag1' is a covariate already"):
        load_config(config)


def test_one_period_and_a_fixed_one(tmp_path: Path) -> None:
    """A run without `time` has its period; a cube of a fixed period stands still."""
    config = configured(tmp_path, wet="time: 2024-01-01/2024-03-31")
    daily("2024-06-30").to_zarr(tmp_path / "days.zarr", consolidated=False)
    text = config.read_text()
    several = load_config(config)
    assert several.moving() == ("rain", "heat")
    start, stop = text.index("time:        {step"), text.index("fit: ")
    alone = text[:start] + text[stop:].replace(', periods: ["2024-01"], forecast: 1', "")
    config.write_text(alone, encoding="utf-8")
    assert main(["ingest", str(config), "--quiet"]) == 0
    store = BagStore.open(tmp_path / "out/work/bags.zarr")
    rows = store.read_rows(0, store.n_pix)
    found = rows.x[np.argsort(rows.pixel)].T.reshape(-1, SIDE, SIDE)
    data = daily().sortby("y", ascending=False)
    wet, heat = data.rain.sel(time=slice("2024-01-01", "2024-03-31")), data.t2m.sel(time="2024-04")
    np.testing.assert_allclose(found[2], wet.sum("time").values, rtol=1e-6)
    np.testing.assert_allclose(found[3], heat.max("time").values, rtol=1e-6)


@pytest.mark.ci
def test_all_covariates_may_move(tmp_path: Path) -> None:
    config = configured(tmp_path, n=2, wet="lag: 1")
    daily("2024-02-29").to_zarr(tmp_path / "days.zarr", consolidated=False)
    lines = config.read_text().splitlines(keepends=True)
    still = ("  elevation:", "  rain:")
    config.write_text("".join(each for each in lines if not each.startswith(still)), "utf-8")
    assert main(["ingest", str(config), "--quiet"]) == 0
    data = daily().sortby("y", ascending=False)
    for label, before in (("2024-01", "2023-12"), ("2024-02", "2024-01")):
        names, found = stored(config, label)
        assert names == ("wet_lag1", "heat")
        wet = data.rain.sel(time=before).sum("time")
        np.testing.assert_allclose(found[0], wet.values, rtol=1e-6)
        np.testing.assert_allclose(found[1], data.t2m.sel(time=label).max("time"), rtol=1e-6)


def test_the_configuration_in_the_report_is_one_that_runs(tmp_path: Path) -> None:
    config = configured(tmp_path)
    daily().to_zarr(tmp_path / "days.zarr", consolidated=False)
    shown = configuration(load_config(config))
    assert "lag:\n    - 0\n    - 1\n    - 2\n" in shown
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown, encoding="utf-8")
    assert all_problems(copy)[0] == []
    assert load_config(copy).covariates == load_config(config).covariates
