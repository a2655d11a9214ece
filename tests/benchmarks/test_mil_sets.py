"""The benchmark of the classifiers: its scores by a second route, its records, its page."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks import mil_contestants, mil_data, mil_papers, mil_runs, mil_sets
from benchmarks.mil_baselines import bag_statistics, by_statistics
from benchmarks.mil_baselines import extra_trees as make_extra_trees
from benchmarks.mil_contestants import Contestant, contestants
from benchmarks.mil_page import PAGE, page, standard_error
from benchmarks.mil_scores import (
    alike,
    best_accuracy,
    calibration_error,
    chance_scores,
    pooled_scores,
    repetition_scores,
    summarise,
)
from benchmarks.report import RESULTS
from models import BLRT, Bags
from models.training.registry import kinds
from pipeline.evaluation.label_scores import label_scores


@pytest.fixture
def predicted():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.beta(0.5, 0.5, 300), [0.0, 1.0, 0.5, 0.125, 1.0]])
    y = rng.random(p.size) < 0.2 + 0.5 * p
    y[-1] = False  # certain, and wrong: clipped
    return y.astype(float), p


def test_scores_are_those_of_our_own_evaluation(predicted):
    y, p = predicted
    found = repetition_scores([(y, p)])
    ours = label_scores(y, p)
    for name in ("auc", "accuracy", "log_loss", "brier"):
        assert found[name] == pytest.approx(ours[name], rel=1e-12), name


def test_calibration_error_is_that_of_a_loop_over_bins(predicted):
    y, p = predicted
    gap = 0.0
    for k in range(8):
        # Bins of scikit-learn are closed on the right; the first holds 0.
        inside = (p > k / 8) & (p <= (k + 1) / 8) | ((k == 0) & (p == 0))
        if inside.any():
            gap += inside.mean() * abs(p[inside].mean() - y[inside].mean())
    assert calibration_error(y > 0.5, p) == pytest.approx(gap, rel=1e-12)


def test_scores_by_chance_are_those_of_calibrated_labels():
    """Of probabilities of 1/2 by hand: 8 labels, the best threshold takes the larger class."""
    n = 8
    binomial = np.array([math.comb(n, k) for k in range(n + 1)]) / 2.0**n
    k = np.arange(n + 1)
    inner = binomial[1:-1] / binomial[1:-1].sum()  # labels of one class have no best threshold
    gap = np.maximum(k, n - k)[1:-1] / n - (n - k)[1:-1] / n  # p > 0.5 says no to all
    error = np.abs(k / n - 0.5)[1:-1]
    found = chance_scores(np.full(n, 0.5))
    assert found["chance_gap"] == pytest.approx(inner @ gap, abs=4 * gap.std() / np.sqrt(200))
    near = 4 * error.std() / np.sqrt(200)
    assert found["chance_calibration_error"] == pytest.approx(inner @ error, abs=near)
    # The surer and the more, the less is left to chance.
    many = chance_scores(np.linspace(0.001, 0.999, 4000))
    assert many["chance_gap"] < 0.01
    assert many["chance_calibration_error"] < 0.02


def test_best_accuracy_is_that_of_all_thresholds(predicted):
    y, p = predicted
    tried = [((p >= cut) == (y > 0.5)).mean() for cut in [*p, 2.0]]
    assert best_accuracy(y > 0.5, p) == pytest.approx(max(tried), rel=1e-12)
    assert pooled_scores(y, p)["best_accuracy"] >= pooled_scores(y, p)["accuracy"]


def test_bag_statistics_are_mean_minimum_and_maximum():
    rng = np.random.default_rng(1)
    x, offsets = rng.normal(size=(9, 2)), np.array([0, 1, 5, 9])
    got = bag_statistics(Bags(x, offsets, np.array([0.0, 1.0, 0.0])))
    for bag in range(3):
        part = x[offsets[bag] : offsets[bag + 1]]
        np.testing.assert_allclose(
            got[bag], np.concatenate([part.mean(axis=0), part.min(axis=0), part.max(axis=0)])
        )


def test_every_registered_classifier_takes_part():
    classifiers = {kind for kind, model in kinds().items() if model.responses == "labels"}
    assert classifiers <= set(contestants())
    assert {"extra_trees", "logistic", "gp_statistics"} <= set(contestants())


@pytest.fixture
def small_set(tmp_path, monkeypatch):
    """Provide a set of 40 bags whose maximum tells the label, and three quick contestants."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 6, 40)
    bag, y = np.repeat(np.arange(40), sizes), np.arange(40) % 2 == 0
    x = rng.normal(size=(bag.size, 3)) + 2.0 * y[bag, None]
    fold = np.array([(np.arange(40) // 4 + r) % 10 for r in range(5)])
    mask = fold[:, None, :] != np.arange(10)[:, None]
    (tmp_path / "mil").mkdir()
    shuffled = rng.permutation(bag.size)
    np.savez(tmp_path / "mil" / "Small.npz", X=x[shuffled], bag=bag[shuffled], y=y, train_mask=mask)
    monkeypatch.setenv("DISAGG_SHARED_DATA", str(tmp_path))
    calls = []

    def constant(training, test, seed):
        calls.append(seed)
        return np.full(test.n_bag, training.y.mean())

    def fails(training, test, seed):
        calls.append(seed)
        msg = "too large for this"
        raise ValueError(msg)

    def slow(training, test, seed):
        while True:
            np.linalg.inv(np.eye(50))

    one = {
        "constant": Contestant("constant", "mean", constant, "1"),
        "fails": Contestant("fails", "fails", fails, "1"),
        "slow": Contestant("slow", "slow", slow, "1"),
        "extra_trees": Contestant("extra_trees", "trees", by_statistics(make_extra_trees), "1"),
    }
    monkeypatch.setattr(mil_runs, "find_contestant", one.__getitem__)
    return one, calls


def test_folds_are_measured_once_until_the_code_changes(small_set, tmp_path):
    one, calls = small_set
    bags, masks = mil_data.load_set("Small")
    assert bags.n_bag == 40
    assert masks.shape == (5, 10, 40)
    kept = tmp_path / "records"
    pairs = [("Small", "constant"), ("Small", "fails")]
    mil_runs.measure(pairs, 2, kept)
    assert sorted(calls) == [0, *range(20)]  # what failed on the first fold was not tried again
    found = mil_runs.score_records(pairs, kept)["Small"]
    assert found["constant"]["repetitions"] == 2
    assert found["constant"]["auc"] == 0.5
    assert found["fails"] == {**found["fails"], "error": "ValueError: too large for this"}
    mil_runs.measure(pairs, 2, kept)
    assert len(calls) == 21
    one["constant"] = Contestant("constant", "mean", one["constant"].predict, "2")
    assert "constant" not in mil_runs.score_records(pairs, kept)["Small"]
    mil_runs.measure(pairs[:1], 1, kept)
    assert len(calls) == 31


def test_options_are_part_of_a_name():
    found = mil_contestants.find_contestant("blrt n_trees=3 criterion=gini")
    assert found.code == contestants()["blrt"].code
    bags, _ = mil_data.digit_bags(0)
    told = found.predict(bags.select(np.arange(bags.n_bag) < 40), bags, 1)
    np.testing.assert_array_equal(
        told.bags,
        BLRT(n_trees=3, criterion="gini", seed=1)
        .fit(bags.select(np.arange(bags.n_bag) < 40))
        .predict_bags(bags)
        .mean,
    )
    assert told.instances is None
    for wrong in ("nothing", "blrt gini", "extra_trees n=3"):
        with pytest.raises(ValueError, match=wrong.split()[0]):
            mil_contestants.find_contestant(wrong)


@pytest.mark.parametrize("name", list(mil_data.DIGITS)[:1])
def test_digits_hold_out_each_bag_once(name):
    data = mil_data.load_labelled(name)
    assert data.train.shape == (1, 5, data.bags.n_bag)
    np.testing.assert_array_equal((~data.train[0]).sum(axis=0), 1)
    assert data.hot.shape == (data.bags.n_pix,)
    np.testing.assert_array_equal(
        np.maximum.reduceat(data.hot, data.bags.offsets[:-1]), data.bags.y
    )


def test_halves_hold_out_half(small_set):
    data = mil_data.load_labelled("Small halves")
    assert data.train.shape == (20, 1, 40)
    assert (data.train.sum(axis=2) == 20).all()
    assert len(np.unique(data.train[:, 0], axis=0)) == 20


def test_held_out_bags_are_never_trained_on(small_set):
    one, _ = small_set
    seen = []

    def spy(training, test, seed):
        seen.append((training.x, test.x))
        return np.full(test.n_bag, 0.5)

    one["constant"] = Contestant("constant", "mean", spy, "3")
    for number in (0, 13):
        record = mil_runs.measure_fold("constant", "Small", 60.0, number)
        training, test = (set(x[:, 0].tolist()) for x in seen[-1])
        assert not training & test
        assert len(training | test) == mil_data.load_set("Small")[0].n_pix
        assert len(record["y"]) == 4


def test_a_fold_over_its_limit_is_said(small_set):
    record = mil_runs.measure_fold("slow", "Small", 0.05, 0)
    assert record == {"error": "TimeoutError: more than 0.05 s of processor time a fold"}


def test_figures_of_newer_code_replace_older_ones():
    before = {"Small": {"a": {"code": "1", "repetitions": 5}, "b": {"code": "1"}, "gone": {}}}
    now = {"Small": {"a": {"code": "1", "repetitions": 1}, "b": {"code": "2"}}}
    found = mil_sets.merged(before, now, [("Small", "a"), ("Small", "b")])
    assert found == {"Small": {"a": {"code": "1", "repetitions": 5}, "b": {"code": "2"}}}


def test_figures_of_other_code_are_named(small_set):
    now = mil_runs.settings_of("Small", "constant")
    scores = {"Small": {"constant": {"code": now}, "fails": {"code": "other"}}}
    assert mil_sets.outdated(scores) == {"fails": ["Small"]}


def test_the_page_is_that_of_the_results():
    result = json.loads((RESULTS / "mil_sets.json").read_text())
    assert PAGE.read_text() == page(result)


def test_the_page_of_the_papers_is_that_of_the_results():
    result = json.loads((RESULTS / "mil_papers.json").read_text())
    assert mil_papers.PAGE.read_text() == mil_papers.page(result)


def test_experiments_of_the_papers_can_be_run():
    for experiment in mil_papers.EXPERIMENTS.values():
        assert set(experiment.paper) <= set(experiment.sets)
        for model in experiment.models:
            kind, *_ = model.split()
            mil_contestants.find_contestant(model)
            if kind in kinds():  # its options exist, and have possible values
                kinds()[kind](**mil_contestants.options_of(model)).check_params()


def test_the_page_counts_conditions_and_names_what_is_missing():
    good = {"auc": 0.9, "log_loss": 0.4, "accuracy": 0.8, "best_accuracy": 0.82,
            "brier": 0.1, "calibration_error": 0.05, "seconds": 1.0, "repetitions": 1}  # fmt: skip
    result = {
        "models": {"extra_trees": "trees", "own": "ours", "large": "exact"},
        "sets": {"Small": {"bags": 40, "instances": 99, "features": 3, "positive": 0.5}},
        "scores": {"Small": {
            "extra_trees": good,
            "logistic": {**good, "log_loss": 0.38},
            "own": {**good, "log_loss": 0.44, "auc": 0.89, "calibration_error": 0.1},
            "large": {"error": "ValueError: too large"},
        }},
    }  # fmt: skip
    result["outdated"] = {"own": ["Small"]}
    text = page(result)
    assert "`own` was measured before its code last changed: Small." in text
    assert "| `own` | 1 of 1 | 0 of 1 | 0 of 1 | 0 of 1 | 1 of 1 |" in text
    assert "| `own` | 0.800 / 0.820 |" in text
    assert "`large` has no figures on Small: ValueError: too large." in text
    assert "1 repetition of 5" in text


def test_few_bags_are_drawn_from_a_thinned_set(monkeypatch):
    rng = np.random.default_rng(0)
    y = (np.arange(900) % 20 == 0) * 1.0  # 45 positive, 5 % of them
    bags = Bags(rng.normal(size=(900, 2)), np.arange(901), y)
    monkeypatch.setattr(mil_data, "load_set", lambda _: (bags, np.ones((5, 10, 900), bool)))
    few = mil_data.load_labelled(f"Any{mil_data.FEW}")
    assert (few.bags.n_bag, few.bags.y.mean()) == (225, 0.2)
    assert few.train.shape == (10, 1, 225)
    assert (few.train.sum(axis=2) == 42).all()
    assert {few.bags.y[each[0]].sum() for each in few.train} <= {8.0, 9.0}
    assert (few.train[0] != few.train[1]).any()


def test_rows_of_a_table_are_of_the_same_repetitions():
    scores = [{"auc": auc, "log_loss": 0.5} for auc in (0.9, 0.8, 0.7)]
    rows = {
        "many": {"repetitions": 3, "seconds": 1.0, **summarise(scores)},
        "few": {"repetitions": 2, **summarise(scores[:2])},
        "failed": {"error": "too slow"},
    }
    found = alike(rows)
    assert found["many"]["auc"] == found["few"]["auc"] == 0.85
    assert found["many"]["auc_sd"] == found["few"]["auc_sd"]
    assert found["many"]["repetitions"] == 2
    assert found["failed"] == rows["failed"]
    one = alike({**rows, "few": {"repetitions": 1, **summarise(scores[:1])}})
    assert one["many"]["auc"] == 0.9
    assert standard_error(one["many"], "auc") == ""
