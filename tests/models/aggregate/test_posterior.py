"""What every posterior must do, and that who asks one cannot tell which it is."""

from __future__ import annotations

import numpy as np
import pytest

from models import Constant, VBAgg
from models.aggregate.posterior import Gaussian, Mixture, posterior_of
from tests.models.aggregate.test_members import adopted, with_members
from tests.plain import plain


@pytest.fixture(scope="module", params=["gaussian", "mixture", "point"])
def fitted(request, make_bags):
    bags = make_bags(n_bag=14, awkward=False)
    if request.param == "point":
        return Constant(max_epochs=5).fit(bags, n_thread=1), bags
    given = {"kernel": "linear + matern32(space)", "n_inducing": 10, "max_epochs": 8}
    model = plain(VBAgg, **given, link="exp", area_effect=True).fit(bags, n_thread=1)
    return (model if request.param == "gaussian" else with_members(model)), bags


def test_unpacked_it_is_the_same_to_the_bit(fitted):
    model, bags = fitted
    one = model.posterior_
    other = model.unpacked({name: array.copy() for name, array in one.pack().items()})
    assert type(other) is type(one)
    for name, array in one.pack().items():
        np.testing.assert_array_equal(other.pack()[name], array)
    for ask in (
        lambda p: p.moments(bags.x, bags.coords).quantile(0.1),
        lambda p: p.draws(7, np.random.default_rng(0)).rate(bags.x, bags.coords),
        lambda p: list(p.hyperparameters().values()),
        lambda p: p.weight,
    ):
        np.testing.assert_array_equal(ask(other), ask(one))


def test_it_is_the_mixture_of_its_parts(fitted):
    model, bags = fitted
    posterior = model.posterior_
    assert posterior.weight.sum() == pytest.approx(1.0)
    parts = [part.moments(bags.x, bags.coords) for part in posterior.parts]
    whole = posterior.moments(bags.x, bags.coords)
    mean = sum(w * part.mean for w, part in zip(posterior.weight, parts, strict=True))
    second = sum(w * (p.sd**2 + p.mean**2) for w, p in zip(posterior.weight, parts, strict=True))
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(whole.sd, np.sqrt(second - mean**2), rtol=1e-6, atol=1e-7)
    assert len(whole.parts) == whole.weights.size == len(posterior.parts)


def test_its_draws_have_its_moments_and_say_where_they_are_from(fitted):
    model, bags = fitted
    n = 2000
    draws = model.posterior_.draws(n, np.random.default_rng(1))
    p = model.posterior_.moments(bags.x, bags.coords)
    off = np.abs(draws.rate(bags.x, bags.coords).mean(axis=0) - p.mean)
    assert (off <= 6 * p.sd / np.sqrt(n) + 1e-12 * p.mean).mean() > 0.97
    assert draws.clusters.shape == (n, 2)
    parts, counts = np.unique(draws.clusters[:, 0], return_counts=True)
    assert np.abs(counts - n * model.posterior_.weight[parts]).max() <= 1
    assert set(draws.params) == set(model.resolved_likelihood.parameters)
    drawn = draws.bag_counts(bags)
    assert draws.observed_factors(bags, drawn).shape == drawn.shape == (n, bags.n_bag)


def test_a_state_without_members_is_a_gaussian(make_bags):
    bags = make_bags(n_bag=6)
    model = with_members(plain(VBAgg, n_inducing=6, max_epochs=2).fit(bags, n_thread=1))
    assert isinstance(posterior_of(model, model.state_), Mixture)
    assert isinstance(posterior_of(model, adopted(model, {}).state_), Gaussian)
