"""Covariates of forecasts: their own where they are there, those of other periods elsewhere."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import models
from pipeline.cli.main import main
from pipeline.config.context import StageContext, Updating
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.prediction import one_map
from pipeline.prediction.series import moving_grids
from pipeline.products.areas import draw_areas_over_times
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_key
from pipeline.run.runner import run_stages
from pipeline.store.series_store import SeriesStore
from pipeline.training.series import open_series, stand_in
from tests.bands import read
from tests.pipeline.run.test_cubes import daily
from tests.pipeline.run.test_tables import climate, minutes, no_rasters
from tests.pipeline.series_inputs import (
    SIDE,
    area_of_pixel,
    elevation,
    people,
    rain,
    write_inputs,
    write_raster,
)
from tests.typed import edit

pytestmark = pytest.mark.ci

AHEAD = ("2024-04", "2024-05")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of three months, with two forecasts and a cube until 10 April."""
    directory = tmp_path_factory.mktemp("ahead")
    more = "evaluate:    {schemes: [], calibration: none}\n"
    config = write_inputs(directory, 3, more=more)
    wet = "  wet:       {path: days.zarr, variable: rain, aggregate: sum, lag: [0, 1]}\ntime: "
    edit(config, {'["2024-01"], forecast: 1': "latest, forecast: 2", "time: ": wet})
    daily("2024-04-10").to_zarr(directory / "days.zarr", consolidated=False)
    assert ran(config)[0] == list(STAGES)
    return config


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    shutil.copytree(fitted.parent, directory)
    return directory / fitted.name


STAGES = ("ingest", "fit", "predict")


class Lines(Silent):
    """Progress that keeps what is said of forecasts."""

    def __init__(self) -> None:
        self.said = ""

    def log(self, message: str) -> None:
        self.said += message if message.startswith("predict: forecasts:") else ""


def ran(config: Path, update: Updating | None = None) -> tuple[list[str], str]:
    """Run again; return the stages that were not skipped, and what was said of forecasts."""
    lines = Lines()
    results = run_stages(load_config(config), STAGES, lines, update=update)
    return [each.name for each in results if not each.skipped], lines.said


def due(config: Path) -> list[str]:
    """Return the stages that would run now."""
    loaded = load_config(config)
    return [name for name in STAGES if not stage_key(name, loaded, Fingerprints(loaded))[1]]


def wet(month: str) -> np.ndarray:
    """Return the sum of a month of the cube."""
    data = daily("2024-05-31").sortby("y", ascending=False)
    found: np.ndarray = data.rain.sel(time=month).sum("time").values
    return found


def store_of(config: Path) -> SeriesStore:
    """Return the periods and forecasts of a run."""
    return open_series(StageContext(load_config(config)))


def x_of(config: Path, label: str) -> tuple[np.ndarray, SeriesStore]:
    """Return the covariates that a forecast has in its store, as bands, and the store."""
    store, series = store_of(config), load_config(config).known_series
    bags = store.at(label, series.time_of(label))
    rows = bags.read_rows(0, bags.n_pix)
    assert bags.covariates == ("elevation", "rain", "wet", "wet_lag1")
    return rows.x[np.argsort(rows.pixel)].T.reshape(-1, SIDE, SIDE), store


def mapped(config: Path, label: str) -> np.ndarray:
    return read(config.parent / f"out/periods/{label}/rate_mean.tif")


def width(config: Path, label: str) -> np.ndarray:
    """Return how wide intervals of a forecast are, on average: of pixels, and of areas."""
    out = config.parent / f"out/periods/{label}"
    areas = pd.read_csv(out / "areas.csv")
    ends = [read(out / f"rate_{end}.tif").ravel() for end in ("lower", "upper")]
    of_areas = areas["fitted_rate_lower"], areas["fitted_rate_upper"]
    return np.array([np.mean(np.log(upper / lower)) for lower, upper in (ends, of_areas)])


def marks(config: Path) -> dict[str, int]:
    """Return when each forecast, and the model, was written."""
    work = config.parent / "out/work"
    found = {path.parts[-3]: path.stat() for path in work.glob("ahead/*/grid.zarr/complete.json")}
    found["model"] = max((path.stat() for path in (work / "model").iterdir()),
                         key=lambda state: state.st_mtime_ns)  # fmt: skip
    return {name: state.st_mtime_ns for name, state in found.items()}


def test_each_covariate_has_what_is_there_of_it(fitted: Path) -> None:
    """A cube until 10 April has the month before April, and neither April nor that before May."""
    known = json.loads((fitted.parent / "out/work/ahead/ahead.json").read_text())
    assert {label: each["known"] for label, each in known.items()} == {
        "2024-04": ["wet_lag1"],
        "2024-05": [],
    }
    assert known["2024-04"]["lacking"] == {
        "rain": "no file",
        "wet": "has 10 of 30 steps of 1 days in 2024-04-01 to 2024-04-30",
    }
    april, _ = x_of(fitted, "2024-04")
    may, _ = x_of(fitted, "2024-05")
    march, february = wet("2024-03"), wet("2024-02")
    for found, lagged in ((april, march), (may, february)):
        expected = np.stack([elevation(), rain(2), march, lagged])
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_forecast_file_changes_its_forecast_and_nothing_is_fitted(run: Path) -> None:
    directory, before = run.parent, {label: mapped(run, label) for label in AHEAD}
    latest, written, wide = read(directory / "out/rate_mean.tif"), marks(run), width(run, AHEAD[0])
    assert ran(run) == ([], "")
    other = 130.0 - rain(2)
    write_raster(directory / "rain_2024-04.tif", other)
    stages, said = ran(run)
    assert stages == ["ingest", "predict"]
    # March is a month or two before, January nine or eight of a season after.
    like = "as in 2024-03 (5 in 6 draws) or 2024-01 (1 in 6 draws)"
    assert said.endswith(
        f"predict: forecasts: rain: 2024-04 as given, 2024-05 {like} (no file); "
        f"wet: 2024-04 {like} (has 10 of 30 steps of 1 days in 2024-04-01 to 2024-04-30), "
        f"2024-05 {like} (has no step in 2024-05-01 to 2024-05-31); "
        "wet_lag1: 2024-04 as given, "
        f"2024-05 {like} (has 10 of 30 steps of 1 days in 2024-04-01 to 2024-04-30)"
    )
    np.testing.assert_allclose(x_of(run, "2024-04")[0][1], other, rtol=1e-6)
    # Rain raises the rate: the map of April turns with it, those of March and May stay.
    now = mapped(run, "2024-04")
    was = np.average([rain(0), rain(2)], axis=0, weights=[1, 5])
    turned = np.corrcoef((np.log(now) - np.log(before["2024-04"])).ravel(), (other - was).ravel())
    assert turned[0, 1] > 0.95
    # Neither pixels nor areas knew the rain.
    assert (wide > 1.1 * width(run, AHEAD[0])).all()
    np.testing.assert_array_equal(mapped(run, "2024-05"), before["2024-05"])
    np.testing.assert_array_equal(read(directory / "out/rate_mean.tif"), latest)
    # The table of areas has the same rain: people's mean rate by area is that of the map.
    table = pd.read_csv(directory / "out/periods.csv")
    own = table[table["period"] == "2024-04"].set_index("id")["mean"]
    cases = read(directory / "out/periods/2024-04/cases_mean.tif").ravel()
    np.testing.assert_allclose(np.bincount(area_of_pixel().ravel(), cases), own, rtol=1e-3)
    assert marks(run)["model"] == written["model"]


def test_a_file_that_arrives_later_or_goes_asks_for_ingest_and_predict_alone(run: Path) -> None:
    directory = run.parent
    before = {label: x_of(run, label)[0] for label in AHEAD}
    assert due(run) == []
    write_raster(directory / "rain_2024-04.tif", rain(3))
    assert due(run) == ["ingest"]
    assert main(["ingest", str(run), "--quiet"]) == 0
    assert due(run) == ["predict"]
    april = marks(run)["2024-04"]
    write_raster(directory / "rain_2024-05.tif", rain(4))
    assert main(["ingest", str(run), "--quiet"]) == 0
    assert due(run) == ["predict"]
    assert marks(run)["2024-04"] == april  # not written again
    for label, month in zip(AHEAD, (3, 4), strict=True):
        np.testing.assert_allclose(x_of(run, label)[0][1], rain(month), rtol=1e-6)
    for label in AHEAD:
        (directory / f"rain_{label}.tif").unlink()
    assert main(["ingest", str(run), "--quiet"]) == 0
    for label in AHEAD:
        np.testing.assert_array_equal(x_of(run, label)[0], before[label])
    assert due(run) in ([], ["predict"])
    # Fewer forecasts: what was known of the others goes, and no fit is due.
    run.write_text(run.read_text().replace("forecast: 2", "forecast: 0"), encoding="utf-8")
    assert main(["ingest", str(run), "--quiet"]) == 0
    assert not (directory / "out/work/ahead").exists()
    assert due(run) == ["predict"]


def test_what_is_known_has_no_spread_and_the_rest_has(run: Path) -> None:
    directory = run.parent
    write_raster(directory / "rain_2024-04.tif", rain(3))
    assert main(["ingest", str(run), "--quiet"]) == 0
    _, store = x_of(run, "2024-04")
    model: Any = models.load(directory / "out/work/model").at(12.0 * 2024 + 3)
    like = ("2024-03",) * 5 + ("2024-01",)
    assert store.candidates("2024-04", 12.0 * 2024 + 3) == like
    for part, month in enumerate(like):
        bags = stand_in(store, "2024-04", 12.0 * 2024 + 3, part, model)
        rows = bags.read_rows(0, bags.n_pix)
        found = rows.x[np.argsort(rows.pixel)].T.reshape(-1, SIDE, SIDE)
        expected = [elevation(), rain(3), wet(month), wet("2024-03")]
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6)
        np.testing.assert_allclose(bags.bag_weight.sum(), people().sum(), rtol=1e-6)
        mean = bags.scaling()[0]
        np.testing.assert_allclose(mean, [each.mean() for each in expected], rtol=1e-5)
    # With all of it known, every draw has the same.
    daily("2024-05-31").to_zarr(directory / "days.zarr", consolidated=False, mode="w")
    assert main(["ingest", str(run), "--quiet"]) == 0
    _, store = x_of(run, "2024-04")
    assert store.candidates("2024-04", 12.0 * 2024 + 3) == ()
    assert store.candidates("2024-05", 12.0 * 2024 + 4) == like
    np.testing.assert_allclose(x_of(run, "2024-05")[0][2], wet("2024-05"), rtol=1e-6)


@pytest.mark.parametrize(
    ("n_month", "ahead", "like"),
    [
        (9, 1, {8: 4, 0: 2}),  # October: September is a month away, January three
        (9, 2, {8: 3, 0: 3}),
        (9, 3, {8: 2, 0: 4}),
        (11, 1, {10: 3, 0: 3}),  # December: not January alone, of its own year
        (1, 1, {0: 1}),
        (12, 1, {0: 1, 1: 1}),  # a year before, and after it
        (13, 1, {0: 1, 1: 1, 2: 1}),
    ],
)
def test_nearest_periods_of_the_season_stand_in(
    run: Path, n_month: int, ahead: int, like: dict[int, int]
) -> None:
    labels = [f"{2023 + t // 12}-{1 + t % 12:02d}" for t in range(n_month + ahead)]
    times = [12.0 * 2023 + t for t in range(n_month)]
    store = SeriesStore(run.parent / "out/work/bags.zarr", labels[:n_month], times, 12.0)
    store.__dict__["_known"] = tuple(labels[:n_month])  # as if all had their rain
    found = store.candidates(labels[-1], 12.0 * 2023 + n_month + ahead - 1)
    assert Counter(found) == {labels[t]: n for t, n in like.items()}
    if n_month < 12:  # where a pixel counts in none of these, it does in any other
        rest = store.rest(labels[-1], found, 12.0 * 2023 + n_month + ahead - 1)
        assert set(rest) == set(labels[:n_month]) - set(found)


def test_a_forecast_becomes_a_period_by_an_update(run: Path) -> None:
    directory = run.parent
    write_raster(directory / "rain_2024-04.tif", rain(3))
    daily("2024-04-30").to_zarr(directory / "days.zarr", consolidated=False, mode="w")
    assert main(["ingest", str(run), "--quiet"]) == 0
    assert due(run) == ["predict"]
    table = pd.read_csv(directory / "cases.csv", dtype=str)
    april = table[table["month"] == "2024-03"].assign(month="2024-04")
    pd.concat([table, april]).to_csv(directory / "cases.csv", index=False)
    stages, said = ran(run, "only")
    assert stages == list(STAGES)
    record = json.loads((directory / "out/work/stages.json").read_text())["fit"]["summary"]
    assert list(record["updated"]) == ["2024-04"]
    assert "wet_lag1: 2024-05 as given, 2024-06 as in 2024-04" in said
    ahead = directory / "out/work/ahead"
    assert sorted(path.name for path in ahead.iterdir()) == ["2024-05", "ahead.json"]


def test_a_damaged_forecast_file_is_one_line_and_the_maps_stay(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mapped(run, "2024-04")
    (run.parent / "rain_2024-04.tif").write_bytes(b"no raster")
    capsys.readouterr()
    assert main(["run", str(run), "--quiet"]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "covariates.rain (" in said
    assert "rain_2024-04.tif" in said
    np.testing.assert_array_equal(mapped(run, "2024-04"), before)
    (run.parent / "rain_2024-04.tif").unlink()
    assert ran(run)[0] == []


def test_tables_reach_as_far_as_their_rows(tmp_path: Path) -> None:
    """Rows of April, all areas of them, are April's rain; of May there is that of April, lagged."""
    config = no_rasters(tmp_path)
    edit(config, {"forecast: 1": "forecast: 2"})
    table = climate(n=4)
    minutes().to_csv(tmp_path / "access.csv", index=False)

    def columns(label: str) -> np.ndarray:
        table.to_csv(tmp_path / "climate.csv", index=False)
        assert main(["ingest", str(config), "--quiet"]) == 0
        store = store_of(config).at(label, 0.0)
        assert store.covariates == ("minutes", "rain", "rain_lag1")
        starts = store.offsets[:-1]
        found: np.ndarray = store.read_rows(0, store.n_pix).x[starts][:, 1:].T
        return found

    each = table.pivot(index="id", columns="when", values="mm")
    april = columns("2024-04")
    ids = list(store_of(config).ids)
    np.testing.assert_allclose(april, each.loc[ids, ["202404", "202403"]].T, rtol=1e-6)
    may = columns("2024-05")
    np.testing.assert_allclose(may, each.loc[ids, ["202403", "202404"]].T, rtol=1e-6)
    # A row that is missing: April is that of March, in every area.
    table = table[~((table["when"] == "202404") & (table["id"] == "A03"))]
    april = columns("2024-04")
    np.testing.assert_allclose(april, each.loc[ids, ["202403", "202403"]].T, rtol=1e-6)
    known = json.loads((tmp_path / "out/work/ahead/ahead.json").read_text())
    assert known["2024-04"]["lacking"] == {"rain": "column 'mm' has no value of A03 in 2024-04"}


def with_gap(directory: Path) -> tuple[Path, np.ndarray]:
    """March lacks rain in an area and at a few pixels; return the configuration, and where."""
    config = write_inputs(directory, 3)
    edit(config, {'periods: ["2024-01"]': "periods: latest"})
    march, gap = rain(2), area_of_pixel() == 5
    gap[0, :3] = True
    march[gap] = np.nan
    write_raster(directory / "rain_2024-03.tif", march)
    return config, gap


def test_where_a_period_that_stands_in_has_a_gap_others_stand(tmp_path: Path) -> None:
    config, gap = with_gap(tmp_path)
    assert main(["ingest", str(config), "--quiet"]) == 0
    store, time = store_of(config), 12.0 * 2024 + 3
    apart = np.where(gap, (rain(0) + rain(1)) / 2, rain(2))
    both = np.where(gap, rain(1), (rain(1) + rain(2)) / 2)
    for like, expected in (
        (None, apart),
        (("2024-03",), apart),
        (("2024-01",), rain(0)),
        (("2024-02", "2024-03"), both),
    ):
        bags = store.at("2024-04", time, like)
        rows = bags.read_rows(0, bags.n_pix)
        order = np.argsort(rows.pixel)
        np.testing.assert_allclose(rows.x[order, 1].reshape(SIDE, SIDE), expected, rtol=1e-6)
        np.testing.assert_allclose(rows.weight[order], people().ravel(), rtol=1e-6)
        of_areas = np.bincount(area_of_pixel().ravel(), people().ravel())
        own = [of_areas[int(name[1:])] for name in bags.ids]
        np.testing.assert_allclose(bags.bag_weight, own, rtol=1e-6)
    grids = moving_grids(StageContext(load_config(config)), store, "2024-04", time).open()
    assert grids is not None
    whole, wanted = slice(0, SIDE), np.ones((SIDE, SIDE), bool)
    found = grids.read(whole, whole, wanted)[0].reshape(SIDE, SIDE)
    np.testing.assert_allclose(found, apart, rtol=1e-6)


@pytest.mark.slow
def test_a_gap_of_a_period_that_stands_in_counts_nobody_less(tmp_path: Path) -> None:
    config, _ = with_gap(tmp_path)
    assert ran(config)[0] == list(STAGES)
    table = pd.read_csv(tmp_path / "out/periods.csv").set_index(["period", "id"])
    whole = table.loc["2024-01", "people"]
    np.testing.assert_allclose(table.loc["2024-04", "people"], whole, rtol=1e-6)
    assert table.loc[("2024-03", "A05"), "people"] == 0
    # The map is that of the table, without holes.
    cases = read(tmp_path / "out/periods/2024-04/cases_mean.tif")
    sums = np.bincount(area_of_pixel().ravel(), cases.ravel())
    np.testing.assert_allclose(sums, table.loc["2024-04", "mean"], rtol=1e-3)


def test_people_that_move_are_those_of_the_maps_in_every_table(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past months lend a forecast their covariates, each to some draws, and none its people."""
    directory, seeds = run.parent, []

    def drawn(models: Any, stores: Any, functions: Any, each: Any, **how: Any) -> Any:
        seeds.append(each)
        return draw_areas_over_times(models, stores, functions, each, **how)

    monkeypatch.setattr(one_map, "draw_areas_over_times", drawn)
    for month, label in enumerate(("2024-01", "2024-02", "2024-03")):
        write_raster(directory / f"people_{label}.tif", people() * (1.0, 2.0, 0.5)[month])
    edit(run, {"path: people.tif": 'path: "people_{period}.tif"'})
    assert ran(run)[0] == list(STAGES)
    periods = pd.read_csv(directory / "out/periods.csv")
    for label in AHEAD:
        out = directory / "out/periods" / label
        areas = pd.read_csv(out / "areas.csv").set_index("id").sort_index()
        table = periods[periods["period"] == label].set_index("id").sort_index()
        level = pd.read_csv(out / "levels_training.csv").set_index("id").sort_index()
        np.testing.assert_allclose(areas["people"], level["people"], rtol=1e-5)
        np.testing.assert_allclose(table["people"], level["people"], rtol=1e-5)
        np.testing.assert_allclose(areas["fitted"], level["cases"], rtol=1e-5)
        np.testing.assert_allclose(table["mean"], level["cases"], rtol=1e-5)
    assert all(len(set(each)) == len(each) > 2 for each in seeds)  # of the counts' noise
