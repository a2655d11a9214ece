"""What is expected of a bag's likelihood, against quadrature, limits and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from models.aggregate import moment_matching
from models.likelihoods.area_effect import AreaEffect, log_normal_mixture
from models.likelihoods.binomial import Binomial
from models.likelihoods.links import find_link
from models.likelihoods.negative_binomial import NegativeBinomial
from models.likelihoods.observation import Observation
from models.likelihoods.poisson import Poisson

Y = np.array([0.0, 1.0, 7.3, 250.0])
MEAN = np.array([0.8, 2.0, 5.0, 300.0])
VARIANCE = MEAN**2 * np.array([0.9, 0.3, 0.05, 0.4])
LINEAR = VARIANCE * np.array([0.2, 0.6, 0.5, 0.3])
LIKELIHOODS = {
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
    "poisson+area": AreaEffect(Poisson()),
    "negative_binomial+area": AreaEffect(NegativeBinomial()),
}
SIZE, AREA_SD = 4.0, 0.35


def _seen(likelihood, **changed):
    params = {"log_size": np.log(SIZE), "log_area_sd": np.log(AREA_SD), **changed}
    n = Y.size
    return Observation(
        likelihood,
        find_link("exp"),
        {name: params[name] for name in likelihood.parameters},
        Y,
        np.ones(n),
        np.arange(n + 1),
        np.arange(n),
        likelihood.bag_data(np.ones(n), np.arange(n + 1), None),
    )


def _log_density(name, y, eta):
    """Log density of a response, written down again, without the area effect."""
    if name.startswith("poisson"):
        return y * np.log(eta) - eta - gammaln(y + 1.0)
    constant = gammaln(y + SIZE) - gammaln(SIZE) - gammaln(y + 1.0)
    return constant + SIZE * np.log(SIZE / (SIZE + eta)) + y * np.log(eta / (SIZE + eta))


def _mixed(name, y, t, variance):
    """``log int p(y | e^u) N(u; t, variance) du``: the trapezoidal rule, exact for such tails."""
    sd = np.sqrt(variance)
    u = np.linspace(t - 13 * sd, t + 13 * sd, 6001)
    log_each = _log_density(name, y, np.exp(u)) - 0.5 * ((u - t) / sd) ** 2
    return logsumexp(log_each) + np.log((u[1] - u[0]) / (sd * np.sqrt(2 * np.pi)))


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_the_mixture_is_the_integral(name):
    likelihood = LIKELIHOODS[name]
    seen = _seen(likelihood)
    t, variance = np.log(MEAN) - 0.2, np.array([0.9, 0.01, 0.3, 0.5])
    found = log_normal_mixture(likelihood, Y, t, variance, seen.params, seen.bag_data)
    expected = [_mixed(name, *each) for each in zip(Y, t, variance, strict=True)]
    np.testing.assert_allclose(found.value, expected, rtol=0, atol=1e-6)


def test_a_binomial_law_has_terms_where_rates_round_to_one():
    tested, eta = np.array([120.0, 120.0, 5.0]), np.array([1.0, 1.0, 0.0])
    at = Binomial().terms(np.array([120.0, 118.0, 0.0]), eta, {}, tested, order=3)
    for each in (at.value, at.d1, at.d2, at.d3):
        assert np.isfinite(each).all()


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_the_mixtures_derivatives_agree_with_finite_differences(name):
    likelihood = LIKELIHOODS[name]
    seen = _seen(likelihood)
    t, variance = np.log(MEAN) - 0.2, np.array([0.9, 0.01, 0.3, 0.5])

    def value(t, variance, params=seen.params):
        return log_normal_mixture(likelihood, Y, t, variance, params, seen.bag_data).value

    at = log_normal_mixture(likelihood, Y, t, variance, seen.params, seen.bag_data)
    h = 1e-4
    np.testing.assert_allclose(
        at.d1, (value(t + h, variance) - value(t - h, variance)) / (2 * h), rtol=1e-5, atol=1e-5
    )
    rise = (value(t, variance * (1 + h)) - value(t, variance * (1 - h))) / (2 * h * variance)
    np.testing.assert_allclose(at.d2, rise, rtol=1e-4, atol=1e-4)
    for key in likelihood.parameters:
        up, down = ({**seen.params, key: seen.params[key] + sign * h} for sign in (1, -1))
        rise = (value(t, variance, up) - value(t, variance, down)) / (2 * h)
        np.testing.assert_allclose(at.by[key], rise, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_marginal_is_the_nested_integral(name):
    """``E_l log E_r p(y | e^(t + l + r))`` by quadrature inside quadrature."""
    seen = _seen(LIKELIHOODS[name])
    found = moment_matching.marginal(seen, MEAN, VARIANCE, LINEAR).value
    total, own = np.log1p(VARIANCE / MEAN**2), LINEAR / MEAN**2
    rest = total - own
    t = np.log(MEAN) - 0.5 * total
    if name.endswith("area"):  # a factor of mean one, of each area
        rest, t = rest + AREA_SD**2, t - 0.5 * AREA_SD**2
    node, weight = np.polynomial.hermite_e.hermegauss(41)
    weight = weight / weight.sum()
    for k in range(Y.size):
        each = [_mixed(name, Y[k], t[k] + np.sqrt(own[k]) * x, rest[k]) for x in node]
        assert found[k] == pytest.approx(weight @ each, abs=2e-5), k


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_marginals_derivatives_agree_with_finite_differences(name):
    likelihood = LIKELIHOODS[name]
    seen = _seen(likelihood)
    at = moment_matching.marginal(seen, MEAN, VARIANCE, LINEAR)

    def value(c=MEAN, v=VARIANCE, linear=LINEAR, seen=seen):
        return moment_matching.marginal(seen, c, v, linear).value

    h = 1e-4
    for found, key, start in (
        (at.by_mean, "c", MEAN),
        (at.by_variance, "v", VARIANCE),
        (at.by_linear, "linear", LINEAR),
    ):
        up, down = value(**{key: start * (1 + h)}), value(**{key: start * (1 - h)})
        np.testing.assert_allclose(found * start, (up - down) / (2 * h), rtol=1e-4, atol=1e-5)
    for key in likelihood.parameters:
        ends = [value(seen=_seen(likelihood, **{key: seen.params[key] + d})) for d in (h, -h)]
        np.testing.assert_allclose(at.by[key], (ends[0] - ends[1]) / (2 * h), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_where_all_is_linear_the_marginal_is_the_log_normal_expectation(name):
    seen = _seen(LIKELIHOODS[name])
    plain = moment_matching.log_normal(seen, MEAN, VARIANCE)
    # More than the whole, as nodes chosen among many pixels may have it.
    same = moment_matching.marginal(seen, MEAN, VARIANCE, 1.2 * VARIANCE)
    # What is integrated out anyway has the variance LEAST_REST: curvature times half of it.
    slack = moment_matching.LEAST_REST * (1.0 + Y**2)
    assert (np.abs(same.value - plain.value) < slack).all()
    assert (same.by_linear == 0).all()
    np.testing.assert_allclose(same.by_mean, plain.by_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(same.by_variance, plain.by_variance, rtol=1e-4, atol=1e-6)


def test_what_is_integrated_out_is_never_a_loss():
    """By Jensen's inequality the marginal is above the expectation of all of the variance."""
    seen = _seen(Poisson())
    before = moment_matching.log_normal(seen, MEAN, VARIANCE).value
    for share in (0.9, 0.5, 0.1):
        now = moment_matching.marginal(seen, MEAN, VARIANCE, share * VARIANCE).value
        assert (now > before).all()
        before = now


def test_a_wide_aggregate_without_a_linear_part_is_the_evidence_of_one_bag():
    """By Monte Carlo of the aggregate itself: the mixture's own definition."""
    seen = _seen(Poisson())
    found = moment_matching.marginal(seen, MEAN, VARIANCE, np.zeros(Y.size)).value
    rng = np.random.default_rng(0)
    total = np.log1p(VARIANCE / MEAN**2)
    eta = MEAN * np.exp(np.sqrt(total) * rng.standard_normal((400_000, Y.size)) - 0.5 * total)
    density = np.exp(seen.terms(eta).value)
    error = density.std(axis=0) / density.mean(axis=0) / np.sqrt(eta.shape[0])
    assert (np.abs(np.log(density.mean(axis=0)) - found) < 4 * error + 0.01).all()
    assert error.max() < 0.01


def test_second_order_and_log_normal_meet_where_the_variance_is_small():
    seen = _seen(Poisson())
    ratio = 1e-4
    v = ratio * MEAN**2
    a = moment_matching.second_order(seen, MEAN, v).value
    b = moment_matching.log_normal(seen, MEAN, v).value
    # The next term is of order ratio^2 times the third derivative, 2 y / c^3.
    assert (np.abs(a - b) < ratio**2 * (1.0 + 2.0 * Y)).all()
