"""Draws of whole functions: their adjoints, their expectation, and fits by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import VBAgg
from models.core.errors import ParameterError
from models.gp import pathwise, sparse_gp
from models.gp.scaling import scaled_inputs
from models.likelihoods.observation import Observation
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train
from tests.models.differences import check_gradient, objective
from tests.plain import plain

COMBINATIONS = [
    ("poisson", "exp", False),
    ("poisson", "square", False),
    ("negative_binomial", "exp", False),
    ("negative_binomial", "square", False),
    ("negative_binomial", "exp", True),
    ("exponential", "exp", False),
    ("exponential", "square", False),
    ("normal", "identity", False),
    ("binomial", "probit", False),
    ("beta_binomial", "probit", False),
]
KERNELS = (
    "additive",
    "matern12(space) + linear",
    "rbf + constant",
    "matern52(x) * rbf(space) * ard + rbf",
)


def _state(model, bags, seed=1, size=0.1):
    """Start, then move every parameter away from its special starting value."""
    rng = np.random.default_rng(seed)
    state = start_training(
        model, BagsSource(bags, 0), seed=0, learning_rate=0.1, tolerance=1e-3
    ).state
    params = {k: v + size * rng.normal(size=v.shape) for k, v in state.params.items()}
    return replace(state, params=params, step=5)


def _model(likelihood="poisson", link="exp", **changed):
    given = {"n_inducing": 5, "n_paths": 4, "n_features": 12, "kernel": "additive", **changed}
    return plain(VBAgg, likelihood=likelihood, link=link, estimator="monte_carlo", **given)


#: Each law and link with one kernel, each kernel with one law.
GRADIENTS = [(*law, KERNELS[0]) for law in COMBINATIONS]
GRADIENTS += [("poisson", "exp", False, kernel) for kernel in KERNELS[1:]]


@pytest.mark.parametrize(("likelihood", "link", "area_effect", "kernel"), GRADIENTS)
def test_gradient_of_every_parameter_agrees_with_finite_differences_of_the_same_draws(
    likelihood, link, area_effect, kernel, monkeypatch, make_bags
):
    monkeypatch.setattr(pathwise, "ROWS", 16)  # several tiles, bags across their edges
    bags = make_bags(n_bag=8, largest=20)
    model = _model(likelihood, link, kernel=kernel, area_effect=area_effect, n_inducing=3)
    state = _state(model, bags)

    def value(params):
        return objective(model, replace(state, params=params), bags).bound

    check_gradient(value, state.params, objective(model, state, bags).grad, step=1e-4)


def _values(model, state, bags, steps):
    """Return the bags' part of the objective under the draws of so many steps."""
    return np.array(
        [
            model.block_stats(model.block_params(replace(state, step=step)), bags, None)[0].bound
            for step in range(steps)
        ]
    )


def _by_dense_draws(model, state, bags, n_draw, seed=3):
    """``E_q log p`` by draws of ``f`` on all pixels together: mean and standard error."""
    params, fixed = state.params, state.fixed
    kernel = model._kernel(fixed)
    theta, w = params["theta"], params["w"]
    z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
    k_ww = kernel.matrix(theta, w, w)
    k_ww += sparse_gp.JITTER * np.trace(k_ww) / w.shape[0] * np.eye(w.shape[0])
    k = kernel.matrix(theta, z, w)
    lower = np.linalg.cholesky(k_ww)
    factor = np.tril(params["root"], -1) + np.diag(np.exp(np.diag(params["root"])))
    u_root = lower @ factor
    m = params["mean"][0] + k @ np.linalg.solve(k_ww, lower @ params["v_mean"])
    to_u = np.linalg.solve(k_ww, k.T)
    cov = kernel.matrix(theta, z, z) - k @ to_u + to_u.T @ u_root @ u_root.T @ to_u
    value, vector = np.linalg.eigh(cov)
    root = vector * np.sqrt(np.maximum(value, 0))
    f = m + np.random.default_rng(seed).normal(size=(n_draw, m.shape[0])) @ root.T
    likelihood, link = model.resolved_likelihood, model.resolved_link
    seen = Observation.of(likelihood, link, {**fixed, **params}, bags)
    eta = np.add.reduceat(seen.p * link.value(f), bags.offsets[:-1], axis=1)
    each = seen.terms(np.maximum(eta, 1e-100)).value.sum(axis=1)
    return each.mean(), each.std() / np.sqrt(n_draw)


@pytest.mark.parametrize(
    ("likelihood", "link", "area_effect"),
    [
        ("poisson", "exp", False),
        ("negative_binomial", "square", False),
        ("negative_binomial", "exp", True),
        ("normal", "identity", False),
        ("beta_binomial", "probit", False),
    ],
)
def test_the_estimate_is_right_on_average(likelihood, link, area_effect, make_bags):
    bags = make_bags(n_bag=8, largest=20, awkward=False)
    model = _model(likelihood, link, n_features=256, area_effect=area_effect)
    state = _state(model, bags)
    values = _values(model, state, bags, 150)
    exact, error = _by_dense_draws(model, state, bags, 10_000)
    error = np.hypot(error, values.std() / np.sqrt(values.shape[0]))
    assert abs(values.mean() - exact) < 4 * error


@pytest.mark.ci
def test_more_features_come_closer(make_bags):
    # Variances are right with any number of features; what is wrong with few is of fourth order.
    bags = make_bags(n_bag=8, largest=20, awkward=False)
    away = []
    for n_features in (2, 128):
        model = _model(kernel="rbf", n_paths=8, n_features=n_features)
        state = _state(model, bags)
        exact, error = _by_dense_draws(model, state, bags, 20_000)
        values = _values(model, state, bags, 1000)
        error = np.hypot(error, values.std() / np.sqrt(values.shape[0]))
        away.append((values.mean() - exact) / error)
    assert away[0] < -4.5
    assert abs(away[1]) < 4


@pytest.mark.parametrize(("likelihood", "link"), [("poisson", "square"), ("exponential", "exp")])
def test_the_papers_bounds_lie_below(likelihood, link, make_bags):
    bags = make_bags(n_bag=8, largest=20, awkward=False)
    model = _model(likelihood, link, n_features=128)
    state = _state(model, bags)
    values = _values(model, state, bags, 100)
    lower = model.set_params(estimator="bound")
    bound = lower.block_stats(lower.block_params(state), bags, None)[0].bound
    assert bound < values.mean() - 4 * values.std() / np.sqrt(100)


def test_what_natural_steps_use_is_exact_under_the_normal_law(make_bags):
    # Its log density is quadratic in f: antithetic pairs leave no noise in the slope by the mean,
    # and the Hessian is the same at every draw. The second-order estimate is exact there as well.
    bags = make_bags()
    model = _model("normal", "identity")
    state = _state(model, bags)
    drawn = objective(model, state, bags)
    exact = objective(model.set_params(estimator="second_order"), state, bags)
    np.testing.assert_allclose(drawn.d_mean, exact.d_mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(drawn.d_cov, exact.d_cov, rtol=1e-9, atol=1e-12)


def test_the_hessian_and_the_slope_by_the_root_agree_on_average(make_bags):
    # Price's theorem against the re-parametrised slope: two estimates of one derivative.
    bags = make_bags(n_bag=8, largest=20, awkward=False)
    model = _model("binomial", "probit", n_features=64)
    state = _state(model, bags)
    differ = []
    for step in range(300):
        at = objective(model, replace(state, step=step), bags)
        whitened = sparse_gp.Whitened(state.params["v_mean"], state.params["root"])
        by_root = at.grad["root"] + whitened.kl_backward()[1]
        differ.append((by_root - whitened.root_adjoint(at.d_cov))[np.tril_indices(5)])
    error = np.std(differ, axis=0) / np.sqrt(300)
    assert (np.abs(np.mean(differ, axis=0)) < 4.5 * error).all()


def test_draws_are_decided_by_seed_and_step(bags):
    model = _model()
    state = _state(model, bags)
    same = [_values(model, state, bags, 2) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert same[0][0] != same[0][1]
    assert _values(model.set_params(seed=7), state, bags, 1)[0] != same[0][0]


def test_making_the_tiles_again_and_their_size_change_only_rounding(bags, monkeypatch):
    model = _model()
    state = _state(model, bags)
    kept = objective(model, state, bags)
    for name, value in (("KEEP", 0), ("ROWS", 7)):
        monkeypatch.setattr(pathwise, name, value)
        again = objective(model, state, bags)
        assert again.bound == pytest.approx(kept.bound, rel=1e-12)
        for key, grad in kept.grad.items():
            np.testing.assert_allclose(
                again.grad[key], grad, rtol=1e-9, atol=1e-9 * abs(grad).max()
            )


@pytest.mark.ci
def test_a_fit_by_draws_ends_near_the_deterministic_one(make_bags):
    bags = make_bags(n_bag=30, largest=12)
    settings = {"likelihood": "negative_binomial", "link": "square", "kernel": "additive"}
    settings |= {"n_inducing": 8, "n_features": 32, "priors": "weak"}
    # Adam for q, too: under natural steps the deterministic fit has inducing variables by terms,
    # which draws do not have.
    settings |= {"posterior_steps": "adam"}
    judge = plain(VBAgg, estimator="monte_carlo", n_paths=256, **settings)
    source, ends = BagsSource(bags, 0), []
    for estimator in ("monte_carlo", "log_normal"):
        model = plain(VBAgg, estimator=estimator, **settings)
        # No tolerance: the schedule, which reacts to noise, keeps out of the comparison.
        training = start_training(model, source, seed=0, learning_rate=0.05, tolerance=-np.inf)
        with ThreadExecutor(model, source, 1) as executor:
            for rate, stop in ((0.05, 150), (0.01, 230)):
                train(
                    model,
                    source,
                    executor,
                    training,
                    seed=0,
                    learning_rate=rate,
                    batch_bags=32,
                    max_epochs=stop,
                )
        ends.append(objective(judge, training.state, bags, bags.n_bag).bound)
    assert ends[1] - training.history[0]["bound"] > 30
    assert ends[0] == pytest.approx(ends[1], abs=1.5)


@pytest.mark.parametrize("text", ["linear * matern32(space)", "linear(x) * linear(space)"])
def test_a_kernel_without_features_is_refused_at_the_start(text, bags):
    with pytest.raises(ParameterError, match="sum of products of stationary kernels"):
        _model(kernel=text).fit(bags)
