"""Inducing variables of each term against naive loops, exact limits and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from models.gp import inducing_points
from models.gp.inducing_points import place_inducing
from models.gp.kernel_terms import TermKernel, split_terms
from models.gp.kernel_text import parse_kernel
from models.gp.scaling import kernel_of, scaled_inputs, scaling_of
from models.training.executor import BagsSource
from tests.models.differences import differences

KERNELS = ("ridge + matern32(space)", "flexible", "linear + additive", "matern12(space) * rbf")


@pytest.fixture
def place(make_bags, monkeypatch):
    """Make a kernel with the inducing variables of its terms, its theta, nodes and some inputs."""

    def made(text, n_inducing=None, nodes=2):
        monkeypatch.setattr(inducing_points, "LEAST_NODES", nodes)
        monkeypatch.setattr(inducing_points, "MOST_NODES", 0)
        monkeypatch.setattr(inducing_points, "N_LINE", 4)
        bags = make_bags(n_bag=5, largest=14)
        rng = np.random.default_rng(0)
        sample = BagsSource(bags, 0).summary(rng)
        fixed = scaling_of(sample, 1.0)
        z = scaled_inputs(fixed, sample.x, sample.coords, np.float64)
        whole = kernel_of(text, fixed)
        found = place_inducing(whole, z, sample, n_inducing, rng, nodes=0)
        kernel = kernel_of(text, {**fixed, **found.fixed})
        theta = kernel.start(1.3) + 0.2 * rng.standard_normal(kernel.n_theta)
        return kernel, theta, found.w + 0.01 * rng.standard_normal(found.w.shape), z[:11]

    return made


@pytest.mark.parametrize("n_inducing", [None, 6])
@pytest.mark.parametrize("text", KERNELS)
def test_adjoints_of_both_covariances_agree_with_finitedifferences(text, n_inducing, place):
    kernel, theta, w, z = place(text, n_inducing)
    assert isinstance(kernel, TermKernel)
    rng = np.random.default_rng(1)
    cross = rng.standard_normal((z.shape[0], kernel.n_value))
    inner = rng.standard_normal((kernel.n_value, kernel.n_value))
    inner += inner.T

    def total(theta, w):
        return float(
            (cross * kernel.cross(theta, z, w)[0]).sum()
            + (inner * kernel.inducing(theta, w)[0]).sum()
        )

    own = kernel.cross_backward(theta, z, w, kernel.cross(theta, z, w)[1], cross, want_w=True)
    among = kernel.inducing_backward(theta, w, kernel.inducing(theta, w)[1], inner)
    by_theta = differences(lambda moved: total(moved, w), theta)
    by_w = differences(lambda moved: total(theta, moved), w)
    np.testing.assert_allclose(own[0] + among[0], by_theta, atol=1e-7 * np.abs(by_theta).max())
    np.testing.assert_allclose(own[1] + among[1], by_w, atol=1e-7 * np.abs(by_w).max())


@pytest.mark.parametrize("n_node", [2, 3])
@pytest.mark.parametrize("text", KERNELS)
def test_averages_have_the_covariances_of_averages(text, n_node, place):
    """Against a loop over each term, each inducing variable and each of its nodes."""
    kernel, theta, w, z = place(text, nodes=n_node)
    assert kernel.nodes[-1] == n_node
    first_node, first_value = 0, 0
    cross = np.zeros((z.shape[0], kernel.n_value))
    inner = np.zeros((kernel.n_value, kernel.n_value))
    for term, n_value, nodes in zip(kernel.terms, kernel.values, kernel.nodes, strict=True):
        own = theta[term.places]
        for a in range(n_value):
            mine = [first_node + a * nodes + j for j in range(nodes)]
            for i in mine:
                cross[:, first_value + a] += (
                    kernel.share[i] * term.kernel.matrix(own, z, w[[i]])[:, 0]
                )
            for b in range(n_value):
                other = [first_node + b * nodes + j for j in range(nodes)]
                inner[first_value + a, first_value + b] = sum(
                    kernel.share[i]
                    * kernel.share[j]
                    * term.kernel.matrix(own, w[[i]], w[[j]])[0, 0]
                    for i in mine
                    for j in other
                )
        first_node, first_value = first_node + n_value * nodes, first_value + n_value
    np.testing.assert_allclose(kernel.cross(theta, z, w)[0], cross, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.cross_values(theta, z, w), cross, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.inducing(theta, w)[0], inner, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", KERNELS)
def test_terms_add_up_to_the_whole(text, place):
    kernel, theta, _, z = place(text)
    for terms in (kernel.terms, tuple(split_terms(kernel.whole))):
        added = sum(term.kernel.matrix(theta[term.places], z, z) for term in terms)
        np.testing.assert_allclose(added, kernel.whole.matrix(theta, z, z), rtol=1e-12)
        seen = np.unique(np.concatenate([term.places for term in terms]))
        assert seen.tolist() == list(range(kernel.n_theta))


@pytest.mark.parametrize("text", ["ard", "matern32(space)", "matern12(space) * rbf"])
def test_one_term_with_points_is_the_plain_kernel(text, place):
    kernel, theta, w, z = place(text, n_inducing=6)
    plain = kernel.whole
    np.testing.assert_array_equal(kernel.cross(theta, z, w)[0], plain.matrix(theta, z, w))
    np.testing.assert_allclose(
        kernel.inducing(theta, w)[0], plain.matrix(theta, w, w), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("text", ["ridge", "linear", "constant", "linear + constant"])
def test_the_coefficients_of_linear_terms_say_everything(text, place):
    """No variance is left where the inducing values are known: ``K K_WW^-1 K' = k``."""
    kernel, theta, w, z = place(text)
    # The coefficients' own nodes: the fixture disturbs them.
    w = np.round(w)
    k = kernel.cross(theta, z, w)[0]
    known = k @ np.linalg.solve(kernel.inducing(theta, w)[0], k.T)
    np.testing.assert_allclose(known, kernel.whole.matrix(theta, z, z), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", KERNELS)
def test_random_features_of_the_inducing_variables_have_their_covariance(text, place):
    """The mean of many draws of few features, by the draws' own standard error."""
    kernel, theta, w, z = place(text)
    rng = np.random.default_rng(3)
    inner, cross = [], []
    for _ in range(200):
        features = kernel.features(theta, 128, rng)
        own = kernel.inducing_features(features, w)
        inner.append(own @ own.T)
        cross.append(features(z) @ own.T)
    for draws, exact in (
        (inner, kernel.inducing(theta, w)[0]),
        (cross, kernel.cross(theta, z, w)[0]),
    ):
        error = np.std(draws, axis=0) / np.sqrt(len(draws))
        off = np.abs(np.mean(draws, axis=0) - exact)
        # Hundreds of entries: the largest of so many normal deviates stays below 4.5.
        assert (off < 4.5 * error + 1e-12).all()
        assert error.max() < 0.08 * exact.max()  # the draws can tell


def test_ridge_is_a_regression_whose_slopes_share_their_variance():
    rng = np.random.default_rng(0)
    z, w = rng.standard_normal((5, 4)), rng.standard_normal((3, 4))
    kernel = parse_kernel("ridge", 2, has_coords=True)
    value = kernel.matrix(np.log([0.7]), z, w)
    np.testing.assert_allclose(value, 0.7 * (z[:, :2] @ w[:, :2].T), rtol=1e-12)
    np.testing.assert_allclose(
        kernel.diag(np.log([0.7]), z), np.diag(kernel.matrix(np.log([0.7]), z, z)), rtol=1e-12
    )


def test_smooths_add_a_matern_of_each_covariate():
    rng = np.random.default_rng(0)
    z, w = rng.standard_normal((5, 5)), rng.standard_normal((4, 5))
    kernel = parse_kernel("smooth", 3, has_coords=True)
    variance, length = np.array([0.7, 0.2, 1.5]), 0.8
    theta = np.log([*variance, length])
    expected = np.zeros((5, 4))
    for i, a in enumerate(z):
        for j, b in enumerate(w):
            for k in range(3):
                r = np.sqrt(5) * abs(a[k] - b[k]) / length
                expected[i, j] += variance[k] * (1 + r + r**2 / 3) * np.exp(-r)
    np.testing.assert_allclose(kernel.matrix(theta, z, w), expected, rtol=1e-10)
    np.testing.assert_allclose(kernel.diag(theta, z), np.full(5, variance.sum()), rtol=1e-12)


@pytest.mark.parametrize("text", ["ridge", "smooth", "ridge + smooth"])
def test_gradients_of_regressions_agree_with_finitedifferences(text):
    rng = np.random.default_rng(2)
    z, w = rng.standard_normal((6, 5)), rng.standard_normal((4, 5))
    kernel = parse_kernel(text, 3, has_coords=True)
    theta = kernel.start(1.5) + 0.3 * rng.standard_normal(kernel.n_theta)
    adjoint, by_diag = rng.standard_normal((6, 4)), rng.standard_normal(6)
    cache = kernel.forward(theta, z, w)[1]
    by_theta, by_w = kernel.backward(theta, z, w, cache, adjoint, want_w=True)
    numeric = differences(lambda t: float((adjoint * kernel.matrix(t, z, w)).sum()), theta)
    np.testing.assert_allclose(by_theta, numeric, atol=1e-7)
    numeric = differences(lambda v: float((adjoint * kernel.matrix(theta, z, v)).sum()), w)
    np.testing.assert_allclose(by_w, numeric, atol=1e-7)
    numeric = differences(lambda t: float(by_diag @ kernel.diag(t, z)), theta)
    np.testing.assert_allclose(kernel.diag_backward(theta, z, by_diag), numeric, atol=1e-7)


@pytest.mark.parametrize("text", ["ridge", "smooth", "flexible"])
def test_the_way_back_through_random_features_agrees_with_finitedifferences(text, place):
    kernel, theta, _, z = place(text)
    rng = np.random.default_rng(5)
    features = kernel.features(theta, 16, np.random.default_rng(9))
    out = rng.standard_normal((z.shape[0], features.n_feature))

    def total(moved):
        return float((out * kernel.features(moved, 16, np.random.default_rng(9))(z)).sum())

    numeric = differences(total, theta)
    by_features, _ = features.backward(z, features(z), out)
    found = kernel.features_theta(features, by_features)
    np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-7)
