"""The kernel of an effect of each area, by its features and by differences."""

from __future__ import annotations

import numpy as np
import pytest

from models.gp.area_kernel import Areas

KERNEL, THETA = Areas((1, 2), 4), np.log([0.7])
Z = np.array([[9.0, 0], [9, 3], [9, 3], [9, -1], [9, 1]])
W = np.array([[5.0, 0], [5, 1], [5, 2], [5, 3]])


def test_areas_are_independent_and_a_place_in_none_is_not_known() -> None:
    expected = 0.7 * np.array(
        [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    )
    np.testing.assert_allclose(KERNEL.matrix(THETA, Z, W), expected)
    np.testing.assert_allclose(KERNEL.diag(THETA, Z), 0.7)


def test_features_are_exact() -> None:
    phi = KERNEL.features(THETA, 9, np.random.default_rng(0))
    np.testing.assert_allclose(phi(Z) @ phi(W).T, KERNEL.matrix(THETA, Z, W))
    np.testing.assert_allclose((phi(Z) ** 2).sum(axis=1), KERNEL.diag(THETA, Z))


def test_slopes_are_those_of_differences() -> None:
    rng, by = np.random.default_rng(1), 1e-6
    adjoint, of_diag = rng.normal(size=(5, 4)), rng.normal(size=5)
    value, cache = KERNEL.forward(THETA, Z, W)
    grad, by_w = KERNEL.backward(THETA, Z, W, cache, adjoint, want_w=True)
    up, down = (KERNEL.matrix(THETA + sign * by, Z, W) for sign in (1, -1))
    assert grad[0] == pytest.approx(((up - down) * adjoint).sum() / (2 * by))
    assert not by_w.any()
    assert KERNEL.diag_backward(THETA, Z, of_diag)[0] == pytest.approx(0.7 * of_diag.sum())
    phi = KERNEL.features(THETA, 9, np.random.default_rng(0))
    back, _ = phi.backward(Z, phi(Z), rng.normal(size=(5, 5)))
    assert KERNEL.features_theta(phi, back).shape == (1,)
    assert value.shape == (5, 4)
