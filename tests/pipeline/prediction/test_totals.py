"""One exposure in bags, table and maps: they sum to the same cases."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import models
from models.likelihoods.registry import find_likelihood
from pipeline.config.context import StageContext
from pipeline.evaluation.stage import evaluate_stage
from pipeline.ingest.stage import ingest
from pipeline.prediction.points import told_points
from pipeline.prediction.stage import predict_stage
from pipeline.prediction.totals import explain_difference, fitted_total
from pipeline.products.areas import AreaDraws
from pipeline.products.monte_carlo import standard_error
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import BALANCE, read_balance
from pipeline.training.stage import fit_stage
from tests.bands import read
from tests.pipeline.conftest import Files
from tests.pipeline.levels.factors import area_factors, drawn_areas, pixel_factors
from tests.progress import Notes


@pytest.fixture(scope="module", params=["areas", "all"])
def mapped(tmp_path_factory: Any, request: Any) -> tuple[Files, Path, dict[str, Any], str]:
    """Ingest, fit and predict a country whose middle area overlaps all others."""
    files = Files(tmp_path_factory.mktemp("country"))
    files.polygons[4] = files.polygons[4].buffer(700, join_style="mitre")
    files.areas()
    files.population[4, 4] = np.nan
    files.population[20, 20] = 0.0
    files.raster("population.tif", files.population)
    files.x["wave"][10:12, 11] = np.nan
    files.raster("wave.tif", files.x["wave"])
    out = files.directory / "out"
    files.options = {
        "model": {"kernel": "additive", "inducing": 10, "likelihood": "poisson", "link": "exp"},
        "fit": {"max_epochs": 20, "seed": 4},
        "output": {"dir": str(out), "mask": request.param, "draws": 400},
        "evaluate": {"schemes": []},
    }
    notes = Notes()
    context = StageContext(files.config(), notes)
    ingest(context)
    fit_stage(context)
    summary = predict_stage(context)
    return files, out, summary, "\n".join(notes.lines)


def total_and_error(model: Any, store: Any, exact: np.ndarray, seed: int) -> tuple[float, float]:
    """Return the total by a set of draws, and the Monte Carlo error that the set tells."""
    functions, surface, factors = drawn_areas(model, store, 400, seed)
    expected = factors * surface
    factor = expected.mean(axis=0) / surface.mean(axis=0)
    off = exact * factor / expected.mean(axis=0) * (expected - factor * surface)
    return float(exact @ factor), standard_error(off.sum(axis=1), functions.clusters)


def test_the_map_sums_to_what_the_model_says_of_the_bags(mapped: Any) -> None:
    files, out, summary, said = mapped
    store = BagStore.open(out / "work/bags.zarr")
    model = models.load(out / "work/model")
    rows = store.read_rows(0, store.n_pix)
    # Second route: the bags' own pixels and weights; each overlap counts in both areas there.
    rate = model.predict_pixels(rows.x, rows.coords).mean
    _, factor = area_factors(model, store, 400, 4)
    fitted = float((rate * rows.weight * np.repeat(factor, np.diff(store.offsets))).sum())
    cases = summary["balance"]["cases"]
    total = np.nansum(read(out / "cases_mean.tif") * read(out / "coverage.tif"))
    assert cases["mapped"] == pytest.approx(total, rel=1e-7)
    assert cases["counted_twice"] > 0.01 * total
    assert total + cases["counted_twice"] == pytest.approx(fitted, rel=1e-5)
    # The table: the same mean, whose factors alone have a Monte Carlo error.
    with (out / "areas.csv").open(encoding="utf-8") as file:
        table = sum(float(row["fitted"]) for row in csv.DictReader(file))
    assert cases["fitted"]["mean"] == pytest.approx(table, rel=1e-12)
    error = cases["fitted"]["monte_carlo_se"]
    assert table == pytest.approx(fitted, rel=1e-5)
    # Other sets of draws have other factors; the surface is the same. Their spread is the error
    # (tests/pipeline/products/test_monte_carlo.py has it closer), of 20 sets. Each set tells the
    # error by the few groups of the members that vary most: by one set it may be far too small.
    exact = np.add.reduceat(rate * rows.weight, store.offsets[:-1])
    sets = [total_and_error(model, store, exact, seed) for seed in range(4, 25)]
    assert sets[0][0] == pytest.approx(fitted, rel=1e-5)
    assert sets[0][1] == pytest.approx(error, rel=0.01)
    again, errors = np.array(sets[1:]).T
    spread, told = np.std(again, ddof=1), np.sqrt(np.mean(errors**2))
    assert abs(np.log(spread / told)) < 4 * np.sqrt(1 / (2 * 19) + 1 / (2 * 20))
    assert abs(table - np.mean(again)) < 4 * spread * np.sqrt(1 + 1 / 20)
    # Nobody counts twice on the map.
    people = summary["balance"]["people"]
    in_bags = np.bincount(rows.pixel, rows.weight, files.population.size)
    once = np.minimum(in_bags, np.nan_to_num(files.population.ravel()))
    assert people["in_bags"] == pytest.approx(in_bags.sum(), rel=1e-12)
    assert people["mapped"] == pytest.approx(once.sum(), rel=1e-6)
    assert re.search(rf"mapped +{people['mapped']:,.0f} +{cases['mapped']:,.0f}\b", said)


def test_people_outside_every_area_are_in_a_map_of_their_own(mapped: Any) -> None:
    files, out, summary, _ = mapped
    inside, rate = read(out / "cases_mean.tif"), read(out / "rate_mean.tif") / 1000
    outside, covered = out / "cases_outside_mean.tif", read(out / "coverage.tif")
    if files.config().output.mask == "areas":
        assert not outside.exists()
        assert "mapped_outside" not in summary["balance"]["cases"]
        return
    beyond = read(outside)
    store, model = BagStore.open(out / "work/bags.zarr"), models.load(out / "work/model")
    factor = pixel_factors(model, store, 400, 4, rate.size).reshape(rate.shape)
    expected = rate * files.population
    both = (inside * covered + beyond) / factor
    known = np.isfinite(expected)
    np.testing.assert_allclose(both[known], expected[known], rtol=1e-5)
    assert (np.nan_to_num(both[~known]) == 0).all()
    # Deep inside an area nothing lies outside; a pixel beyond all has the same on both maps.
    assert beyond[6, 6] == 0 < inside[6, 6]
    assert beyond[0, 0] == inside[0, 0] > 0
    balance = summary["balance"]
    assert balance["cases"]["mapped_outside"] == pytest.approx(np.nansum(beyond), rel=1e-7)
    assert balance["people"]["mapped_outside"] == pytest.approx(
        balance["people"]["outside_areas"], rel=1e-6
    )


def test_the_evaluation_keeps_the_balance_of_the_model_that_it_scores(mapped: Any) -> None:
    files, out, summary, _ = mapped
    context = StageContext(files.config())
    evaluate_stage(context)
    report = json.loads((out / "evaluation.json").read_text())
    assert report["balance"] == json.loads(json.dumps(summary["balance"]))
    # Of another model the totals of the maps say nothing: ingest's part remains.
    store = BagStore.open(out / "work/bags.zarr")
    written = json.loads((out / BALANCE).read_text())
    written["of"]["model"] = "another"
    (out / BALANCE).write_text(json.dumps(written))
    rest = read_balance(out, store)
    assert rest is not None
    assert "fitted" not in rest["cases"]
    assert rest["people"]["raster"] == summary["balance"]["people"]["raster"]


def hand_draws() -> AreaDraws:
    expected = np.array([[10.0, 20.0, 3.0], [14.0, 24.0, 3.0], [12.0, 28.0, 3.0], [8.0, 24.0, 3.0]])
    return AreaDraws(
        np.array([2, 0, 1]), np.array([11.0, 9.0, 2.0]), np.ones(3), expected.mean(axis=0),
        expected, expected + np.array([[1.0], [-1], [2], [0]]), np.zeros(3),
    )  # fmt: skip


def test_the_total_by_hand() -> None:
    found = fitted_total(hand_draws(), 0.5)
    # Expected totals are 33, 41, 43 and 35, counts 36, 38, 49 and 35.
    assert found["mean"] == 38
    assert found["monte_carlo_se"] == pytest.approx(np.std([33, 41, 43, 35], ddof=1) / 2)
    assert (found["expected_lower"], found["expected_upper"]) == (34.5, 41.5)
    # Ends of counts are counts: one and three of four draws are at or below them.
    assert (found["lower"], found["upper"]) == (35, 38)
    assert found["observed"] == 22
    assert found["share_below"] == 0


def test_totals_that_differ_by_more_than_chance_are_told_with_the_reason() -> None:
    draws = hand_draws()
    total = fitted_total(draws, 0.5)
    ids = ["a", "b", "c"]

    def model(likelihood: str = "poisson", **own: float) -> Any:
        law = find_likelihood(likelihood)
        return SimpleNamespace(named_hyperparameters=lambda: own, resolved_likelihood=law)

    told = explain_difference(total, draws, ids, model(area_sd=0.5))
    assert told is not None
    assert "fitted total 38 (99 % interval 35 to 49) does not hold the observed 22" in told
    assert "area effect (sd 0.5 of the log)" in told
    assert "below 0.88 of their fitted count" in told  # the median of a log-normal of mean 1
    assert told.endswith("largest in a +15, b +1, c +0")
    assert "size 4" in str(
        explain_difference(total, draws, ids, model("negative_binomial", size=4.0))
    )
    assert "kernel" in str(explain_difference(total, draws, ids, model()))
    of_period = explain_difference(total, draws, ids, model(), "2024-01")
    assert str(of_period).startswith("the fitted total 38 of 2024-01 (99 % interval")
    # Half of all totals are outside an interval of 50 %: no cause is told of them.
    for most in (25.0, 32.0):
        near = replace(draws, y=np.array([11.0, most, 2.0]), least=None, most=None)
        assert explain_difference(fitted_total(near, 0.5), near, ids, model()) is None


def test_half_of_the_area_effects_are_below_their_median() -> None:
    """What the message says of the area effect, by its own draws."""
    from models.likelihoods.area_effect import AreaEffect
    from models.likelihoods.poisson import Poisson

    rng = np.random.default_rng(0)
    eta = np.full(40_000, 1e6)
    drawn = AreaEffect(Poisson()).draw(eta, {"log_area_sd": np.log(0.5)}, None, rng)
    assert drawn.mean() / 1e6 == pytest.approx(1.0, abs=0.01)
    assert np.median(drawn) / 1e6 == pytest.approx(np.exp(-0.125), abs=0.01)


def test_the_scale_of_a_source_is_the_median_that_the_report_has() -> None:
    scale = {"mode": 22.3, "mean": 24.9, "median": 24.4, "lower": 20.7, "upper": 29.1}
    row = {"n": 59, "value": 108.0, "tested": None, "expected": 115.0, "inside": 1.0}
    (line,) = told_points({"dhs": {**row, "parameters": {"scale": scale}}})
    assert line.endswith("scale 24.4 (20.7 to 29.1)")
    assert "59 values, 108 observed, 115 expected; 100 % of the values in their int" in line
    alone = {**row, "n": 1, "parameters": {}}
    assert told_points({"dhs": alone, "mis": {**alone, "inside": 0.0}}) == [
        "points.dhs: 1 value, 108 observed, 115 expected; inside its interval",
        "points.mis: 1 value, 108 observed, 115 expected; outside its interval",
    ]
    del scale["median"]  # of draws that are no chain, as in the report
    (line,) = told_points({"dhs": {**row, "parameters": {"scale": scale}}})
    assert line.endswith("scale 24.9 (20.7 to 29.1)")
