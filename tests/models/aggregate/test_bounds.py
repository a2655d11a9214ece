"""Bag terms and sparse posteriors against quadrature, Monte Carlo and dense algebra."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, roots_hermite
from scipy.stats import multivariate_normal, norm

from models import Bags, VBAgg
from models.aggregate import bounds, moment_matching
from models.gp import bag_variance, pixel_pass, sparse_gp
from models.gp.kernel_text import parse_kernel
from models.gp.sparse_gp import Whitened
from models.likelihoods.links import find_link
from models.likelihoods.observation import Observation
from models.likelihoods.registry import LIKELIHOODS
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.models.aggregate.country import widened
from tests.plain import plain


def _log_poisson(y, rate):
    return y * np.log(rate) - rate - gammaln(y + 1)


def _started(model, bags):
    source = BagsSource(bags, 0)
    return start_training(model, source, seed=0, learning_rate=0.1, tolerance=1e-3).state


def _log_count(y, rate, size):
    if size is None:
        return _log_poisson(y, rate)
    return (
        gammaln(y + size)
        - gammaln(size)
        - gammaln(y + 1)
        + (y * np.log(rate / (rate + size)) + size * np.log(size / (rate + size)))
    )


NAMES = {None: "poisson", 3.0: "negative_binomial", 400.0: "negative_binomial"}


def _seen(size, link, y, p):
    """One bag of counts, of a negative binomial size or Poisson."""
    likelihood = LIKELIHOODS[NAMES.get(size, size)]
    params = {"log_size": np.log(size)} if isinstance(size, float) else {}
    offsets, one = np.array([0, p.size]), np.ones(1)
    return Observation(likelihood, find_link(link), params, y, p, offsets, np.arange(1), one)


@pytest.mark.parametrize("link", ["exp", "square"])
@pytest.mark.parametrize("size", [None, 3.0, 400.0])
def test_lemmas_are_below_and_near_the_expected_log_likelihood(size, link):
    rng = np.random.default_rng(0)
    p, m = rng.uniform(1, 5, 6), rng.normal(size=6) + (3 if link == "square" else 0)
    root = 0.2 * rng.normal(size=(6, 6)) / np.sqrt(6)
    cov = root @ root.T
    f = m + rng.standard_normal((400_000, 6)) @ root.T
    rate = find_link(link).value(f) @ p
    y = np.array([9.5 if link == "exp" else 180.0])
    each = _log_count(y[0], rate, size)
    seen = _seen(size, link, y, p)
    bound = bounds.lower_bound(seen, m, np.diag(cov).copy()).value.sum()
    error = each.std() / np.sqrt(each.size)
    assert bound < each.mean() + 4 * error
    # Lemma 2 pays for the spread of every pixel: 1.5 nats here.
    assert bound > each.mean() - (0.4 if link == "exp" else 2.0)


def test_bound_of_the_exponential_law_is_below_and_near_the_expectation():
    rng = np.random.default_rng(0)
    p, m = rng.uniform(1, 5, 6), rng.normal(size=6)
    root = 0.2 * rng.normal(size=(6, 6)) / np.sqrt(6)
    f = m + rng.standard_normal((400_000, 6)) @ root.T
    rate = np.exp(f) @ p
    each = -np.log(rate) - 12.0 / rate
    seen = _seen("exponential", "exp", np.array([12.0]), p)
    bound = bounds.lower_bound(seen, m, np.diag(root @ root.T).copy()).value.sum()
    assert bound < each.mean() + 4 * each.std() / 632
    assert bound > each.mean() - 0.1


@pytest.mark.parametrize("size", [None, 3.0, 400.0])
@pytest.mark.parametrize("rule", [moment_matching.second_order, moment_matching.log_normal])
@pytest.mark.parametrize("link", ["exp", "square"])
def test_estimates_by_two_moments_are_near_the_expectation(rule, size, link):
    rng = np.random.default_rng(1)
    p, m = rng.uniform(1, 5, 6), rng.uniform(1, 2, 6)
    root = 0.1 * rng.normal(size=(6, 6))
    f = m + rng.standard_normal((400_000, 6)) @ root.T
    rate = find_link(link).value(f) @ p
    each = _log_count(30.0, rate, size)
    moments = (np.array([rate.mean()]), np.array([rate.var()]))
    estimate = rule(_seen(size, link, np.array([30.0]), p), *moments).value.sum()
    assert estimate == pytest.approx(each.mean(), abs=0.1 if link == "exp" else 0.02)


@pytest.mark.parametrize("variance", [1e-6, 0.3, 4.0])
def test_log_normal_estimate_is_exact_for_a_log_normal_aggregate(variance):
    # One pixel under the exponential link: E log p = y (m + log p) - p e^{m + s/2} - log y!.
    y, c = np.array([7.0]), np.array([5.0])
    seen = _seen(None, "exp", y, np.ones(1))
    found = moment_matching.log_normal(seen, c, c**2 * np.expm1(variance))
    by_hand = 7 * (np.log(5) - 0.5 * variance) - 5 - gammaln(8)
    assert found.value[0] == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    ("m", "s"), [(0.0, 1.0), (0.3, 1.0), (-2.0, 0.5), (9.9, 1.0), (10.1, 1.0), (5.0, 1e-6)]
)
def test_mean_log_of_a_squared_normal_agrees_with_quadrature(m, s):
    distribution = norm(m, np.sqrt(s))
    ends = [m - 12 * np.sqrt(s), *([0.0] if abs(m) < 12 * np.sqrt(s) else []), m + 12 * np.sqrt(s)]
    value = sum(
        quad(lambda f: np.log(f * f) * distribution.pdf(f), a, b, epsabs=1e-13, limit=400)[0]
        for a, b in pairwise(ends)
    )
    found, by_m, by_s = bounds.log_square_moment(np.array([m]), np.array([s]))
    assert found[0] == pytest.approx(value, abs=1e-9)
    step = 1e-5

    def at(dm, ds):
        return bounds.log_square_moment(np.array([m + dm]), np.array([s + ds]))[0][0]

    h = step * np.sqrt(s)
    assert by_m[0] == pytest.approx((at(h, 0) - at(-h, 0)) / (2 * h), rel=1e-5, abs=1e-6)
    h = step * s
    assert by_s[0] == pytest.approx((at(0, h) - at(0, -h)) / (2 * h), rel=1e-3, abs=1e-6)


def test_one_pixel_bags_are_the_ordinary_sparse_gp(make_bags):
    # Under the exponential link Lemma 1 is tight for one pixel: the bag term is the ordinary
    # sparse GP's expected log-likelihood, here by quadrature.
    made = make_bags(n_bag=20, largest=2, awkward=False)
    bags = Bags(made.x, made.offsets, made.y + 0.3, made.weight, made.coords)
    model = plain(VBAgg, link="exp", estimator="bound", kernel="additive", n_inducing=6)
    state = _started(model, bags)
    stats, _ = model.block_stats(model.block_params(state), bags, None)
    pixels = model.predict_block(model.block_params(state), bags.x, bags.coords)
    node, node_weight = roots_hermite(40)
    f = pixels.m[:, None] + np.sqrt(2 * pixels.s)[:, None] * node
    exposure = bags.weight[:, None] * pixels.scale
    each = _log_poisson(bags.y[:, None], exposure * np.exp(f)) @ node_weight / np.sqrt(np.pi)
    assert stats.bound == pytest.approx(each.sum(), rel=1e-10)


def test_moments_equal_the_dense_posterior():
    rng = np.random.default_rng(2)
    kernel = parse_kernel("additive", 3, has_coords=True)
    theta = kernel.start(1.3) + 0.2 * rng.normal(size=kernel.n_theta)
    z, w = rng.normal(size=(40, 5)), rng.normal(size=(8, 5))
    root = np.tril(0.3 * rng.normal(size=(8, 8)))
    white = Whitened(rng.normal(size=8), root)
    k_ww = kernel.matrix(theta, w, w)
    fac = sparse_gp.factorise(k_ww, white)
    params = {"theta": theta, "w": w, "mean": np.array([0.4]), "alpha": fac.alpha, "q": fac.q}
    fwd = pixel_pass.forward(kernel, params, z, learn=False)
    lifted = k_ww + sparse_gp.JITTER * np.trace(k_ww) / 8 * np.eye(8)
    lower = np.linalg.cholesky(lifted)
    eta = 0.4 + lower @ white.v_mean
    sigma = lower @ white.factor() @ white.factor().T @ lower.T
    k = kernel.matrix(theta, z, w)
    solve = np.linalg.solve(lifted, k.T).T
    np.testing.assert_allclose(fwd.m, 0.4 + solve @ (eta - 0.4), atol=1e-9)
    cov = kernel.matrix(theta, z, z) - solve @ k.T + solve @ sigma @ solve.T
    np.testing.assert_allclose(fwd.s, np.diag(cov), atol=1e-8)


def test_kl_is_that_of_two_gaussians():
    rng = np.random.default_rng(3)
    white = Whitened(rng.normal(size=4), np.tril(0.4 * rng.normal(size=(4, 4))))
    cov = white.factor() @ white.factor().T
    draws = rng.multivariate_normal(white.v_mean, cov, 400_000)
    q = multivariate_normal(white.v_mean, cov).logpdf(draws)
    p = multivariate_normal(np.zeros(4), np.eye(4)).logpdf(draws)
    assert white.kl() == pytest.approx((q - p).mean(), abs=5 * (q - p).std() / 632)


@pytest.mark.parametrize("pairs", [4, 1000])
@pytest.mark.parametrize("link", ["exp", "square", "identity", "probit"])
def test_bag_variance_in_tiles_equals_dense_matrices(link, pairs, monkeypatch, bags):
    monkeypatch.setattr(bag_variance, "PAIRS", pairs)
    model = plain(VBAgg, kernel="additive", n_inducing=6)
    state = _started(model, bags)
    params = model.block_params(state)
    fwd = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=True)
    rule = find_link(link)
    found = bag_variance.bag_variance(fwd, rule, bags.weight, bags.offsets, bags.bag, 10**6).value
    kernel = model._kernel(state.fixed)
    cov = kernel.matrix(params["theta"], fwd.z, fwd.z) - fwd.k @ params["q"] @ fwd.k.T
    a = rule.moments(fwd.m, fwd.s, 6)
    for number in range(bags.n_bag):
        rows = slice(*bags.offsets[number : number + 2])
        p, m, s = bags.weight[rows], fwd.m[rows], cov[rows, rows]
        if link == "exp":
            c = p * a[0][rows]
            dense = c @ np.expm1(s) @ c
        elif link == "square":
            dense = 4 * (p * m) @ s @ (p * m) + 2 * np.trace((s * p) @ (s * p))
        elif link == "identity":
            dense = p @ s @ p
        else:
            dense = sum(
                (p * a[k][rows]) @ (s**k / math.factorial(k)) @ (p * a[k][rows])
                for k in range(1, rule.n_term + 1)
            )
        assert found[number] == pytest.approx(dense, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("link", ["exp", "square"])
def test_sampled_pairs_are_unbiased_and_near_all_pairs(link):
    rng = np.random.default_rng(0)
    n = 900
    x = np.sort(rng.normal(size=(n, 2)), axis=0)
    weight = np.exp(1.5 * rng.normal(size=n))
    bags = Bags(x, [0, n], [50.0], weight)
    model = plain(VBAgg, kernel="rbf", n_inducing=12)
    params = model.block_params(widened(_started(model, bags)))
    fwd = model._pass(params, model._scaled(params, bags.x, None), learn=True)

    def value(bag, most):
        return bag_variance.bag_variance(
            fwd, find_link(link), weight, bags.offsets, np.array([bag]), most
        ).value[0]

    exact = value(0, n)
    error = np.array([value(bag, 128) for bag in range(60)]) / exact - 1
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(60) + 0.003
    assert error.std() < 0.03


def test_a_bag_whose_weight_is_in_one_pixel_has_that_pixels_variance(bags):
    weight = np.full(bags.n_pix, 1e-9)
    weight[bags.offsets[:-1]] = 1.0
    heavy = Bags(bags.x, bags.offsets, bags.y, weight, bags.coords)
    model = plain(VBAgg, kernel="additive", n_inducing=6)
    params = model.block_params(_started(model, heavy))
    fwd = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=True)
    found = bag_variance.bag_variance(
        fwd, find_link("exp"), weight, bags.offsets, bags.bag, 2
    ).value
    first = bags.offsets[:-1]
    sd = find_link("exp").sd(fwd.m[first], fwd.s[first])
    np.testing.assert_allclose(found, sd**2, rtol=1e-6)


def test_normal_limit_reproduces_the_exact_gp():
    # Poisson counts so large that the square-root is Gaussian: with Z = X and bags of one pixel,
    # f ~ sqrt(y / p) with variance 1 / (4 p) (the variance-stabilised likelihood), so the posterior
    # of f is the exact GP regression on sqrt(y / p).
    rng = np.random.default_rng(4)
    n = 15
    x = np.sort(rng.uniform(-2, 2, (n, 1)), axis=0)
    p = np.full(n, 4000.0)
    y = rng.poisson(p * (1 + 0.3 * np.sin(2 * x[:, 0])) ** 2).astype(float)
    bags = Bags(x, np.arange(n + 1), y, p)
    model = plain(
        VBAgg,
        link="square",
        kernel="rbf",
        n_inducing=n,
        batch_bags=n,
        max_epochs=200,
        natural_rate=0.5,
        learning_rate=1e-9,
        tolerance=1e-9,
        integrate="none",
    ).fit(bags)
    f = model.predict_pixels(x)
    state = model.state_
    kernel, theta = model._kernel(state.fixed), state.params["theta"]
    z = (x - state.fixed["x_mean"]) / state.fixed["x_sd"]
    scale = float(state.fixed["base_rate"][0])
    k = kernel.matrix(theta, z, z)
    noise = 1 / (4 * p * scale)
    gain = k @ np.linalg.inv(k + np.diag(noise))
    mean = float(state.params["mean"][0])
    exact = mean + gain @ (np.sqrt(y / (p * scale)) - mean)
    np.testing.assert_allclose(f.m, exact, atol=0.1 * np.sqrt(noise[0]))
    np.testing.assert_allclose(f.s, np.diag(k - gain @ k), rtol=0.06)


def test_normal_law_equals_exact_regression_on_bags():
    # Z = X, every bag in each step and natural steps of rate 1: q(u) is the closed-form optimum,
    # here against dense Gaussian conditioning on the bags' weighted sums.
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 4, 10)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n = int(offsets[-1])
    x, w = rng.normal(size=(n, 2)), rng.uniform(0.5, 2, n)
    y = np.add.reduceat(w * np.sin(x[:, 0]), offsets[:-1]) + 0.1 * rng.normal(size=10)
    bags = Bags(x, offsets, y, w)
    model = plain(
        VBAgg,
        likelihood="normal",
        kernel="rbf",
        n_inducing=n,
        batch_bags=10,
        natural_rate=1.0,
        learning_rate=1e-12,
        max_epochs=3,
    ).fit(bags)
    state = model.state_
    kernel, theta = model._kernel(state.fixed), state.params["theta"]
    base, mean = float(state.fixed["base_rate"][0]), float(state.params["mean"][0])
    z = (x - state.fixed["x_mean"]) / state.fixed["x_sd"]
    k = kernel.matrix(theta, z, z)
    a = np.zeros((10, n))
    a[np.repeat(np.arange(10), sizes), np.arange(n)] = w * base
    noise = np.exp(state.params["log_noise"][0]) * np.add.reduceat(w * w, offsets[:-1])
    gain = k @ a.T @ np.linalg.inv(a @ k @ a.T + np.diag(noise))
    p = model.predict_pixels(x)
    np.testing.assert_allclose(p.m, mean + gain @ (y - mean * a.sum(axis=1)), atol=2e-4)
    np.testing.assert_allclose(p.s, np.diag(k - gain @ a @ k), atol=2e-4)
