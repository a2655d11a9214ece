"""Every hand-derived adjoint against finite differences of the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import Bags, VBAgg
from models.gp import bag_variance, pixel_pass
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.models.aggregate.country import widened
from tests.plain import plain

KERNELS = (
    "additive",
    "rbf",
    "matern12(space) + linear",
    "matern52(x) * rbf(space) + ard",
    "matern32(x)",
    "rbf + constant",
)


def _disturbed(model, bags, seed=1):
    """Start, then move every parameter away from its special starting value."""
    rng = np.random.default_rng(seed)
    source = BagsSource(bags, 0)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1e-3).state
    state = widened(state)
    params = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()}
    return replace(state, params=params)


def _objective(model, state, bags):
    stats, _ = model.block_stats(model.block_params(state), bags, None)
    return model.objective(state, stats, 2 * bags.n_bag)


COMBINATIONS = [
    ("poisson", "exp", "bound"),
    ("poisson", "exp", "second_order"),
    ("poisson", "exp", "log_normal"),
    ("poisson", "square", "bound"),
    ("poisson", "square", "second_order"),
    ("poisson", "square", "log_normal"),
    ("negative_binomial", "exp", "bound"),
    ("negative_binomial", "exp", "log_normal"),
    ("negative_binomial", "square", "bound"),
    ("negative_binomial", "square", "second_order"),
    ("exponential", "exp", "bound"),
    ("exponential", "exp", "log_normal"),
    ("exponential", "square", "second_order"),
    ("gamma", "exp", "log_normal"),
    ("gamma", "square", "second_order"),
    ("normal", "identity", "second_order"),
    ("binomial", "probit", "second_order"),
    ("beta_binomial", "probit", "second_order"),
]


def _check_gradient(model, bags, monkeypatch):
    monkeypatch.setattr(pixel_pass, "ROWS", 10)  # several tiles
    monkeypatch.setattr(bag_variance, "PAIRS", 8)
    state = _disturbed(model, bags)
    grad = _objective(model, state, bags).grad
    assert set(grad) == set(state.params)
    step = 1e-5
    for name, value in state.params.items():
        numeric = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for factor in (1, -1, 2, -2):
                moved = value.copy()
                moved[index] += factor * step
                at = replace(state, params={**state.params, name: moved})
                ends.append(_objective(model, at, bags).bound)
            numeric[index] = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
        error = np.abs(numeric - grad[name]).max() / np.abs(numeric).max()
        assert error < 1e-6, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize(("likelihood", "link", "estimator"), COMBINATIONS)
def test_gradient_of_every_parameter_agrees_with_finite_differences(
    likelihood, link, estimator, monkeypatch, make_bags
):
    model = plain(
        VBAgg,
        likelihood=likelihood,
        link=link,
        estimator=estimator,
        kernel="additive",
        n_inducing=3,
    )
    bags = make_bags(n_bag=7, largest=14)
    if likelihood == "gamma":  # which has no zeros
        bags = Bags(bags.x, bags.offsets, bags.y + 0.5, bags.weight, bags.coords)
    _check_gradient(model, bags, monkeypatch)


@pytest.mark.parametrize("link", ["exp", "square"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_under_every_kernel_agrees_with_finite_differences(
    kernel, link, monkeypatch, make_bags
):
    model = plain(VBAgg, link=link, kernel=kernel, n_inducing=3, priors="weak")
    _check_gradient(model, make_bags(n_bag=7, largest=14), monkeypatch)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial", "exponential", "normal"])
def test_gradient_with_an_area_effect_agrees_with_finite_differences(
    likelihood, monkeypatch, make_bags
):
    link = "identity" if likelihood == "normal" else "exp"
    model = plain(
        VBAgg, likelihood=likelihood, link=link, area_effect=True, n_inducing=3, priors="weak"
    )
    _check_gradient(model, make_bags(n_bag=7, largest=14), monkeypatch)


@pytest.mark.parametrize("link", ["exp", "square"])
def test_gradient_from_a_sample_of_pairs_agrees_with_finite_differences(
    link, monkeypatch, make_bags
):
    model = plain(VBAgg, link=link, kernel="additive", n_inducing=3, pair_pixels=5)
    _check_gradient(model, make_bags(n_bag=7, largest=14), monkeypatch)


@pytest.mark.parametrize("link", ["exp", "square"])
def test_making_the_kernel_again_changes_no_gradient(link, bags, monkeypatch):
    model = plain(VBAgg, link=link, kernel="additive", n_inducing=7)
    state = _disturbed(model, bags)
    kept = _objective(model, state, bags).grad
    monkeypatch.setattr(pixel_pass, "KEEP", 0)
    again = _objective(model, state, bags).grad
    for name in kept:
        np.testing.assert_array_equal(kept[name], again[name])


@pytest.mark.parametrize("link", ["exp", "square"])
def test_natural_gradient_is_the_fisher_preconditioned_gradient(link, bags):
    # With a tiny step, (d mean, d cov) = Fisher^-1 (grad): cov g_mean and 2 cov g_cov cov.
    model = plain(VBAgg, link=link, kernel="additive", n_inducing=5)
    state = _disturbed(model, bags)
    at = _objective(model, state, bags)
    from models.gp.sparse_gp import Whitened

    before = Whitened(state.params["v_mean"], state.params["root"])
    cov = before.factor() @ before.factor().T
    full_cov = at.d_cov - 0.5 * np.eye(5) + 0.5 * np.linalg.inv(cov)
    scale = 1e-7
    after = before.natural_step(at.d_mean, at.d_cov, scale)
    moved = (after.factor() @ after.factor().T - cov) / scale
    np.testing.assert_allclose(moved, 2 * cov @ full_cov @ cov, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        (after.v_mean - before.v_mean) / scale, cov @ at.grad["v_mean"], rtol=1e-4, atol=1e-6
    )
