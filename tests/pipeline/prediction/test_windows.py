"""Mean rates over windows of periods: dense regression, the maps of single periods, tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import zarr

import models
from geo.core.calendar import Calendar
from geo.grids.grid import Tile
from models.temporal.posterior import path_posterior
from pipeline.cli.check import all_problems
from pipeline.config.reader import load_config
from pipeline.config.series import Series
from pipeline.config.windows import ends_of, left_out, windows_of
from pipeline.inspection.words import profile_lines
from pipeline.prediction.period_table import PeriodDraws, tabulate_periods
from pipeline.prediction.windows import (
    WindowMaps,
    WindowPeriod,
    tabulate_window,
    with_means,
)
from pipeline.products.moving_grids import NOWHERE, MovingGrids
from pipeline.products.tile_pixels import TilePixels
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.models.temporal.world import dense_regression
from tests.pipeline.series_inputs import LIKE, N_DRAW, QUARTERS, elevation, people, rain

# -- which windows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "text", "labels"),
    [
        ("month", "2023-11..2024-01", ("2023-11", "2023-12", "2024-01")),
        ("month", "202311 .. 202312", ("2023-11", "2023-12")),
        ("month", "2023-11", ("2023-11",)),
        ("month", "last 2", ("2024-02", "2024-03")),
        ("week", "2023-W52..2024-W01", ("2023-W52", "2024-W01")),
        ("year", "2020..2021", ("2020", "2021")),
    ],
)
def test_a_window_is_its_periods(step: str, text: str, labels: tuple[str, ...]) -> None:
    calendar = Calendar(step)
    of = {"month": "2024-03", "week": "2024-W10", "year": "2024"}[step]
    last = calendar.number(of)
    assert last is not None
    found, lacking = windows_of(Series(calendar, last - 20, last), [text])
    assert lacking == []
    assert found[0].labels == labels
    assert ".." not in found[0].name
    assert found[0].title.startswith("mean of ")


@pytest.mark.parametrize("text", ["", "last", "last 0", "2023", "2023-13", "2023-05..2023-04"])
def test_what_is_no_window_is_not_read_as_one(text: str) -> None:
    assert ends_of(text, Calendar("month"), 24287) is None


def test_windows_that_are_not_whole_are_said_and_left_out(quarters: Path) -> None:
    config = load_config(quarters.parent / "disagg.yaml")
    series, output = config.known_series, config.output
    found, _ = windows_of(series, output.windows, output.forecast)
    assert [each.name for each in found] == ["2022-Q1", "last_4", "2022-Q4_2023-Q3"]
    said = "output.windows: 2023-Q1..2023-Q4: not mapped, this run has 2022-Q1 to 2023-Q3"
    assert left_out(series, "all", output.windows, output.forecast) == [said]
    _, _, examined, _ = all_problems(quarters.parent / "disagg.yaml")
    assert examined is not None
    assert ("output", said) in profile_lines(examined.profile)
    assert {path.name for path in (quarters / "windows").iterdir()} == {e.name for e in found}
    # Two ways to write one window are one map.
    assert len(windows_of(series, ["last 4", "last_4"])[0]) == 1


# -- pixels ----------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_mean_of_draws_is_that_of_dense_regression() -> None:
    """Three periods of 12 pixels: the variance of the mean has their covariances in it."""
    case, n_draws = dense_regression(), 4000
    posterior, n = path_posterior(case.held.model, case.state), len(case.coords)
    drawn = posterior.draws(n_draws, np.random.default_rng(1), case.times)
    scale = float(case.state.fixed["base_rate"][0])
    periods = [WindowPeriod(drawn.at(time), NOWHERE) for time in case.times]
    moments = posterior.joint_moments(case.times)
    row, zeros = np.arange(n), np.zeros(n)
    pixels = TilePixels(
        Tile(0, 0, n, 1), row, 0 * row, case.inputs[:, :1].T.astype(np.float32), case.coords,
        zeros, zeros, zeros, number=row,
    )  # fmt: skip
    maps = WindowMaps(periods, moments, [], SimpleNamespace())  # type: ignore[arg-type]
    found = maps._mean(pixels, [pixels] * 3, slice(None))
    average = np.kron(np.ones((1, 3)) / 3, np.eye(n))
    sd = scale * np.sqrt(np.diag(average @ case.cov @ average.T))
    np.testing.assert_allclose(found.mean, scale * average @ case.mean, atol=1e-4 * scale)
    np.testing.assert_allclose(found.draws.mean(axis=0), found.mean, atol=(4 * sd).max() / 63)
    np.testing.assert_allclose(found.sd, sd, rtol=4 / np.sqrt(2 * n_draws))
    np.testing.assert_allclose(found.quantile(0.9), found.mean + 1.2816 * sd, atol=0.1 * sd.max())
    np.testing.assert_allclose(found.exceed(found.mean), 0.5, atol=4 * 0.5 / np.sqrt(n_draws))
    # Neither of what holds still alone, nor of periods that are apart.
    each = scale * np.sqrt(np.diag(case.cov).reshape(3, n))
    assert (sd < 0.97 * each.mean(axis=0)).all()
    assert (sd > 1.03 * np.sqrt((each**2).sum(axis=0)) / 3).all()


def test_pixels_of_another_period_have_all_that_their_covariates_may_be() -> None:
    def grid(rain: list[float]) -> Any:
        group = zarr.create_group(zarr.storage.MemoryStore())
        group.create_array("covariates", data=np.array([[rain]], np.float32))
        group.attrs.update({"covariates": ["rain"], "has_population": False})
        return group

    mean, wet, dry = grid([2.0, 3.0, 4.0]), grid([9.0, np.nan, 8.0]), grid([0.5, 0.6, 0.7])
    zeros = np.zeros(2)
    pixels = TilePixels(
        Tile(0, 0, 1, 3), np.zeros(2, int), np.array([0, 1]), np.array([[5.0, 6.0], [1.0, 1.0]]),
        np.zeros((2, 2)), zeros, zeros, zeros,
    )  # fmt: skip
    moved = pixels.moved(MovingGrids([mean], (), [wet, dry]))
    np.testing.assert_allclose(moved.inputs(slice(None)), [[5.0, 2.0], [6.0, 3.0]])
    first, second = moved.alternatives(slice(None))
    np.testing.assert_allclose(first, [[5.0, 9.0], [6.0, 3.0]])  # the mean where it is not known
    np.testing.assert_allclose(second, [[5.0, 0.5], [6.0, 0.6]])
    last = moved.select(np.array([False, True])).alternatives(slice(None))
    np.testing.assert_allclose(np.concatenate(last), [[6.0, 3.0], [6.0, 0.6]])
    assert len(pixels.moved(MovingGrids([mean])).alternatives(slice(None))) == 1


def test_where_covariates_are_not_known_a_window_has_all_that_they_may_be() -> None:
    class Powers:
        def __init__(self, power: np.ndarray) -> None:
            self.power, self.n_draws = power, power.size

        def share(self, first: int, step: int) -> Powers:
            return Powers(self.power[first::step])

        def rate(self, x: np.ndarray, coords: np.ndarray) -> np.ndarray:
            del coords
            return np.exp(self.power[:, None] * x[:, 0])

    def at(number: int, x: np.ndarray, coords: np.ndarray) -> SimpleNamespace:
        del coords
        return SimpleNamespace(mean=np.exp((1.0 + number) * x[:, 0]))

    n = 4
    period: Any = SimpleNamespace(functions=Powers(np.arange(1.0, 7.0)), moving=NOWHERE)
    maps = WindowMaps([period, period], SimpleNamespace(at=at), [], SimpleNamespace())  # type: ignore[arg-type]
    row, zeros, x = np.arange(n), np.zeros(n), np.linspace(-1, 1, n, dtype=np.float32)[None]
    past = TilePixels(Tile(0, 0, n, 1), row, 0 * row, x, np.zeros((n, 2)), zeros, zeros, zeros)
    ahead = replace(past, others=(x - 0.5, x + 1.0))
    found = maps._mean(past, [past, ahead], slice(None))
    own, low, high = (each[0].astype(np.float64) for each in (x, *ahead.others))
    np.testing.assert_allclose(
        found.mean, (np.exp(own) + (np.exp(2 * low) + np.exp(2 * high)) / 2) / 2
    )
    for number, power in enumerate(np.arange(1.0, 7.0)):
        there = low if number % 2 == 0 else high
        np.testing.assert_allclose(
            found.draws[number], (np.exp(power * own) + np.exp(power * there)) / 2
        )


def test_a_window_of_one_period_is_the_map_of_that_period(quarters: Path) -> None:
    own, window = quarters / "periods/2022-Q1", quarters / "windows/2022-Q1"
    sd = read(own / "rate_sd.tif")
    np.testing.assert_array_equal(read(window / "rate_mean.tif"), read(own / "rate_mean.tif"))
    np.testing.assert_allclose(read(window / "rate_sd.tif"), sd, rtol=6 / np.sqrt(2 * N_DRAW))
    for name, far in (("median", 0.3), ("lower", 0.6), ("upper", 0.6)):
        off = (read(window / f"rate_{name}.tif") - read(own / f"rate_{name}.tif")) / sd
        assert np.nanmax(np.abs(off)) < far
        assert abs(np.nanmean(off)) < 0.1
    given, found = (pd.read_csv(each / "areas.csv").set_index("id") for each in (own, window))
    np.testing.assert_allclose(found["fitted"], given["fitted"], rtol=1e-9)
    np.testing.assert_allclose(found["fitted_rate"], given["fitted_rate"], rtol=1e-9)
    np.testing.assert_array_equal(found["observed"], given["observed"])
    ends = ["fitted_lower", "fitted_upper", "fitted_rate_lower", "fitted_rate_upper"]
    np.testing.assert_allclose(found[ends], given[ends], rtol=0.1)


@pytest.mark.parametrize(
    ("name", "labels"),
    [("last_4", QUARTERS[2:]), ("2022-Q4_2023-Q3", (*QUARTERS[3:], "2023-Q3"))],
)
def test_the_mean_of_a_window_is_the_mean_of_its_periods(
    quarters: Path, name: str, labels: tuple[str, ...]
) -> None:
    model: Any = models.load(quarters / "work/model")
    bags = BagStore.open(quarters / "work/bags.zarr", period="2023-Q2")
    rows = bags.read_rows(0, bags.n_pix)
    number = np.repeat(np.arange(bags.n_bag), bags.sizes)
    each = []
    for label in labels:
        # The rain of the forecast is not known: it is that of the same quarter before.
        month = LIKE[QUARTERS.index("2022-Q3" if label == "2023-Q3" else label)]
        x = np.stack([elevation(), rain(month)]).reshape(2, -1)[:, rows.pixel].T
        time = 4.0 * int(label[:4]) + int(label[-1]) - 1
        found = model.predict_pixels(x.astype(np.float32), rows.coords, time, number)
        each.append(1000 * np.asarray(found.mean))
    mapped = read(quarters / "windows" / name / "rate_mean.tif").ravel()[rows.pixel]
    np.testing.assert_allclose(mapped, np.mean(each, axis=0), rtol=1e-4)
    with rasterio.open(quarters / "windows" / name / "rate_mean.tif") as file:
        ends = f"{labels[0]} to {labels[-1]}"
        title = f"mean of the last 4 ({ends})" if name == "last_4" else f"mean of {ends}"
        assert file.descriptions[0].endswith(title)
        assert file.tags()["period"] == title


# -- areas -----------------------------------------------------------------------------------------


def test_tables_of_windows_add_up_those_of_periods(quarters: Path) -> None:
    every = pd.read_csv(quarters / "periods.csv")
    for name, labels in (
        ("last_4", QUARTERS[2:]),
        ("2022-Q4_2023-Q3", (*QUARTERS[3:], "2023-Q3")),
    ):
        table = pd.read_csv(quarters / "windows" / name / "areas.csv").set_index("id")
        own = every[every["period"].isin(labels)].groupby("id")
        np.testing.assert_allclose(table["fitted"], own["mean"].sum(), rtol=1e-9)
        rate = 1000 * own["mean"].sum() / own["people"].sum()
        np.testing.assert_allclose(table["fitted_rate"], rate, rtol=1e-9)
        assert (table["counted"] == own["observed"].count()).all()
        if name == "last_4":
            np.testing.assert_array_equal(table["observed"], own["observed"].sum())
        else:
            assert table["observed"].isna().all()
        # What periods share does not average away; what is apart in each does.
        half, halves = table["fitted_upper"] - table["fitted_lower"], own["upper"].sum()
        halves = halves - own["lower"].sum()
        apart = np.sqrt(((every["upper"] - every["lower"]) ** 2)[every["period"].isin(labels)]
                        .groupby(every["id"]).sum())  # fmt: skip
        assert (half < 1.02 * halves).all()
        assert (half > 0.7 * apart).all()


def test_an_area_of_one_pixel_has_what_its_pixel_has(quarters: Path) -> None:
    row = pd.read_csv(quarters / "windows/last_4/areas.csv").set_index("id").loc["A00"]
    assert row["people"] == pytest.approx(people()[0, 0], rel=1e-3)
    pixel = {
        name: read(quarters / f"windows/last_4/rate_{name}.tif")[0, 0]
        for name in ("mean", "sd", "lower", "upper")
    }
    # Areas also know what their own counts say; rates of pixels are those of the surface.
    assert row["fitted_rate"] == pytest.approx(pixel["mean"], rel=0.03)
    sd = 1000 * row["fitted_sd"] / (4 * row["people"])
    assert sd == pytest.approx(pixel["sd"], rel=6 / np.sqrt(2 * N_DRAW))
    for name in ("lower", "upper"):
        assert abs(row[f"fitted_rate_{name}"] - pixel[name]) < 0.6 * pixel["sd"]


def test_sums_of_people_tested_are_empty_where_nobody_knows_how_many() -> None:
    """A rate for one person tested is no number of positives."""
    rng = np.random.default_rng(0)
    expected = rng.uniform(1.0, 2.0, (50, 2, 3))
    known = np.array([[True, True, True], [True, False, True]])
    ones = np.ones((2, 3))
    draws = PeriodDraws(np.arange(2.0), expected, expected, ones, ones, ones, known)
    ids, labels = ["a", "b", "c"], ["2024-01", "2024-02"]
    ahead = dict.fromkeys(labels, False)
    periods = tabulate_periods(draws, ids, labels, ahead, 0.9, 1.0, None)
    window = with_means(tabulate_window(draws, [0, 1], ids, 0.9, 1.0), periods, labels)
    sums = ["mean", "lower", "upper", "count_lower", "count_upper"]
    assert (periods[sums].isna() == ~known.ravel()[:, None]).all(axis=None)
    assert periods["rate"].notna().all()
    ends = ["fitted", "fitted_sd", "fitted_lower", "fitted_upper", "fitted_rate"]
    assert window.loc["b", ends].isna().all()
    assert window.loc[["a", "c"], ends].notna().all(axis=None)
    np.testing.assert_allclose(window.loc["a", "fitted"], expected[:, :, 0].sum(axis=1).mean())


def test_values_below_zero_have_the_rate_of_their_sum() -> None:
    """Of a period that is mapped, ``periods.csv`` has another mean than the draws."""
    expected = np.random.default_rng(0).normal([-2.0, 0.1, 3.0], 0.3, (50, 2, 3))
    people, known = np.array([10.0, 20.0, 40.0]) * np.ones((2, 1)), np.ones((2, 3), bool)
    draws = PeriodDraws(np.arange(2.0), expected, expected, people, people, people, known)
    ids, labels = ["a", "b", "c"], ["2024-01", "2024-02"]
    periods = tabulate_periods(draws, ids, labels, dict.fromkeys(labels, False), 0.9, 1.0, None)
    periods["mean"] += np.tile([0.2, -0.3, 0.1], 2)
    window = with_means(tabulate_window(draws, [0, 1], ids, 0.9, 1.0), periods, labels)
    assert (window["fitted"] < 0).any()
    np.testing.assert_allclose(window["fitted_rate"], window["fitted"] / people[0] / 2)


def test_rates_among_people_tested_are_means_of_the_periods() -> None:
    """As those of the map are: a month in which more were tested counts no more than another."""
    rate = np.random.default_rng(0).uniform(0.1, 0.2, (50, 2, 3))
    tested = np.array([[10.0, 20.0, 1.0], [1000.0, 20.0, 30.0]])
    known = np.array([[True, True, False], [True, True, True]])
    ones = np.ones((2, 3))
    draws = PeriodDraws(
        np.arange(2.0), rate * tested, rate * tested, tested, ones, 0.15 * tested, known,
        tested=tested,
    )  # fmt: skip
    ids, labels = ["a", "b", "c"], ["2024-01", "2024-02"]
    periods = tabulate_periods(draws, ids, labels, dict.fromkeys(labels, False), 0.9, 100.0, None)
    np.testing.assert_array_equal(periods["tested"], [10, 20, np.nan, 1000, 20, 30])
    window = with_means(
        tabulate_window(draws, [0, 1], ids, 0.9, 100.0, alike=True), periods, labels, alike=True
    )
    mean = 100 * rate.mean(axis=1)
    np.testing.assert_allclose(window["fitted_rate"], mean.mean(axis=0))
    ends = window[["fitted_rate_lower", "fitted_rate_upper"]].to_numpy().T
    np.testing.assert_allclose(ends, np.quantile(mean, [0.05, 0.95], axis=0))
    assert list(window["fitted"].isna()) == [False, False, True]  # of c nobody knows how many
