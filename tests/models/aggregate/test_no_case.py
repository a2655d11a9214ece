"""Areas without a single case: a map of upper limits, those of the textbooks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import beta, betabinom, gamma

from models import Bags, VBAgg
from models.gp.priors import FEW, level_unit, log_prior_level
from models.likelihoods.registry import find_likelihood
from models.training.executor import BagsSource
from tests.models.aggregate.country import country

WHOLE_RUNS = True
TESTED = 50.0


def _bags(y, *, tested=False):
    bags = country(side=12, n_area=10, cases=40.0, range_=4.0)
    trials = np.full(bags.n_bag, TESTED) if tested else None
    return Bags(bags.x, bags.offsets, np.full(bags.n_bag, y), bags.weight, bags.coords, trials)


def _totals(model, bags):
    areas = model.predict_bags(bags, n_draws=4000, observed=True, rng=np.random.default_rng(0))
    return areas.draws


@pytest.mark.parametrize(
    ("likelihood", "area_effect"),
    [("poisson", True), ("negative_binomial", False)],
)
def test_the_limit_of_one_rate_is_that_of_the_gamma_posterior(likelihood, area_effect):
    """With a flat rate and no case, cases are Gamma(1): limits 3.0 (95 %) and 3.7 (97.5 %)."""
    bags = _bags(0.0)
    model = VBAgg(
        likelihood=likelihood, area_effect=area_effect, kernel="constant", link="exp", priors="weak"
    ).fit(bags)
    assert model.converged_
    total = _totals(model, bags).sum(axis=1)
    found = np.quantile(total, [0.5, 0.95, 0.975])
    np.testing.assert_allclose(found, gamma(1.0).ppf([0.5, 0.95, 0.975]), rtol=0.25)
    assert total.mean() == pytest.approx(1.0, abs=0.3)


def test_the_default_kernel_gives_a_map_of_limits():
    bags = _bags(0.0)
    model = VBAgg(kernel="smooth_additive", link="exp", priors="weak", area_effect=True).fit(bags)
    assert model.converged_
    limit = np.quantile(_totals(model, bags).sum(axis=1), 0.95)
    assert 2.0 < limit < 6.0  # a field that may differ by area allows for more than one rate
    pixels = model.predict_pixels(bags.x, bags.coords)
    assert np.isfinite(pixels.quantile(0.975)).all()
    assert float(bags.weight @ pixels.mean) < 3.0


def _beta_binomial_limit(n_bag):
    """Return the 97.5 % limit of the mean, no positive in any bag: by quadrature."""
    mean = np.exp(np.linspace(np.log(1e-6), np.log(0.7), 400))
    sd = np.exp(np.linspace(np.log(1e-3), np.log(3.0), 200))[:, None]
    size = sd**-2
    none = betabinom(TESTED, mean * size, (1 - mean) * size).logpmf(0)
    # P(sd > .5) = .1, exponential; the level is flat in the mean below ten cases, and in its
    # logarithm above.
    prior = np.log(0.1) / 0.5 * sd - np.log(10.0 + mean * TESTED * n_bag) + np.log(mean * sd)
    weight = np.exp(n_bag * none + prior).sum(axis=0)
    return float(np.interp(0.975, np.cumsum(weight) / weight.sum(), mean))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("likelihood", "all_of_them"), [("binomial", True), ("beta_binomial", False)]
)
def test_no_positive_and_no_negative_have_the_limits_of_the_beta_posterior(likelihood, all_of_them):
    bags = _bags(TESTED if all_of_them else 0.0, tested=True)
    model = VBAgg(likelihood=likelihood, kernel="constant", priors="weak").fit(bags)
    assert model.converged_
    drawn = _totals(model, bags).mean(axis=1)
    off = 1.0 - drawn if all_of_them else drawn
    tested = TESTED * bags.n_bag
    limit = beta(1.0, 1.0 + tested).ppf(0.975)
    if likelihood == "beta_binomial":  # areas that may differ tell less
        limit = _beta_binomial_limit(bags.n_bag)
    assert 0.6 * limit < np.quantile(off, 0.975) < 1.6 * limit


def test_the_posterior_under_the_prior_of_the_level_by_quadrature():
    """The prior by itself: near flat rates without a case, near flat logarithms with a thousand."""
    fixed = {"level_unit": np.array([0.5])}

    def quantile(cases, q):
        def density(log_total):
            prior = log_prior_level("exp", log_total - np.log(0.5), fixed)[0]
            return np.exp(prior + cases * (log_total - top) - np.exp(log_total) + np.exp(top))

        top = np.log(max(cases, 1.0))
        low, high = (-25.0, 5.0) if cases == 0 else (top - 1.0, top + 1.0)
        whole = quad(density, low, high, limit=200)[0]
        share = lambda x: quad(density, low, x, limit=200)[0] / whole - q  # noqa: E731
        return np.exp(brentq(share, low, high))

    assert quantile(0, 0.95) == pytest.approx(gamma(1.0).ppf(0.95), rel=0.1)
    assert quantile(0, 0.975) == pytest.approx(gamma(1.0).ppf(0.975), rel=0.1)
    # 1,000 cases: within a fiftieth of a deviation of the flat logarithm.
    assert quantile(1000, 0.5) == pytest.approx(gamma(1000.0).ppf(0.5), abs=0.02 * 1000**0.5)


@pytest.mark.parametrize("link", ["exp", "probit", "square"])
def test_the_slope_of_the_prior_of_the_level_is_its_derivative(link):
    fixed, h = {"level_unit": np.array([40.0])}, 1e-6
    for mean in (-60.0, -6.0, -1.0, 0.3, 4.0):
        ends = [log_prior_level(link, mean + sign * h, fixed)[0] for sign in (1, -1)]
        slope = log_prior_level(link, mean, fixed)[1]
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-7)
    assert log_prior_level(link, 1.0, {}) == (0.0, 0.0)
    # Cases by the hundred are not moved.
    many = {"level_unit": np.array([100.0 * FEW])}
    # By a fiftieth of the deviation that a thousand Poisson counts leave the mean.
    mean, sd = (1.0, 4000.0**-0.5) if link == "square" else (0.0, 1000.0**-0.5)
    assert abs(log_prior_level(link, mean, many)[1]) * sd < 0.02


def test_the_level_has_a_prior_wherever_nothing_else_bounds_it():
    def found(likelihood, bags, weak):
        summary = BagsSource(bags, 0).summary(np.random.default_rng(0))
        return level_unit(find_likelihood(likelihood), summary, 0.1, weak=weak)

    none, some = _bags(0.0), _bags(3.0)
    assert found("poisson", none, False)["level_unit"] == pytest.approx(0.1 * none.weight.sum())
    assert "level_unit" in found("poisson", some, True)
    assert not found("poisson", some, False)
    assert not found("normal", none, True)
    everybody = _bags(TESTED, tested=True)
    assert found("binomial", everybody, False)["level_unit"] == TESTED * everybody.n_bag
