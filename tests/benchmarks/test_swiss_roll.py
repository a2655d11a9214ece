"""The swiss roll of the VBAgg paper: data as the paper says, scores that tell models apart."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import swiss_roll, swiss_roll_page
from benchmarks.report import RESULTS, read_results
from models.tuning import four_way_split, tune


def everything(bags):
    return four_way_split(bags.n_bag, (bags.n_bag, 0, 0, 0), 0)


@pytest.mark.parametrize(("likelihood", "printed"), [("poisson", 0.85), ("normal", 0.04)])
def test_a_constant_within_bags_scores_what_the_paper_prints(likelihood, printed):
    bags, rate, response = swiss_roll.make_roll(likelihood, 100, 150.0, 50.0, 0)
    sizes = np.diff(bags.offsets)
    assert abs(sizes.mean() - 150) < 15
    assert abs(sizes.std() - 50) < 10
    np.testing.assert_allclose(bags.y, np.add.reduceat(response, bags.offsets[:-1]))
    found = swiss_roll.constant_score(likelihood, bags, rate, response, everything(bags))
    assert found["mse"] == pytest.approx(printed, rel=0.1)
    if likelihood == "poisson":
        assert found["nll"] == pytest.approx(2.23, abs=0.02)
    assert np.linalg.matrix_rank(bags.x - bags.x.mean(axis=0)) == 3


def test_vbagg_knows_more_of_points_than_a_constant():
    bags, rate, response = swiss_roll.make_roll("poisson", 120, 60.0, 20.0, 0)
    split = four_way_split(120, (80, 10, 10, 20), 0)
    models = swiss_roll.candidates("poisson", 0)
    model = tune(models["VBAgg-Sq"], bags, split=split).model
    ours = swiss_roll.score("poisson", model, bags, rate, response, split)
    constant = swiss_roll.constant_score("poisson", bags, rate, response, split)
    assert ours["mse"] < 0.9 * constant["mse"]
    assert ours["nll"] < constant["nll"]
    assert ours["coverage"]["0.7"] < ours["coverage"]["0.9"] <= 1.0
    assert 0.0 < ours["bag_mse"] < 1.0


def test_means_errors_and_tests_are_those_of_the_rolls():
    rolls = [
        {
            "scores": {
                name: dict(nll=base + 0.1 * k, mse=base - 0.01 * k, seconds=1.0, converged=True)
                for name, base in (("VBAgg", 1.0), ("NN", 2.0), ("Nystrom", 0.5))
            }
        }
        for k in range(6)
    ]
    rows = swiss_roll.summarise(rolls)
    assert rows["VBAgg"]["nll"] == pytest.approx(1.25)
    assert rows["VBAgg"]["nll_se"] == pytest.approx(np.std(0.1 * np.arange(6), ddof=1) / 6**0.5)
    assert rows["NN"]["rolls"] == 6
    p = swiss_roll.tested(rolls)
    assert p["VBAgg, NN"]["mse"] == pytest.approx(2.0**-6)  # all six are better
    assert p["VBAgg, Nystrom"]["mse"] == 1.0


def test_the_page_is_that_of_the_results():
    told = read_results(RESULTS / "swiss_roll.json")
    assert swiss_roll_page.PAGE.read_text() == swiss_roll_page.page(told)
