"""Filter, smoother, slopes and draws against the dense posterior of all periods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.core.errors import NumericalError
from models.temporal.marginal import MarginalPath
from models.temporal.markov import (
    Constant,
    MarkovKernel,
    Matern12,
    Matern32,
    Season,
    TimeSum,
)
from models.temporal.path_prior import Group, PathPrior
from models.temporal.prior_paths import draw_paths, with_theta
from models.temporal.sites import Arrow, Site, Split, beside, signed_roots
from models.temporal.state_space import StateSpace

TIMES = np.array([0.0, 1.0, 2.5, 3.0, 7.0])
N, T = 9, 5
SPLITS = {"all shared": Split(N), "filter": Split(N, 4, 7), "marginal": Split(N, 4, 7)}
WAYS = pytest.mark.parametrize("way", SPLITS)


def _groups() -> list[Group]:
    """Return groups whose last is three effects of areas, at places 4 to 6."""
    rng = np.random.default_rng(3)
    order, first, found = rng.permutation([0, 1, 2, 3, 7, 8]), 0, []
    kernels = [Constant(), TimeSum((Constant(), Matern32())), Season(4.0, 2)]
    for kernel in kernels:
        theta = kernel.start(1.0) + 0.2 * rng.standard_normal(kernel.n_theta)
        found.append(Group(kernel, theta, np.sort(order[first : first + 2])))
        first += 2
    own = TimeSum((Constant(), Matern12()))
    theta = own.start(1.0) + 0.2 * rng.standard_normal(own.n_theta)
    return [*found, Group(own, theta, np.arange(4, 7))]


def _sites(split: Split) -> list[Site]:
    """Return sites of low rank, of more rows than values, of areas alone, and none."""
    rng, found = np.random.default_rng(4), []
    n, n_own = split.shared.size, split.n_own
    for rank in (4, None, 12, 3, 0):
        site = Site.none(split)
        if rank is not None:
            own = rng.uniform(0.2, 2.0, n_own) * (rng.random(n_own) < 0.8)
            load = rng.standard_normal((n, n_own))
            root = rng.standard_normal((rank, n))
            site = Site(rng.standard_normal(N), root, load, own, split)
        found.append(site)
    return found


def _prior(way: str, groups: list[Group], times: np.ndarray = TIMES) -> PathPrior:
    if way == "marginal":
        return MarginalPath(groups, times, SPLITS[way])
    return StateSpace(groups, times, split=SPLITS[way])


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
        precision[t * N : t * N + N, t * N : t * N + N] = site.times(np.eye(N))
    linear = np.concatenate([site.linear for site in sites])
    inner = np.eye(T * N) + k @ precision
    cov = np.linalg.solve(inner, k)
    mean = cov @ linear
    log_z = 0.5 * float(linear @ mean) - 0.5 * float(np.linalg.slogdet(inner)[1])
    expected = float(linear @ mean) - 0.5 * float(np.trace(precision @ cov))
    expected -= 0.5 * float(mean @ precision @ mean)
    return mean, cov, log_z, expected - log_z


@WAYS
def test_smoother_is_the_dense_posterior(way: str) -> None:
    groups, sites, split = _groups(), _sites(SPLITS[way]), SPLITS[way]
    mean, cov, log_z, kl = _dense(groups, sites)
    found = _prior(way, groups).smooth(sites)
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=1e-12)
    for t in range(T):
        own = slice(t * N, t * N + N)
        expected = Arrow.of(cov[own, own], split)
        for part in ("shared", "cross", "own"):
            np.testing.assert_allclose(
                getattr(found.cov[t], part), getattr(expected, part), atol=1e-12
            )
    assert found.log_z == pytest.approx(log_z, abs=1e-12)
    each = zip(sites, found.mean, found.cov, strict=True)
    assert sum(site.expected(m, s) for site, m, s in each) - found.log_z == pytest.approx(kl)


@pytest.mark.parametrize("kernel", [Constant(), Matern32()])
def test_all_values_may_hold_still_or_move(kernel: MarkovKernel) -> None:
    split, sites = Split(N), _sites(Split(N))
    groups = [Group(kernel, kernel.start(1.0), np.arange(N))]
    mean, cov, log_z, _ = _dense(groups, sites)
    found = StateSpace(groups, TIMES).smooth(sites, slopes=True)
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=1e-12)
    np.testing.assert_allclose(found.cov[1].shared, cov[N : 2 * N, N : 2 * N], atol=1e-12)
    assert found.log_z == pytest.approx(log_z, abs=1e-12)
    n = 4000
    drawn = StateSpace(groups, TIMES, split=split).draws(sites, n, np.random.default_rng(1))
    off = (drawn.mean(axis=2).ravel() - mean) / np.sqrt(np.diag(cov))
    assert np.abs(off).max() < 5.0 / np.sqrt(n)


def test_what_holds_still_is_found_from_narrow_sites() -> None:
    """Of sites that know all of a path to 3e-4 of the prior's deviation, its own part is left."""
    rng, split, n = np.random.default_rng(11), Split(3), 4
    kernel = TimeSum((Constant(), Matern32()))
    groups = [Group(kernel, kernel.start(1.0), np.arange(3))]
    path, root = rng.standard_normal(3), np.sqrt(1e7) * np.linalg.qr(rng.normal(size=(3, 3)))[0]
    none = Site.none(split)
    sites = [replace(none, linear=root.T @ (root @ path), root=root) for _ in range(n)]
    found = StateSpace(groups, np.arange(float(n)), split=split).smooth(sites)
    sd = np.sqrt(np.diag(found.cov[0].shared))
    assert np.abs((found.mean - path) / sd).max() < 0.01
    drawn = StateSpace(groups, np.arange(float(n)), split=split).draws(sites, 400, rng)
    assert np.abs((drawn.mean(axis=2) - path) / sd).max() < 5.0 / np.sqrt(400)


@WAYS
def test_shares_of_what_holds_still_change_nothing(way: str) -> None:
    shares = TimeSum((Constant(), Constant()))
    groups = [Group(shares, np.array([0.7]), np.delete(np.arange(N), range(4, 7))), _groups()[-1]]
    found = _prior(way, groups).smooth(_sites(SPLITS[way]), slopes=True)
    np.testing.assert_allclose(found.by_time[0], 0.0, atol=1e-10)


@WAYS
def test_slopes_by_the_sites_need_the_precision_times_the_covariance(way: str) -> None:
    groups, sites = _groups(), _sites(SPLITS[way])
    found = _prior(way, groups).smooth(sites, slopes=True)
    told = _prior(way, groups).site_slopes(sites)
    np.testing.assert_allclose(told.mean, found.mean, atol=1e-12)
    for one, other in zip(told.by_time, found.by_time, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    for site, cov, (shared, own) in zip(sites, found.cov, told.products, strict=True):
        expected = site.precision.product(cov)
        np.testing.assert_allclose(shared, expected[0], atol=1e-12)
        assert own == pytest.approx(expected[1], abs=1e-12)


@WAYS
def test_slopes_by_time_are_those_of_differences(way: str) -> None:
    groups, sites, by = _groups(), _sites(SPLITS[way]), 1e-5
    found = _prior(way, groups).smooth(sites, slopes=True)
    for number, group in enumerate(groups):
        for k in range(group.theta.size):
            ends = []
            for sign in (1.0, -1.0):
                theta = [each.theta.copy() for each in groups]
                theta[number][k] += sign * by
                ends.append(_dense(with_theta(groups, theta), sites)[2])
            slope = (ends[0] - ends[1]) / (2 * by)
            assert found.by_time[number][k] == pytest.approx(slope, abs=1e-7)


@WAYS
def test_joint_draws_have_the_moments_of_all_periods(way: str) -> None:
    groups, sites = _groups(), _sites(SPLITS[way])
    mean, cov, _, _ = _dense(groups, sites)
    n = 20_000
    drawn = _prior(way, groups).draws(sites, n, np.random.default_rng(5)).reshape(T * N, n)
    sd = np.sqrt(np.diag(cov))
    assert np.abs((drawn.mean(axis=1) - mean) / sd).max() < 5.0 / np.sqrt(n)
    assert np.abs(np.cov(drawn) - cov).max() < 7.0 * (sd**2).max() / np.sqrt(n)


@WAYS
def test_joint_draws_know_what_was_before(way: str) -> None:
    groups, sites = _groups(), _sites(SPLITS[way])
    rest = _dense(groups, sites)[0].reshape(T, N)[2:]
    sd = np.sqrt(np.diag(_dense(groups, sites)[1])).reshape(T, N)[2:]
    late = _prior(way, groups).after(sites[:1]).after(sites[1:2])
    drawn = late.draws(sites[2:], 4000, np.random.default_rng(5))
    assert np.abs((drawn.mean(axis=2) - rest) / sd).max() < 5.0 / np.sqrt(4000)


@WAYS
def test_what_has_no_noise_is_the_same_in_all_periods_of_a_draw(way: str) -> None:
    groups, sites = _groups(), _sites(SPLITS[way])
    drawn = _prior(way, groups).draws(sites, 3, np.random.default_rng(6))
    still = drawn[:, groups[0].values]
    np.testing.assert_allclose(still, np.broadcast_to(still[0], still.shape), atol=1e-10)


@WAYS
def test_a_forecast_goes_to_the_prior(way: str) -> None:
    split = SPLITS[way]
    groups, sites = _groups(), [*_sites(split), Site.none(split)]
    far = _prior(way, groups, np.append(TIMES, 1e4)).smooth(sites)
    near = _prior(way, groups).smooth(sites[:-1])
    moves = groups[2].values
    np.testing.assert_allclose(far.mean[-1][moves], 0.0, atol=1e-10)
    place = np.searchsorted(split.shared, moves)
    np.testing.assert_allclose(far.cov[-1].shared[np.ix_(place, place)], np.eye(2), atol=1e-10)
    still = groups[0].values
    np.testing.assert_allclose(far.mean[-1][still], near.mean[-1][still], atol=1e-10)
    np.testing.assert_allclose(far.mean[:-1], near.mean, atol=1e-10)
    assert far.log_z == pytest.approx(near.log_z)


@WAYS
def test_what_is_known_before_counts_as_when_all_is_smoothed(way: str) -> None:
    groups, sites = _groups(), _sites(SPLITS[way])
    prior = _prior(way, groups)
    whole, late = prior.smooth(sites), prior.after(sites[:2]).smooth(sites[2:])
    np.testing.assert_array_equal(prior.after(sites[:2]).times, TIMES[2:])
    np.testing.assert_allclose(late.mean, whole.mean[2:], atol=1e-12)
    for ours, theirs in zip(late.cov, whole.cov[2:], strict=True):
        np.testing.assert_allclose(ours.cross, theirs.cross, atol=1e-12)
        np.testing.assert_allclose(ours.own, theirs.own, atol=1e-12)
    before = _prior(way, groups, TIMES[:2]).smooth(sites[:2]).log_z
    assert late.log_z == pytest.approx(whole.log_z - before, abs=1e-12)


def test_the_parts_of_a_precision_are_sites_that_differ_by_it() -> None:
    rng, split = np.random.default_rng(8), SPLITS["marginal"]
    half = rng.standard_normal((N, N))
    dense = half + half.T
    dense[split.own, split.own] = np.diag(np.diag(dense)[split.own])
    wanted = Arrow.of(dense, split)
    plus, minus = signed_roots(wanted, split)
    found = plus.precision - minus.precision
    for part in ("shared", "cross", "own"):
        np.testing.assert_allclose(getattr(found, part), getattr(wanted, part), atol=1e-3)
    v = rng.standard_normal((N, 3))
    np.testing.assert_allclose(
        plus.times(v), plus.whole_root().T @ (plus.whole_root() @ v), atol=1e-12
    )
    both = beside(plus, 0.5, minus).precision
    np.testing.assert_allclose(
        both.cross, (plus.precision + 0.5 * minus.precision).cross, atol=1e-12
    )


def test_paths_have_the_kernels_covariance() -> None:
    kernel = Season(4.0, 2)
    theta = np.log([6.0, 0.5])
    drawn = draw_paths(kernel, theta, TIMES, (2, 10_000), np.random.default_rng(7))
    expected = kernel.covariance(theta, (TIMES[:, None] - TIMES).ravel()).reshape(T, T)
    assert np.abs(np.cov(drawn.reshape(T, -1)) - expected).max() < 0.05


def test_a_site_that_is_not_finite_is_an_error() -> None:
    bad = replace(Site.none(Split(N)), root=np.full((1, N), np.nan))
    with pytest.raises(NumericalError, match="the filter broke down in period 0"):
        StateSpace(_groups(), TIMES[:1]).smooth([bad])
