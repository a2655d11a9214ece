"""VWSGP by second routes: dense matrices, quadrature, draws, differences."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, log_expit, logsumexp, ndtr
from scipy.stats import norm

import models
from models import Bags
from models.core.errors import BagsError, ParameterError
from models.core.protocol import Arrays
from models.gp.evidence_pass import FEW, EvidencePass
from models.gp.kernel_text import parse_kernel
from models.gp.site_posterior import SiteSums
from models.gp.sparse_gp import JITTER, Whitened, factorise, lower_backward
from models.likelihoods.labels import EVIDENCE_LIKELIHOODS, lam, nodes
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train

# The model as printed: what "auto" stands for and recalibration have tests of their own.
PRINTED = {"aggregate": "sum", "variance": 1.0, "lengthscale": 1.0, "calibrate": "none"}


def VWSGP(**how):
    return models.VWSGP(**{**PRINTED, **how})


def VWSGPSVI(**how):
    return models.VWSGPSVI(**{**PRINTED, **how})


def make_bags(seed=0, n_bag=40, largest=12, n_feat=2, *, numbers=False):
    """Bags whose evidence is the sum of a smooth score."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, largest, n_bag))])
    x = rng.normal(size=(offsets[-1], n_feat)) * 2.0 + 1.0
    s = np.add.reduceat(np.sin(x[:, 0]) + 0.3 * x[:, 1], offsets[:-1])
    s = 7.0 * (s - s.mean()) + 30.0 + rng.normal(size=n_bag) if numbers else s - s.mean()
    y = s if numbers else (rng.random(n_bag) < expit(2.0 * s)).astype(float)
    return Bags(x, offsets, y, coords=rng.normal(size=(offsets[-1], 2)) * 50.0)


def one_by_one(x, y):
    """Bags of one instance each."""
    return Bags(x, np.arange(x.shape[0] + 1), y)


def sums_of(model, state, bags, **cuts):
    """Add up the sums of all blocks from scratch."""
    source = BagsSource(bags, 0, **cuts)
    params = model.block_params(state)
    found = [
        model.block_stats(params, source.read(i), None)[0] for i in range(len(source.block_bags))
    ]
    return reduce(add, found)


def bound_of(model, state, bags):
    """Return the bound at a state by the definition: expected log likelihood less divergence."""
    whitened = Whitened(state.params["v_mean"], state.params["root"])
    return sums_of(model, state, bags).bound - whitened.kl()


def dense_prior(model, bags):
    """Return the (FITC) prior mean and covariance of all evidences, by dense n x n algebra."""
    fixed, params = model.state_.fixed, model.state_.params
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    kernel = parse_kernel(model.kernel, z.shape[1], has_coords=False)
    scale = np.exp(2.0 * params["log_scale"][0])
    k_ww = kernel.matrix(params["theta"], params["w"], params["w"])
    k_ww = k_ww + JITTER * np.trace(k_ww) / k_ww.shape[0] * np.eye(k_ww.shape[0])
    k_xw = kernel.matrix(params["theta"], z, params["w"])
    cov = k_xw @ np.linalg.solve(k_ww, k_xw.T)
    cov += np.diag(kernel.diag(params["theta"], z) - np.diag(cov))
    member = np.zeros((bags.n_bag, bags.n_pix))
    for bag in range(bags.n_bag):
        member[bag, bags.offsets[bag] : bags.offsets[bag + 1]] = 1.0
    if model.aggregate == "mean":
        member /= member.sum(axis=1, keepdims=True)
    return scale * member @ cov @ member.T + model.intercept_sd**2


# -- pieces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["rbf", "ard + linear", "ard * matern32(space)"])
@pytest.mark.parametrize(("n_bag", "rows"), [(3, 1024), (3 * FEW, 1024), (30, 7)])
def test_evidence_is_the_dense_sum_and_its_adjoints_are_differences(
    kernel, n_bag, rows, monkeypatch
):
    monkeypatch.setattr("models.gp.evidence_pass.ROWS", rows)  # tiles that cut bags
    monkeypatch.setattr("models.gp.evidence_pass.STRIP", 4)  # strips that cut the triangle
    rng = np.random.default_rng(0)
    made = parse_kernel(kernel, 2, has_coords=True)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 9, n_bag))])
    z, w = rng.normal(size=(offsets[-1], 4)), rng.normal(size=(6, 4))
    scale, theta = rng.uniform(0.5, 2, n_bag), made.start(1.3) + 0.1 * rng.normal(size=made.n_theta)
    d_c, d_r = rng.normal(size=(n_bag, 6)), -rng.uniform(size=n_bag)

    def evaluate(theta):
        k_ww = made.matrix(theta, w, w)
        fac = factorise(k_ww, Whitened(np.zeros(6), np.zeros((6, 6))))
        params: Arrays = {"theta": theta, "w": w, "lower_inv": fac.lower_inv}
        run = EvidencePass(made, params, np.float64)
        return run, run.forward(z, offsets, scale), fac

    run, found, fac = evaluate(theta)
    v = np.linalg.solve(fac.lower, made.matrix(theta, z, w).T).T
    spans = [slice(a, b) for a, b in itertools.pairwise(offsets)]
    left = made.diag(theta, z) - (v * v).sum(axis=1)
    np.testing.assert_allclose(
        found.c, [f * v[s].sum(0) for f, s in zip(scale, spans, strict=True)]
    )
    np.testing.assert_allclose(
        found.r, [f * f * left[s].sum() for f, s in zip(scale, spans, strict=True)]
    )
    back = run.backward(z, offsets, scale, found.c, d_c, d_r)
    cache = made.forward(theta, w, w)[1]
    d_k = lower_backward(fac.lower_inv, back["lower"])
    grad = back["theta"] + made.backward(theta, w, w, cache, d_k, want_w=False)[0]
    step = 1e-6
    for i, way in enumerate(step * np.eye(made.n_theta)):
        ahead, behind = evaluate(theta + way)[1], evaluate(theta - way)[1]
        change = (d_c * (ahead.c - behind.c)).sum() + d_r @ (ahead.r - behind.r)
        assert grad[i] == pytest.approx(change / (2 * step), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("likelihood", EVIDENCE_LIKELIHOODS)
def test_slopes_of_the_laws_are_differences(likelihood):
    rng = np.random.default_rng(1)
    y = (rng.random(30) < 0.5).astype(float)
    m, var = 4.0 * rng.normal(size=30), np.exp(2.0 * rng.normal(size=30))
    site, step = EVIDENCE_LIKELIHOODS[likelihood].site(y, m, var, 0.7), 1e-6

    def value(m, var):
        return EVIDENCE_LIKELIHOODS[likelihood].site(y, m, var, 0.7).value

    by_m = (value(m + step, var) - value(m - step, var)) / (2 * step)
    by_var = (value(m, var + step) - value(m, var - step)) / (2 * step)
    np.testing.assert_allclose(site.d_m, by_m, atol=1e-8)
    np.testing.assert_allclose(site.d_var, by_var, atol=1e-8)
    assert (site.d_var < 0).all()  # log-concave: what sites ask for is a precision
    # The quadratic of the site has the value and the slopes that it is seen with.
    a, h, w = site.constant(m, var), site.linear(m), site.precision()
    np.testing.assert_allclose(a + h * m - 0.5 * w * (m * m + var), site.value, atol=1e-10)


@pytest.mark.parametrize(("m", "sd"), [(0.3, 1e-9), (-2.0, 0.1), (1.0, 3.0), (-40.0, 300.0)])
def test_probit_by_adaptive_integration(m, sd):
    site = EVIDENCE_LIKELIHOODS["probit"].site(np.ones(1), np.array([m]), np.array([sd**2]), 1.0)

    def expected(of):
        cuts = np.unique(
            np.clip([-10 * sd + m, m, m + 10 * sd, -8, -2, 0, 2, 8], m - 10 * sd, m + 10 * sd)
        )
        return sum(
            quad(lambda s: of(s) * norm.pdf(s, m, sd), a, b, epsabs=1e-13, limit=200)[0]
            for a, b in itertools.pairwise(cuts)
        )

    if sd < 1e-6:
        assert site.value[0] == pytest.approx(norm.logcdf(m), rel=1e-10)
        return
    assert site.value[0] == pytest.approx(expected(norm.logcdf), rel=1e-8)
    slope = expected(lambda s: np.exp(norm.logpdf(s) - norm.logcdf(s)))
    assert site.d_m[0] == pytest.approx(slope, rel=1e-7)


def test_probit_far_below_zero_is_a_parabola():
    site = EVIDENCE_LIKELIHOODS["probit"].site(
        np.ones(1), np.array([-5000.0]), np.array([300.0**2]), 1.0
    )
    assert site.d_var[0] == pytest.approx(-0.5, rel=1e-6)  # -(s^2)/2 and a logarithm
    assert site.d_m[0] == pytest.approx(5000.0, rel=1e-6)


def test_nodes_integrate_steep_and_flat_sigmoids():
    m, var = np.array([0.0, 5.0, -300.0, 2.0]), np.array([1.0, 1e4, 1e6, 1e-4])
    s, weight = nodes(m, var)
    np.testing.assert_allclose(
        (weight * ndtr(s)).sum(axis=0), ndtr(m / np.sqrt(1.0 + var)), rtol=1e-9
    )


def test_lambda_is_smooth_at_zero():
    assert lam(np.zeros(1))[0] == 0.125
    xi = np.array([0.9999e-4, 1.0001e-4])
    np.testing.assert_allclose(lam(xi), (expit(xi) - 0.5) / (2 * xi), rtol=1e-9)


def test_the_bound_at_another_prior_variance_needs_no_new_sums():
    bags, ends = make_bags(), []
    for variance in (1.0, 2.25):
        model = VWSGP(n_inducing=8, variance=variance, learn_variance=False)
        state = start_training(model, BagsSource(bags, 0), **model.loop_params("start")).state
        # The same xi for both: here that of the first.
        params, block = model.block_params(state), bags
        _, local = model.block_stats(params, block, None)
        c = np.concatenate([local["c"], np.full((bags.n_bag, 1), model.intercept_sd)], axis=1)
        xi = np.linspace(0.5, 3.0, bags.n_bag)
        site = EVIDENCE_LIKELIHOODS["logistic"].site_at(
            bags.y, np.zeros(bags.n_bag), np.ones(bags.n_bag), xi
        )
        w, h = site.precision(), site.linear(np.zeros(bags.n_bag))
        constant = site.constant(np.zeros(bags.n_bag), np.ones(bags.n_bag)).sum()
        ends.append(SiteSums(constant, 0.5 * w @ local["r"], (c.T * w) @ c, h @ c))
    assert ends[0].bound() != pytest.approx(ends[1].bound(), rel=1e-3)
    # Jitter is a share of the variance: nothing else knows the scale.
    assert ends[0].grown(1.5, 8).bound() == pytest.approx(ends[1].bound(), rel=1e-9)
    best = ends[0].best_growth(8)
    tried = [ends[0].grown(by, 8).bound() for by in np.exp(np.linspace(-2, 2, 81))]
    assert ends[0].grown(best, 8).bound() > max(tried) - 1e-3


# -- the closed form ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"aggregate": "mean"},
        {"accelerate": False},
        {"learn_variance": True},
        {"likelihood": "normal", "learn_variance": True},
    ],
)
def test_the_bound_never_falls_and_is_the_state_s(how):
    bags = make_bags(largest=30, numbers="likelihood" in how)
    model = VWSGP(n_inducing=12, tolerance=1e-9, max_epochs=200, **how).fit(bags)
    bounds = np.array([each["bound"] for each in model.history_])
    assert model.converged_
    assert np.diff(bounds).min() > -1e-9 * abs(bounds[0])
    assert bounds[-1] > bounds[0]
    # At convergence the bound that the update computed is the definition's.
    assert bound_of(model, model.state_, bags) == pytest.approx(bounds[-1], rel=1e-6)


def test_longer_steps_end_where_the_paper_s_do_and_sooner():
    bags = make_bags(largest=40, n_bag=40)
    plain, quick = (
        VWSGP(n_inducing=15, accelerate=by, tolerance=1e-8, max_epochs=2000).fit(bags)
        for by in (False, True)
    )
    assert quick.bound_ == pytest.approx(plain.bound_, rel=1e-6)
    assert len(quick.history_) < 0.5 * len(plain.history_)


def test_instances_are_read_once():
    bags, read = make_bags(), []

    class Counting(BagsSource):
        def read(self, number):
            read.append(number)
            return super().read(number)

    model = VWSGP(n_inducing=8, tolerance=1e-12, max_epochs=12)
    source = Counting(bags, 0)
    training = start_training(model, source, **model.loop_params("start"))
    with ThreadExecutor(model, source, 2) as executor:
        train(model, source, executor, training, **model.loop_params("train"))
    assert training.epoch == 12
    assert sorted(read) == list(range(len(source.block_bags)))


def test_the_prior_variance_is_found_from_any_start_in_few_updates():
    bags = make_bags(largest=150, n_bag=60)
    means = np.add.reduceat(bags.x[:, 1], bags.offsets[:-1]) / np.diff(bags.offsets)
    bags = Bags(bags.x, bags.offsets, (means > 1.0).astype(float))  # nearly separable
    how = {"n_inducing": 15, "learn_variance": True, "tolerance": 1e-7, "max_epochs": 40}
    found = [VWSGP(variance=start, **how).fit(bags) for start in (1e-3, 1.0, 1e3)]
    size = [m.named_hyperparameters()["variance_factor"] * m.variance for m in found]
    np.testing.assert_allclose(np.log(size), np.log(size[0]), atol=0.05)
    for model in found:
        assert model.bound_ == pytest.approx(found[0].bound_, abs=1e-3 * bags.n_bag)


def _jaakkola(cov, y, n_update):
    """Gaussian process logistic regression by Jaakkola's bound, dense."""
    n = y.shape[0]
    square, m, post = np.diag(cov).copy(), np.zeros(n), cov
    for _ in range(n_update):
        xi = np.sqrt(square)
        post = cov - cov @ np.linalg.solve(cov + np.diag(0.5 / lam(xi)), cov)
        m = post @ (y - 0.5)
        square = np.diag(post) + m * m
    middle = np.diag(2.0 * lam(xi))
    bound = (log_expit(xi) - 0.5 * xi + lam(xi) * xi**2).sum() + 0.5 * (y - 0.5) @ m
    return m, post, bound - 0.5 * np.linalg.slogdet(np.eye(n) + cov @ middle)[1]


@pytest.mark.parametrize("n_update", [1, 3, 40])
def test_inducing_points_at_all_instances_make_a_dense_logistic_gp(n_update):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(25, 2))
    bags = one_by_one(x, (x[:, 0] + 0.5 * rng.normal(size=25) > 0).astype(float))
    model = VWSGP(n_inducing=25, accelerate=False, max_epochs=n_update, tolerance=1e-300).fit(bags)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    distance = ((z[:, None] - z) ** 2).sum(axis=-1) / 2.0  # length-scale sqrt(2)
    cov = np.exp(-0.5 * distance) + model.intercept_sd**2
    m, post, bound = _jaakkola(cov, bags.y, n_update)
    said = model.predict_bags(bags)
    np.testing.assert_allclose(said.m, m, atol=1e-4)
    np.testing.assert_allclose(said.s, np.diag(post), atol=1e-4)
    assert model.bound_ == pytest.approx(bound, abs=1e-3)
    pixels = model.predict_pixels(x)
    np.testing.assert_allclose(pixels.m, said.m, atol=1e-12)
    np.testing.assert_allclose(pixels.s, said.s, atol=1e-12)


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_updates_are_the_paper_s_as_printed(aggregate):
    bags = make_bags(n_bag=30)
    model = VWSGP(
        n_inducing=10,
        aggregate=aggregate,
        learn_variance=False,
        accelerate=False,
        max_epochs=4,
        tolerance=1e-300,
        intercept_sd=0.0,
    ).fit(bags)
    fixed, params = model.state_.fixed, model.state_.params
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    kernel = parse_kernel("rbf", 2, has_coords=False)
    k_zz = kernel.matrix(params["theta"], params["w"], params["w"]) + JITTER * np.eye(10)
    k_zx = kernel.matrix(params["theta"], params["w"], z)
    inverse = np.linalg.inv(k_zz)
    spans = list(itertools.pairwise(bags.offsets))
    share = [1.0 if aggregate == "sum" else 1.0 / (j - i) for i, j in spans]
    k_1 = np.array([g * k_zx[:, i:j].sum(axis=1) for g, (i, j) in zip(share, spans, strict=True)])
    left = 1.0 - np.diag(k_zx.T @ inverse @ k_zx)
    r = np.array([g * g * left[i:j].sum() for g, (i, j) in zip(share, spans, strict=True)])
    m, cov, bound = np.zeros(10), k_zz, 0.0
    for _ in range(4):
        a = k_1 @ inverse
        xi = np.sqrt(np.einsum("bi,ij,bj->b", a, np.outer(m, m) + cov, a) + r)
        cov = np.linalg.inv((2.0 * lam(xi) * a.T) @ a + inverse)
        m = cov @ ((bags.y - 0.5) @ a)
        square = np.einsum("bi,ij,bj->b", a, np.outer(m, m) + cov, a) + r
        bound = (
            a @ m * (bags.y - 0.5) + log_expit(xi) - 0.5 * xi - lam(xi) * (square - xi**2)
        ).sum()
        bound -= 0.5 * (np.trace(inverse @ cov) + m @ inverse @ m - 10)
        bound += 0.5 * (np.linalg.slogdet(cov)[1] - np.linalg.slogdet(k_zz)[1])
    said = model.predict_bags(bags)
    np.testing.assert_allclose(said.m, a @ m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(said.s, np.einsum("bi,ij,bj->b", a, cov, a) + r, rtol=1e-5)
    assert model.bound_ == pytest.approx(bound, rel=1e-7)


def test_the_bound_is_below_the_marginal_likelihood():
    bags = make_bags(n_bag=12)
    model = VWSGP(n_inducing=6, tolerance=1e-9).fit(bags)
    cov = dense_prior(model, bags)
    rng = np.random.default_rng(3)
    root = np.linalg.cholesky(cov + 1e-9 * np.eye(bags.n_bag))
    # Importance sampling from the dense approximation, widened.
    m, post, _ = _jaakkola(cov, bags.y, 50)
    wide = 1.5 * np.linalg.cholesky(post + 1e-9 * np.eye(bags.n_bag))
    e = rng.standard_normal((100_000, bags.n_bag))
    s = m + e @ wide.T
    prior = np.linalg.solve(root, s.T)
    log_weight = (
        log_expit(s * (2 * bags.y - 1)).sum(axis=1)
        - 0.5 * (prior**2).sum(axis=0)
        - np.log(np.diag(root)).sum()
        + 0.5 * (e**2).sum(axis=1)
        + np.log(np.diag(wide)).sum()
    )
    truth = logsumexp(log_weight) - np.log(e.shape[0])
    assert model.bound_ < truth
    assert model.bound_ > truth - 0.15 * bags.n_bag


def test_kernel_gradient_by_differences():
    for how in ({}, {"aggregate": "mean"}, {"likelihood": "normal"}, {"intercept_sd": 0.0}):
        bags = make_bags(numbers="likelihood" in how)
        model = VWSGP(n_inducing=8, kernel="ard + linear", **how)
        model.set_params(max_epochs=3).fit(bags)
        state = replace(model.state_, memory={**model.state_.memory, "settled": np.ones(1)})
        grad = model.kernel_gradient(state, sums_of(model, state, bags, block_pixels=20).sums)
        for i, way in enumerate(1e-5 * np.eye(grad.shape[0])):
            ends = [
                bound_of(
                    model,
                    replace(state, params={**state.params, "theta": state.params["theta"] + by}),
                    bags,
                )
                for by in (way, -way)
            ]
            assert grad[i] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-5)


def test_a_learnt_kernel_has_a_better_bound_at_a_flat_place():
    bags = make_bags(n_bag=150, largest=6, n_feat=5)  # of which three are noise
    how = {"n_inducing": 25, "kernel": "ard", "tolerance": 1e-5}
    fixed = VWSGP(learn_variance=True, **how).fit(bags)
    model = VWSGP(learn_kernel=True, max_epochs=250, learning_rate=0.1, **how).fit(bags)
    assert model.bound_ > fixed.bound_ + 3.0
    learnt = model.named_hyperparameters()
    scales = [learnt[f"ard_x.lengthscale[{k}]"] for k in range(5)]
    assert scales[0] < min(scales[2:])
    state = replace(model.state_, memory={**model.state_.memory, "settled": np.ones(1)})
    assert np.abs(model.kernel_gradient(state, sums_of(model, state, bags).sums)).max() < 0.3


# -- numbers instead of labels -----------------------------------------------------------------


def test_regression_is_the_dense_gaussian_process_of_bag_sums():
    rng = np.random.default_rng(4)
    x, offsets = rng.normal(size=(40, 2)), np.arange(0, 41, 2)
    y = 5.0 + 3.0 * np.add.reduceat(np.sin(2 * x[:, 0]), offsets[:-1]) + rng.normal(size=20)
    bags = Bags(x, offsets, y)
    model = VWSGP(likelihood="normal", n_inducing=40, tolerance=1e-10, max_epochs=500).fit(bags)
    scale = y.std()
    cov = dense_prior(model, bags)
    noise = (model.named_hyperparameters()["noise_sd"] / scale) ** 2
    middle = cov + noise * np.eye(20)
    target = (y - y.mean()) / scale
    bound = norm.logpdf(np.linalg.solve(np.linalg.cholesky(middle), target)).sum()
    bound -= 0.5 * np.linalg.slogdet(middle)[1]
    assert model.bound_ == pytest.approx(bound, abs=1e-3)
    said = model.predict_bags(bags)
    np.testing.assert_allclose(
        said.mean, y.mean() + scale * cov @ np.linalg.solve(middle, target), atol=1e-3
    )
    post = cov - cov @ np.linalg.solve(middle, cov)
    np.testing.assert_allclose(said.sd, scale * np.sqrt(np.diag(post)), rtol=1e-3)


def test_regression_in_other_units_is_the_same():
    bags = make_bags(numbers=True)
    other = Bags(bags.x, bags.offsets, 100.0 - 3.0 * bags.y)
    one, two = (VWSGP(likelihood="normal", n_inducing=10).fit(each) for each in (bags, other))
    a, b = one.predict_bags(bags), two.predict_bags(bags)
    np.testing.assert_allclose(b.mean, 100.0 - 3.0 * a.mean, rtol=1e-6)
    np.testing.assert_allclose(b.sd, 3.0 * a.sd, rtol=1e-6)
    assert np.corrcoef(a.mean, bags.y)[0, 1] > 0.9
    with pytest.raises(BagsError, match="every bag's y is 2"):
        one.fit(Bags(bags.x, bags.offsets, np.full(bags.n_bag, 2.0)))


# -- predictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_bag_laws_by_draws_of_every_instance(aggregate):
    model = VWSGP(n_inducing=10, aggregate=aggregate).fit(make_bags())
    bags = make_bags(seed=5, n_bag=5, largest=40)
    fixed, params = model.state_.fixed, model.state_.params
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    kernel, rng = parse_kernel("rbf", 2, has_coords=False), np.random.default_rng(6)
    g2 = np.exp(2.0 * params["log_scale"][0])
    k_ww = g2 * kernel.matrix(params["theta"], params["w"], params["w"])
    k_ww += JITTER * g2 * np.eye(10)
    k_xw = g2 * kernel.matrix(params["theta"], z, params["w"])
    v = Whitened(params["v_mean"], params["root"])
    drawn = v.v_mean + rng.standard_normal((100_000, 11)) @ v.factor().T
    u = drawn[:, :10] @ np.linalg.cholesky(k_ww).T
    f = u @ np.linalg.solve(k_ww, k_xw.T)
    left = g2 - np.einsum("ij,ji->i", k_xw, np.linalg.solve(k_ww, k_xw.T))
    f += np.sqrt(left) * rng.standard_normal(f.shape)
    s = np.add.reduceat(f, bags.offsets[:-1], axis=1)
    if aggregate == "mean":
        s /= np.diff(bags.offsets)
    p = expit(s + model.intercept_sd * drawn[:, 10:])
    said = model.predict_bags(bags)
    np.testing.assert_allclose(said.mean, p.mean(axis=0), atol=5e-3)
    np.testing.assert_allclose(said.sd, p.std(axis=0), atol=5e-3)
    for q in (0.1, 0.9):
        np.testing.assert_allclose(said.quantile(q), np.quantile(p, q, axis=0), atol=0.015)
    pixels, alone = model.predict_pixels(bags.x), one_by_one(bags.x, np.zeros(bags.n_pix))
    np.testing.assert_allclose(pixels.m, model.predict_bags(alone).m, atol=1e-12)
    np.testing.assert_allclose(pixels.s, model.predict_bags(alone).s, atol=1e-12)


def test_a_store_without_coordinates_and_single_precision():
    bags = make_bags(n_bag=60)
    nowhere = Bags(bags.x.astype(np.float32), bags.offsets, bags.y)
    object.__setattr__(nowhere, "coords", np.full((bags.n_pix, 2), np.nan))
    double = VWSGP(n_inducing=20).fit(bags)
    single = VWSGP(n_inducing=20, dtype="float32").fit(nowhere)
    np.testing.assert_allclose(
        single.predict_bags(nowhere).mean, double.predict_bags(bags).mean, atol=2e-3
    )
    assert single.bound_ == pytest.approx(double.bound_, rel=1e-3)
    with pytest.raises(ParameterError, match="needs coordinates"):
        VWSGP(kernel="matern32(space)").fit(nowhere)
    assert "matern32_space.lengthscale" in (
        VWSGP(kernel="matern32(space)", n_inducing=10).fit(bags).named_hyperparameters()
    )


# -- stochastic steps --------------------------------------------------------------------------


def test_whole_natural_steps_on_everything_are_the_closed_form():
    bags = make_bags()
    how = {"n_inducing": 10, "max_epochs": 6, "tolerance": 1e-300}
    closed = VWSGP(accelerate=False, **how).fit(bags)
    model = VWSGPSVI(likelihood="logistic", batch_bags=10**6, learning_rate=1.0, **how)
    stepped = model.fit(bags)
    np.testing.assert_allclose(
        stepped.state_.params["v_mean"], closed.state_.params["v_mean"], rtol=1e-7, atol=1e-9
    )
    # SVI tells the bound before its step: the closed form's one update earlier, at the best xi.
    assert stepped.bound_ <= closed.bound_ + 1e-9
    assert stepped.bound_ >= closed.history_[-2]["bound"] - 1e-9


@pytest.mark.parametrize(("steps", "rate"), [("natural", 0.3), ("adam", 0.1)])
def test_svi_ends_near_the_closed_form(steps, rate):
    bags = make_bags(n_bag=60)
    closed = VWSGP(n_inducing=8, tolerance=1e-9).fit(bags)
    model = VWSGPSVI(
        likelihood="logistic",
        n_inducing=8,
        steps=steps,
        learning_rate=rate,
        batch_bags=20,
        max_epochs=400,
        tolerance=1e-4,
    ).fit(bags)
    start = model.history_[0]["bound"]
    assert bound_of(model, model.state_, bags) > closed.bound_ - 0.01 * abs(closed.bound_ - start)
    assert bound_of(model, model.state_, bags) < closed.bound_ + 1e-6


@pytest.mark.ci
@pytest.mark.parametrize("learn_kernel", [False, True])
def test_the_probit_s_optimum_is_one(learn_kernel):
    bags = make_bags(n_bag=50)
    model = VWSGPSVI(
        n_inducing=8,
        batch_bags=10**6,
        learning_rate=0.5,
        max_epochs=300,
        tolerance=1e-9,
        learn_kernel=learn_kernel,
    ).fit(bags)
    best, rng = bound_of(model, model.state_, bags), np.random.default_rng(7)
    for _ in range(10):
        params = dict(model.state_.params)
        for name in ("v_mean", "root", *(["theta"] if learn_kernel else [])):
            params[name] = params[name] + 0.03 * rng.normal(size=params[name].shape)
        assert bound_of(model, replace(model.state_, params=params), bags) < best
    said = model.predict_bags(bags)
    np.testing.assert_allclose(said.mean, ndtr(said.m / np.sqrt(1 + said.s)))


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (VWSGP, {"likelihood": "probit"}, "likelihood.*logistic, normal"),
        (VWSGP, {"aggregate": "max"}, "aggregate"),
        (VWSGP, {"variance": 0.0}, "variance"),
        (VWSGP, {"intercept_sd": -1.0}, "intercept_sd"),
        (VWSGP, {"n_inducing": 0}, "n_inducing"),
        (VWSGP, {"dtype": "int8"}, "dtype"),
        (VWSGPSVI, {"steps": "newton"}, "steps"),
        (VWSGPSVI, {"learning_rate": 1.5}, "learning_rate.*above 1"),
        (VWSGPSVI, {"batch_bags": 0}, "batch_bags"),
    ],
)
def test_impossible_parameters_are_refused(kind, change, says):
    with pytest.raises(ParameterError, match=says):
        kind(**change).fit(make_bags())
