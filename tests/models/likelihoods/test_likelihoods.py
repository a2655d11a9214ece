"""Links, likelihoods, area effects and priors against quadrature, scipy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import gammaln, roots_hermitenorm

from models import Bags, VBAgg
from models.gp.kernel_text import parse_kernel
from models.gp.priors import log_prior, log_prior_noise
from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.links import LINKS
from models.likelihoods.prediction import Prediction
from models.likelihoods.registry import LIKELIHOODS, find_likelihood
from tests.plain import plain

NODE, WEIGHT = roots_hermitenorm(120)
WEIGHT = WEIGHT / np.sqrt(2 * np.pi)
M, S = np.array([-0.7, 0.4, 1.3]), np.array([0.05, 0.4, 0.9])


@pytest.mark.parametrize("name", LINKS)
def test_moments_of_links_agree_with_quadrature(name):
    link = LINKS[name]
    f = M + np.sqrt(S) * NODE[:, None]
    a = link.moments(M, S, 4)
    np.testing.assert_allclose(a[0], WEIGHT @ link.value(f), rtol=1e-8)
    np.testing.assert_allclose(a[1], WEIGHT @ link.slope(f), rtol=1e-8)
    second = WEIGHT @ link.value(f) ** 2 - a[0] ** 2
    np.testing.assert_allclose(link.sd(M, S) ** 2, second, rtol=1e-7)
    square, *slopes = link.square(M, S)
    np.testing.assert_allclose(square, WEIGHT @ link.value(f) ** 2, rtol=1e-8)
    h = 1e-5
    ways = (M + h, S), (M - h, S), (M, S + h), (M, S - h)
    sides = [link.square(*way)[0] for way in ways]
    np.testing.assert_allclose((sides[0] - sides[1]) / (2 * h), slopes[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose((sides[2] - sides[3]) / (2 * h), slopes[1], rtol=1e-6, atol=1e-9)
    for k in range(3):
        by_m = (link.moments(M + h, S, 4)[k] - link.moments(M - h, S, 4)[k]) / (2 * h)
        np.testing.assert_allclose(by_m, a[k + 1], rtol=1e-6, atol=1e-8)
        by_s = (link.moments(M, S + h, 4)[k] - link.moments(M, S - h, 4)[k]) / (2 * h)
        np.testing.assert_allclose(by_s, 0.5 * a[k + 2], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["identity", "probit"])
def test_quantiles_and_exceedance_of_the_other_links_invert_each_other(name):
    distribution = Prediction(name, M, S, 1.0)
    for q in (0.05, 0.5, 0.9):
        np.testing.assert_allclose(distribution.exceed(distribution.quantile(q)), 1 - q, rtol=1e-9)
    draws = distribution.sample(200_000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=0), distribution.mean, atol=0.01)


@pytest.mark.parametrize("covariance", [0.04, -0.1, 0.3])
def test_mehlers_series_gives_the_covariance_of_two_proportions(covariance):
    m, s = np.array([0.3, -0.5]), np.array([0.4, 0.5])
    root = np.linalg.cholesky([[s[0], covariance], [covariance, s[1]]])
    a, b = np.meshgrid(NODE, NODE, indexing="ij")
    first = m[0] + root[0, 0] * a
    second = m[1] + root[1, 0] * a + root[1, 1] * b
    link = LINKS["probit"]
    weight = np.outer(WEIGHT, WEIGHT)
    joint = (weight * link.value(first) * link.value(second)).sum()
    moments = link.moments(m, s, link.n_term)
    series = sum(
        each[0] * each[1] * covariance**k / np.exp(gammaln(k + 1))
        for k, each in enumerate(moments)
        if k
    )
    assert series == pytest.approx(joint - moments[0].prod(), rel=2e-3)


def _cases(likelihood):
    y = np.array([0.0, 3.5, 900.0, 0.4, 17.0])
    eta, bag_data = np.array([2.0, 3.0, 700.0, 30.0, 1e-3]), np.ones(5)
    if likelihood.averages:
        eta, bag_data = np.array([0.1, 0.5, 0.9, 0.2, 0.4]), np.array([5.0, 7.0, 1000.0, 9.0, 20.0])
    if not likelihood.counts:
        y = y + 1e-3
    if str(likelihood) == "normal+area_effect":
        bag_data = np.array([[1.0, 4.0], [2.0, 2.0], [900.0, 8e4], [1.0, 7.0], [0.2, 0.9]]).T
    return y, eta, bag_data, {name: value + 0.1 for name, value in likelihood.start().items()}


LIKELIHOOD_CASES = [
    *LIKELIHOODS.values(),
    *(AreaEffect(LIKELIHOODS[n]) for n in ("poisson", "negative_binomial", "exponential")),
    LIKELIHOODS["normal"].with_area_effect(),
]


@pytest.mark.parametrize("likelihood", LIKELIHOOD_CASES, ids=str)
def test_derivatives_of_likelihoods_agree_with_finite_differences(likelihood):
    y, eta, bag_data, params = _cases(likelihood)
    terms = likelihood.terms
    at = terms(y, eta, params, bag_data, order=3)
    h = 1e-4 * np.minimum(eta, 1 - eta if likelihood.averages else eta)

    def slope(value, step):
        return (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * step)

    for low, high in (("value", "d1"), ("d1", "d2"), ("d2", "d3")):
        found = getattr(at, high)
        numeric = slope(
            lambda k, low=low: getattr(
                likelihood.terms(y, eta + k * h, params, bag_data, order=3), low
            ),
            h,
        )
        assert np.abs(found - numeric).max() <= 1e-6 * max(np.abs(found).max(), 1e-9)
    for name in params:
        for kind, found in (("value", at.by[name]), ("d2", at.by_d2[name])):
            numeric = slope(
                lambda k, name=name, kind=kind: getattr(
                    likelihood.terms(
                        y, eta, {**params, name: params[name] + 1e-4 * k}, bag_data, order=3
                    ),
                    kind,
                ),
                1e-4,
            )
            assert np.abs(found - numeric).max() <= 1e-4 * np.abs(found).max()


@pytest.mark.parametrize("likelihood", LIKELIHOOD_CASES, ids=str)
@pytest.mark.parametrize("order", [1, 3])
def test_each_draw_may_have_its_own_parameters(likelihood, order):
    y, eta, bag_data, params = _cases(likelihood)
    eta = eta * np.linspace(0.9, 1.1, 4)[:, None]
    shift = np.array([[-0.7], [0.0], [0.2], [0.9]])
    each = {name: value + shift for name, value in params.items()}
    found = likelihood.terms(y, eta, each, bag_data, order)
    for row in range(4):
        own = {name: float(value[row, 0]) for name, value in each.items()}
        alone = likelihood.terms(y, eta[row], own, bag_data, order)
        for name in ("value", "d1", "d2", "d3") if order == 3 else ("value", "d1"):
            np.testing.assert_array_equal(getattr(found, name)[row], getattr(alone, name))
        for kind in ("by", "by_d2") if order == 3 else ("by",):
            assert set(getattr(found, kind)) == set(params)
            for name, value in getattr(alone, kind).items():
                np.testing.assert_array_equal(getattr(found, kind)[name][row], value)


@pytest.mark.parametrize("likelihood", LIKELIHOOD_CASES, ids=str)
def test_draws_with_their_own_parameters_follow_the_law_of_each(likelihood):
    _, eta, bag_data, params = _cases(likelihood)
    n = 5_000
    shift = np.where(np.arange(2 * n) % 2 == 0, -0.8, 0.8)[:, None]
    each = {name: value + shift for name, value in params.items()}
    whole = np.broadcast_to(eta, (2 * n, eta.shape[0]))
    drawn = likelihood.draw(whole, each, bag_data, np.random.default_rng(0))
    for first in (0, 1):
        own = {name: float(value[first, 0]) for name, value in each.items()}
        alone = likelihood.draw(whole[:n], own, bag_data, np.random.default_rng(1))
        for a, b in zip(drawn[first::2].T, alone.T, strict=True):
            assert stats.ks_2samp(a, b, method="asymp").pvalue > 1e-4
        # The same numbers where all draws have the same parameters.
        equal = {name: np.full((n, 1), value) for name, value in own.items()}
        again = likelihood.draw(whole[:n], equal, bag_data, np.random.default_rng(1))
        np.testing.assert_array_equal(again, alone)


def test_likelihoods_are_those_of_scipy():
    y, eta = np.array([0.0, 4.0, 9.0]), np.array([0.5, 6.0, 7.0])
    own = {"log_size": np.log(3.0), "log_noise": np.log(0.7)}
    for name, distribution in (
        ("poisson", stats.poisson(eta)),
        ("negative_binomial", stats.nbinom(3.0, 3.0 / (3.0 + eta))),
    ):
        found = LIKELIHOODS[name].terms(y, eta, own, np.ones(3)).value
        np.testing.assert_allclose(found, distribution.logpmf(y), rtol=1e-10)
    found = LIKELIHOODS["normal"].terms(y, eta, own, np.full(3, 2.0)).value
    np.testing.assert_allclose(found, stats.norm(eta, np.sqrt(1.4)).logpdf(y), rtol=1e-10)
    found = LIKELIHOODS["exponential"].terms(y, eta, own, np.ones(3)).value
    np.testing.assert_allclose(found, stats.expon(scale=eta).logpdf(y), rtol=1e-10)
    found = LIKELIHOODS["gamma"].terms(y[1:], eta[1:], {"log_shape": np.log(6.0)}, 1.0).value
    theirs = stats.gamma(6.0, scale=eta[1:] / 6.0).logpdf(y[1:])
    np.testing.assert_allclose(found, theirs, rtol=1e-10)
    alone = LIKELIHOODS["gamma"].terms(y[1:], eta[1:], {"log_shape": 0.0}, 1.0).value
    np.testing.assert_allclose(alone, stats.expon(scale=eta[1:]).logpdf(y[1:]), rtol=1e-10)
    p, tested = np.array([0.1, 0.5, 0.8]), np.array([4.0, 9.0, 9.0])
    found = LIKELIHOODS["binomial"].terms(y, p, own, tested).value
    np.testing.assert_allclose(found, stats.binom(tested, p).logpmf(y), rtol=1e-10)
    for d in (1e-4, 0.05, 2.0):
        own = {"log_overdispersion": np.log(d)}
        found = LIKELIHOODS["beta_binomial"].terms(y, p, own, tested).value
        theirs = stats.betabinom(tested.astype(int), p / d, (1 - p) / d).logpmf(y)
        np.testing.assert_allclose(found, theirs, rtol=1e-9)


def test_beta_binomial_counts_of_no_overdispersion_are_binomial():
    y, p, tested = np.array([0.0, 4.0, 9.0]), np.array([1e-90, 0.5, 0.8]), np.array([4.0, 9.0, 9.0])
    own = {"log_overdispersion": -40.0}
    limit = LIKELIHOODS["binomial"].terms(y, p, {}, tested, order=3)
    found = LIKELIHOODS["beta_binomial"].terms(y, p, own, tested, order=3)
    for name in ("value", "d1", "d2", "d3"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(limit, name), rtol=1e-4, atol=1e-4, err_msg=name
        )


def test_beta_binomial_draws_have_the_moments_of_scipys():
    eta, tested = np.array([0.05, 0.3, 0.9]), np.array([20.0, 200.0, 75.0])
    size = np.array([[4.0], [300.0]])  # of two members: each draw has its own
    each = np.repeat(-np.log(size), 100_000, axis=0)
    drawn = (
        LIKELIHOODS["beta_binomial"]
        .draw(
            np.broadcast_to(eta, (200_000, 3)),
            {"log_overdispersion": each},
            tested,
            np.random.default_rng(1),
        )
        .reshape(2, -1, 3)
    )
    theirs = stats.betabinom(tested.astype(int), size * eta, size * (1 - eta))
    np.testing.assert_allclose(drawn.mean(axis=1), theirs.mean(), rtol=0.02)
    np.testing.assert_allclose(drawn.var(axis=1), theirs.var(), rtol=0.03)
    # The terms of each draw are those of its own overdispersion.
    terms = LIKELIHOODS["beta_binomial"].terms
    y = np.array([2.0, 90.0, 70.0])
    both = terms(y, np.stack([eta, eta]), {"log_overdispersion": -np.log(size)}, tested, order=3)
    for k in range(2):
        alone = terms(y, eta, {"log_overdispersion": -np.log(size[k, 0])}, tested, order=3)
        for name in ("value", "d1", "d2", "d3"):
            np.testing.assert_allclose(getattr(both, name)[k], getattr(alone, name), rtol=1e-12)


@pytest.mark.parametrize("tau", [0.05, 2.0])
@pytest.mark.parametrize(("y", "eta"), [(0.0, 2.0), (5e4, 1e4), (3.0, 1e-3)])
def test_area_effect_is_the_integral_over_the_areas_factor(y, eta, tau):
    likelihood = AreaEffect(LIKELIHOODS["poisson"])
    found = likelihood.terms(
        np.array([y]), np.array([eta]), {"log_area_sd": np.log(tau)}, np.ones(1)
    )
    mean = np.log(eta) - tau**2 / 2

    def log_each(u):
        return y * u - np.exp(u) - gammaln(y + 1) + stats.norm.logpdf(u, mean, tau)

    grid = np.linspace(min(mean, np.log(y + 0.1)) - 12 * tau, max(mean, np.log(y + 1)) + 9 * tau, 9)
    fine = np.linspace(grid[0], grid[-1], 200_001)
    top = fine[np.argmax(log_each(fine))]
    whole = sum(
        quad(lambda u: np.exp(log_each(u) - log_each(top)), a, b, limit=500, epsabs=0)[0]
        for a, b in ((grid[0], top), (top, grid[-1]))
    )
    assert found.value[0] == pytest.approx(log_each(top) + np.log(whole), abs=2e-5)
    draws = likelihood.draw(
        np.full(400_000, 30.0), {"log_area_sd": np.log(0.5)}, 1.0, np.random.default_rng(0)
    )
    assert draws.mean() == pytest.approx(30.0, rel=0.01)


@pytest.mark.parametrize("kernel", ["additive", "linear(x) + rbf(x) * matern12(space)"])
def test_gradient_of_the_priors_agrees_with_finite_differences(kernel):
    made = parse_kernel(kernel, 3, has_coords=True)
    theta = made.start(0.7) + 0.1 * np.arange(made.n_theta)
    value, grad = log_prior(made, theta, "exp")
    for k in range(made.n_theta):
        moved = [theta + 1e-6 * sign * (np.arange(made.n_theta) == k) for sign in (1, -1)]
        numeric = (log_prior(made, moved[0], "exp")[0] - log_prior(made, moved[1], "exp")[0]) / 2e-6
        assert grad[k] == pytest.approx(numeric, rel=1e-5, abs=1e-7)
    assert np.isfinite(value)
    own = {"log_size": np.array([1.2]), "log_area_sd": np.array([-0.7])}
    likelihood = AreaEffect(LIKELIHOODS["negative_binomial"])
    _, by = log_prior_noise(likelihood, own)
    for name in own:
        ends = [log_prior_noise(likelihood, {**own, name: own[name] + h})[0] for h in (1e-6, -1e-6)]
        assert by[name][0] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_prior_of_an_areas_factor_leaves_one_in_ten_above_a_half():
    likelihood = AreaEffect(LIKELIHOODS["poisson"])

    def density(log_sd):
        return np.exp(log_prior_noise(likelihood, {"log_area_sd": np.array([log_sd])})[0])

    whole = quad(density, -20, 4)[0]
    assert quad(density, np.log(0.5), 4)[0] / whole == pytest.approx(0.1, rel=1e-3)


def test_coefficients_are_those_of_bayesian_regression():
    rng = np.random.default_rng(0)
    n = 60
    x = rng.normal(size=(n, 3))
    y = x @ [1.0, -0.5, 0.0] + 0.3 * rng.normal(size=n)
    model = plain(
        VBAgg,
        likelihood="normal",
        kernel="linear",
        n_inducing=20,
        batch_bags=n,
        integrate="none",  # the algebra is that of one noise and one prior, and of the best q
    ).fit(Bags(x, np.arange(n + 1), y))
    state = model.state_
    base, mean = float(state.fixed["base_rate"][0]), float(state.params["mean"][0])
    z = (x - state.fixed["x_mean"]) / state.fixed["x_sd"]
    noise = float(np.exp(state.params["log_noise"][0])) / base**2
    precision = z.T @ z / noise + np.diag(np.exp(-state.params["theta"]))
    by_hand = np.linalg.solve(precision, z.T @ (y / base - mean) / noise)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    found = model.coefficients_
    assert [each.column for each in found] == [0, 1, 2]
    np.testing.assert_allclose([each.mean for each in found], by_hand, atol=1e-3)
    np.testing.assert_allclose([each.sd for each in found], sd, rtol=0.02)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_are_drawn_around_any_mean(name):
    """Samplers of whole numbers end at 2^63."""
    likelihood = find_likelihood(name, area_effect=True)
    own = {key: -20.0 if key == "log_area_sd" else 20.0 for key in likelihood.parameters}
    mean = np.array([[0.0, 3.0, 1e9, 1e17, 1e30, np.inf]])
    drawn = likelihood.draw(mean.repeat(2000, axis=0), own, np.ones(6), np.random.default_rng(0))
    assert drawn.shape == (2000, 6)
    assert not drawn[:, 0].any()
    assert np.isinf(drawn[:, 5]).all()
    average = drawn[:, 1:5].mean(axis=0)
    np.testing.assert_allclose(average, mean[0, 1:5], rtol=0.1)
    np.testing.assert_allclose(drawn[:, 2:5], mean[:, 2:5].repeat(2000, axis=0), rtol=1e-3)
    assert drawn[:, 1].var() == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize(
    ("name", "places"), [("gamma", -0.5), ("negative_binomial", -0.5), ("beta_binomial", 0.5)]
)
@pytest.mark.parametrize("mean", [0.08, 0.4])
def test_the_deviation_of_a_factor_is_that_of_drawn_responses(name, places, mean):
    """Of so many cases, or tested, that chance has no part."""
    law, sd, rng = find_likelihood(name), 0.15, np.random.default_rng(1)
    (parameter,) = law.parameters
    assert law.parameters[parameter].excess_power == places
    n, many = 20_000, 1e8
    params = {parameter: np.log(sd) / places}
    if law.needs_trials:
        y = law.draw(np.full(n, mean), params, np.full(n, int(many)), rng)
        y = y / many
    else:
        y = law.draw(np.full(n, mean * many), params, None, rng) / many
    assert y.mean() == pytest.approx(mean, rel=0.02)
    wanted = law.factor_deviation(sd, mean)
    assert y.std() / y.mean() == pytest.approx(wanted, rel=0.03)
