r"""The normalising constant of psi-VGPMIL, by Monte Carlo (Castro-Macias et al. 2024, eq. 20).

A density ``psi`` other than the hyperbolic secant ``phi`` changes the prior of ``f`` to
``N(f) prod_n psi(f_n) / phi(f_n)``, whose constant depends on the kernel:

    log Z = log E_{f ~ GP} exp sum_n t(f_n),   t = log psi - log phi,   over ALL training instances.

Draws of whole functions by random Fourier features make ``sum_n t(f_n)`` additive over blocks, one
number a draw; the gradient by the kernel is that of the draws' sums, weighted by the soft-max of
those numbers, which only the driver knows: it takes a second pass at the same kernel. The draws
are the same at every pass (common random numbers), so that the estimate is a smooth function of
the kernel. For the hyperbolic secant ``t`` is 0 and so is ``log Z``.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax

from models.backend.arrays import like, namespace
from models.gp.kernels import Kernel
from models.mil.variational.sigmoid_densities import Density

N_FEATURE = 256
SEED = 6
ROWS = 2048


class PriorDraws:
    """Functions from the Gaussian process, the same ones for a seed whatever the kernel's values.

    Parameters
    ----------
    kernel : Kernel
    theta : (n_theta,) float64
    intercept_sd : float
        Deviation of the constant that is added to each.
    n_draws, seed : int
    """

    def __init__(
        self, kernel: Kernel, theta: np.ndarray, intercept_sd: float, n_draws: int, seed: int
    ) -> None:
        rng = np.random.default_rng([seed, SEED])
        self._kernel = kernel
        self._features = kernel.features(theta, N_FEATURE, rng)
        self._weights = rng.standard_normal((self._features.n_feature, n_draws))
        self._shift = intercept_sd * rng.standard_normal(n_draws)

    def totals(self, z: np.ndarray, density: Density) -> np.ndarray:
        """Return ``sum_n t(f_n)`` of each draw over inputs ``z`` (n_pix, n_dim): (n_draws,)."""
        total = namespace(z).zeros(self._shift.shape[0])
        weights, shift = like(self._weights, z), like(self._shift, z)
        for rows in _tiles(z):
            f = self._features(rows) @ weights + shift
            total += density.tilt(f).sum(axis=0)
        return total

    def gradient(self, z: np.ndarray, density: Density, share: np.ndarray) -> np.ndarray:
        """Return d/d theta of ``sum_s share_s totals_s``, ``share`` held: (n_theta,)."""
        d_theta = np.zeros(self._kernel.n_theta)
        weights, shift, share = (like(each, z) for each in (self._weights, self._shift, share))
        for rows in _tiles(z):
            phi = self._features(rows)
            f = phi @ weights + shift
            d_phi = (density.tilt_slope(f) * share) @ weights.T
            back, _ = self._features.backward(rows, phi, d_phi)
            d_theta += self._kernel.features_theta(self._features, back)
        return d_theta


def log_z(totals: np.ndarray) -> float:
    """Return the estimate of ``log Z`` from the draws' sums (n_draws,), nats."""
    return float(logsumexp(totals) - np.log(totals.shape[0]))


def shares(totals: np.ndarray) -> np.ndarray:
    """Return the draws' weights in the gradient of :func:`log_z`: (n_draws,)."""
    return np.asarray(softmax(totals))


def _tiles(z: np.ndarray) -> list[np.ndarray]:
    return [z[i : i + ROWS] for i in range(0, z.shape[0], ROWS)]
