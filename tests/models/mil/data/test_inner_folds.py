"""Settings that a fit chooses: by inner folds, by importance weights, and that they are kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

import models
from models.core.errors import UnsupportedError
from models.likelihoods.probability import Probability, ProbabilityDraws, label_log_density
from models.mil.data.inner_fits import left_out_log_probability
from models.mil.data.inner_folds import (
    BagsFitter,
    Candidate,
    held_out_logits,
    inner_folds,
    judged_folds,
    table,
)
from tests.models.mil.data.test_calibration import noisy_bags

MODELS = {
    "psi": lambda **k: models.PsiVGPMIL(n_inducing=6, max_epochs=4, n_draws=30, **k),
    "vwsgp": lambda **k: models.VWSGP(n_inducing=6, max_epochs=4, **k),
    "gpmil-s": lambda **k: models.GPMILS(n_inducing=6, max_epochs=2, n_draws=30, **k),
    "blrt": lambda **k: models.BLRT(n_trees=5, **k),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", MODELS)
def test_a_tuned_model_is_the_one_with_the_chosen_settings_and_stays_so(name, tmp_path):
    bags = noisy_bags(30)
    model = MODELS[name](tune=True, calibrate="none").fit(bags, n_thread=1)
    assert model.tune
    rows = model.selection_
    assert len(rows) == len(model.tuning_settings(bags.n_pix / bags.n_bag)) > 1
    (chosen,) = [row for row in rows if row["chosen"]]
    assert chosen["log_score"] == max(row["log_score"] for row in rows)
    by_hand = MODELS[name](calibrate="none").like(**chosen["settings"]).fit(bags, n_thread=1)
    np.testing.assert_array_equal(model.predict_bags(bags).mean, by_hand.predict_bags(bags).mean)
    model.save(tmp_path / "m")
    again = models.load(tmp_path / "m")
    np.testing.assert_array_equal(model.predict_bags(bags).mean, again.predict_bags(bags).mean)
    assert again.selection_ == rows


def test_the_score_is_that_of_bags_held_out():
    bags = noisy_bags(50)
    model = MODELS["vwsgp"](tune=True, calibrate="none").fit(bags)
    fold = inner_folds(bags.y, 5, 0)
    for row in model.selection_[:3]:
        plain = MODELS["vwsgp"](calibrate="none", **row["settings"])
        logits = held_out_logits(plain, BagsFitter(bags), fold, "", lambda: None)
        assert row["log_score"] == pytest.approx(label_log_density(bags.y, expit(logits)).mean())


@pytest.mark.parametrize("name", ["psi", "vwsgp"])
def test_what_is_given_is_not_chosen(name):
    model = MODELS[name](variance=2.0, lengthscale=1.0, calibrate="none")
    model.set_params(**({"aggregate": "sum"} if name == "vwsgp" else {"start": 0.5}))
    assert model.automatic_settings(5.0) == []
    assert model.fit(noisy_bags(50)).selection_ == []


def test_tuning_leaves_no_start_open():
    for make in (models.PsiVGPMIL, models.PsiVGPMILSVI):
        grid = make().tuning_settings(5.0)
        assert len(grid) == 18
        assert {each["start"] for each in grid} == {0.5, 0.05}
        given = make(start=0.3).tuning_settings(5.0)
        assert len(given) == 9
        assert all("start" not in each for each in given)


def test_rounds_keep_the_best_of_those_before():
    bags = noisy_bags(50)
    rows = MODELS["psi"](calibrate="none").fit(bags).selection_
    assert len(rows) == 6
    for name, upto in (("variance", 3), ("start", 4)):
        best = max(rows[:upto], key=lambda row: row["log_score"])
        assert {row["settings"][name] for row in rows[upto:]} == {best["settings"][name]}


def test_of_many_bags_a_balanced_part_is_judged():
    y = (np.arange(5000) % 10 == 0).astype(float)
    fold = inner_folds(y, 5, 0)
    judged = judged_folds(y, fold, 0)
    used = judged >= 0
    assert 900 <= used.sum() <= 1000
    assert y[used].mean() == pytest.approx(0.1, abs=0.005)
    np.testing.assert_array_equal(judged[used], fold[used])
    assert all(np.unique(y[judged == k]).size == 2 for k in range(5))


def test_a_candidate_that_fails_is_never_chosen():
    rows = table(
        [
            Candidate({"a": 1}, np.array([np.nan]), None),
            Candidate({"a": 2}, np.array([-0.3, -0.5]), None),
            Candidate({"a": 3}, np.array([-0.2, -0.7]), None),
        ]
    )
    assert [row["chosen"] for row in rows] == [False, True, False]
    assert rows[0]["log_score"] is None
    assert rows[2]["error"] == pytest.approx(np.std([0.1, -0.2]) / np.sqrt(2))


def test_importance_weights_leave_a_label_out_exactly():
    """Of a posterior known in full: 3 bags, f on a grid, weights by replicated draws."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, (40, 3))  # P(T_b = 1 | f) at 40 equally likely f
    y = np.array([1.0, 0.0, 1.0])
    each = np.where(y > 0.5, p, 1.0 - p)
    number = np.round(2e5 * each.prod(axis=1)).astype(int)  # draws of f given all labels
    found = left_out_log_probability(y, ProbabilityDraws(np.repeat(p, number, axis=0)))
    for b in range(3):
        others = np.delete(each, b, axis=1).prod(axis=1)
        assert found[b] == pytest.approx(np.log(each[:, b] @ others / others.sum()), abs=2e-4)


def test_of_a_gaussian_the_weights_are_known():
    m, s, y = np.array([0.3, -1.0]), np.array([0.5, 2.0]), np.array([1.0, 1.0])
    draws = expit(m + np.sqrt(s) * np.random.default_rng(1).normal(size=(400_000, 2)))
    exact = left_out_log_probability(y, Probability("logistic", m, s))
    np.testing.assert_allclose(
        exact, left_out_log_probability(y, ProbabilityDraws(draws)), atol=0.02
    )
    with pytest.raises(UnsupportedError, match="tune=True"):
        left_out_log_probability(y, Probability("probit", m, s))


@pytest.mark.ci
def test_the_own_law_is_that_of_all_labels_of_the_instances():
    """P(T = 1) summed over every labelling of the instances, eq. (4), at drawn f."""
    bags = noisy_bags(16)
    how = {"n_inducing": 8, "variance": 4.0, "lengthscale": 1.0, "calibrate": "none"}
    for log_h in (float(np.log(100.0)), 27.6):
        model = models.PsiVGPMIL(log_h=log_h, n_draws=40_000, **how).fit(bags)
        right = 1.0 / (1.0 + np.exp(-log_h))
        said = model.predict_bags(bags).mean
        params = model.fitted_params()
        run = model._pass(params)
        z = model._inputs(params, bags)
        found = run.forward(z)
        loadings = np.concatenate([v for _, v, _ in run.tiles(z)])
        prior = model._kernel(params)
        rng = np.random.default_rng(5)
        for a, (first, stop) in enumerate(pairwise(bags.offsets.tolist())):
            if not 2 <= stop - first <= 4:
                continue
            v, rows = loadings[first:stop], slice(first, stop)
            g = v[:, : run.n_ind]
            cov = prior.matrix(params["theta"], z[rows], z[rows]) - g @ g.T
            half = v @ params["factor"]
            cov += half @ half.T
            p = expit(rng.multivariate_normal(found.m[rows], cov, 40_000))
            total = 0.0
            for code in range(2 ** (stop - first)):
                label = (code >> np.arange(stop - first)) & 1
                weight = np.where(label, p, 1.0 - p).prod(axis=1).mean()
                total += weight * (right if label.any() else 1.0 - right)
            assert said[a] == pytest.approx(total, abs=0.01)
