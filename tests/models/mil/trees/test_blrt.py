"""BLRT beside Algorithm 1 in plain NumPy, beside ordinary trees, and under what must not matter."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile

import cloudpickle
import numba
import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score

import models
from benchmarks import blrt as benchmark
from benchmarks.mil_data import load_set
from benchmarks.plain_trees import grow_plain, predict_plain
from models import BLRT, VWSGP, Bags, VBAgg
from models.core.errors import BagsError, ParameterError, UnsupportedError
from models.mil.trees import bag_trees
from tests.plain import plain
from tests.real_data import SHARED


def make_bags(seed=0, n_bag=40, n_feat=5, *, missing=False, task="binary"):
    """Bags of 1 to 8; the label is in the share of instances whose feature 0 is above 0."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 9, n_bag))])
    shift = np.repeat(rng.normal(size=n_bag), np.diff(offsets))
    x = rng.normal(size=(offsets[-1], n_feat))
    x[:, 0] += shift
    x[:, 1] = np.round(x[:, 1])  # equal values, and equal rules
    x[:, 2] = rng.choice([3.0, 7.0, 10.0, 11.0], offsets[-1])
    x[:, 4] = 1.0
    share = np.add.reduceat(x[:, 0] > 0, offsets[:-1]) / np.diff(offsets)
    if missing:
        x[rng.uniform(size=x.shape) < 0.3] = np.nan
        x[offsets[3] : offsets[5]] = np.nan
    noisy = share + 0.1 * rng.normal(size=n_bag)
    y = {"binary": noisy > 0.5, "multiclass": np.digitize(noisy, [0.4, 0.8]) * 3 + 2}
    return Bags(x, offsets, y.get(task, noisy), allow_missing=missing)


def same(one, other, names=None):
    """Say whether two forests are the same, node by node."""
    for name in names or one.state_.params:
        np.testing.assert_array_equal(one.state_.params[name], other.state_.params[name], name)


# -- the algorithm ---------------------------------------------------------------------------------


#: Each task and score with each way to count, with missing values and without.
PLAIN_TREES = [
    (task, criterion, variant, missing)
    for (task, criterion), missing in zip(
        [("binary", "gini"), ("multiclass", "information_gain"), ("regression", "variance")],
        [True, False, True],
        strict=True,
    )
    for variant in ("relative", "absolute", "relic")
] + [("binary", "information_gain", "relative", False), ("multiclass", "gini", "relic", True)]


@pytest.mark.parametrize(("task", "criterion", "variant", "missing"), PLAIN_TREES)
def test_the_trees_are_those_of_the_plain_algorithm(task, criterion, variant, missing):
    bags = make_bags(missing=missing, task=task, n_bag=30)
    score = "gini" if task == "regression" else criterion
    model = BLRT(
        n_trees=3,
        n_features=3,
        n_thresholds=5,
        criterion=score,
        variant=variant,
        task=task,
        missing=missing,
        categorical=[2],
        seed=2,
    ).fit(bags)
    params, fresh = model.state_.params, make_bags(1, missing=missing)
    told = model.predict_bags(fresh).draws
    seeds = np.random.SeedSequence(2).generate_state(3, np.uint64)
    shape = {"variant": variant, "categorical": (2,)}
    for tree, seed in enumerate(seeds):
        nodes = grow_plain(
            bags.x,
            bags.offsets,
            bags.y,
            n_try=3,
            n_value=5,
            seed=int(seed),
            criterion=criterion,
            **shape,
        )
        held = {name: params[name][slice(*params["tree"][tree : tree + 2])] for name in params}
        np.testing.assert_array_equal(held["feature"], [node["feature"] for node in nodes])
        assert len(nodes) > 5
        split = held["feature"] >= 0
        for name in ("value", "ratio", "missing_left", "child"):
            asked = [node[name] for node in nodes if node["feature"] >= 0]
            np.testing.assert_array_equal(held[name][split], asked)
        for number, label in enumerate(model.classes_):
            if task == "regression" or (task == "binary" and label == 0):
                continue
            plain = predict_plain(nodes, fresh.x, fresh.offsets, bags.y == label, **shape)
            column = told[tree] if task == "binary" else told[tree][:, number]
            np.testing.assert_allclose(column, plain, rtol=1e-12)
        if task == "regression":
            plain = predict_plain(nodes, fresh.x, fresh.offsets, bags.y, **shape)
            np.testing.assert_allclose(told[tree], plain, rtol=1e-10)


@pytest.mark.parametrize(
    ("task", "variant"),
    [("binary", "relative"), ("multiclass", "absolute"), ("regression", "relic")],
)
def test_many_bags_of_all_sizes_have_the_trees_of_the_plain_algorithm(task, variant):
    # Nodes of many bags are counted by bins: small bags and large ones, more than a byte can count
    # and more thresholds than a number can hold, values on a threshold's bin and next to it.
    rng = np.random.default_rng(5)
    sizes = rng.choice([1, 2, 7, 32, 33, 90, 600], 90, p=[0.2, 0.2, 0.2, 0.15, 0.15, 0.07, 0.03])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = np.stack(
        [
            rng.normal(size=offsets[-1]),
            np.round(rng.normal(size=offsets[-1]), 1),
            rng.standard_cauchy(offsets[-1]),
            rng.integers(0, 2, offsets[-1]),
        ],
        axis=1,
    )
    noisy = np.add.reduceat(x[:, 0], offsets[:-1]) / sizes + rng.normal(size=90)
    y = {"binary": noisy > 0, "multiclass": np.digitize(noisy, [-0.5, 0.5])}.get(task, noisy)
    bags, n_value = Bags(x, offsets, y), 11
    model = BLRT(n_trees=2, n_features=3, n_thresholds=n_value, variant=variant, task=task).fit(
        bags
    )
    params = model.state_.params
    criterion = "variance" if task == "regression" else "information_gain"
    for tree, seed in enumerate(np.random.SeedSequence(0).generate_state(2, np.uint64)):
        how = {"criterion": criterion, "variant": variant, "seed": int(seed)}
        nodes = grow_plain(x, offsets, bags.y, n_try=3, n_value=n_value, **how)
        held = {name: params[name][slice(*params["tree"][tree : tree + 2])] for name in params}
        assert len(nodes) > 20
        np.testing.assert_array_equal(held["feature"], [node["feature"] for node in nodes])
        split = held["feature"] >= 0
        for name in ("value", "ratio", "child"):
            asked = [node[name] for node in nodes if node["feature"] >= 0]
            np.testing.assert_array_equal(held[name][split], asked)


def test_the_bound_of_a_fit_is_that_of_predictions_for_its_bags():
    bags = make_bags(n_bag=60)
    model = BLRT(n_trees=5).fit(bags)
    told = model.predict_bags(bags).log_density(bags.y).sum()
    assert model.history_[0]["bound"] == pytest.approx(told, rel=1e-12)


@pytest.mark.ci
def test_with_single_instances_and_one_threshold_it_is_extremely_randomized_trees():
    # Footnote 7 of the paper. Features are continuous: scikit-learn does not count constant ones.
    rng = np.random.default_rng(0)
    x, fresh = rng.normal(size=(60, 4)), rng.normal(size=(80, 4))
    y = x[:, 0] + x[:, 1] + rng.normal(size=60) > 0
    n = 1500
    ours = BLRT(n_trees=n, n_thresholds=1, n_features=2, criterion="gini")
    ours.fit(Bags(x, np.arange(61), y))
    p = ours.predict_bags(Bags(fresh, np.arange(81), np.zeros(80))).mean
    theirs = ExtraTreesClassifier(n, max_features=2, random_state=1).fit(x, y)
    q = theirs.predict_proba(fresh)[:, 1]
    z = (p - q) / np.sqrt((p * (1 - p) + q * (1 - q) + 1e-3) / n)
    assert abs(z).max() < 4.5
    assert z.std() == pytest.approx(1.0, abs=0.3)


@pytest.mark.ci
def test_few_bags_fall_through_deep_trees_as_many_do(tmp_path):
    """Each alone, under numba's check of bounds: trees are deeper than there are bags."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(600, 3)), rng.permutation(np.arange(200) % 2)
    bags = Bags(x, np.arange(0, 601, 3), labels)
    BLRT(n_trees=5, seed=1).fit_once(bags, n_thread=1).save(tmp_path / "model")
    np.savez(tmp_path / "bags.npz", x=x, labels=labels)
    code = """
import sys
import numpy as np
import models
from models import Bags
kept = np.load(sys.argv[2])
bags = Bags(kept["x"], np.arange(0, 601, 3), kept["labels"])
model = models.load(sys.argv[1])
whole = model.bag_distribution(bags, n_thread=1).mean
one = [model.bag_distribution(bags.at(np.array([k])), n_thread=1).mean[0] for k in range(200)]
np.testing.assert_array_equal(one, whole)
"""
    run = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_DISABLE_JIT": "0"}
    with tempfile.TemporaryDirectory() as cache:  # machine code without the check is kept elsewhere
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "model", tmp_path / "bags.npz"],
            env={**run, "NUMBA_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def test_a_regression_on_labels_is_gini():
    bags = make_bags(n_bag=60)
    one = BLRT(n_trees=20, criterion="gini").fit(bags)
    other = BLRT(n_trees=20, task="regression").fit(bags)
    same(one, other, ("feature", "value", "ratio", "child"))
    fresh = make_bags(1)
    np.testing.assert_allclose(
        one.predict_bags(fresh).mean, other.predict_bags(fresh).mean, atol=1e-12
    )


def test_two_classes_are_two_labels():
    bags, fresh = make_bags(n_bag=60), make_bags(1)
    one = BLRT(n_trees=20).fit(bags)
    other = BLRT(n_trees=20, task="multiclass").fit(bags)
    told = other.predict_bags(fresh)
    np.testing.assert_allclose(told.mean.sum(axis=1), 1.0)
    np.testing.assert_allclose(told.mean[:, 1], one.predict_bags(fresh).mean)
    np.testing.assert_allclose(told.sd[:, 1], one.predict_bags(fresh).sd)
    np.testing.assert_allclose(
        told.log_density(fresh.y), one.predict_bags(fresh).log_density(fresh.y), atol=1e-11
    )


def test_bags_that_cannot_be_told_apart_share_a_leaf():
    x = np.repeat(np.array([[0.0], [0.0], [0.0], [1.0]]), 2, axis=0)
    bags = Bags(x, [0, 2, 4, 6, 8], [1.0, 0.0, 0.0, 1.0])
    told = BLRT(n_trees=5).fit(bags).predict_bags(bags)
    np.testing.assert_allclose(told.draws, np.tile([1 / 3, 1 / 3, 1 / 3, 1.0], (5, 1)))


# -- what must not matter --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["relative", "relic"])
def test_every_instance_twice_changes_nothing(variant):
    bags = make_bags()
    twice = Bags(np.repeat(bags.x, 2, axis=0), 2 * bags.offsets, bags.y)
    one, other = (BLRT(n_trees=20, variant=variant).fit(b) for b in (bags, twice))
    same(one, other)


def test_every_instance_twice_changes_absolute_counts():
    bags = make_bags()
    twice = Bags(np.repeat(bags.x, 2, axis=0), 2 * bags.offsets, bags.y)
    one, other = (BLRT(n_trees=20, variant="absolute").fit(b) for b in (bags, twice))
    assert one.ratio_histogram()[1][-1] < other.ratio_histogram()[1][-1]


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_order_of_instances_and_of_bags_changes_nothing(task):
    bags = make_bags(task=task)
    rng = np.random.default_rng(0)
    order = rng.permutation(bags.n_bag)
    parts = [rng.permutation(bags.x[bags.offsets[b] : bags.offsets[b + 1]]) for b in order]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    other = Bags(np.concatenate(parts), offsets, bags.y[order])
    same(*(BLRT(n_trees=20, task=task).fit(b) for b in (bags, other)))


def test_the_units_of_the_features_change_nothing():
    bags = make_bags()
    scale, shift = np.array([1e-3, 1e3, 7.0, 1.0, 1.0]), np.array([0.0, -5.0, 1.0, 2.0, 0.0])
    other = Bags(bags.x * scale + shift, bags.offsets, bags.y)
    one, two = (BLRT(n_trees=20).fit(b) for b in (bags, other))
    same(one, two, ("feature", "ratio", "child", "leaf"))
    f, split = one.params_["feature"], one.params_["feature"] >= 0
    expected = (one.params_["value"] * scale[f] + shift[f])[split]
    np.testing.assert_allclose(two.params_["value"][split], expected, rtol=1e-9)


def test_trees_may_grow_anywhere_in_any_order():
    bags = make_bags()

    def elsewhere(grow, seeds):
        sent = cloudpickle.loads(cloudpickle.dumps(grow))
        return [sent(seed) for seed in random.Random(0).sample(seeds, len(seeds))]

    here = BLRT(n_trees=20).fit(bags)
    same(here, BLRT(n_trees=20).fit(bags, tree_map=elsewhere))
    same(here, BLRT(n_trees=20).fit(bags, n_thread=3))
    fewer, n = BLRT(n_trees=7).fit(bags), here.params_["tree"][7]
    for name in ("feature", "value", "leaf"):  # of a larger forest the first trees
        np.testing.assert_array_equal(fewer.params_[name], here.params_[name][:n])


def test_one_missing_value_elsewhere_changes_only_what_asks_for_it():
    bags = make_bags()
    x = bags.x.copy()
    x[0, 4] = np.nan  # of a feature that no rule can ask for: it is constant
    hidden = Bags(x, bags.offsets, bags.y, allow_missing=True)
    same(BLRT(n_trees=20).fit(bags), BLRT(n_trees=20, missing=True).fit(hidden))


# -- missing values and categories -----------------------------------------------------------------


def test_unknown_bags_go_where_the_split_is_best():
    # Feature 0 is known of the bags of class 0, and of a part of class 1.
    x = np.array([0.0, 0.1, 0.2, 0.3, 1.0, 1.1, np.nan, np.nan])[:, None]
    bags = Bags(x, np.arange(9), [0, 0, 0, 0, 1, 1, 1, 1], allow_missing=True)
    model = BLRT(n_trees=50, missing=True, n_thresholds=4).fit(bags)
    blank = Bags([[np.nan], [2.0], [-1.0]], [0, 1, 2, 3], [0, 0, 0], allow_missing=True)
    np.testing.assert_allclose(model.predict_bags(blank).mean, [1.0, 1.0, 0.0], atol=0.15)


def test_missing_values_have_to_be_asked_for():
    hidden = make_bags(missing=True)
    with pytest.raises(BagsError, match=r"NaN.*first in pixel 0"):
        Bags(hidden.x, hidden.offsets, hidden.y)
    infinite = np.where(np.isnan(hidden.x), np.inf, hidden.x)
    with pytest.raises(BagsError, match="infinity, first in pixel"):
        Bags(infinite, hidden.offsets, hidden.y, allow_missing=True)
    for model in (BLRT(n_trees=2), plain(VBAgg), VWSGP()):
        with pytest.raises(BagsError, match=r"NaN.*missing=True"):
            model.fit(hidden)
    with pytest.raises(BagsError, match="NaN"):
        BLRT(n_trees=2).fit(make_bags()).predict_bags(hidden)
    assert np.isfinite(BLRT(n_trees=2, missing=True).fit(hidden).predict_bags(hidden).mean).all()


def test_a_category_is_no_number():
    rng = np.random.default_rng(0)
    kinds = np.array([3.0, 7.0, 10.0, 11.0, 12.0])
    x = rng.choice(kinds, (300, 1))
    bags = Bags(x, np.arange(0, 301, 3), np.add.reduceat(x[:, 0] == 10, np.arange(0, 300, 3)) >= 2)
    model = BLRT(n_trees=30, categorical=[0]).fit(bags)
    roots = model.params_["tree"][:-1]
    assert (model.params_["value"][roots] == 10).mean() > 0.75  # one rule says it all
    assert set(model.params_["value"][model.params_["feature"] >= 0]) <= set(kinds)
    assert np.diff(model.params_["tree"]).mean() < 0.5 * np.mean(
        np.diff(BLRT(n_trees=30).fit(bags).params_["tree"])
    )
    never = Bags(np.full((3, 1), 10.5), [0, 3], [0])  # a category that it has not seen
    none = Bags(np.full((3, 1), 3.0), [0, 3], [0])
    assert model.predict_bags(never).mean == pytest.approx(model.predict_bags(none).mean, abs=0.2)


# -- what a forest tells ---------------------------------------------------------------------------


def test_importances_are_the_impurity_that_the_splits_took():
    bags = make_bags(n_bag=60)
    model = BLRT(n_trees=1, n_features=3, criterion="gini").fit(bags)
    seed = np.random.SeedSequence(0).generate_state(1, np.uint64)[0]
    nodes = grow_plain(
        bags.x, bags.offsets, bags.y, n_try=3, n_value=8, seed=int(seed), criterion="gini"
    )
    taken = np.zeros(5)
    for node in nodes:
        if node["feature"] >= 0:
            taken[node["feature"]] += node["gain"]
    np.testing.assert_allclose(model.feature_importances_, taken / taken.sum(), rtol=1e-10)
    forest = BLRT(n_trees=50).fit(bags)
    assert forest.feature_importances_.sum() == pytest.approx(1.0)
    assert forest.feature_importances_.argmax() == 0
    assert forest.feature_importances_[4] == 0  # constant


def test_ratios_that_were_learnt():
    bags = make_bags(n_bag=100)
    n_split = {}
    for variant in ("relative", "relic", "absolute"):
        model = BLRT(n_trees=30, variant=variant).fit(bags)
        counts, edges = model.ratio_histogram()
        assert counts.sum() == (model.params_["feature"] >= 0).sum()
        n_split[variant] = counts, edges
    assert len(n_split["relative"][0]) == 10
    assert n_split["relic"][0][1:-1].sum() == 0
    assert (n_split["relic"][0][[0, -1]] > 0).all()
    assert n_split["absolute"][1][0] == 0.5
    assert len(n_split["absolute"][0]) <= 8  # the largest bag


@pytest.mark.parametrize(
    "params",
    [
        {"task": "multiclass"},
        {"task": "regression", "missing": True},
        {"variant": "relic", "categorical": [2]},
        {"variant": "absolute"},
    ],
)
def test_all_kinds_can_be_saved(params, tmp_path):
    bags = make_bags(task=params.get("task", "binary"), missing=params.get("missing", False))
    model = BLRT(n_trees=5, **params).fit(bags)
    model.save(tmp_path / "m")
    again = models.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_bags(bags).draws, model.predict_bags(bags).draws)
    np.testing.assert_array_equal(again.classes_, model.classes_)
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
    assert again.get_params() == model.get_params()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n_trees": 0}, "n_trees"),
        ({"n_thresholds": 2.5}, "n_thresholds"),
        ({"n_features": 6}, "n_features: 6, but the bags have 5"),
        ({"criterion": "variance"}, "criterion.*information_gain, gini"),
        ({"variant": "some"}, "variant"),
        ({"task": "ranking"}, "task"),
        ({"categorical": [5]}, "categorical: 5 is not a column"),
    ],
)
def test_impossible_parameters_are_refused(params, says):
    with pytest.raises(ParameterError, match=says):
        BLRT(**params).fit(make_bags())


def test_labels_have_to_fit_the_task():
    bags = make_bags(task="multiclass")
    with pytest.raises(BagsError, match="labels 0 and 1"):
        BLRT().fit(bags)
    equal = Bags(bags.x, bags.offsets, np.full(bags.n_bag, 3.0))
    for task in ("multiclass", "regression"):
        with pytest.raises(BagsError, match="every bag's y is 3"):
            BLRT(task=task).fit(equal)


def test_pixels_have_no_label():
    with pytest.raises(UnsupportedError, match=r"bags alone.*PsiVGPMIL"):
        BLRT(n_trees=1).fit(make_bags()).predict_pixels(np.zeros((2, 5)))


# -- the compiler ----------------------------------------------------------------------------------


def test_it_compiles_where_nothing_can_be_written(monkeypatch):
    real, tried = numba.njit, []

    def njit(**how):
        tried.append(how)
        if how.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**how)

    monkeypatch.setattr(numba, "njit", njit)
    twice = bag_trees.compiled(lambda a: 2 * a)
    assert twice(4) == 8
    assert [how.get("cache", False) for how in tried] == [True, False]


# -- real data -------------------------------------------------------------------------------------


def test_musk1_is_near_the_paper():
    if not (SHARED / "mil/Musk1.npz").is_file():
        pytest.skip("no shared data: set DISAGG_SHARED_DATA")
    bags, train = load_set("Musk1")
    scores = []
    for number, keep in enumerate(train[0]):
        test = bags.select(~keep)
        model = BLRT(n_trees=100, seed=number).fit(bags.select(keep))
        scores.append(roc_auc_score(test.y, model.predict_bags(test).mean))
    # Table 1: 96.8 +- 1.6 over repetitions; a repetition has 10 folds.
    assert np.mean(scores) > 0.968 - 2 * 0.016


def test_the_benchmark_grows_what_it_says():
    bags = benchmark.simulated(20, 4, 16)
    assert bags.n_bag == 20
    assert (np.diff(bags.offsets) == 4).all()
    found = benchmark.beside_plain(bags, 1, 2)
    assert found["times"] == pytest.approx(found["plain"] / found["compiled"])
    beside = benchmark.beside_extra_trees((20, 40), n_trees=2, repeats=1)
    assert beside["bags"] == [20, 40]
    ratio = beside["milliseconds_a_tree"][1] / beside["extra_trees_milliseconds"][1]
    assert beside["times_extra_trees"][1] == pytest.approx(ratio, abs=0.02)
