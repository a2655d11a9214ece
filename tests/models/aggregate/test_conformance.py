"""What every model must do, whatever it is: one suite that each model inherits."""

from __future__ import annotations

import json
from functools import reduce
from operator import add

import numpy as np
import pytest
from sklearn.base import clone

import models
from models import BagPixel, Bags, Constant, Network, Nystrom, VBAgg
from models.core.errors import BagsError, FormatError, NotFittedError, ParameterError
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train
from tests.plain import plain

SMALL = {"n_inducing": 8, "max_epochs": 4}
MODELS = {
    "vbagg-square": (VBAgg, {"link": "square", "kernel": "additive", **SMALL}),
    "vbagg-adam": (VBAgg, {"posterior_steps": "adam", **SMALL}),
    "vbagg-fixed": (VBAgg, {"kernel": "additive", "learn_inducing": False, **SMALL}),
    "vbagg-area": (
        VBAgg,
        {"area_effect": True, "priors": "weak", "kernel": "linear + additive", **SMALL},
    ),
    "vbagg-paths": (VBAgg, {"estimator": "monte_carlo", "n_paths": 4, "n_features": 32, **SMALL}),
    "bag-pixel": (BagPixel, {"kernel": "additive", **SMALL}),
    "nystrom": (Nystrom, {"kernel": "additive", **SMALL}),
    "network": (Network, {"learning_rate": 0.01, "n_hidden": 4, "max_epochs": 4}),
    "constant": (Constant, {"likelihood": "negative_binomial", "max_epochs": 4}),
}


@pytest.fixture(scope="module", params=MODELS)
def make(request):
    model, settings = MODELS[request.param]
    return lambda **changes: plain(model, **settings, **changes)


@pytest.fixture(scope="module")
def bags(make_bags):
    return make_bags()


@pytest.fixture(scope="module")
def fitted(make, bags):
    """Fit once a model, for all tests that only read it."""
    return make().fit(bags, n_thread=1)


def _stats(model, bags, block_pixels):
    source = BagsSource(bags, 0, block_pixels=block_pixels, block_bags=3)
    state = start_training(model, source, seed=0, learning_rate=0.01, tolerance=1e-3).state
    with ThreadExecutor(model, source, 2) as executor:
        blocks = range(len(source.block_bags))
        return reduce(add, executor.map(model.block_params(state), blocks)), len(blocks)


def test_splitting_into_blocks_changes_only_rounding(make, bags):
    few, n_few = _stats(make(), bags, 10**6)
    many, n_many = _stats(make(), bags, 1)
    assert n_many > n_few
    assert many.n_bag == few.n_bag == bags.n_bag
    assert many.bound == pytest.approx(few.bound, rel=1e-12)
    for name, value in few.sums.items():
        # A gradient is a difference of sums as large as the bound: 0 at an optimum.
        scale = max(abs(value).max(), abs(few.bound))
        np.testing.assert_allclose(many.sums[name], value, rtol=1e-9, atol=1e-9 * scale)


def test_the_seed_decides_and_nothing_else(make, bags, fitted):
    """Two fits with one seed are the same to the bit, on any number of threads."""
    four = make().fit(bags, n_thread=4)
    for name, value in fitted.state_.params.items():
        np.testing.assert_array_equal(value, four.state_.params[name])
    if not isinstance(fitted, Constant):  # which draws nothing
        assert make(seed=4).fit(bags).bound_ != fitted.bound_


def test_the_bound_rises(make, bags):
    history = make().set_params(max_epochs=15).fit(bags).history_
    assert history[-1]["bound"] > history[0]["bound"]


def test_single_precision_pixels_agree(make, bags, fitted):
    if "dtype" not in make().get_params():
        pytest.skip("the baselines know one precision")
    # Of one state: which steps a climb accepts, and so where four of them end, turns on rounding.
    double, single = fitted, make(dtype="float32")
    single.state_, single.params_ = double.state_, single.prediction_params(double.state_)
    ends = [each.predict_pixels(bags.x, bags.coords).mean for each in (double, single)]
    np.testing.assert_allclose(ends[1], ends[0], rtol=0.02)
    ends = [
        each.block_stats(each.block_params(double.state_), bags, None)[0].bound
        for each in (double, single)
    ]
    assert ends[1] == pytest.approx(ends[0], rel=1e-3)


def test_save_and_load_without_pickle(fitted, bags, tmp_path):
    fitted.save(tmp_path / "m")
    fitted.save(tmp_path / "m")  # over an old one
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    again = models.load(tmp_path / "m")
    np.testing.assert_array_equal(
        again.predict_pixels(bags.x, bags.coords).mean,
        fitted.predict_pixels(bags.x, bags.coords).mean,
    )
    assert again.get_params() == fitted.get_params()
    assert again.history_ == fitted.history_


def test_a_damaged_or_foreign_model_is_refused(bags, tmp_path):
    plain(Constant, max_epochs=4).fit(bags).save(tmp_path / "m")
    data = bytearray((tmp_path / "m/arrays.npz").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "m/arrays.npz").write_bytes(bytes(data))
    with pytest.raises(FormatError, match="damaged"):
        models.load(tmp_path / "m")
    meta = json.loads((tmp_path / "m/model.json").read_text())
    (tmp_path / "m/model.json").write_text(json.dumps({**meta, "version": 99}))
    with pytest.raises(FormatError, match="version 99"):
        models.load(tmp_path / "m")
    with pytest.raises(FormatError, match="not a saved model"):
        models.load(tmp_path / "nothing")


def test_it_is_a_scikit_learn_estimator(make):
    model = make(seed=5)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ParameterError, match="depth"):
        model.set_params(depth=3)


def test_what_cannot_be_predicted_is_refused(make, bags, fitted):
    with pytest.raises(NotFittedError, match="call fit first"):
        make().predict_pixels(bags.x, bags.coords)
    with pytest.raises(BagsError, match="fitted with 3 covariates"):
        fitted.predict_pixels(bags.x[:, :2], bags.coords)
    with pytest.raises(BagsError, match="give coords"):
        fitted.predict_pixels(bags.x)


def test_counts_of_zero_alone_make_a_map_of_low_rates(make, bags):
    empty = Bags(bags.x, bags.offsets, np.zeros(bags.n_bag), bags.weight, bags.coords)
    model = make().fit(empty)
    rates = model.predict_pixels(bags.x, bags.coords).mean
    assert np.isfinite(rates).all()
    # About the half case in all that a fit starts at; these fits are short.
    assert 0.0 < float(bags.weight @ rates) < 5.0
    areas = model.predict_bags(empty, n_draws=50, observed=True)
    assert np.isfinite(areas.draws).all()
    assert np.isfinite(areas.log_density(empty.y)).all()


def test_values_of_zero_alone_are_refused(bags):
    empty = Bags(bags.x, bags.offsets, np.zeros(bags.n_bag), bags.weight, bags.coords)
    with pytest.raises(BagsError, match="exponential likelihood are above 0; correct them"):
        VBAgg(likelihood="exponential").fit(empty)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"link": "cube"}, "link"),
        ({"likelihood": "cauchy"}, "likelihood"),
        ({"likelihood": "normal", "link": "exp"}, "link.*use identity"),
        ({"likelihood": "binomial", "estimator": "bound"}, "estimator.*use second_order"),
        ({"likelihood": "binomial", "area_effect": True}, "area_effect.*leave it out"),
        ({"area_effect": "some"}, "area_effect"),
        ({"n_inducing": 0}, "n_inducing"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"dtype": "int8"}, "dtype"),
        ({"kernel": "nonsense"}, "kernel"),
    ],
)
def test_impossible_parameters_are_refused(change, says, bags):
    with pytest.raises(ParameterError, match=says):
        plain(VBAgg, **change).fit(bags)


def test_large_and_single_bags_are_finite_and_weightless_ones_refused():
    rng = np.random.default_rng(0)
    sizes = np.array([1, 3000, 2, 40])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    weight = rng.uniform(0, 1, offsets[-1])
    weight[offsets[2]] = 0  # nobody in a pixel
    x, y = rng.normal(size=(offsets[-1], 2)), [3.5, 900.0, 0.0, 2.0]
    bags = Bags(x, offsets, y, weight)
    nobody = np.where(np.repeat(np.arange(4), sizes) == 2, 0.0, weight)
    for link in ("exp", "square"):
        with pytest.raises(BagsError, match="weight is 0 in all pixels of bag 2"):
            plain(VBAgg, link=link, n_inducing=10, max_epochs=3).fit(Bags(x, offsets, y, nobody))
        model = plain(VBAgg, link=link, n_inducing=10, max_epochs=3).fit(bags)
        assert np.isfinite(model.bound_)
        assert np.isfinite(model.predict_pixels(bags.x).quantile(0.95)).all()


def test_a_fit_carried_on_equals_one_without_a_break(make, bags):
    model = make()
    source = BagsSource(bags, 0)
    args = {"seed": 0, "learning_rate": 0.01, "batch_bags": 5}
    results = []
    for stops in ((6,), (2, 3, 6)):
        training = start_training(model, source, seed=0, learning_rate=0.01, tolerance=1e-3)
        for stop in stops:
            with ThreadExecutor(model, source, 2) as executor:
                train(model, source, executor, training, max_epochs=stop, **args)
        results.append(training.state.params)
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])
