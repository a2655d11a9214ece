r"""The states of whitened values: those that move, and what holds still.

A kernel in time may be a sum of one that moves and a constant: ``v_t = H x_t + c``. A filter that
carried ``c`` among its states would have twice as many. Given ``c`` all is linear in it, so that
the filter runs on ``x`` alone, with the slopes of its means by ``c`` as further columns, and ``c``
is integrated out at the end (Friedland 1969; de Jong 1991 for an unknown start).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from models.backend.arrays import cholesky
from models.temporal.path_prior import Group


class Part:
    """The states of one group.

    Parameters
    ----------
    group : Group

    Attributes
    ----------
    values : (n,) int64
        Their places in ``v``.
    h : (n_moving,) float64
        Of the states that move.
    p : (n_moving, n_moving) float64
        Their stationary covariance.
    holds : bool
        Whether a part of each value holds still.
    variance : float
        Of that part.
    """

    def __init__(self, group: Group) -> None:
        kernel, self.values, self._group = group.kernel, group.values, group
        still = kernel.still_states
        h, p = kernel.observation_model(), kernel.stationary_covariance(group.theta)
        self._moving = np.ix_(np.flatnonzero(~still), np.flatnonzero(~still))
        self._h_still = np.where(still, h, 0.0)
        self.h, self.p = h[~still], p[self._moving]
        self.holds = bool(still.any())
        self.variance = float(self._h_still @ p @ self._h_still)

    @property
    def n_theta(self) -> int:
        """Number of parameters of the kernel in time."""
        return self._group.kernel.n_theta

    def transition(self, step: float) -> np.ndarray:
        """Return ``A(step)`` of the states that move."""
        return self._group.kernel.transition_matrix(self._group.theta, step)[self._moving]

    def by_theta(
        self, by_a: dict[float, np.ndarray], by_p: np.ndarray, by_variance: float
    ) -> np.ndarray:
        """Return the slopes by the kernel's parameters: (n_theta,).

        Parameters
        ----------
        by_a : dict
            Slopes by ``A`` of each step: (n_moving, n_moving).
        by_p : (n_moving, n_moving) float64
        by_variance : float
        """
        kernel, theta = self._group.kernel, self._group.theta
        grad = np.zeros(self.n_theta)
        if not grad.size:
            return grad
        for step, own in by_a.items():
            by_moving = kernel.slopes(theta, step)[0][:, self._moving[0], self._moving[1]]
            grad += np.tensordot(by_moving, own, 2)
        whole = by_variance * np.outer(self._h_still, self._h_still)
        whole[self._moving] += by_p
        return grad + np.tensordot(kernel.slopes(theta, 1.0)[1], whole, 2)


@dataclass(frozen=True)
class Still:
    """What is known of the values that hold still: ``N(mean, half' half)``.

    Attributes
    ----------
    mean : (n,) float64
    half : (n, n) float64
    """

    mean: np.ndarray
    half: np.ndarray

    @property
    def cov(self) -> np.ndarray:
        """The covariance: (n, n)."""
        return self.half.T @ self.half

    def given(self, precision: np.ndarray, linear: np.ndarray) -> tuple[Still, float]:
        """Return the posterior of a site, and the logarithm of the integral.

        Parameters
        ----------
        precision : (n, n) float64
        linear : (n,) float64

        Raises
        ------
        numpy.linalg.LinAlgError
        """
        pulled = precision @ self.mean
        lower = root_of(self.half @ precision @ self.half.T)
        half = solve_triangular(lower, self.half, lower=True, check_finite=False)
        z = half @ (linear - pulled)
        log_z = float(self.mean @ (linear - 0.5 * pulled)) + 0.5 * float(z @ z)
        log_z -= float(np.log(np.diag(lower)).sum())
        return Still(self.mean + half.T @ z, half), log_z


@dataclass(frozen=True)
class Step:
    """What the way back needs of one step of :mod:`models.temporal.state_space`.

    Attributes
    ----------
    mean : (n_x, 1 + n_still) float64
        ``a, T`` after the update.
    cov : (n_x, n_x) float64
    half, inner : (n_x, rank) float64, (rank, n_x) float64
        ``G`` and ``L^-1 B H``.
    w : (rank, 1 + n_still) float64
        ``L^-1 B H a, W``.
    pull : (n_x,) float64
        ``H' lambda``.
    """

    mean: np.ndarray
    cov: np.ndarray
    half: np.ndarray
    inner: np.ndarray
    w: np.ndarray
    pull: np.ndarray


def root_of(seen: np.ndarray) -> np.ndarray:
    """Return the lower root of ``1 + seen``.

    Raises
    ------
    numpy.linalg.LinAlgError
    """
    lower = np.asarray(cholesky(np.eye(seen.shape[0]) + 0.5 * (seen + seen.T)))
    if not np.isfinite(np.diag(lower)).all():
        raise np.linalg.LinAlgError
    return lower
