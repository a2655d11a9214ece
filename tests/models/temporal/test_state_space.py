"""Filter, smoother, slopes and draws against the dense posterior of all periods."""

from __future__ import annotations

import numpy as np
import pytest

from models.core.errors import NumericalError
from models.temporal.markov import Constant, Matern12, Matern32, Season, TimeSum
from models.temporal.state_space import Group, Site, StateSpace, draw_paths, with_theta

TIMES = np.array([0.0, 1.0, 2.5, 3.0, 7.0])
N, T = 9, 5


def _groups() -> list[Group]:
    rng = np.random.default_rng(3)
    order, first, found = rng.permutation(N), 0, []
    kernels = [Constant(), TimeSum((Constant(), Matern32())), Season(4.0, 2), Matern12()]
    for kernel, size in zip(kernels, (3, 2, 2, 2), strict=True):
        theta = kernel.start(1.0) + 0.2 * rng.standard_normal(kernel.n_theta)
        found.append(Group(kernel, theta, np.sort(order[first : first + size])))
        first += size
    return found


def _sites() -> list[Site]:
    """Return sites of low rank, of more rows than values, and none."""
    rng = np.random.default_rng(4)
    ranks = (4, None, 12, 3, 0)
    return [
        Site.none(N)
        if rank is None
        else Site(rng.standard_normal(N), rng.standard_normal((rank, N)))
        for rank in ranks
    ]


def _dense(groups: list[Group], sites: list[Site]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return mean, covariance, log Z and KL divergence by matrices of all periods."""
    k = np.zeros((T, N, T, N))
    lags = (TIMES[:, None] - TIMES).ravel()
    for group in groups:
        own = group.kernel.covariance(group.theta, lags).reshape(T, T)
        for value in group.values:
            k[:, value, :, value] = own
    k = k.reshape(T * N, T * N)
    precision = np.zeros((T * N, T * N))
    for t, site in enumerate(sites):
        precision[t * N : t * N + N, t * N : t * N + N] = site.precision
    linear = np.concatenate([site.linear for site in sites])
    inner = np.eye(T * N) + k @ precision
    cov = np.linalg.solve(inner, k)
    mean = cov @ linear
    log_z = 0.5 * float(linear @ mean) - 0.5 * float(np.linalg.slogdet(inner)[1])
    expected = float(linear @ mean) - 0.5 * float(np.trace(precision @ cov))
    expected -= 0.5 * float(mean @ precision @ mean)
    return mean, cov, log_z, expected - log_z


def test_smoother_is_the_dense_posterior() -> None:
    groups, sites = _groups(), _sites()
    mean, cov, log_z, kl = _dense(groups, sites)
    found = StateSpace(groups, TIMES).smooth(sites)
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=1e-12)
    for t in range(T):
        own = slice(t * N, t * N + N)
        np.testing.assert_allclose(found.cov[t], cov[own, own], atol=1e-12)
    assert found.log_z == pytest.approx(log_z, abs=1e-12)
    each = zip(sites, found.mean, found.cov, strict=True)
    assert sum(site.expected(m, s) for site, m, s in each) - found.log_z == pytest.approx(kl)


def test_slopes_by_time_are_those_of_differences() -> None:
    groups, sites, by = _groups(), _sites(), 1e-5
    found = StateSpace(groups, TIMES).smooth(sites, slopes=True)
    for number, group in enumerate(groups):
        for k in range(group.theta.size):
            ends = []
            for sign in (1.0, -1.0):
                theta = [each.theta.copy() for each in groups]
                theta[number][k] += sign * by
                ends.append(_dense(with_theta(groups, theta), sites)[2])
            slope = (ends[0] - ends[1]) / (2 * by)
            assert found.by_time[number][k] == pytest.approx(slope, abs=1e-7)


def test_joint_draws_have_the_moments_of_all_periods() -> None:
    groups, sites = _groups(), _sites()
    mean, cov, _, _ = _dense(groups, sites)
    n = 20_000
    drawn = StateSpace(groups, TIMES).draws(sites, n, np.random.default_rng(5)).reshape(T * N, n)
    sd = np.sqrt(np.diag(cov))
    assert np.abs((drawn.mean(axis=1) - mean) / sd).max() < 5.0 / np.sqrt(n)
    assert np.abs(np.cov(drawn) - cov).max() < 7.0 * (sd**2).max() / np.sqrt(n)


def test_what_has_no_noise_is_the_same_in_all_periods_of_a_draw() -> None:
    groups, sites = _groups(), _sites()
    drawn = StateSpace(groups, TIMES).draws(sites, 3, np.random.default_rng(6))
    still = drawn[:, groups[0].values]
    np.testing.assert_allclose(still, np.broadcast_to(still[0], still.shape), atol=1e-10)


def test_a_forecast_goes_to_the_prior() -> None:
    groups, sites = _groups(), [*_sites(), Site.none(N)]
    far = StateSpace(groups, np.append(TIMES, 1e4)).smooth(sites)
    near = StateSpace(groups, TIMES).smooth(sites[:-1])
    moves = groups[3].values
    np.testing.assert_allclose(far.mean[-1][moves], 0.0, atol=1e-10)
    np.testing.assert_allclose(far.cov[-1][np.ix_(moves, moves)], np.eye(2), atol=1e-10)
    still = groups[0].values
    np.testing.assert_allclose(far.mean[-1][still], near.mean[-1][still], atol=1e-10)
    np.testing.assert_allclose(far.mean[:-1], near.mean, atol=1e-10)
    assert far.log_z == pytest.approx(near.log_z)


def test_paths_have_the_kernels_covariance() -> None:
    kernel = Season(4.0, 2)
    theta = np.log([6.0, 0.5])
    drawn = draw_paths(kernel, theta, TIMES, (2, 10_000), np.random.default_rng(7))
    expected = kernel.covariance(theta, (TIMES[:, None] - TIMES).ravel()).reshape(T, T)
    assert np.abs(np.cov(drawn.reshape(T, -1)) - expected).max() < 0.05


def test_a_site_that_is_not_finite_is_an_error() -> None:
    bad = Site(np.zeros(N), np.full((1, N), np.nan))
    with pytest.raises(NumericalError, match="the filter broke down in period 0"):
        StateSpace(_groups(), TIMES[:1]).smooth([bad])
