"""Kernels against their printed formulas and their spectral draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import gamma, kv

from models.core.errors import ParameterError
from models.gp.kernel_text import parse_kernel


def _bessel_matern(d, nu):
    r = np.sqrt(2 * nu) * np.where(d > 0, d, 1.0)
    return np.where(d > 0, 2 ** (1 - nu) / gamma(nu) * r**nu * kv(nu, r), 1.0)


@pytest.mark.parametrize(("name", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5)])
def test_matern_equals_the_bessel_form(name, nu):
    rng = np.random.default_rng(0)
    z, w = rng.normal(size=(9, 5)), rng.normal(size=(4, 5))
    kernel = parse_kernel(f"{name}(space)", 3, has_coords=True)
    theta = np.log([1.7, 0.6])
    expected = 1.7 * _bessel_matern(cdist(z[:, 3:], w[:, 3:]) / 0.6, nu)
    np.testing.assert_allclose(kernel.matrix(theta, z, w), expected, rtol=1e-9)


def test_ard_uses_length_scales_not_their_squares():
    z, w = np.array([[0.0, 0.0]]), np.array([[1.0, 2.0]])
    kernel = parse_kernel("ard", 2, has_coords=False)
    value = kernel.matrix(np.log([2.0, 0.5, 4.0]), z, w)[0, 0]
    assert value == pytest.approx(2 * np.exp(-0.5 * (1 / 0.25 + 4 / 16)))


@pytest.mark.parametrize(
    "text",
    [
        "additive",
        "rbf + linear",
        "rbf + constant",
        "matern32(space) * rbf",
        "matern12(x) + matern52(space)",
    ],
)
def test_random_features_have_the_kernels_covariance(text):
    rng = np.random.default_rng(1)
    kernel = parse_kernel(text, 2, has_coords=True)
    theta = kernel.start(1.5)
    z = rng.normal(size=(12, 4))
    phi = kernel.features(theta, 200_000, rng)(z)
    np.testing.assert_allclose(phi @ phi.T, kernel.matrix(theta, z, z), atol=0.02)
    np.testing.assert_allclose(np.diag(kernel.matrix(theta, z, z)), kernel.diag(theta, z))


@pytest.mark.parametrize(("name", "nu"), [("rbf", None), ("matern32", 1.5), ("matern52", 2.5)])
def test_stratified_features_are_unbiased_and_nearer_to_the_kernel(name, nu):
    """In one dimension: 16 frequencies against 64 of independent draws, by the printed formula."""
    kernel = parse_kernel(name, 1, has_coords=False)
    theta, z = np.log([1.7, 0.6]), np.linspace(0.0, 2.4, 25)[:, None]
    d = z[:, 0] / 0.6
    exact = 1.7 * (np.exp(-0.5 * d**2) if nu is None else _bessel_matern(d, nu))
    rng = np.random.default_rng(2)
    each = []
    for _ in range(800):
        phi = kernel.features(theta, 32, rng)(z)
        each.append(phi @ phi[0])
    error = np.array(each) - exact
    spread = error.std(axis=0)
    assert spread[0] < 1e-12  # a variance is exact, whatever the frequencies
    assert (np.abs(error.mean(axis=0)) < 4.5 * spread / np.sqrt(800) + 1e-12).all()
    # Of n independent frequencies the variance is that of a cosine, over n.
    twice = 1.7 * (np.exp(-2 * d**2) if nu is None else _bessel_matern(2 * d, nu))
    independent = ((1.7 * (1.7 + twice) / 2 - exact**2) / 64).mean()
    assert (error**2).mean() < independent


def test_parameter_names_are_unique():
    kernel = parse_kernel("rbf + rbf + ard * matern32", 3, has_coords=True)
    assert len(set(kernel.names)) == kernel.n_theta == len(kernel.start(1.0))


def test_space_without_coordinates_is_refused():
    with pytest.raises(ParameterError, match="needs coordinates"):
        parse_kernel("additive", 3, has_coords=False)
