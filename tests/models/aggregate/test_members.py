"""Draws of hyperparameters in a fitted VBAgg: predictions pool what each member says alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import VBAgg, load
from models.aggregate.posterior import member_states, weighted_quantile
from models.aggregate.rate_draws import allocate
from models.likelihoods.prediction import Prediction
from tests.plain import plain

WHOLE_RUNS = True

WEIGHT = np.array([0.5, 0.3, 0.2])


def with_members(model, weight=WEIGHT, size=0.25, seed=0):
    """Give a fitted model members: its own learnt arrays, each moved a little."""
    rng = np.random.default_rng(seed)
    state = model.fitted_state()
    members = {
        name: array + size * rng.standard_normal((weight.shape[0], *array.shape))
        for name, array in state.params.items()
        if name != "w"
    }
    return adopted(model, {**members, "weight": weight})


def adopted(model, members):
    """Return a copy of a fitted model that has these members, or none."""
    other = type(model)(**model.get_params())
    state = model.fitted_state()
    memory = {name: each for name, each in state.memory.items() if name != "chain"}
    other.state_ = replace(state, members=members, memory=memory)
    other.params_ = other.prediction_params(other.state_)
    other.history_, other.converged_ = model.history_, model.converged_
    return other


def alone(model):
    """Return each member as a model of its own."""
    plain = adopted(model, {})
    models = []
    for state in member_states(model.state_):
        each = type(model)(**model.get_params())
        each.state_, each.params_ = state, plain.prediction_params(state)
        each.history_, each.converged_ = [], True
        models.append(each)
    return models


def _fitted(make_bags, **parameters):
    bags = make_bags(n_bag=14, awkward=False)
    given = {"kernel": "linear + matern32(space)", "n_inducing": 10, "max_epochs": 25}
    return with_members(plain(VBAgg, **{**given, **parameters}).fit(bags, n_thread=1)), bags


CASES = {
    "poisson": {"link": "exp", "area_effect": True},
    "square": {"link": "square"},
    "negative_binomial": {"likelihood": "negative_binomial", "link": "exp"},
    "binomial": {"likelihood": "binomial"},
    "normal": {"likelihood": "normal"},
    "exponential": {"likelihood": "exponential"},
    "monte_carlo": {"estimator": "monte_carlo", "n_paths": 4, "n_features": 16},
    "float32": {"link": "exp", "dtype": "float32"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, make_bags):
    return _fitted(make_bags, **CASES[request.param])


@pytest.fixture(scope="module")
def effect(make_bags):
    return _fitted(make_bags, **CASES["poisson"])


def test_pixels_are_the_mixture_of_the_members(case):
    model, bags = case
    p = model.predict_pixels(bags.x, bags.coords)
    parts = [each.predict_pixels(bags.x, bags.coords) for each in alone(model)]
    mean = sum(w * part.mean for w, part in zip(WEIGHT, parts, strict=True))
    second = sum(w * (part.sd**2 + part.mean**2) for w, part in zip(WEIGHT, parts, strict=True))
    np.testing.assert_allclose(p.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(p.sd, np.sqrt(second - mean**2), rtol=1e-6)
    median = p.quantile(0.5)
    above = sum(w * part.exceed(median) for w, part in zip(WEIGHT, parts, strict=True))
    np.testing.assert_allclose(above, 0.5, atol=1e-9)
    # Members differ far beyond rounding: none of them, nor the optimum, says the same.
    mode = adopted(model, {}).predict_pixels(bags.x, bags.coords)
    assert isinstance(mode, Prediction)
    assert all(np.abs(each.mean / p.mean - 1).max() > 1e-6 for each in (*parts, mode))


def test_pixels_agree_with_draws_of_functions(effect):
    model, bags = effect
    n = 6000
    rate = model.sample_functions(n, np.random.default_rng(0)).rate(bags.x, bags.coords)
    p = model.predict_pixels(bags.x, bags.coords)
    assert rate.shape == (n, bags.n_pix)
    error = p.sd / np.sqrt(n)
    assert (np.abs(rate.mean(axis=0) - p.mean) < 6 * error).mean() > 0.97
    for q in (0.05, 0.5, 0.95):
        # 1024 random features: a member's variance is right to some per cent.
        share = (rate <= p.quantile(q)).mean(axis=0)
        assert np.abs(share - q).max() < 0.03
        assert abs(share.mean() - q) < 0.01


def test_areas_have_the_moments_of_the_members_by_hand(case):
    model, bags = case
    n = 3000
    found = model.predict_bags(bags, n_draws=n, rng=np.random.default_rng(3)).draws
    each = [
        one.predict_bags(bags, n_draws=n, rng=np.random.default_rng(4 + k)).draws
        for k, one in enumerate(alone(model))
    ]
    mean = sum(w * draws.mean(axis=0) for w, draws in zip(WEIGHT, each, strict=True))
    square = sum(
        w * (draws.var(axis=0) + (draws.mean(axis=0) - mean) ** 2)
        for w, draws in zip(WEIGHT, each, strict=True)
    )
    # Two estimates from n draws each, the members' shares of them exact.
    assert (np.abs(found.mean(axis=0) - mean) < 5 * np.sqrt(2 * square / n)).all()
    np.testing.assert_allclose(found.std(axis=0), np.sqrt(square), rtol=0.25)
    assert np.mean(found.std(axis=0) / np.sqrt(square)) == pytest.approx(1, abs=0.05)


def test_each_drawn_area_has_the_parameters_of_its_member(effect):
    model, bags = effect
    draws = model.sample_functions(200, np.random.default_rng(0))
    every = draws.rate(bags.x, bags.coords)
    for number in (0, 57, 199):
        few, row = draws.alone(number)
        assert few.n_draws < 200
        np.testing.assert_array_equal(few.rate(bags.x, bags.coords)[row], every[number])
    found = model.predict_bags(bags, draws=draws)
    own = found.params["log_area_sd"]
    assert own.shape == (200, 1)
    values, counts = np.unique(own, return_counts=True)
    learnt = model.state_.members["log_area_sd"][:, 0]
    assert dict(zip(values, counts, strict=True)) == dict(
        zip(learnt, np.array([100, 60, 40]), strict=True)
    )
    # The density of a count is the mean over draws, each under its own parameters.
    by_row = [
        found.likelihood.terms(
            bags.y, found.draws[k], {"log_area_sd": float(own[k, 0])}, found.bag_data
        ).value
        for k in range(200)
    ]
    expected = np.log(np.mean(np.exp(by_row), axis=0))
    np.testing.assert_allclose(found.log_density(bags.y), expected, rtol=1e-10)


def test_pooled_draws_are_the_same_functions_whatever_the_tiles(effect):
    model, bags = effect
    draws = model.sample_functions(40, np.random.default_rng(0))
    whole = model.predict_bags(bags, draws=draws).draws
    by_hand = np.add.reduceat(draws.rate(bags.x, bags.coords) * bags.weight, bags.offsets[:-1], 1)
    np.testing.assert_allclose(whole, by_hand, rtol=1e-10)
    keep = np.arange(bags.n_bag) % 2 == 0
    half = model.predict_bags(bags.select(keep), draws=draws).draws
    np.testing.assert_allclose(half, whole[:, keep], rtol=1e-10)


def test_the_first_draws_are_a_fair_sample():
    first = np.zeros(3)
    for seed in range(400):
        member = allocate(WEIGHT, 100, np.random.default_rng(seed))
        assert np.bincount(member, minlength=3).tolist() == [50, 30, 20]
        first += np.bincount(member[:10], minlength=3)
    # Of 4000 first ones, drawn without replacement from each hundred.
    error = np.sqrt(4000 * WEIGHT * (1 - WEIGHT) * 90 / 99)
    assert (np.abs(first - 4000 * WEIGHT) < 4 * error).all()
    uneven = np.array([0.0, 0.333, 0.667 - 1e-9, 1e-9, 0.0])
    for n in (1, 2, 7):
        member = allocate(uneven, n, np.random.default_rng(n))
        assert set(member.tolist()) <= {1, 2, 3}
        assert member.shape == (n,)


def test_few_draws_leave_members_out(effect):
    model, bags = effect
    for n in (1, 2):
        assert model.predict_bags(bags, n_draws=n).draws.shape == (n, bags.n_bag)


def test_slopes_have_the_members_total_variance(effect):
    model, _ = effect
    each = [one.coefficients_ for one in alone(model)]
    assert len(model.coefficients_) == 3
    for k, slope in enumerate(model.coefficients_):
        means, sds = (np.array([getattr(c[k], name) for c in each]) for name in ("mean", "sd"))
        assert slope.column == k
        assert slope.mean == pytest.approx(WEIGHT @ means)
        second = WEIGHT @ (sds**2 + means**2)
        assert slope.sd == pytest.approx(np.sqrt(second - slope.mean**2))
        assert slope.sd > np.sqrt(WEIGHT @ sds**2)


def test_saved_and_loaded_predictions_are_the_same_to_the_bit(case, tmp_path):
    model, bags = case
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.state_.members.keys() == model.state_.members.keys()
    one, other = (m.predict_pixels(bags.x, bags.coords) for m in (model, again))
    for answer in (
        *(lambda p: p.mean, lambda p: p.sd, lambda p: p.quantile(0.05)),
        lambda p: p.exceed(float(np.median(one.mean))),
    ):
        np.testing.assert_array_equal(answer(one), answer(other))
    first, second = (m.predict_bags(bags, n_draws=30) for m in (model, again))
    np.testing.assert_array_equal(first.draws, second.draws)
    assert again.hyperparameter_table() == model.hyperparameter_table()


def test_a_model_saved_without_members_has_none(effect, tmp_path):
    model, bags = effect
    plain = adopted(model, {})
    plain.save(tmp_path / "m")
    with np.load(tmp_path / "m" / "arrays.npz") as arrays:
        assert not any(name.startswith("members") for name in arrays.files)
    again = load(tmp_path / "m")
    assert again.state_.members == {}
    assert isinstance(again.predict_pixels(bags.x, bags.coords), Prediction)


def test_the_table_of_hyperparameters_is_in_the_units_shown(effect):
    model, _ = effect
    table, mode = model.hyperparameter_table(), model.named_hyperparameters()
    each = [one.named_hyperparameters() for one in alone(model)]
    assert table.keys() == mode.keys()
    for name, row in table.items():
        values = np.array([one[name] for one in each])
        assert row["mode"] == mode[name]
        assert row["mean"] == pytest.approx(WEIGHT @ values)
        assert row["lower"] == pytest.approx(values.min())  # no weight is below a tenth
        assert row["upper"] == pytest.approx(values.max())
        assert "median" not in row  # these draws are of no chain
    assert row["lower"] < row["upper"]
    plain = adopted(model, {}).hyperparameter_table()
    assert plain == {name: {"mode": value} for name, value in mode.items()}


def test_weighted_quantiles_are_numpys_where_weights_are_equal():
    value = np.random.default_rng(0).normal(size=31)
    for q in (0.05, 0.3, 0.5, 0.95):
        found = weighted_quantile(value, np.full(31, 2.0), q)
        assert found == pytest.approx(np.quantile(value, q, method="hazen"))
    # A value of double weight is that value twice, to within half of a weight.
    large = np.random.default_rng(1).normal(size=2001)
    twice = np.concatenate([large, large[:1000]])
    found = weighted_quantile(large, np.r_[np.full(1000, 2.0), np.ones(1001)], 0.2)
    assert found == pytest.approx(np.quantile(twice, 0.2, method="hazen"), abs=2e-3)
