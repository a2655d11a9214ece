"""One rate under each likelihood, by a second route: SciPy's distributions and its optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, logit

from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.constant import LikelihoodRate
from models.likelihoods.likelihood import Likelihood, Terms
from models.likelihoods.registry import find_likelihood

N = 90


def best(loss, start):
    """Minimise by another method than the package does."""
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
    again = minimize(loss, found.x, method="Powell", options={"xtol": 1e-9, "ftol": 1e-13})
    return again.x if again.fun < found.fun else found.x


def nbinom(p, y, exposure, noise):
    mean, size = np.exp(p[0]) * exposure, np.exp(p[1])
    return stats.nbinom.logpmf(y, size, size / (size + mean))


def betabinom(p, y, exposure, noise):
    rate, size = expit(p[0]), np.exp(p[1])
    return stats.betabinom.logpmf(y, exposure, size * rate, size * (1 - rate))


def lomax(p, y, exposure, noise):
    mean, size = np.exp(p[0]) * exposure, np.exp(p[1])
    return stats.lomax.logpdf(y, size + 1, scale=size * mean)


def normal(p, y, exposure, noise):
    sd = np.sqrt(np.exp(p[1]) * noise + np.exp(p[2]) * exposure**2)
    return stats.norm.logpdf(y, p[0] * exposure, sd)


def simulate(name, seed):
    """Return y, exposure, noise, SciPy's density and a start for its parameters."""
    rng = np.random.default_rng(seed)
    exposure = np.round(np.exp(rng.normal(6, 1, N)))
    noise = np.ones(N)
    if name.endswith("binomial") and name != "negative_binomial":
        exposure = rng.integers(50, 400, N).astype(float)
        y = rng.binomial(exposure.astype(int), rng.beta(3, 7, N)).astype(float)
        return y, exposure, exposure, betabinom, [logit(0.3), 2.0]
    if name == "normal":
        noise = exposure * rng.uniform(1, 3, N)
        sd = np.sqrt(0.5 * noise + 0.04**2 * exposure**2)
        y = -0.3 * exposure + sd * rng.standard_normal(N)
        return y, exposure, noise, normal, [-0.3, np.log(0.5), 2 * np.log(0.04)]
    mean = 0.05 * exposure * np.exp(0.8 * rng.standard_normal(N))
    if name == "exponential":
        return rng.exponential(mean), exposure, noise, lomax, [np.log(0.05), 1.0]
    return rng.poisson(mean).astype(float), exposure, noise, nbinom, [np.log(0.05), 1.0]


NAMES = ["poisson", "negative_binomial", "binomial", "beta_binomial", "exponential", "normal"]


@pytest.mark.parametrize("name", NAMES)
def test_the_fit_is_scipys(name):
    y, exposure, noise, density, start = simulate(name, 0)
    train = np.arange(N) % 3 > 0
    own = find_likelihood(name).constant(y[train], exposure[train], noise[train])
    p = best(lambda p: -density(p, y[train], exposure[train], noise[train]).sum(), start)
    theirs = density(p, y, exposure, noise)
    ours = own.log_density(y, exposure, noise)
    assert ours[train].sum() >= theirs[train].sum() - 1e-6
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert ours[~train].mean() == pytest.approx(theirs[~train].mean(), abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_density_and_the_draws_are_of_one_distribution(name):
    y, exposure, noise, _, _ = simulate(name, 4)
    own = find_likelihood(name).constant(y, exposure, noise)
    rng = np.random.default_rng(0)
    expected, drawn = own.draw(exposure, noise, 20_000, rng)
    # A draw's log density has the mean minus the entropy, however it is estimated.
    for area in (0, 7):
        at = np.full(20_000, exposure[area]), np.full(20_000, noise[area])
        seen = own.log_density(drawn[:, area], *at)
        if name in ("exponential", "normal"):
            low, high = np.quantile(drawn[:, area], [0.2, 0.8])
            grid = np.linspace(low, high, 4001)
            inside = np.exp(own.log_density(grid, *(np.full(4001, a[0]) for a in at)))
            assert np.trapezoid(inside, grid) == pytest.approx(0.6, abs=0.02)
        else:
            top = int(drawn[:, area].max()) + 1
            support = np.arange(top + 1.0)
            law = np.exp(own.log_density(support, *(np.full(top + 1, a[0]) for a in at)))
            assert law.sum() == pytest.approx(1, abs=0.01)
            entropy = (law * np.log(np.maximum(law, 1e-300))).sum()
            assert seen.mean() == pytest.approx(entropy, abs=0.05)
        assert expected[:, area].mean() == pytest.approx(
            own.mean(exposure)[area], rel=0.2 if name == "exponential" else 0.05
        )


def test_without_spread_the_limits_are_poisson_binomial_and_exponential():
    rng = np.random.default_rng(1)
    exposure = rng.integers(50, 400, 400).astype(float)
    even = {
        "poisson": np.round(0.1 * exposure),
        "binomial": np.round(0.3 * exposure),
        "exponential": 0.2 * exposure,
    }
    wanted = {
        "poisson": lambda y, rate: stats.poisson.logpmf(y, rate * exposure),
        "binomial": lambda y, rate: stats.binom.logpmf(y, exposure, rate),
        "exponential": lambda y, rate: stats.expon.logpdf(y, scale=rate * exposure),
    }
    for name, y in even.items():
        own = find_likelihood(name).constant(y, exposure, exposure)
        assert own.size == np.inf
        rate = (y / exposure).mean() if name == "exponential" else y.sum() / exposure.sum()
        assert own.rate == pytest.approx(rate)
        found = own.log_density(y, exposure, exposure)
        np.testing.assert_allclose(found, wanted[name](y, rate))
        assert np.isfinite(own.draw(exposure, exposure, 3, rng)[1]).all()


def test_the_rate_is_the_best_one_and_not_the_pooled_one():
    """A flat map, fitted by its own likelihood, is no better than the constant."""
    rng = np.random.default_rng(5)
    exposure = np.exp(rng.normal(9, 1.5, 200))
    rate = 0.05 * np.exp(0.8 * rng.standard_normal(200)) * (exposure / 8000) ** -0.3
    y = rng.poisson(rate * exposure).astype(float)
    own = find_likelihood("poisson").constant(y, exposure, np.ones(200))
    pooled = y.sum() / exposure.sum()
    assert own.rate > 1.2 * pooled
    at_pooled = max(
        nbinom([np.log(pooled), s], np.round(y), exposure, None).sum() for s in np.linspace(-3, 3)
    )
    assert own.log_density(y, exposure, np.ones(200)).sum() > at_pooled + 5


class Geometric(Likelihood):
    """Counts of mean ``eta``, from outside the packages: no law of its own."""

    name = "geometric"
    links = ("exp",)

    def terms(self, y: Any, eta: Any, params: Any, bag_data: Any, order: int = 1) -> Terms:
        up = 1.0 + eta
        value, d1 = y * np.log(eta) - (y + 1.0) * np.log1p(eta), y / eta - (y + 1.0) / up
        d2, d3 = -y / eta**2 + (y + 1.0) / up**2, 2.0 * y / eta**3 - 2.0 * (y + 1.0) / up**3
        return Terms(value, d1, d2, d3)

    def draw(self, eta: Any, params: Any, bag_data: Any, rng: Any) -> Any:
        return rng.geometric(1.0 / (1.0 + eta)) - 1.0


def test_a_likelihood_without_a_law_stands_itself_at_one_rate():
    rng = np.random.default_rng(2)
    exposure = rng.uniform(10, 90, N)
    y = rng.geometric(1 / (1 + 0.2 * exposure)) - 1.0
    own = Geometric().constant(y, exposure, np.ones(N))
    assert isinstance(own, LikelihoodRate)

    def density(p):
        return stats.geom.logpmf(y, 1 / (1 + np.exp(p[0]) * exposure), loc=-1)

    theirs = density(best(lambda p: -density(p).sum(), [np.log(0.2)]))
    np.testing.assert_allclose(own.log_density(y, exposure, np.ones(N)), theirs, atol=1e-4)
    expected, drawn = own.draw(exposure, np.ones(N), 4000, rng)
    np.testing.assert_allclose(drawn.mean(axis=0), expected[0], rtol=0.15)
    # With an area effect its deviation is learnt as well: it cannot be the worse for it.
    wide = AreaEffect(Geometric()).constant(y, exposure, np.ones(N))
    assert set(wide.params) == {"log_area_sd"}
    total = wide.log_density(y, exposure, np.ones(N)).sum()
    assert total >= theirs.sum() - 1e-3
