"""The areas' evidence against dense processes, and the chain against densities that are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import cdist

from models import Bags, VBAgg
from models.aggregate import hyperparameter_chain, refinement
from models.aggregate.area_evidence import AreaEvidence, Evidence
from models.aggregate.hyperparameter_chain import (
    Places,
    effective_size,
    explore,
    find_places,
)
from models.aggregate.profile_bound import ProfileBound
from models.gp import priors
from models.gp.average_covariance import AverageCovariance
from models.gp.kernel_text import parse_kernel
from models.gp.priors import unit_of
from models.likelihoods.registry import find_likelihood
from models.training.few_pixels import asked
from tests.models.aggregate.country import Dense, country, matern32

WHOLE_RUNS = True

KERNEL = "ridge + matern32(space)"


def _fitted(bags, **settings):
    given = {"kernel": KERNEL, "link": "exp", "integrate": "none", "area_effect": False}
    return VBAgg(**{**given, **settings}).fit(bags, n_thread=1)


@pytest.mark.parametrize(
    "text", ["ridge + smooth + matern32(space)", "linear + rbf * matern12(space) + constant"]
)
def test_covariances_of_averages_are_those_of_all_pixels(text):
    rng = np.random.default_rng(0)
    sizes = np.array([1, 5, 12, 16, 3])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    z, b = rng.standard_normal((offsets[-1], 4)), rng.random(offsets[-1])
    kernel = parse_kernel(text, 2, has_coords=True)
    theta = 0.5 * rng.standard_normal(kernel.n_theta)
    found, inside = AverageCovariance(kernel, z, b, offsets)(theta)
    weights = np.zeros((sizes.size, z.shape[0]))
    weights[np.repeat(np.arange(sizes.size), sizes), np.arange(z.shape[0])] = b
    wanted = weights @ kernel.matrix(theta, z, z) @ weights.T
    # Length-scales are interpolated, terms of one column stand on a line.
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()
    assert (inside > 0).any()


def test_large_areas_have_the_variance_of_all_pairs_of_their_pixels():
    """Few nodes alone would leave a short field a share of its variance that it has not."""
    side = 20
    at = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2).astype(float)
    order = np.argsort((at[:, 0] // 10) * 2 + at[:, 1] // 10, kind="stable")
    at, offsets = at[order], np.array([0, 100, 200, 300, 400])
    kernel = parse_kernel("matern32(space)", 0, has_coords=True)
    b = np.full(400, 0.01)
    for length in (0.7, 2.0, 6.0):
        found, _ = AverageCovariance(kernel, at, b, offsets)(np.array([0.0, np.log(length)]))
        whole = matern32(cdist(at, at), length).reshape(4, 100, 4, 100).mean(axis=(1, 3))
        assert np.diag(found) == pytest.approx(np.diag(whole), rel=0.35, abs=0.005)


@pytest.mark.parametrize("text", ["matern32(space)", "rbf(x)"])
def test_large_areas_vary_together_as_all_of_their_pixels_do(text):
    """Where an area has half as many strata as pixels."""
    rng, side = np.random.default_rng(4), 24
    at = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2).astype(float)
    area = (at[:, 0] // 8) * 3 + at[:, 1] // 8
    order = np.argsort(area, kind="stable")
    x = np.column_stack([np.sin(at[:, 0] / 4), np.cos(at[:, 1] / 5), at.sum(axis=1) / 20])
    z = np.column_stack([x, at / 6.0])[order]
    weight = rng.gamma(2.0, 1.0, side**2)
    weight[:64] = 0.0  # an area without anybody
    kernel = parse_kernel(text, 3, has_coords=True)
    offsets = 64 * np.arange(10)
    total = np.maximum(weight.reshape(9, 64).sum(axis=1, keepdims=True), 1e-9)
    b = (weight.reshape(9, 64) / total).ravel()
    cov = AverageCovariance(kernel, z, b, offsets)
    sums = np.kron(np.eye(9), np.ones(64)) * b
    for length in (0.3, 0.8, 2.0):
        theta = np.array([0.3, np.log(length)])
        found, wanted = cov(theta)[0], sums @ kernel.matrix(theta, z, z) @ sums.T
        off = ~np.eye(9, dtype=bool)
        assert np.abs(found - wanted)[off].max() < 0.025 * wanted.max()
        assert np.diag(found) == pytest.approx(np.diag(wanted), rel=0.12)
        assert np.abs(found[0]).max() == 0.0


def test_covariances_of_large_areas_are_positive_definite():
    """Where counts are large little is added to them: they have to be so by themselves."""
    bags = country(n_area=20, side=36)
    kernel = parse_kernel("ridge + rbf(x) + matern32(space)", 1, has_coords=True)
    z = np.column_stack([bags.x, bags.coords / 5.0])
    b = bags.weight / np.repeat(
        np.add.reduceat(bags.weight, bags.offsets[:-1]), np.diff(bags.offsets)
    )
    cov = AverageCovariance(kernel, z, b, bags.offsets)
    for length in (-2.0, -1.0, 0.0, 1.0):
        found, inside = cov(np.array([-3.0, -2.0, 0.5 * length, -1.0, length]))
        assert np.linalg.eigvalsh(found).min() > -1e-9 * np.trace(found)
        assert (inside > 0).all()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("size", "near"),
    [
        ({}, 0.0),
        # Nodes stand for the pixels of large areas, and counts tell averages to a hundredth.
        ({"cases": 4000.0, "side": 30}, 0.2),
    ],
)
def test_the_evidence_is_that_of_the_dense_process(size, near):
    bags = country(**size)
    model = _fitted(bags)
    fixed, theta = model.state_.fixed, model.state_.params["theta"]
    evidence = AreaEvidence(model, model.state_, bags)
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    distance = cdist(bags.coords, bags.coords) / float(fixed["coord_scale"][0])
    weight = bags.weight * float(fixed["base_rate"][0])
    kernel, side = model._kernel(fixed), float(fixed["area_side"][0])

    def dense(at):
        slope, variance, length = np.exp(at)
        # A flat prior of the mean, but for a constant.
        prior = variance * matern32(distance, length) + slope * z @ z.T + 100.0
        return (
            Dense(bags.y, weight, bags.offsets, prior).laplace()[0]
            + (priors.log_prior(kernel, at, "exp", side)[0])
        )

    moves = [
        (1.0, 0.0, 0.0),
        (0.0, -1.0, 0.0),
        (0.0, 1.0, -0.7),
        (0.0, 0.5, 1.0),
        (-1.0, 0.5, -0.5),
    ]
    for move in moves:
        at = theta + np.array(move)
        told = evidence.at(at).value - evidence.at(theta).value
        assert told == pytest.approx(dense(at) - dense(theta), abs=0.35, rel=near)


CASES = {
    "poisson, area effect": {"area_effect": True},
    "square": {"link": "square"},
    "normal": {"likelihood": "normal", "link": "identity", "area_effect": True},
}


@pytest.mark.parametrize("case", CASES)
def test_the_evidence_falls_as_the_profile_bound_does(case):
    """Two routes: averages without inducing variables, and a bound with them."""
    bags = country(cases=60.0)
    model = _fitted(bags, **CASES[case])
    profile = ProfileBound(
        model,
        lambda at, slopes: model.block_stats(asked(model, at, slopes=slopes), bags, None)[0],
        bags.n_bag,
    )
    state = model.state_
    phi, evidence = profile.pack(state.params), AreaEvidence(model, state, bags)
    first, best = evidence.at(phi[1:]), profile.at(state, 1e-4).value
    rng = np.random.default_rng(3)
    off, told = [], []
    for _ in range(3):
        moved = phi + 0.7 * rng.standard_normal(phi.size)
        there = evidence.at(moved[1:])
        moved[0] = phi[0] + there.mean - first.mean
        fall = best - profile.at(profile.unpack(state, moved), 1e-3).value
        told.append(first.value - there.value)
        off.append(fall - told[-1])
    assert np.abs(told).max() > 1.0
    assert np.abs(off).max() < 0.4 + 0.2 * np.abs(told).max()


@dataclass
class Known:
    """A density of three logarithms with two modes, in place of an evidence."""

    weight: float = 0.3
    large_sd: float = 1.0
    side: float = 1.0

    @property
    def modes(self):
        return np.log([[0.03, 0.8, 0.4], [0.45, 0.05, 2.5]])

    def at(self, x):
        each = -0.5 * (((x - self.modes) / 0.3) ** 2).sum(axis=1)
        value = np.log(np.array([self.weight, 1 - self.weight]) @ np.exp(each))
        return Evidence(float(value), 0.2 * float(x[0]), 25.0)

    def noise_share(self, x, sd):
        return sd**2 / (sd**2 + np.exp(x[1]))


def test_draws_cross_between_two_modes_by_their_weight(monkeypatch):
    monkeypatch.setattr(hyperparameter_chain, "KEPT", 4000)
    weight = 0.3
    known, places = Known(weight), Places(1, 2, 3, 1.0)
    phi = np.append(0.0, known.modes[0])
    chain = explore(known, phi, 0.09 * np.eye(4), places, 0, n_draw=100)
    noisy = chain.noise > 0.5
    assert 1 - noisy.mean() == pytest.approx(weight, abs=0.07)
    assert chain.phi[noisy, 1:].mean(axis=0) == pytest.approx(known.modes[1], abs=0.1)
    assert chain.phi[noisy, 1:].std(axis=0) == pytest.approx(0.3, abs=0.06)
    own = chain.phi[:, 0] - 0.2 * (chain.phi[:, 1] - phi[1])
    assert own.std() == pytest.approx(0.2, rel=0.1)  # the mean's, given the others
    rows = chain.representatives(10)
    assert (chain.noise[rows] > 0.5).mean() == pytest.approx(noisy.mean(), abs=0.1)
    told = hyperparameter_chain.explanations(chain, places, 1.0)
    assert told[:, 0].sum() == pytest.approx(1.0)
    assert told[0, 0] == noisy.mean()
    assert told[2, 0] < 0.1 * told[1, 0]
    assert np.log(told[0, 1:]) == pytest.approx(known.modes[1], abs=0.15)


def test_the_effective_size_of_a_chain_is_that_of_an_autoregression():
    rng = np.random.default_rng(0)
    rho, n = np.array([0.0, 0.5, 0.9]), 40_000
    x = np.zeros((n, 4))
    for k in range(1, n):
        x[k, :3] = rho * x[k - 1, :3] + rng.standard_normal(3)
    found = effective_size(x)
    assert found[:3] == pytest.approx(n * (1 - rho) / (1 + rho), rel=0.15)
    assert found[3] == 1.0  # never moved


def test_without_noise_or_space_nothing_stands_for_another():
    kernel = parse_kernel(KERNEL, 2, has_coords=True)
    assert find_places(kernel, find_likelihood("poisson"), {}) is None
    noisy = find_likelihood("negative_binomial")
    assert find_places(parse_kernel("ridge", 2, has_coords=True), noisy, {}) is None
    places = find_places(kernel, noisy, {})
    assert places == Places(4, 2, 3, -0.5)


def test_noise_of_a_factor_has_no_unit_and_others_that_of_the_responses():
    kernel = parse_kernel(KERNEL, 2, has_coords=True)
    unit = {unit_of("log_shape"): np.array([-2 * np.log(0.2)])}  # values vary by 20 %
    phi = np.zeros((1, 5))
    phi[0, 4] = -2 * np.log(0.1)  # a shape of 100
    assert find_places(kernel, find_likelihood("gamma"), unit).sd(phi) == pytest.approx(0.1)
    normal = find_likelihood("normal").with_area_effect()
    unit = {unit_of(name): np.log([7.0]) for name in normal.parameters}
    phi = np.full((1, 4 + len(normal.parameters)), np.log(3.5))
    places = find_places(kernel, normal, unit)
    assert places.power == 1.0
    assert places.sd(phi) == pytest.approx(0.5)


@pytest.mark.ci
def test_the_noise_that_a_fit_tells_of_proportions_is_a_factor():
    """Areas of 9 pixels whose probability of .1 varies by a factor of deviation .3."""
    bags, rng = country(side=24, n_area=64), np.random.default_rng(3)
    each, overdispersion = 0.1, 0.01
    pi = rng.beta(each / overdispersion, (1 - each) / overdispersion, bags.n_bag)
    tested = np.full(bags.n_bag, 500.0)
    y = rng.binomial(500, pi).astype(float)
    bags = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords, trials=tested)
    settings = {"likelihood": "beta_binomial", "link": "probit", "area_effect": "auto"}
    modes = _fitted(bags, integrate=4, **settings).modes_
    (noise,) = [mode for mode in modes if mode["explains"] == "noise between areas"]
    assert noise["weight"] > 0.5
    assert noise["area_sd"] == pytest.approx(pi.std() / pi.mean(), rel=0.25)


@pytest.mark.ci
def test_the_noise_that_a_fit_tells_of_values_is_theirs():
    """Areas of 9 pixels, equal but for gamma noise of 20 %."""
    bags = country(side=24, n_area=64)
    size = np.add.reduceat(bags.weight, bags.offsets[:-1])
    mean = np.random.default_rng(2).gamma(25.0, 1 / 25.0, bags.n_bag)
    total = mean * size
    bags = Bags(bags.x, bags.offsets, total, bags.weight, bags.coords)
    modes = _fitted(bags, likelihood="gamma", integrate=4).modes_
    (noise,) = [mode for mode in modes if mode["explains"] == "noise between areas"]
    assert noise["weight"] > 0.5
    assert noise["area_sd"] == pytest.approx(mean.std() / mean.mean(), rel=0.15)


@pytest.mark.parametrize(
    ("text", "n_feat", "scale"), [("smooth", 1, priors.SMOOTH), ("rbf", 3, priors.JOINT)]
)
def test_the_prior_of_smooths_and_interactions_is_half_cauchy(text, n_feat, scale):
    kernel = parse_kernel(text, n_feat, has_coords=False)

    def density(log_variance):
        return np.exp(priors.log_prior(kernel, np.array([log_variance, 0.0]), "exp")[0])

    edge = 2 * np.log(scale)
    below, above = quad(density, -60, edge)[0], quad(density, edge, 60)[0]
    assert above == pytest.approx(below, rel=1e-6)
    at = np.array([-1.3, 0.4])
    for k in range(2):
        away = 1e-6 * np.eye(2)[k]
        slope = priors.log_prior(kernel, at + away, "exp")[0]
        slope -= priors.log_prior(kernel, at - away, "exp")[0]
        assert priors.log_prior(kernel, at, "exp")[1][k] == pytest.approx(slope / 2e-6, rel=1e-6)


@pytest.mark.parametrize("link", ["exp", "square"])
def test_without_a_case_there_is_no_evidence_to_explore(link):
    bags = country(side=10, n_area=4)
    none = Bags(bags.x, bags.offsets, np.zeros(bags.n_bag), bags.weight, bags.coords)
    model = _fitted(none, link=link, integrate=4)
    assert model.state_.members["weight"].size == 4
    assert model.modes_ == []


@pytest.mark.ci
@pytest.mark.parametrize("law", ["gamma", "beta_binomial"])
def test_a_chain_of_a_law_with_a_noise_of_its_own_stays_below_the_optimum(law):
    """Sites that stay where the fit put them promise what no likelihood has, where noise is small.

    The draws of a posterior of few parameters lie some nats below the optimum. Sites expanded at
    the fit put them thousands of nats above it, with the noise near 0.
    """
    bags, rng = country(side=18, n_area=60, cases=3000.0), np.random.default_rng(5)
    factor = rng.gamma(0.6**-2, 0.6**2, bags.n_bag)
    trials = None
    y = np.rint(bags.y * factor)
    if law == "gamma":
        y = y + 1.0
    elif law == "beta_binomial":
        trials = np.full(bags.n_bag, 20000.0)
        y = rng.binomial(20000, np.minimum(0.05 * factor * bags.y / bags.y.mean(), 0.9)) * 1.0
    seen = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords, trials)
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        real = refinement.explore

        def spy(*args):
            kept.append(real(*args))
            return kept[-1]

        patch.setattr(refinement, "explore", spy)
        model = VBAgg(likelihood=law, kernel=KERNEL, integrate=4, seed=1).fit(seen, n_thread=1)
    (chain,) = kept
    n_phi = chain.phi.shape[1]
    assert np.quantile(chain.fall, 0.05) > -3.0
    assert 0.0 < np.median(chain.fall) < 2 * n_phi
    members = model.state_.members
    assert members["theta"].std(axis=0).max() > 0.1
    noisy = {each["explains"]: each["weight"] for each in model.modes_}
    assert noisy["noise between areas"] > 0.5
    # What is told of each hyperparameter is of the whole chain.
    table = model.hyperparameter_table()
    assert table["mean"]["median"] == pytest.approx(np.median(chain.phi[:, 0]))
    own = next(name for name in table if name.endswith("space.variance"))
    ends = np.exp(np.quantile(chain.phi, [0.05, 0.5, 0.95], axis=0))
    assert any(
        np.allclose([table[own][key] for key in ("lower", "median", "upper")], ends[:, k])
        for k in range(n_phi)
    )
    assert model.hyperparameter_draws_["n_effective"] == chain.told[3].min() <= len(chain.phi)


def test_a_chain_that_contradicts_the_bound_is_left_out():
    class Above:
        large_sd, side = 1.0, 1.0

        def at(self, x):
            return Evidence(float(30.0 * np.abs(x).max()), 0.0, 1.0)

    chain = explore(Above(), np.zeros(3), np.eye(3), None, 0)
    assert chain is None
