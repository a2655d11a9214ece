"""Bag terms and sparse posteriors against quadrature, Monte Carlo and dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln, roots_hermite
from scipy.stats import multivariate_normal

from models import Bags, VBAgg, likelihoods, pixel_pass, sparse_gp
from models.kernels import parse_kernel
from models.sparse_gp import Whitened
from models.training import BagsSource, start_training


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


@pytest.mark.parametrize("size", [None, 3.0, 400.0])
def test_lemma_1_is_below_and_near_the_expected_log_likelihood(size):
    rng = np.random.default_rng(0)
    p, m = rng.uniform(1, 5, 6), rng.normal(size=6)
    root = 0.2 * rng.normal(size=(6, 6)) / np.sqrt(6)
    cov = root @ root.T
    f = m + rng.standard_normal((400_000, 6)) @ root.T
    each = _log_count(9.5, np.exp(f) @ p, size)
    y, offsets = np.array([9.5]), np.array([0, 6])
    bound = likelihoods.exp_link(y, p, offsets, m, np.diag(cov).copy(), size).bound
    error = each.std() / np.sqrt(each.size)
    assert bound < each.mean() + 4 * error
    assert bound > each.mean() - 0.25


@pytest.mark.parametrize("size", [None, 3.0, 400.0])
def test_second_order_estimate_of_the_square_link_is_near_the_expectation(size):
    rng = np.random.default_rng(1)
    p, m = rng.uniform(1, 5, 6), rng.uniform(1, 2, 6)
    root = 0.1 * rng.normal(size=(6, 6))
    cov = root @ root.T
    sp = cov * p
    dispersion = 2 * (p * m) @ cov @ (p * m) + np.trace(sp @ sp)
    f = m + rng.standard_normal((400_000, 6)) @ root.T
    rate = (f**2) @ p
    assert 2 * dispersion == pytest.approx(rate.var(), rel=0.02)  # d is half the variance
    each = _log_count(30.0, rate, size)
    y, offsets = np.array([30.0]), np.array([0, 6])
    estimate = likelihoods.square_link(
        y, p, offsets, m, np.diag(cov).copy(), np.array([dispersion]), size
    ).bound
    assert estimate == pytest.approx(each.mean(), abs=0.02)


def test_one_pixel_bags_are_the_ordinary_sparse_gp(make_bags):
    # Under the exponential link Lemma 1 is tight for one pixel: the bag term is the ordinary
    # sparse GP's expected log-likelihood, here by quadrature.
    made = make_bags(n_bag=20, largest=2, awkward=False)
    bags = Bags(made.x, made.offsets, made.y + 0.3, made.weight, made.coords)
    model = VBAgg(link="exp", kernel="additive", n_inducing=6)
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
def test_dispersion_in_tiles_equals_dense_matrices(pairs, monkeypatch, bags):
    monkeypatch.setattr(pixel_pass, "PAIRS", pairs)
    model = VBAgg(kernel="additive", n_inducing=6)
    state = _started(model, bags)
    params = model.block_params(state)
    fwd = model._forward(params, bags.x, bags.coords, learn=True)
    found = pixel_pass.pair_pass(fwd, bags.weight, bags.offsets, np.ones(bags.n_bag)).dispersion
    kernel = model._kernel(state.fixed)
    cov = kernel.matrix(params["theta"], fwd.z, fwd.z) - fwd.k @ params["q"] @ fwd.k.T
    for a in range(bags.n_bag):
        rows = slice(*bags.offsets[a : a + 2])
        p, m, s = bags.weight[rows], fwd.m[rows], cov[rows, rows]
        expected = 2 * (p * m) @ s @ (p * m) + np.trace((s * p) @ (s * p))
        assert found[a] == pytest.approx(expected, rel=1e-9, abs=1e-12)


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
    model = VBAgg(
        kernel="rbf",
        n_inducing=n,
        batch_bags=n,
        max_epochs=200,
        natural_rate=0.5,
        learning_rate=1e-9,
        tolerance=1e-9,
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
