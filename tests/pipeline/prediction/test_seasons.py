"""What is unusual of the season: of areas and of pixels, by the definition written out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import models
from pipeline.prediction.seasons import against_season, same_season
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.pipeline.series_inputs import (
    LIKE,
    N_DRAW,
    QUARTERS,
    area_of_pixel,
    elevation,
    people,
    rain,
)


def test_the_same_season_is_that_of_other_years_a_month_earlier_to_a_month_later() -> None:
    times, known = np.arange(30.0), np.ones(30, bool)
    known[13] = False
    found = same_season(times, known, 12.0)
    assert found[2].tolist() == [14, 15, 25, 26, 27]
    assert found[29].tolist() == [4, 5, 6, 16, 17, 18]
    assert [each.size for each in same_season(times, known, None)] == [0] * 30


def test_the_rule_of_the_third_quartile_written_out() -> None:
    rng = np.random.default_rng(1)
    rate, others = rng.gamma(2.0, 1.0, (50, 7)), rng.gamma(2.0, 1.0, (50, 3, 7))
    others[:, 1, 2] = np.nan  # a year whose rain is not known there
    others[:, :, 4] = np.nan
    outbreak, anomaly = against_season(rate, others)
    for k in range(7):
        years = [y for y in range(3) if np.isfinite(others[0, y, k])]
        if not years:
            assert np.isnan([outbreak[k], anomaly[k]]).all()
            continue
        limits = [np.percentile([others[d, y, k] for y in years], 75) for d in range(50)]
        assert outbreak[k] == sum(rate[d, k] > limits[d] for d in range(50)) / 50
        means = [sum(others[d, y, k] for y in years) / len(years) for d in range(50)]
        assert anomaly[k] == pytest.approx(np.median(rate[:, k] / means))


def test_probabilities_come_true_where_posteriors_are_exact() -> None:
    """True rates are drawn as all others are: of 100 said to be .3 about 30 are above."""
    rng = np.random.default_rng(2)
    n, n_other, n_draw = 4000, 3, 200
    truth = rng.standard_normal((n_other + 1, n))
    seen = truth + rng.standard_normal(truth.shape)  # posterior: half of it, variance a half
    drawn = 0.5 * seen + np.sqrt(0.5) * rng.standard_normal((n_draw, *truth.shape))
    rate, others = np.exp(drawn[:, 0]), np.exp(drawn[:, 1:])
    said, _ = against_season(rate, others)
    true = np.exp(truth[0]) > np.quantile(np.exp(truth[1:]), 0.75, axis=0)
    assert said.mean() == pytest.approx(true.mean(), abs=4 * np.sqrt(0.25 / n))
    for low in (0.0, 0.2, 0.4, 0.6):
        here = (low <= said) & (said < low + 0.2)
        error = np.sqrt(0.25 / here.sum())
        assert true[here].mean() == pytest.approx(said[here].mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("label", "year_before_or_after", "below"),
    [("2023-Q2", "2022-Q2", ""), ("2022-Q1", "2023-Q1", "periods/2022-Q1")],
)
def test_a_map_is_what_joint_draws_of_its_pixels_say(
    quarters: Path, label: str, year_before_or_after: str, below: str
) -> None:
    model: Any = models.load(quarters / "work/model")

    def time(text: str) -> float:
        return 4.0 * int(text[:4]) + int(text[-1]) - 1

    # Mapped are the last, the first and the forecast; their seasons need two more.
    times = sorted(map(time, ("2022-Q1", "2022-Q2", "2022-Q3", "2023-Q1", "2023-Q2", "2023-Q3")))
    drawn = model.sample_functions(N_DRAW, np.random.default_rng([1, 1]), times)
    row, col = np.array([0, 3, 9, 15]), np.array([0, 12, 9, 2])
    rows = (bags := BagStore.open(quarters / "work/bags.zarr", period=label)).read_rows(
        0, bags.n_pix
    )
    at = [int(np.flatnonzero(rows.pixel == 16 * r + c)[0]) for r, c in zip(row, col, strict=True)]
    xy = rows.coords[at]
    number = [
        bags.ids.index(f"A{area_of_pixel()[r, c]:02d}") for r, c in zip(row, col, strict=True)
    ]

    def rates(text: str) -> np.ndarray:
        month = LIKE[QUARTERS.index(text)]
        x = np.stack([elevation()[row, col], rain(month)[row, col]], axis=1)
        columns = np.column_stack([x, number]) if model.at(time(text)).numbers_areas else x
        return np.asarray(drawn.at(time(text)).rate(columns, xy))

    own, other = rates(label), rates(year_before_or_after)
    outbreak = (own > other).mean(axis=0)  # the quartile of one year is its rate
    anomaly = np.median(own / other, axis=0)
    np.testing.assert_allclose(read(quarters / below / "outbreak.tif")[row, col], outbreak, 1e-6)
    np.testing.assert_allclose(read(quarters / below / "anomaly.tif")[row, col], anomaly, 1e-4)
    cube = xr.open_zarr(quarters / "rates.zarr")
    place = list(cube["period"].values).index(label)
    for name in ("outbreak", "anomaly"):
        there = read(quarters / below / f"{name}.tif")
        np.testing.assert_array_equal(cube[name].values[place], there)


def test_an_area_of_one_pixel_has_what_its_pixel_has(quarters: Path) -> None:
    table = pd.read_csv(quarters / "periods.csv")
    one = table[table["id"] == "A00"].set_index("period")
    assert (one["people"] < 1.5 * people()[0, 0]).all()
    assert one["outbreak"].notna().tolist() == [True, True, False, False, True, True, True]
    for label, below in (("2023-Q2", ""), ("2022-Q1", "periods/2022-Q1")):
        p, ratio = (read(quarters / below / f"{n}.tif")[0, 0] for n in ("outbreak", "anomaly"))
        # Both have other draws: the error of a share of each.
        error = np.sqrt(2 * p * (1 - p) / N_DRAW)
        assert abs(one.loc[label, "outbreak"] - p) < 4 * error
        assert one.loc[label, "anomaly"] == pytest.approx(ratio, rel=0.15)
        assert 0.02 < p < 0.98  # two years alike: neither is certain
