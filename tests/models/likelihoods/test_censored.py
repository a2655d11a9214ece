"""Counts known as intervals: against scipy, quadrature, finite differences and exact posteriors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp, roots_hermitenorm

from models import Bags, VBAgg
from models.aggregate import bounds, moment_matching
from models.core.block import BagBlock
from models.core.errors import BagsError
from models.core.thinning import thinned_block
from models.likelihoods.censored import censored, of_block
from models.likelihoods.links import find_link
from models.likelihoods.observation import Observation
from models.likelihoods.registry import find_likelihood
from tests.plain import plain

NODE, WEIGHT = roots_hermitenorm(160)
WEIGHT = WEIGHT / np.sqrt(2 * np.pi)
PARAMS = {"log_size": np.log(2.5), "log_overdispersion": np.log(0.2), "log_area_sd": np.log(0.6)}
# <5, 1-4, a known count, 3-9.
LOWER, UPPER = np.array([0.0, 1.0, 7.0, 3.0]), np.array([4.0, 4.0, 7.0, 9.0])
Y, MARGIN = 0.5 * (LOWER + UPPER), 0.5 * (UPPER - LOWER)
N = np.array([30.0, 12.0, 20.0, 9.0])
LAWS = {
    "poisson": lambda eta: stats.poisson(eta),
    "negative_binomial": lambda eta: stats.nbinom(2.5, 2.5 / (2.5 + eta)),
    "binomial": lambda eta: stats.binom(N, eta),
    "beta_binomial": lambda eta: stats.betabinom(N, eta / 0.2, (1 - eta) / 0.2),
}


def _law(name):
    """Return a likelihood of intervals, its data, its parameters and aggregates."""
    likelihood = find_likelihood(name.split("+")[0], area_effect="+" in name)
    own = N if likelihood.needs_trials else np.ones(4)
    eta = np.array([0.1, 0.4, 0.3, 0.7]) if likelihood.averages else np.array([0.3, 9.0, 5.0, 2.0])
    params = {key: PARAMS[key] for key in likelihood.parameters}
    return censored(likelihood), np.stack([own, MARGIN]), params, eta


@pytest.mark.parametrize("name", LAWS)
def test_an_interval_has_the_probability_that_scipy_gives_it(name):
    law, data, params, eta = _law(name)
    scipy_law = LAWS[name](eta)
    expected = np.log(scipy_law.cdf(UPPER) - scipy_law.cdf(LOWER - 1))
    np.testing.assert_allclose(law.terms(Y, eta, params, data).value, expected, rtol=1e-9)
    draws = law.draw(np.tile(eta, (4000, 1)), params, data, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=0), scipy_law.mean(), rtol=0.1)


def test_under_an_area_effect_the_sum_is_integrated():
    law, data, params, eta = _law("poisson+effect")
    found = law.terms(Y, eta, params, data).value
    tau = np.exp(params["log_area_sd"])
    for a in range(4):

        def density(e, a=a):
            rate = eta[a] * np.exp(e - tau**2 / 2)
            return LAWS["poisson"](rate).pmf(np.arange(LOWER[a], UPPER[a] + 1)).sum() * (
                stats.norm.pdf(e, 0, tau)
            )

        assert found[a] == pytest.approx(np.log(quad(density, -6, 6)[0]), rel=1e-6)


@pytest.mark.parametrize("name", [*LAWS, "poisson+effect", "negative_binomial+effect"])
def test_derivatives_agree_with_finite_differences(name):
    law, data, params, eta = _law(name)

    def at(eta, **own):
        return law.terms(Y, eta, {**params, **own}, data, 3)

    found, h = at(eta), 1e-5
    for low, high in (("value", "d1"), ("d1", "d2"), ("d2", "d3")):
        slope = (getattr(at(eta + h), low) - getattr(at(eta - h), low)) / (2 * h)
        np.testing.assert_allclose(getattr(found, high), slope, rtol=2e-5, atol=1e-6)
    for key, value in params.items():
        up, down = at(eta, **{key: value + h}), at(eta, **{key: value - h})
        np.testing.assert_allclose(found.by[key], (up.value - down.value) / (2 * h), rtol=1e-5)
        slope = (up.d2 - down.d2) / (2 * h)
        np.testing.assert_allclose(found.by_d2[key], slope, rtol=1e-3, atol=1e-6)


def _seen(name, link):
    law, data, params, _ = _law(name)
    p = np.ones(4)
    return Observation(law, find_link(link), params, Y, p, np.arange(5), np.arange(4), data)


def _gaussian_expectation(seen, m, s):
    """Return the expected log density where each bag is a pixel of ``f ~ N(m, s)``."""
    f = m + np.sqrt(s) * NODE[:, None]
    eta = seen.link.value(f)
    return WEIGHT @ seen.likelihood.terms(seen.y, eta, seen.params, seen.bag_data).value


@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "poisson+effect"])
def test_the_expected_log_density_under_a_gaussian_is_that_of_quadrature(name):
    seen, s = _seen(name, "exp"), np.array([0.3, 0.1, 0.5, 0.2])
    m = np.log([0.4, 5.0, 6.0, 4.0])
    c = np.exp(m + s / 2)
    v = c**2 * np.expm1(s)
    found = moment_matching.log_normal(seen, c, v)
    np.testing.assert_allclose(found.value, _gaussian_expectation(seen, m, s), rtol=1e-6)
    # All of a pixel's variance is linear in f.
    whole = moment_matching.marginal(seen, c, v, s * c**2)
    np.testing.assert_allclose(whole.value, found.value, rtol=1e-5)
    h = 1e-5
    for i, of in enumerate(("by_mean", "by_variance")):
        ends = [
            moment_matching.log_normal(
                seen, *(x + h * sign * (k == i) for k, x in enumerate((c, v)))
            )
            for sign in (-1, 1)
        ]
        slope = (ends[1].value - ends[0].value) / (2 * h)
        np.testing.assert_allclose(getattr(found, of), slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", LAWS)
def test_the_second_order_expansion_is_near_quadrature_where_little_varies(name):
    averages = "binomial" in name and name != "negative_binomial"
    seen, s = _seen(name, "probit" if averages else "exp"), np.full(4, 0.01)
    m = np.array([-1.3, -0.2, -0.5, 0.5]) if averages else np.log([0.4, 5.0, 6.0, 4.0])
    f = m + np.sqrt(s) * NODE[:, None]
    eta = seen.link.value(f)
    c = WEIGHT @ eta
    found = moment_matching.second_order(seen, c, WEIGHT @ (eta - c) ** 2).value
    np.testing.assert_allclose(found, _gaussian_expectation(seen, m, s), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_the_closed_bound_of_an_interval_is_below_and_near_the_expectation(name):
    seen, m, s = _seen(name, "exp"), np.log([0.4, 5.0, 6.0, 4.0]), np.full(4, 0.05)
    found, exact = bounds.lower_bound(seen, m, s), _gaussian_expectation(seen, m, s)
    assert (found.value <= exact + 1e-9).all()
    assert (found.value > exact - 0.15).all()
    h = 1e-5
    for of, step in (("d_m", (h, 0.0)), ("d_s", (0.0, h))):
        up, down = (bounds.lower_bound(seen, m + k * step[0], s + k * step[1]) for k in (1, -1))
        np.testing.assert_allclose(getattr(found, of), (up.value - down.value) / (2 * h), rtol=1e-4)
    for key, value in seen.params.items():
        up, down = (
            bounds.lower_bound(replace(seen, params={key: value + k * h}), m, s) for k in (1, -1)
        )
        np.testing.assert_allclose(found.by[key], (up.value - down.value) / (2 * h), rtol=1e-4)


def test_one_rate_of_intervals_is_that_of_maximum_likelihood():
    rng = np.random.default_rng(1)
    exposure = rng.uniform(20, 300, 60)
    y = rng.poisson(0.02 * exposure).astype(float)
    hidden = y < 5
    middle, margin = np.where(hidden, 2.0, y), np.where(hidden, 2.0, 0.0)
    one = censored(find_likelihood("poisson", area_effect=True)).constant(
        middle, exposure, np.stack([np.ones(60), margin])
    )
    grid = np.linspace(0.01, 0.03, 2001)
    mean = grid[:, None] * exposure
    each = np.where(hidden, stats.poisson.logcdf(4, mean), stats.poisson.logpmf(y, mean))
    assert one.rate == pytest.approx(grid[each.sum(axis=1).argmax()], abs=2e-4)
    noise = np.stack([np.ones(60), margin])
    expected, counts = one.draw(exposure, noise, 20, rng)
    assert one.log_density(middle, exposure, noise).shape == (60,)
    assert counts.shape == (20, 60)
    np.testing.assert_allclose(expected.mean(axis=0), one.mean(exposure), rtol=0.5)


def _country(n=24, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3 * n, 1))
    weight = rng.uniform(1.0, 3.0, 3 * n)
    rate = (weight * np.exp(0.7 * x[:, 0])).reshape(n, 3).sum(axis=1)
    return x, 3 * np.arange(n + 1), weight, rng.poisson(rate).astype(float)


def test_the_posterior_is_that_of_quadrature():
    """One coefficient with a normal prior, and two thirds of the counts suppressed."""
    rng = np.random.default_rng(3)
    x, weight = rng.uniform(-1.7, 1.0, (24, 1)), rng.uniform(1.0, 4.0, 24)
    counts = rng.poisson(weight * np.exp(x[:, 0]))
    margin = np.where(counts < 5, 2.0, 0.0)
    y = np.where(counts < 5, 2.0, counts)
    bags = Bags(x, np.arange(25), y, weight=weight, margin=margin)
    model = VBAgg(
        kernel="ridge",
        link="exp",
        area_effect=False,
        n_inducing=4,
        integrate="none",
        nats_left=1e-4,
    ).fit(bags, n_thread=1)  # fmt: skip
    z = (x[:, 0] - x.mean()) / x.std()
    draws = np.log(model.predict_bags(bags, n_draws=4000).draws / weight)
    low, high = z.argmin(), z.argmax()
    slope = (draws[:, high] - draws[:, low]) / (z[high] - z[low])
    # The second route: a grid of slopes, at the level that was learnt.
    own, at = model.named_hyperparameters(), np.linspace(-1, 3, 2001)
    level = np.log(model.state_.fixed["base_rate"][0]) + own["mean"]
    eta = weight * np.exp(level + at[:, None] * z)
    known = stats.poisson.logpmf(y, eta)

    def moments(each):
        log_density = each.sum(axis=1) - 0.5 * at**2 / own["ridge_x.variance"]
        density = np.exp(log_density - log_density.max())
        density /= density.sum()
        mean = density @ at
        return mean, np.sqrt(density @ (at - mean) ** 2)

    mean, sd = moments(np.where(margin > 0, stats.poisson.logcdf(4, eta), known))
    assert 0.5 < (counts < 5).mean() < 0.9
    assert slope.mean() == pytest.approx(mean, abs=0.2 * sd)
    assert slope.std() == pytest.approx(sd, rel=0.1)
    assert abs(moments(known)[0] - mean) > 0.5 * sd  # counts of 2 would be another posterior


def test_a_margin_stays_with_its_bag():
    x, offsets, weight, y = _country()
    margin = np.where(y < 5, 2.0, 0.0)
    bags = Bags(x, offsets, np.where(y < 5, 2.0, y), weight=weight, margin=margin)
    chosen = np.array([5, 1, 7])
    np.testing.assert_array_equal(bags.at(chosen).margin, margin[chosen])
    few = thinned_block(bags, 2, np.zeros(1), np.ones(1), 0)
    np.testing.assert_array_equal(few.margin, margin)
    exact = replace(bags.at(chosen), margin=None)
    joined = BagBlock.join([exact, bags.at(chosen)])
    np.testing.assert_array_equal(joined.margin, np.r_[np.zeros(3), margin[chosen]])


def test_intervals_beyond_the_law_are_refused():
    x, offsets, weight, y = _country(4)
    with pytest.raises(BagsError, match="no counts"):
        of_block(find_likelihood("normal"), Bags(x, offsets, y, weight=weight, margin=0 * y))
    with pytest.raises(BagsError, match="between 0 and y"):
        Bags(x, offsets, 0 * y, weight=weight, margin=0 * y + 2)
    with pytest.raises(BagsError, match="positives of 3 tested"):
        Bags(x, offsets, 0 * y + 2, trials=0 * y + 3, margin=0 * y + 2)


def test_draws_weigh_an_interval_by_its_probability():
    x, offsets, weight, y = _country()
    margin = np.where(y < 5, 2.0, 0.0)
    bags = Bags(x, offsets, np.where(y < 5, 2.0, y), weight=weight, margin=margin)
    model = plain(VBAgg, link="exp", n_inducing=8, max_epochs=20, area_effect=False)
    model.fit(bags)
    found = model.predict_bags(bags, n_draws=50)
    k = np.arange(5)[:, None]
    hidden = margin > 0
    each = logsumexp(stats.poisson.logpmf(k[:, None], found.draws[None, :, hidden]), axis=0)
    expected = logsumexp(each, axis=0) - np.log(50)
    np.testing.assert_allclose(found.log_density(bags.y)[hidden], expected, rtol=1e-9)
