"""Drawn aggregates given the responses, against importance weights of the draws themselves."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest
from scipy.special import logsumexp, roots_hermite

from models import VBAgg
from models.aggregate import observed_draws
from models.likelihoods.area_effect import AreaEffect
from tests.models.aggregate.country import country
from tests.models.aggregate.test_members import with_members
from tests.plain import plain

CASES = {
    "poisson": {},
    "area effect": {"area_effect": True},
    "negative binomial": {"likelihood": "negative_binomial"},
}


def _fitted(make_bags, **parameters):
    bags = make_bags(n_bag=14, awkward=False)
    return plain(
        VBAgg, kernel="linear + matern32(space)", link="exp", integrate="none", **parameters
    ).fit(bags, n_thread=1), bags


def _log_density(likelihood, own, y, log_eta):
    """Log density of the response given its aggregate, the area effect summed out by nodes."""
    if not isinstance(likelihood, AreaEffect):
        return likelihood.terms(y, np.exp(log_eta), own, 1.0).value
    node, weight = roots_hermite(12)
    sd = float(np.exp(own["log_area_sd"]))
    at = log_eta[..., None] + np.sqrt(2.0) * sd * node - 0.5 * sd**2
    each = likelihood.base.terms(y, np.exp(at), own, 1.0).value
    return logsumexp(each + np.log(weight / np.sqrt(np.pi)), axis=-1)


@pytest.mark.ci
@pytest.mark.parametrize("name", CASES)
def test_the_draws_are_those_that_importance_weights_prefer(make_bags, name, monkeypatch):
    """Given ``l``, a draw of ``r`` from its prior has the weight of its likelihood over the mean's.

    The weights are made of the drawn aggregates and of ``l``, without a mode or a curvature.
    """
    model, bags = _fitted(make_bags, **CASES[name])
    kept = {}
    parts = observed_draws._parts
    monkeypatch.setattr(
        observed_draws, "_parts", lambda *args: kept.setdefault("parts", parts(*args))
    )
    functions = model.sample_functions(3_000, np.random.default_rng(5))
    raw = model.predict_bags(bags, draws=functions)
    found = model.predict_bags(bags, draws=functions, observed=True).draws
    c, line, total, rest = kept["parts"]
    node, mass = roots_hermite(30)
    for a in range(bags.n_bag):
        centre = np.log(c[a]) - 0.5 * total[a] + line[:, a]
        nodes = centre[:, None] + np.sqrt(2.0 * rest[a]) * node
        law = raw.likelihood, raw.params, bags.y[a]
        mean = logsumexp(_log_density(*law, nodes) + np.log(mass / np.sqrt(np.pi)), axis=1)
        weight = _log_density(*law, np.log(raw.draws[:, a])) - mean
        weight = np.exp(weight - logsumexp(weight))
        size = 1.0 / (weight**2).sum()
        if size < 400:
            continue
        log_raw, log_found = np.log(raw.draws[:, a]), np.log(found[:, a])
        wanted = weight @ log_raw
        sd = np.sqrt(weight @ (log_raw - wanted) ** 2)
        # Nothing but the error of the weights, and of a normal distribution in the place of r's.
        assert abs(log_found.mean() - wanted) < 5.0 * sd / np.sqrt(size) + 0.1 * sd
        assert log_found.std() == pytest.approx(sd, rel=0.12)


def test_a_precise_response_rules_its_aggregate(make_bags):
    model, bags = _fitted(make_bags)
    functions = model.sample_functions(400, np.random.default_rng(1))
    raw = model.predict_bags(bags, draws=functions).draws
    found = model.predict_bags(bags, draws=functions, observed=True).draws
    assert (found.std(axis=0) <= 1.02 * raw.std(axis=0)).all()
    off = [np.abs(each.mean(axis=0) - bags.y).sum() for each in (raw, found)]
    assert off[1] < off[0]


def test_few_pixels_of_large_areas_say_the_same(monkeypatch):
    bags = country(side=40, n_area=4, cases=200.0)
    model = plain(VBAgg, kernel="linear + matern32(space)", integrate="none").fit(bags, n_thread=1)
    functions = model.sample_functions(300, np.random.default_rng(3))
    drawn = functions.bag_counts(bags)
    few = drawn * functions.observed_factors(bags, drawn)
    monkeypatch.setattr(observed_draws, "PIXELS", bags.n_pix)
    exact = drawn * functions.observed_factors(bags, drawn)
    sd = exact.std(axis=0)
    assert (few != exact).any()
    assert (np.abs(few.mean(axis=0) - exact.mean(axis=0)) < 0.25 * sd).all()
    np.testing.assert_allclose(few.std(axis=0), sd, rtol=0.15)


def test_areas_without_a_response_and_other_estimators_keep_their_draws(make_bags):
    model, bags = _fitted(make_bags)
    functions = model.sample_functions(50, np.random.default_rng(1))
    raw = model.predict_bags(bags, draws=functions).draws
    some = copy(bags)
    object.__setattr__(some, "y", np.where(np.arange(bags.n_bag) == 3, np.nan, bags.y))
    found = model.predict_bags(some, draws=functions, observed=True).draws
    np.testing.assert_array_equal(found[:, 3], raw[:, 3])
    assert np.isfinite(found).all()
    assert (found[:, 4] != raw[:, 4]).any()
    square = plain(VBAgg, link="square", n_inducing=10, max_epochs=5).fit(bags, n_thread=1)
    functions = square.sample_functions(50, np.random.default_rng(1))
    np.testing.assert_array_equal(
        square.predict_bags(bags, draws=functions, observed=True).draws,
        square.predict_bags(bags, draws=functions).draws,
    )


def test_pooled_draws_use_the_part_that_drew_them(make_bags):
    """Each member's draws, conditioned alone, are rows of the pooled ones."""
    model, bags = _fitted(make_bags)
    pooled = with_members(model).sample_functions(60, np.random.default_rng(2))
    drawn = pooled.bag_counts(bags)
    found = pooled.observed_factors(bags, drawn)
    each = np.concatenate(
        [part.observed_factors(bags, part.bag_counts(bags)) for part in pooled.parts]
    )
    np.testing.assert_allclose(found, each[pooled.order], rtol=1e-12)
