"""What every classifier must do, whatever it is: one suite that each of them inherits."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

import models
from models import Bags
from models.core.errors import BagsError, NotFittedError, ParameterError
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train

FIXED = {"calibrate": "none", "variance": 1.0, "lengthscale": 1.0}
POOLED = {"kernel": "rbf", "n_inducing": 12, "n_starts": 1, "max_epochs": 6}
SMALL = {"n_inducing": 12, "max_epochs": 15}
#: One of each way; "auto" settings and fits within the fit by one, and by tests of their own.
MODELS = {
    "pooled-gp": (models.PooledGP, POOLED),
    "psi-vgpmil": (models.PsiVGPMIL, {**SMALL, **FIXED, "start": 0.5}),
    "g-vgpmil": (models.PsiVGPMIL, {**SMALL, **FIXED, "start": 0.5, "density": "gamma"}),
    "psi-vgpmil-svi": (models.PsiVGPMILSVI, {**SMALL, **FIXED, "start": 0.5, "batch_bags": 8}),
    "vwsgp": (models.VWSGP, SMALL),
    "vwsgp-svi": (models.VWSGPSVI, {**SMALL, **FIXED, "aggregate": "sum"}),
    "gpmil": (models.GPMIL, {"n_starts": 1, "max_epochs": 6, "calibrate": "none"}),
    "gpmil-witness": (
        models.GPMIL,
        {"likelihood": "witness", "n_starts": 1, "max_epochs": 3, "calibrate": "none"},
    ),
    "gpmil-s": (models.GPMILS, {**SMALL, "calibrate": "none"}),
    "gpmil-s-witness": (
        models.GPMILS,
        {"likelihood": "witness", **SMALL, "anneal_epochs": 1, "calibrate": "none"},
    ),
    "blrt": (models.BLRT, {"n_trees": 30}),
}


@pytest.fixture(scope="module", params=MODELS)
def make(request):
    model, settings = MODELS[request.param]
    return lambda **changes: model(**{**settings, **changes})


def _labelled(seed=0, n_bag=40, n_feat=3):
    """Bags of 1 to 9; positive where an instance has a large first feature."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 10, n_bag))])
    x = rng.normal(size=(offsets[-1], n_feat)) * [3.0, 1.0, 0.1][:n_feat] + [10.0, 0.0, -2.0]
    y = np.maximum.reduceat((x[:, 0] > 13.5).astype(float), offsets[:-1])
    return Bags(x, offsets, y)


@pytest.fixture(scope="module")
def bags():
    return _labelled()


@pytest.fixture(scope="module")
def fitted(make, bags):
    """Fit once a model, for all tests that only read it."""
    return make().fit(bags, n_thread=1)


def _same_state(one, other):
    for group in ("params", "fixed"):
        for name, value in getattr(one.state_, group).items():
            np.testing.assert_array_equal(value, getattr(other.state_, group)[name])


def test_it_learns_what_can_be_learnt(fitted):
    model, fresh = fitted, _labelled(seed=1, n_bag=120)
    said = model.predict_bags(fresh)
    assert roc_auc_score(fresh.y, said.mean) > 0.75
    assert ((said.mean >= 0) & (said.mean <= 1)).all()
    assert (said.sd >= 0).all()
    assert (said.quantile(0.1) <= said.quantile(0.9) + 1e-12).all()
    assert said.log_density(fresh.y).mean() > np.log(0.5)
    assert model.predicts[-1] == "bags"
    if "pixels" in model.predicts:
        hot = fresh.x[:, 0] > 13.5
        assert roc_auc_score(hot, model.predict_pixels(fresh.x).mean) > 0.75
    else:
        with pytest.raises(models.errors.ModelError, match="bags"):
            model.predict_pixels(fresh.x)


def test_splitting_into_blocks_changes_only_rounding(make, bags):
    model = make()
    if model.sweep == "single":
        pytest.skip("no sum over blocks")

    def sums(block_bags):
        source = BagsSource(bags, 0, block_bags=block_bags)
        training = start_training(make(), source, seed=0, learning_rate=0.01, tolerance=1e-3)
        blocks, local = range(len(source.block_bags)), {}
        with ThreadExecutor(model, source, 2) as executor:
            for _ in range(2):  # the second time with what was kept the first time
                params = model.block_params(training.state)
                stats = reduce(add, executor.map(params, blocks, local, local))
        return stats, len(blocks)

    (few, n_few), (many, n_many) = sums(1000), sums(1)
    assert n_many > n_few
    assert many.n_bag == few.n_bag == bags.n_bag
    assert many.bound == pytest.approx(few.bound, rel=1e-10)
    for name, value in few.sums.items():
        scale = max(np.abs(value).max(initial=0), 1.0)
        np.testing.assert_allclose(many.sums[name], value, rtol=1e-9, atol=1e-10 * scale)


def test_the_number_of_threads_changes_nothing_at_all(make, bags, fitted):
    """Nor does anything else but the seed: two fits with the same one are the same."""
    four = make().fit(bags, n_thread=4)
    _same_state(fitted, four)
    np.testing.assert_array_equal(fitted.predict_bags(bags).mean, four.predict_bags(bags).mean)


def test_single_precision_agrees(make, bags, fitted):
    if "dtype" not in make().get_params():
        pytest.skip("knows one precision")
    assert fitted.dtype == "float64"
    double, single = (m.predict_bags(bags) for m in (fitted, make(dtype="float32").fit(bags)))
    np.testing.assert_allclose(single.mean, double.mean, atol=0.01)


def test_save_and_load_without_pickle(fitted, bags, tmp_path):
    model = fitted
    model.save(tmp_path / "m")
    again = models.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_bags(bags).mean, model.predict_bags(bags).mean)
    if "pixels" in model.predicts:
        one, other = (m.predict_pixels(bags.x) for m in (model, again))
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.sd, other.sd)
    assert again.get_params() == model.get_params()


def test_a_fit_carried_on_equals_one_without_a_break(make, bags):
    model = make()
    if model.sweep == "single":
        pytest.skip("fits itself")
    source = BagsSource(bags, 0)
    args = {"seed": 0, "learning_rate": 0.01, "batch_bags": 8}
    results = []
    for stops in ((6,), (2, 3, 6)):
        training = start_training(model, source, seed=0, learning_rate=0.01, tolerance=1e-9)
        for stop in stops:
            with ThreadExecutor(model, source, 2) as executor:
                train(model, source, executor, training, max_epochs=stop, **args)
            if not model.saves_local:
                training.local = {}  # as a checkpoint would
        results.append(training.state.params)
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])


def test_bags_of_any_size_are_predicted_one_by_one_or_together(fitted, bags):
    model = fitted
    whole = model.predict_bags(bags).mean
    for a in (0, 3, bags.n_bag - 1):
        part = bags.select(np.arange(bags.n_bag) == a)
        np.testing.assert_allclose(model.predict_bags(part).mean, whole[a], atol=0.03)
    large = Bags(np.repeat(bags.x[:1], 500, axis=0), [0, 500], [1.0])
    assert np.isfinite(model.predict_bags(large).mean).all()


def test_positions_and_a_constant_feature_do_no_harm(make, bags, fitted):
    """Positions that the kernel does not use change nothing; a constant is finite."""
    coords = np.random.default_rng(5).normal(size=(bags.n_pix, 2)) * 100
    placed = Bags(bags.x, bags.offsets, bags.y, coords=coords)
    other = make().fit(placed, n_thread=1)
    np.testing.assert_allclose(
        fitted.predict_bags(bags).mean, other.predict_bags(placed).mean, atol=1e-9
    )
    x = np.column_stack([bags.x, np.full(bags.n_pix, 7.0)])
    model = make(**{k: 2 for k in ("max_epochs",) if k in other.get_params()})
    model.fit(Bags(x, bags.offsets, bags.y))
    assert np.isfinite(model.predict_bags(Bags(x, bags.offsets, bags.y)).mean).all()


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (lambda y: y + (np.arange(y.size) == 4), "y of bag 4 is [12].*labels 0 and 1"),
        (lambda y: np.where(np.arange(y.size) == 2, 0.5, y), "y of bag 2 is 0.5"),
        (lambda y: np.ones_like(y), "all labels are 1.*both classes"),
        (lambda y: np.zeros_like(y), "all labels are 0"),
    ],
)
def test_labels_that_teach_nothing_are_refused(make, bags, y, says):
    wrong = Bags(bags.x, bags.offsets, y(bags.y) * 1.0)
    if says.startswith("y of bag 4") and bags.y[4] == 0:
        wrong = Bags(bags.x, bags.offsets, np.where(np.arange(bags.n_bag) == 4, 2.0, bags.y))
    with pytest.raises(BagsError, match=says):
        make().fit(wrong)


def test_misuse_is_refused(make, fitted, bags):
    with pytest.raises(BagsError, match="predict_bags takes Bags, not list; use predict_proba"):
        fitted.predict_bags([np.zeros((2, 3))])
    with pytest.raises(BagsError, match="fitted with 3"):
        fitted.predict_bags(Bags(bags.x[:, :2], bags.offsets, bags.y))
    if "pixels" in fitted.predicts:
        with pytest.raises(BagsError, match="fitted with 3"):
            fitted.predict_pixels(bags.x[:, :2])
    with pytest.raises(NotFittedError, match="call fit first"):
        make().predict_bags(bags)
    model = make(seed=5)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ParameterError, match="depth_of_sea"):
        model.set_params(depth_of_sea=3)
