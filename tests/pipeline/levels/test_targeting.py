"""Targeting: the curves equal a sort of all pixels, draw by draw."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import rasterio

from pipeline.levels.level_tables import Summary, order_by_rate
from pipeline.levels.targeting import Curve, Targeting, area_curve, rate_keys
from tests.bands import read


def brute_force(rate, people, drawn, at):
    """Take people one pixel after the other until the share ``at``: (n_draws, n)."""
    order = sorted(range(rate.size), key=lambda k: -rate[k])
    found = np.empty((drawn.shape[0], at.size))
    for n, share in enumerate(at):
        left, cases = share * people.sum(), np.zeros(drawn.shape[0])
        for k in order:
            part = min(1.0, left / people[k]) if people[k] > 0 else 1.0
            cases += part * drawn[:, k]
            left -= part * people[k]
            if left <= 0:
                break
        found[:, n] = cases / drawn.sum(axis=1)
    return found


def test_the_curve_of_pixels_is_that_of_all_pixels_sorted(made, dense, counted):
    config, _, _ = made
    _, people, _, at = dense
    mean = read(config.output.dir / "rate_mean.tif")[at]
    percent = np.array([5, 20, 50, 80])
    drawn = 100 * brute_force(mean, people, counted * people, percent / 100)
    table = pd.read_csv(config.output.dir / "targeting.csv")
    table = table[table["level"] == "pixels"].set_index("percent").loc[percent]
    # Pixels whose rates differ by less than 0.4 % are taken in parts.
    np.testing.assert_allclose(table["cases_reached"], drawn.mean(axis=0), atol=0.05)
    for q, end in ((0.05, "lower"), (0.95, "upper")):
        found = table[f"cases_reached_{end}"]
        np.testing.assert_allclose(found, np.quantile(drawn, q, axis=0), atol=0.05)


def targeted(rate, people, drawn, n_tile):
    """Hand the pixels to the consumer, some to each tile."""
    found = Targeting(drawn.shape[0])
    rows = np.array_split(np.arange(rate.size), n_tile)
    for at in rows:
        pixels = SimpleNamespace(values={"rate_mean": rate[at]}, people=people[at], covered=1.0)
        made = found.begin(pixels)
        for part in (slice(0, 100), slice(100, None)):
            cases = drawn[:, at] / people[at]
            found.draw(made, pixels, part, None, cases[:, part].T)
        found.add(pixels, made)
    found.finish()
    return found


def test_ends_of_classes_are_exact():
    rng = np.random.default_rng(0)
    rate = rng.gamma(2.0, 20.0, 5000).astype(np.float32)
    people = rng.gamma(0.5, 100.0, rate.size)
    drawn = rate * people * np.exp(0.3 * rng.normal(size=(7, rate.size)))
    found, again = targeted(rate, people, drawn, 1), targeted(rate, people, drawn, 9)
    keys = rate_keys(rate)
    curve = found.curve()
    np.testing.assert_allclose(again.curve().cases, curve.cases, rtol=1e-12)
    exact = brute_force((keys >> 3).astype(float), people, drawn, curve.people[1:-1:40])
    np.testing.assert_allclose(curve.cases[:, 1:-1:40], exact, rtol=1e-9)
    share = [people[keys > key].sum() / people.sum() for key in keys[:40]]
    np.testing.assert_allclose(found.above(rate[:40]), share, atol=1e-12)


def test_keys_keep_the_order_of_rates_and_nearly_all_differences():
    rate = np.sort(np.random.default_rng(1).gamma(0.3, 1e-3, 2000)).astype(np.float32)
    keys = rate_keys(rate)
    assert (np.diff(keys) >= 0).all()
    apart = rate[1:] > rate[:-1] * 1.0005
    assert (np.diff(keys)[apart] > 0).all()
    assert rate_keys(np.array([-1.0, 0.0, np.inf], np.float32)).max() < 1 << 19


def test_a_map_of_one_rate_reaches_cases_as_it_takes_people():
    curve = Curve.of(np.array([100.0]), np.array([[5.0], [9.0]]))
    np.testing.assert_allclose(curve.reached(np.array([0.2]))[:, 0], 0.2)
    assert Curve.of(np.zeros(1), np.ones((2, 1))) is None
    assert Curve.of(np.ones(1), np.array([[1.0], [0.0]])) is None


def test_the_inverse_takes_the_curve_back():
    rng = np.random.default_rng(2)
    curve = Curve.of(rng.gamma(1.0, 1.0, 30), rng.gamma(1.0, 1.0, (5, 30)))
    share = np.array([0.1, 0.5, 0.9])
    for draw, needed in enumerate(curve.needed(share)):
        np.testing.assert_allclose(curve.reached(needed)[draw], share)
    table = curve.table(Summary(0.9, 1000, (), True))
    assert table.iloc[0].tolist() == [0.0] * 7
    assert table.iloc[-1].tolist() == [100.0] * 7


@pytest.mark.parametrize("level", ["training", "catchment"])
def test_the_list_of_areas_is_their_sort_draw_by_draw(made, dense, counted, level):
    _, tables, _ = made
    _, people, shares, _ = dense
    mass = shares[level] * people
    table = tables[level]
    own, drawn = mass.sum(axis=1), counted @ mass.T
    listed = table.dropna(subset="target_order").sort_values("target_order")
    assert listed["rate"].is_monotonic_decreasing
    assert len(listed) == (own > 0).sum()
    order = listed.index
    np.testing.assert_allclose(listed["target_people"], np.cumsum(own[order]) / own.sum())
    share = np.cumsum(drawn[:, order], axis=1) / drawn.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(listed["target_cases"], share.mean(axis=0), rtol=1e-9)
    upper = np.quantile(share, 0.95, axis=0)
    np.testing.assert_allclose(listed["target_cases_upper"], upper, rtol=1e-9)


def test_areas_without_a_rate_are_not_taken():
    rate = np.array([1.0, np.nan, 3.0, 3.0])
    assert order_by_rate(rate).tolist() == [2, 3, 0]
    order, curve = area_curve(rate, np.array([1.0, 0.0, 2.0, 1.0]), np.ones((3, 4)))
    np.testing.assert_allclose(curve.people, [0, 0.5, 0.75, 1])
    assert order.tolist() == [2, 3, 0]


def test_the_rank_raster_is_the_share_of_people_at_higher_rates(made, dense):
    config, _, _ = made
    _, people, _, at = dense
    mean = read(config.output.dir / "rate_mean.tif")
    rank = read(config.output.dir / "targeting_rank.tif")
    assert (np.isfinite(rank) == np.isfinite(mean)).all()
    keys = rate_keys(mean[at])
    share = [people[keys > key].sum() / people.sum() for key in keys]
    np.testing.assert_allclose(rank[at], share, atol=1e-6)
    assert (config.output.dir / "targeting_rank.qml").is_file()
    with rasterio.open(config.output.dir / "targeting_rank.tif") as source:
        assert source.descriptions == ("share of the people in pixels with a higher mean rate",)
        assert source.tags()["fingerprint"] == "of-the-inputs"
