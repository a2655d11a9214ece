"""Is the map better than one rate? Yes, no, unclear, or not measured."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score

from pipeline.core.json_values import jsonable
from pipeline.evaluation.label_scores import label_scores, weighted_label_scores
from pipeline.evaluation.scores import LEVELS, people_scores, pit_bounds, pit_coverage
from pipeline.evaluation.verdict import paired_gain, verdict

RNG = np.random.default_rng(0)


def test_over_areas_the_interval_is_that_of_the_paired_t_test():
    model, constant = RNG.normal(-5, 1, (2, 40))
    found = paired_gain(model, constant)
    theirs = stats.ttest_rel(model, constant)
    interval = theirs.confidence_interval(0.9)
    assert found["gain"] == pytest.approx((model - constant).mean())
    np.testing.assert_allclose(found["interval"], [interval.low, interval.high])
    assert found["standard_error"] == pytest.approx(stats.sem(model - constant))


def test_over_regions_the_error_is_that_of_the_regions_totals():
    gain = RNG.normal(0.2, 1, 60)
    fold = np.repeat(np.arange(6), 10)
    found = paired_gain(gain, np.zeros(60), fold)
    assert found["n_groups"] == 6
    assert found["standard_error"] == pytest.approx(stats.sem(gain.reshape(6, 10).mean(axis=1)))
    # A region's areas that fail together are one failure and not ten.
    together = np.repeat(RNG.normal(0.3, 1, 6), 10)
    found = paired_gain(together, np.zeros(60), fold)
    assert found["standard_error"] > 2 * paired_gain(together, np.zeros(60))["standard_error"]


@pytest.mark.parametrize(
    ("gains", "answer", "better"),
    [
        ([0.4, 0.5, 0.6], "yes", True),
        ([1.5, -1.0, 0.1], "unclear", True),
        ([-1.5, 1.0, -0.1], "unclear", False),  # as the same gain with the other sign
        ([-0.4, -0.5, -0.6], "no", False),
        ([0.0, 0.0, 0.0], "unclear", False),
        ([0.4, 0.5, -np.inf], "no", False),
        ([0.4], "unclear", True),
        ([-0.4], "unclear", False),
        ([], "not measured", None),
        ([np.nan, 1.0], "not measured", None),
    ],
)
def test_every_answer(gains, answer, better):
    found = paired_gain(np.array(gains) - 3.0, np.full(len(gains), -3.0))
    assert (found["answer"], found["better"]) == (answer, better)
    assert verdict({"area": {"gain": found}}, ("area",), "one rate")["sentence"].startswith(
        f"better than one rate for the whole country: by area {answer}"
    )
    jsonable(found)


def test_what_neither_can_explain_hides_nothing():
    impossible = np.array([-np.inf, -1.0, -1.2])
    found = paired_gain(impossible, np.array([-np.inf, -2.0, -2.0]))
    assert found["gain"] == pytest.approx(1.8 / 3)


def test_what_was_skipped_or_left_out_is_named():
    held_out = {"area": {"skipped": "cross-validation needs two areas or more"}}
    found = verdict(held_out, ("area", "block"), "one rate")
    assert found["sentence"].endswith("by area not measured, by region not measured")
    assert found["area"]["reason"] == "cross-validation needs two areas or more"
    assert found["block"]["reason"] == "block was not held out; add it to evaluate.schemes"


# -- scores by people


def test_scores_by_people_are_those_of_areas_repeated_for_each_person():
    n = 30
    people, exposure = RNG.integers(1, 9, n), RNG.uniform(5, 50, n)
    mean = exposure * RNG.uniform(0.1, 0.4, n)
    y = RNG.poisson(mean).astype(float)
    draws, log_density = RNG.poisson(mean, (70, n)).astype(float), RNG.normal(-3, 1, n)
    found = people_scores(y, mean, exposure, people.astype(float), draws, log_density)
    each = np.repeat(np.arange(n), people)
    observed, expected = (y / exposure)[each], (mean / exposure)[each]
    assert found["rates"]["correlation"] == pytest.approx(np.corrcoef(observed, expected)[0, 1])
    median = (np.median(draws, axis=0) / exposure)[each]  # what absolute error asks for
    assert found["rates"]["mae"] == pytest.approx(np.abs(observed - median).mean())
    assert found["rates"]["bias"] == pytest.approx((expected - observed).mean())
    assert found["nll"] == pytest.approx(-log_density[each].mean())
    bounds = pit_bounds(draws[:, each], y[each])
    for level in LEVELS:
        wanted = pit_coverage(*bounds, level).mean()
        assert found["coverage"][f"{level:g}"] == pytest.approx(wanted)


def test_areas_without_people_or_exposure_have_no_weight():
    args = [np.array([2.0, 9, 9]), np.array([3.0, 1, 1]), np.array([10.0, 0, 10])]
    draws, density = np.ones((4, 3)), np.array([-1.0, -np.inf, -np.inf])
    found = people_scores(*args, np.array([5.0, 5, 0]), draws, density)
    assert found["nll"] == 1
    assert found["rates"]["mae"] == pytest.approx(0.1)
    nobody = people_scores(*args, np.zeros(3), draws, density)
    assert np.isnan(nobody["nll"])


def test_labels_by_people_are_labels_repeated():
    y, people = RNG.integers(0, 2, 40), RNG.integers(0, 5, 40)
    p = np.clip(0.3 * y + RNG.uniform(0, 0.7, 40), 0.01, 0.99)
    found = weighted_label_scores(y, p, people)
    each = np.repeat(np.arange(40), people)
    wanted = label_scores(y[each], p[each])
    assert found["log_loss"] == pytest.approx(log_loss(y[each], p[each]))
    assert found["auc"] == pytest.approx(roc_auc_score(y[each], p[each]))
    for name in ("positive", "accuracy", "brier", "average_precision"):
        assert found[name] == pytest.approx(wanted[name])
    assert np.isnan(weighted_label_scores(y, p, np.zeros(40))["auc"])
