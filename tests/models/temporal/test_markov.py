"""Kernels in time, each by its covariance function and by the exponential of its drift."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

from models.temporal.markov import (
    Constant,
    MarkovKernel,
    Matern12,
    Matern32,
    Matern52,
    Season,
    TimeSum,
)

KERNELS = [
    Constant(),
    Matern12(),
    Matern32(),
    Matern52(),
    Season(12.0, 1),
    Season(7.0, 3),
    TimeSum((Constant(), Matern32(), Season(12.0, 2))),
]
LAGS = np.array([0.0, 0.3, 1.0, 4.7, 30.0])


def _moved(kernel: MarkovKernel) -> np.ndarray:
    return kernel.start(1.0) + 0.3 * np.arange(kernel.n_theta)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{type(k).__name__}{k.n_state}")
class TestKernel:
    def test_a_step_is_the_exponential_of_the_drift(self, kernel: MarkovKernel) -> None:
        theta = _moved(kernel)
        for step in LAGS:
            exact = expm(kernel.design_matrix(theta) * step)
            np.testing.assert_allclose(kernel.transition_matrix(theta, step), exact, atol=1e-12)

    def test_its_state_is_stationary_and_has_variance_one(self, kernel: MarkovKernel) -> None:
        theta = _moved(kernel)
        p, h = kernel.stationary_covariance(theta), kernel.observation_model()
        assert h @ p @ h == pytest.approx(1.0)
        for step in LAGS:
            a = kernel.transition_matrix(theta, step)
            assert np.linalg.eigvalsh(p - a @ p @ a.T).min() > -1e-12

    def test_slopes_are_those_of_differences(self, kernel: MarkovKernel) -> None:
        theta, by = _moved(kernel), 1e-6
        by_a, by_p = kernel.slopes(theta, 2.5)
        by_prior = kernel.log_prior_slope(theta, 1.0)
        for k in range(kernel.n_theta):
            away = by * np.eye(kernel.n_theta)[k]

            def slope(of, away=away):  # type: ignore[no-untyped-def]
                return (of(theta + away) - of(theta - away)) / (2 * by)

            along = slope(lambda x: kernel.transition_matrix(x, 2.5))
            np.testing.assert_allclose(by_a[k], along, atol=1e-8)
            np.testing.assert_allclose(by_p[k], slope(kernel.stationary_covariance), atol=1e-8)
            assert by_prior[k] == pytest.approx(slope(lambda x: kernel.log_prior(x, 1.0)), abs=1e-7)


def test_covariances_are_the_textbooks() -> None:
    scale = 6.0
    theta = np.log([scale])
    for kernel, root, shape in (
        (Matern12(), 1.0, lambda a: np.exp(-a)),
        (Matern32(), 3.0, lambda a: (1 + a) * np.exp(-a)),
        (Matern52(), 5.0, lambda a: (1 + a + a**2 / 3) * np.exp(-a)),
    ):
        expected = shape(np.sqrt(root) * LAGS / scale)
        np.testing.assert_allclose(kernel.covariance(theta, LAGS), expected, rtol=1e-10)
    damping, ratio = 40.0, 0.4
    weights = ratio ** np.arange(3) / (ratio ** np.arange(3)).sum()
    waves = np.cos(2 * np.pi * np.arange(1, 4)[:, None] * LAGS / 12.0)
    expected = np.exp(-LAGS / damping) * (weights @ waves)
    found = Season(12.0, 3).covariance(np.log([damping, ratio]), LAGS)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_shares_of_a_sum_add_up() -> None:
    kernel = TimeSum((Constant(), Matern12()))
    theta = np.log([3.0, 5.0])  # three quarters of it move
    expected = 0.25 + 0.75 * np.exp(-LAGS / 5.0)
    np.testing.assert_allclose(kernel.covariance(theta, LAGS), expected, rtol=1e-12)
