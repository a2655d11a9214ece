"""Laws of several sources against finite differences, and against each law by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import models
from models import Bags, VBAgg
from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.posterior import posterior_of
from models.aggregate.profile_bound import ProfileBound
from models.core.block import BagBlock
from models.core.errors import BagsError, ParameterError
from models.core.thinning import thinned_block
from models.likelihoods.censored import of_block
from models.likelihoods.registry import find_likelihood
from models.likelihoods.scaled import SCALE, Scaled
from models.likelihoods.sources import several_sources
from models.training.device import moved
from models.training.executor import BagsSource
from tests.models.aggregate.country import widened
from tests.models.differences import check_gradient, objective
from tests.plain import plain

Y, TRIALS = np.array([0.0, 3.0, 7.0, 12.0]), np.array([5.0, 9.0, 20.0, 12.0])


@pytest.mark.parametrize(
    ("name", "proportions"),
    [
        ("poisson", False),
        ("negative_binomial", False),
        ("binomial", False),
        ("beta_binomial", True),
    ],
)
def test_slopes_of_a_scaled_law_are_those_of_differences(name, proportions):
    law = Scaled(find_likelihood(name), proportions=proportions)
    eta = np.array([0.3, 0.05, 0.6, 0.8]) * (1.0 if proportions else 1.5)
    params, h = {each: -1.1 for each in law.parameters} | {SCALE: 0.4}, 1e-5
    at = law.terms(Y, eta, params, TRIALS, order=3)

    def difference(which, **by):
        up, down = (
            law.terms(
                Y,
                eta + sign * by.get("eta", 0.0),
                {n: v + sign * by.get(n, 0.0) for n, v in params.items()},
                TRIALS,
                order=3,
            )
            for sign in (1.0, -1.0)
        )
        return (getattr(up, which) - getattr(down, which)) / (2 * h)

    for lower, upper in (("value", "d1"), ("d1", "d2"), ("d2", "d3")):
        np.testing.assert_allclose(difference(lower, eta=h), getattr(at, upper), 1e-5, 1e-6)
    for parameter in params:
        np.testing.assert_allclose(
            difference("value", **{parameter: h}), at.by[parameter], 1e-6, 1e-8
        )
        np.testing.assert_allclose(
            difference("d2", **{parameter: h}), at.by_d2[parameter], 1e-5, 1e-6
        )


def test_the_mean_of_each_scale_is_what_its_formula_says():
    eta, k = np.array([0.2, 0.7]), 1.7
    known = {SCALE: np.log(k)}
    rate = Scaled(find_likelihood("poisson"), proportions=False).mean(eta, known)
    hazard = Scaled(find_likelihood("binomial"), proportions=False).mean(eta, known)
    odds = Scaled(find_likelihood("binomial"), proportions=True).mean(eta, known)
    np.testing.assert_allclose(rate, k * eta)
    np.testing.assert_allclose(hazard, stats.expon.cdf(eta, scale=1 / k))
    np.testing.assert_allclose(odds / (1 - odds), k * eta / (1 - eta))
    for law, mean in (("poisson", rate), ("binomial", hazard)):
        found = Scaled(find_likelihood(law), proportions=False).scale_at(eta[0], mean[0])
        assert found == pytest.approx(np.log(k))


OTHERS = {"survey": {"likelihood": "binomial"}, "clinic": {"likelihood": "poisson"}}


def test_each_bag_has_the_law_of_its_source_in_any_order():
    areas = find_likelihood("poisson", area_effect=True)
    whole = several_sources(areas, OTHERS)
    source = np.array([1, 0, 2, 0])
    bags = Bags(
        np.zeros((4, 1)), np.arange(5), Y, trials=[5, np.nan, np.nan, np.nan], source=source
    )
    data, eta = whole.data_of(bags), np.array([[0.4, 2.0, 9.0, 8.0], [0.1, 3.0, 5.0, 15.0]])
    params = {name: -0.5 for name in whole.parameters}
    at = whole.terms(Y, eta, params, data, order=3)
    laws = [areas, *whole.others.values()]
    for bag, number in enumerate(source):
        known = whole.law_params(number, params)
        one = laws[number].terms(
            Y[bag : bag + 1], eta[:, [bag]], known, bags.trials[bag : bag + 1], 3
        )
        for key in ("value", "d1", "d2", "d3"):
            np.testing.assert_allclose(getattr(at, key)[:, [bag]], getattr(one, key), 1e-12)
    assert (at.by["log_area_sd"][:, source != 0] == 0).all()
    assert (at.by["log_area_sd.survey"][:, source == 1] != 0).all()
    assert (at.by["log_scale.survey"][:, source != 1] == 0).all()
    np.testing.assert_allclose(whole.factor_variance(params, data), np.exp(-1.0))
    params["log_area_sd.survey"] = 0.1
    drawn = whole.draw(np.tile(eta[:1], (4000, 1)), params, data, np.random.default_rng(0))
    np.testing.assert_allclose(
        drawn.mean(0), whole.expected(eta[:1], params, data)[0], rtol=0.1, atol=0.05
    )


@pytest.mark.parametrize("effect", [False, True])
def test_suppressed_counts_of_areas_have_their_law_beside_points(effect):
    areas = find_likelihood("poisson", area_effect=effect)
    source, margin = np.array([1, 0, 2, 0]), np.array([0.0, 2.0, 0.0, 0.0])
    y, trials = np.array([1.0, 2.0, 9.0, 4.0]), [5, np.nan, np.nan, np.nan]
    given = np.zeros((4, 1)), np.arange(5), y
    bags = Bags(*given, trials=trials, source=source, margin=margin)
    law, data = of_block(several_sources(areas, OTHERS), bags)
    eta, params = np.array([[0.4, 3.0, 9.0, 8.0]]), {name: -0.5 for name in law.parameters}
    at = law.terms(y, eta, params, data, order=3)
    known, exact = of_block(
        several_sources(areas, OTHERS), replace(bags.at(np.arange(4)), margin=None)
    )
    others = known.terms(y, eta, params, exact, order=3)
    alone = [known.terms(np.full(4, float(k)), eta, params, exact).value[0, 1] for k in range(5)]
    assert at.value[0, 1] == pytest.approx(np.logaddexp.reduce(alone), abs=1e-6)
    for key in ("value", "d1", "d2", "d3"):
        found, expected = getattr(at, key)[0, [0, 2, 3]], getattr(others, key)[0, [0, 2, 3]]
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    drawn = law.draw(np.tile(eta, (50, 1)), params, data, np.random.default_rng(0))
    same = known.draw(np.tile(eta, (50, 1)), params, exact, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, same)
    with pytest.raises(BagsError, match="bag 2 of source 2 has a margin; give margins of areas"):
        Bags(*given, trials=trials, source=source, margin=[0, 0, 1, 0])


def _bags(n_area=12, n_point=15, seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.concatenate([rng.integers(4, 9, n_area), rng.integers(1, 5, n_point)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.standard_normal((offsets[-1], 2))
    coords = np.repeat(rng.random((sizes.size, 2)), sizes, axis=0) + 0.05 * rng.random(
        (offsets[-1], 2)
    )
    source = np.repeat([0, 1], [n_area, n_point])
    weight = rng.random(offsets[-1]) + 0.5
    for a in np.flatnonzero(source):
        weight[offsets[a] : offsets[a + 1]] /= weight[offsets[a] : offsets[a + 1]].sum()
    rate = np.add.reduceat(weight * np.exp(0.5 * x[:, 0] - 1.0), offsets[:-1])
    trials = np.where(source, 30.0, np.nan)
    y = np.where(source, rng.binomial(30, 1 - np.exp(-2.0 * rate)), rng.poisson(30 * rate))
    weight[: offsets[n_area]] *= 30
    return Bags(x, offsets, y, weight, coords, trials, source=source)


SETTINGS = {"kernel": "linear + matern32(space)", "max_epochs": 40, "seed": 1}


def test_bags_keep_their_margins_and_sources_apart():
    bags = _bags().at(np.arange(27))
    margin = np.where((bags.source == 0) & (bags.bag % 2 == 0), np.minimum(bags.y, 2.0), 0.0)
    both = replace(bags, margin=margin)
    for block in (
        both.at(np.arange(27)),
        BagBlock.join([both.select(bags.source == 0), bags.select(bags.source == 1)]),
        thinned_block(both, 3, np.zeros(2), np.ones(2), 0),
        moved(both, np.copy),
    ):
        np.testing.assert_array_equal(block.margin, margin)
        np.testing.assert_array_equal(block.source, bags.source)


def test_margins_of_nothing_change_no_fit_beside_points():
    bags = _bags().at(np.arange(27))
    model = {**SETTINGS, "sources": {"survey": {}}, "integrate": "none", "link": "square"}
    without = VBAgg(**model).fit(bags)
    same = VBAgg(**model).fit(replace(bags, margin=np.zeros(bags.n_bag)))
    for name, value in without.params_.items():
        np.testing.assert_allclose(same.params_[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.ci
def test_an_interval_is_no_count_to_the_bound_and_to_the_evidence():
    bags = _bags().at(np.arange(27))
    hidden = (bags.source == 0) & (bags.bag < 6)
    middle = replace(bags, y=np.where(hidden, 4.0, bags.y))
    interval = replace(middle, margin=np.where(hidden, 4.0, 0.0))
    model = {**SETTINGS, "sources": {"survey": {}}, "integrate": "none"}
    fit = VBAgg(**model).fit(interval)
    given = {**fit.block_params(fit.state_), "slopes": np.array([False])}
    bounds = [fit.block_stats(given, each, None)[0].bound for each in (middle, interval)]
    assert bounds[1] > bounds[0] + 1.0  # one count of nine is less probable than all of them
    names = ("theta", *fit.resolved_likelihood.parameters)
    at = np.concatenate([fit.state_.params[name] for name in names])
    found = [AreaEvidence(fit, fit.state_, each).at(at).value for each in (middle, interval)]
    assert found[1] > found[0] + 1.0


def test_a_model_without_sources_is_what_it_was_bit_for_bit():
    bags = _bags()
    areas = bags.select(bags.source == 0)
    alone = Bags(areas.x, areas.offsets, areas.y, areas.weight, areas.coords)
    plain = VBAgg(**SETTINGS, integrate="none").fit(alone)
    same = VBAgg(**SETTINGS, integrate="none", sources={}).fit(alone)
    for name, array in plain.state_.params.items():
        np.testing.assert_array_equal(array, same.state_.params[name])
    assert plain.bound_ == same.bound_


@pytest.mark.parametrize(
    ("areas", "link"), [("poisson", "exp"), ("poisson", "square"), ("beta_binomial", "auto")]
)
def test_the_gradient_of_the_bound_is_that_of_differences(areas, link):
    bags = _bags(5, 6)
    if areas == "beta_binomial":
        object.__setattr__(bags, "trials", np.where(bags.source, 30.0, 4000.0))
    given = {"kernel": "additive", "n_inducing": 3, "priors": "weak", "area_effect": "auto"}
    model = plain(
        VBAgg, likelihood=areas, link=link, sources={"survey": {"displaced": True}}, **given
    )
    rng = np.random.default_rng(3)
    state = widened(model.init(BagsSource(bags, 1).summary(rng), rng))
    moved = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()}
    state = replace(state, params=moved)

    def value(params):
        return objective(model, replace(state, params=params), bags).bound

    check_gradient(value, moved, objective(model, state, bags).grad, tolerance=1e-5)


@pytest.mark.ci
def test_a_fit_learns_the_scale_and_what_is_saved_predicts_the_same(tmp_path):
    bags = _bags(20, 60)
    model = VBAgg(**SETTINGS, sources={"survey": {"likelihood": "binomial"}}).fit(bags)
    assert model.converged_
    scale = model.hyperparameter_table()["scale.survey"]
    assert scale["lower"] < 2.0 < scale["upper"]
    assert scale["upper"] / scale["lower"] < 4.0
    model.save(tmp_path / "model")
    again = models.load(tmp_path / "model")
    np.testing.assert_array_equal(
        again.predict_pixels(bags.x, bags.coords).mean,
        model.predict_pixels(bags.x, bags.coords).mean,
    )
    drawn = again.predict_bags(bags, observed=True)
    assert np.isfinite(drawn.log_density(bags.y)).all()
    assert drawn.rearranged(np.zeros((3, bags.n_bag), np.int64)).log_density(bags.y).shape == (80,)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"likelihood": "normal", "sources": {"a": {}}}, "normal.* of areas is not of counts"),
        ({"sources": {"a": {"likelihood": "gamma"}}}, "gamma likelihood of a is not of counts"),
        ({"sources": {"a": {"offset": False}}}, "the scale between binomial"),
        ({"likelihood": "binomial", "sources": {"a": {"likelihood": "poisson"}}}, "no common rate"),
        ({"sources": {"a": {"law": "binomial"}}}, "give a word"),
        ({"sources": {"a": {"likelihood": "beta_binomial"}}}, "give binomial, whose clusters"),
        ({"sources": {"a": {}}, "estimator": "bound"}, "does not exist"),
    ],
)
def test_what_cannot_be_together_is_refused(settings, found):
    with pytest.raises(ParameterError, match=found):
        VBAgg(**settings).fit(_bags())


def test_bags_of_a_source_that_is_not_declared_are_refused():
    bags = _bags()
    object.__setattr__(bags, "source", bags.source * 2)
    with pytest.raises(BagsError, match="1 other sources are declared"):
        VBAgg(sources={"a": {}}).fit(bags)


def test_the_posterior_of_two_sources_is_that_of_quadrature():
    # One pixel, known to both sources: its f is one number.
    survey = {"likelihood": "binomial", "effect": False}
    model = plain(VBAgg, kernel="rbf", sources={"survey": survey}, link="exp")
    y, trials = np.array([40.0, 9.0]), np.array([np.nan, 30.0])
    bags = Bags(np.zeros((2, 1)), [0, 1, 2], y, [20.0, 1.0], trials=trials, source=[0, 1])
    rng = np.random.default_rng(0)
    state = model.init(BagsSource(bags, 1).summary(rng), rng)
    state.params["theta"][0], state.params["log_scale.survey"][0] = np.log(0.5), np.log(0.3)

    def evaluate(at, slopes):
        given = {**model.block_params(at), "slopes": np.array([slopes])}
        return model.block_stats(given, bags, None)[0]

    found = ProfileBound(model, evaluate, 2).at(state, 1e-9)
    told = posterior_of(model, found.state).moments(np.zeros((1, 1)), None)
    mean, base = state.params["mean"][0], state.fixed["base_rate"][0]
    f = np.linspace(mean - 6, mean + 6, 20_001)
    rate = base * np.exp(f)
    log_each = stats.norm.logpdf(f, mean, np.sqrt(0.5)) + stats.poisson.logpmf(40, 20 * rate)
    log_each += stats.binom.logpmf(9, 30, -np.expm1(-0.3 * rate))
    weight = np.exp(log_each - log_each.max())
    evidence = np.log(np.trapezoid(weight, f)) + log_each.max()
    weight /= weight.sum()
    centre = weight @ f
    spread = np.sqrt(weight @ (f - centre) ** 2)
    assert told.m[0] == pytest.approx(centre, abs=0.02 * spread)
    assert np.sqrt(told.s[0]) == pytest.approx(spread, rel=0.02)
    assert found.value == pytest.approx(evidence, abs=0.02)


@pytest.mark.ci
def test_the_evidence_of_displaced_bags_falls_as_their_bound_does():
    bags = _bags(16, 40)
    model = VBAgg(**SETTINGS, sources={"survey": {"displaced": True}}, integrate="none").fit(bags)
    state = model.state_

    def evaluate(at, slopes):
        given = {**model.block_params(at), "slopes": np.array([slopes])}
        return model.block_stats(given, bags, None)[0]

    bound, evidence = ProfileBound(model, evaluate, bags.n_bag), AreaEvidence(model, state, bags)
    phi, top = bound.pack(state.params), bound.at(state, 1e-4, slopes=False).value
    first = evidence.at(phi[1:])
    for k in range(1, phi.size):
        for step in (-0.3, 0.3):
            moved = phi + step * (np.arange(phi.size) == k)
            there = evidence.at(moved[1:])
            moved[0] += there.mean - first.mean
            found = bound.at(bound.unpack(state, moved), 1e-3, slopes=False).value - top
            assert there.value - first.value == pytest.approx(found, abs=0.25 + 0.3 * abs(found))
