"""Draws of whole functions: their adjoints, their expectation, and fits by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import VBAgg, paths
from models.training import BagsSource, start_training

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
]
KERNELS = (
    "additive",
    "matern12(space) + linear",
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
    return VBAgg(likelihood=likelihood, link=link, estimator="monte_carlo", **given)


def _objective(model, state, bags):
    stats, _ = model.block_stats(model.block_params(state), bags, None)
    return model.objective(state, stats, 2 * bags.n_bag)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("likelihood", "link", "area_effect"), COMBINATIONS)
def test_gradient_of_every_parameter_agrees_with_finite_differences_of_the_same_draws(
    likelihood, link, area_effect, kernel, monkeypatch, make_bags
):
    monkeypatch.setattr(paths, "ROWS", 16)  # several tiles, bags across their edges
    bags = make_bags(n_bag=8, largest=20)
    model = _model(likelihood, link, kernel=kernel, area_effect=area_effect)
    state = _state(model, bags)
    grad = _objective(model, state, bags).grad
    assert set(grad) == set(state.params)
    step = 1e-4
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
