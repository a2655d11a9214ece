"""Every hand-derived adjoint against finite differences of the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import Bags, VBAgg
from models.gp import bag_variance, pixel_pass
from models.gp.sparse_gp import Whitened
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.models.aggregate.country import widened
from tests.models.differences import KERNELS, check_gradient, objective
from tests.plain import plain


def _disturbed(model, bags, seed=1):
    """Start, then move every parameter away from its special starting value."""
    rng = np.random.default_rng(seed)
    source = BagsSource(bags, 0)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1e-3).state
    state = widened(state)
    params = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()}
    return replace(state, params=params)


def _check_gradient(model, bags, monkeypatch):
    monkeypatch.setattr(pixel_pass, "ROWS", 10)  # several tiles
    monkeypatch.setattr(bag_variance, "PAIRS", 8)
    state = _disturbed(model, bags)

    def value(params):
        return objective(model, replace(state, params=params), bags).bound

    check_gradient(value, state.params, objective(model, state, bags).grad)


WEAK, EFFECT = {"priors": "weak"}, {"priors": "weak", "area_effect": True}
#: Each law, link and estimator; each kernel; each law with an effect of areas; sampled pairs.
CASES = [
    *(
        ("poisson", link, {"estimator": estimator})
        for link in ("exp", "square")
        for estimator in ("bound", "second_order", "log_normal")
    ),
    ("negative_binomial", "exp", {"estimator": "bound"}),
    ("negative_binomial", "exp", {"estimator": "log_normal"}),
    ("exponential", "exp", {"estimator": "bound"}),
    ("gamma", "square", {"estimator": "second_order"}),
    ("normal", "identity", {"estimator": "second_order"}),
    ("binomial", "probit", {"estimator": "second_order"}),
    ("beta_binomial", "probit", {"estimator": "second_order"}),
    *(("poisson", "exp", {"kernel": kernel, **WEAK}) for kernel in KERNELS[1:]),
    *((law, "exp", {"kernel": "ard", **EFFECT}) for law in ("poisson", "negative_binomial")),
    ("normal", "identity", {"kernel": "ard", **EFFECT}),
    *(("poisson", link, {"pair_pixels": 5}) for link in ("exp", "square")),
    ("normal", "identity", {"pair_pixels": 5}),
    ("binomial", "probit", {"pair_pixels": 5}),
]


@pytest.mark.parametrize(("likelihood", "link", "how"), CASES)
def test_gradient_of_every_parameter_agrees_with_finite_differences(
    likelihood, link, how, monkeypatch, make_bags
):
    given = {"kernel": "additive", "n_inducing": 3, **how}
    model = plain(VBAgg, likelihood=likelihood, link=link, **given)
    bags = make_bags(n_bag=7, largest=14)
    if likelihood == "gamma":  # which has no zeros
        bags = Bags(bags.x, bags.offsets, bags.y + 0.5, bags.weight, bags.coords)
    _check_gradient(model, bags, monkeypatch)


@pytest.mark.parametrize("steps", ["natural", "adam"])
@pytest.mark.parametrize("likelihood", ["normal", "binomial"])
def test_gradients_hold_where_the_variance_of_a_total_ends_at_its_least(
    likelihood, steps, monkeypatch, make_bags
):
    real = bag_variance.bag_variance

    def one_is_below(*args):
        found = real(*args)
        found.value[found.drawn.bag[:1]] -= 1e4  # a constant: no slope of its own
        return found

    monkeypatch.setattr("models.aggregate.objective.bag_variance", one_is_below)
    model = plain(VBAgg, likelihood=likelihood, kernel="additive", posterior_steps=steps,
                  n_inducing=3, pair_pixels=5)  # fmt: skip
    _check_gradient(model, make_bags(n_bag=7, largest=14), monkeypatch)


def test_making_the_kernel_again_changes_no_gradient(bags, monkeypatch):
    model = plain(VBAgg, link="exp", kernel="additive", n_inducing=7)
    state = _disturbed(model, bags)
    kept = objective(model, state, bags).grad
    monkeypatch.setattr(pixel_pass, "KEEP", 0)
    again = objective(model, state, bags).grad
    for name in kept:
        np.testing.assert_array_equal(kept[name], again[name])


@pytest.mark.parametrize("link", ["exp", "square"])
def test_natural_gradient_is_the_fisher_preconditioned_gradient(link, bags):
    # With a tiny step, (d mean, d cov) = Fisher^-1 (grad): cov g_mean and 2 cov g_cov cov.
    model = plain(VBAgg, link=link, kernel="additive", n_inducing=5)
    state = _disturbed(model, bags)
    at = objective(model, state, bags)
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
