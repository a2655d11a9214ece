"""Quasi-Newton steps up a function of the hyperparameters: their lengths and curvatures."""

from __future__ import annotations

import numpy as np

LONGEST = 1.0  # that a logarithm moves in one step
MOST_DEVIATION = 1.0  # of a member from the optimum's logarithm, as a standard deviation
FEW_PARAMETERS = 10  # up to here the held site's curvature is better than what steps tell of it


def bounded_step(inverse: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return the Newton step, no part of it longer than ``LONGEST``.

    Of a longer one Levenberg's way: directions in which the bound is flat are cut first.
    """
    variance, vectors = np.linalg.eigh(inverse)
    variance = np.maximum(variance, 1e-12)
    along = vectors.T @ grad

    def step(damping: float) -> np.ndarray:
        return np.asarray(vectors @ (along / (1.0 / variance + damping)))

    def excess(log_damping: float) -> float:
        return float(np.abs(step(np.exp(log_damping))).max()) - LONGEST

    if np.abs(step(0.0)).max() <= LONGEST:
        return step(0.0)
    low = high = -6.0
    while excess(high) > 0:
        high += 2.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return step(np.exp(high))


def remembered(rows: np.ndarray | None, row: np.ndarray) -> np.ndarray:
    """Return the last steps, or changes of the gradient, with another.

    One for every second hyperparameter beyond few.
    """
    most = max(0, (row.size - FEW_PARAMETERS) // 2)
    all_rows = row[None] if rows is None else np.concatenate([rows, row[None]])
    return all_rows[all_rows.shape[0] - min(most, all_rows.shape[0]) :]


def bfgs(inverse: np.ndarray, step: np.ndarray, bent: np.ndarray) -> np.ndarray:
    """Update an inverse Hessian (of what is minimised) by a step and the change of the gradient."""
    curvature = float(step @ bent)
    if curvature <= 1e-8 * float(np.linalg.norm(step) * np.linalg.norm(bent)):
        return inverse
    rho = 1.0 / curvature
    left = np.eye(step.size) - rho * np.outer(step, bent)
    updated = left @ inverse @ left.T + rho * np.outer(step, step)
    return 0.5 * (updated + updated.T)


def bounded_inverse(precision: np.ndarray) -> np.ndarray:
    """Invert a symmetric matrix; no direction gets a deviation above ``MOST_DEVIATION``."""
    values, vectors = np.linalg.eigh(precision)
    variance = 1.0 / np.maximum(values, 1.0 / MOST_DEVIATION**2)
    return np.asarray((vectors * variance) @ vectors.T)


def member_offsets(covariance: np.ndarray, n_member: int, seed: int) -> np.ndarray:
    """Draw from ``N(0, covariance)`` in antithetic pairs along orthogonal directions.

    Parameters
    ----------
    covariance : (n_phi, n_phi)
    n_member : int
    seed : int

    Returns
    -------
    (n_member, n_phi)
    """
    n_phi = covariance.shape[0]
    rng = np.random.default_rng([seed, 7])
    values, vectors = np.linalg.eigh(covariance)
    # The symmetric root: it changes little where the covariance does.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    found: list[np.ndarray] = []
    while len(found) < n_member:
        frame, _ = np.linalg.qr(rng.standard_normal((n_phi, n_phi)))
        for direction in frame.T:
            radius = np.sqrt(rng.chisquare(n_phi))
            found += [root @ direction * radius, -(root @ direction) * radius]
    return np.stack(found[:n_member])


def fall_at(offsets: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return by how many nats ``N(0, covariance)`` falls at some of its draws: (n,).

    A covariance may be singular: along what it holds fixed no draw goes.
    """
    inverse = np.linalg.pinv(covariance, hermitian=True)
    return np.asarray(0.5 * ((offsets @ inverse) * offsets).sum(axis=1))
