"""Slopes of ``log Z`` of a state space by its kernels in time, on the smoother's way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from models.temporal.states import Part, Step, Still


class PathSlopes:
    """Slopes of ``log Z`` by the kernels in time, added up from the last period to the first."""

    def __init__(self, parts: Sequence[Part], rows: Sequence[slice], still: Still) -> None:
        self._parts, self._rows, self._still = parts, rows, still
        self._cov = still.cov
        self._by_a: list[dict[float, np.ndarray]] = [{} for _ in parts]
        self._by_p = [np.zeros_like(part.p) for part in parts]

    def _averaged(self, mu: np.ndarray, curve: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the means of ``mu`` and by the predicted covariance, and ``U cov(c)``."""
        across = mu[:, 1:] @ self._cov
        own = mu[:, 0] + mu[:, 1:] @ self._still.mean
        return own, 0.5 * (np.outer(own, own) + across @ mu[:, 1:].T - curve), across

    def start(self, mu: np.ndarray, curve: np.ndarray) -> None:
        """Add those by the covariance of the first states."""
        by_cov = self._averaged(mu, curve)[1]
        for number, (part, rows) in enumerate(zip(self._parts, self._rows, strict=True)):
            self._by_p[number] += traced(by_cov[rows, rows], part.values.size)

    def add(
        self,
        before: Step,
        step: float,
        transition: Sequence[np.ndarray],
        mu: np.ndarray,
        curve: np.ndarray,
        move: Callable[[np.ndarray, float], np.ndarray],
    ) -> None:
        """Add those by ``A`` of a step, and by what it leaves of the stationary covariance."""
        by_mean, by_cov, across = self._averaged(mu, curve)
        mean = before.mean[:, 0] + before.mean[:, 1:] @ self._still.mean
        moved = move(before.cov, step)
        for number, (part, rows) in enumerate(zip(self._parts, self._rows, strict=True)):
            if not part.n_theta or not part.h.size:
                continue
            n, d, a = part.values.size, part.h.size, transition[number]
            own = traced(by_cov[rows, rows], n)
            by = 2.0 * (_traced_product(by_cov[rows], moved[:, rows], n) - own @ a @ part.p)
            by += by_mean[rows].reshape(d, n) @ mean[rows].reshape(d, n).T
            by += across[rows].reshape(d, -1) @ before.mean[rows, 1:].reshape(d, -1).T
            known = self._by_a[number]
            known[step] = known[step] + by if step in known else by
            self._by_p[number] += own - a.T @ own @ a

    def by_theta(self, by_variance: np.ndarray) -> list[np.ndarray]:
        """Return the slopes by each group's parameters."""
        found, first = [], 0
        for part, by_a, by_p in zip(self._parts, self._by_a, self._by_p, strict=True):
            stop = first + part.values.size * part.holds
            found.append(part.by_theta(by_a, by_p, float(by_variance[first:stop].sum())))
            first = stop
        return found


def traced(block: np.ndarray, n: int) -> np.ndarray:
    """Return the traces of the n x n blocks of a (d n, d n) matrix: (d, d)."""
    d = block.shape[0] // n
    return np.asarray(np.einsum("imjm->ij", block.reshape(d, n, d, n)))


def _traced_product(left: np.ndarray, right: np.ndarray, n: int) -> np.ndarray:
    """Return the traces of the n x n blocks of ``left right``, (d n, k) and (k, d n): (d, d)."""
    d = left.shape[0] // n
    by_left = left.reshape(d, -1)
    by_right = np.ascontiguousarray(right.T).reshape(d, -1)
    return np.asarray(by_left @ by_right.T)
