"""Paths of the prior over periods, and inducing values by their kernel in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.temporal.markov import Constant, MarkovKernel
from models.temporal.path_prior import Group


def prior_paths(
    groups: Sequence[Group], times: np.ndarray, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
    paths = [
        draw_paths(group.kernel, group.theta, times, (group.values.size, n_draws), rng)
        for group in groups
    ]
    out = np.empty((times.size, sum(group.values.size for group in groups), n_draws))
    for group, path in zip(groups, paths, strict=True):
        out[:, group.values] = path
    return out


def draw_paths(
    kernel: MarkovKernel,
    theta: np.ndarray,
    times: np.ndarray,
    shape: tuple[int, ...],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw independent paths of a kernel in time: (n_period, *shape)."""
    h, p = kernel.observation_model(), kernel.stationary_covariance(theta)
    if kernel.still:
        drawn = np.sqrt(h @ p @ h) * rng.standard_normal(shape)
        return np.broadcast_to(drawn, (times.size, *shape))
    size, out = int(np.prod(shape)), np.empty((times.size, *shape))
    state = _square_root(p) @ rng.standard_normal((h.size, size))
    out[0] = (h @ state).reshape(shape)
    for t, step in enumerate(np.diff(times), start=1):
        a = kernel.transition_matrix(theta, float(step))
        noise = _square_root(p - a @ p @ a.T)
        state = a @ state + noise @ rng.standard_normal((h.size, size))
        out[t] = (h @ state).reshape(shape)
    return out


def groups_by_time(
    of: np.ndarray, kernels: Sequence[MarkovKernel], theta: Sequence[np.ndarray]
) -> list[Group]:
    """Return inducing values by their kernel in time.

    Parameters
    ----------
    of : (n_value,) int64
        Number of each value's kernel; below 0 where it holds still.
    kernels, theta : sequence
    """
    groups = []
    if (of < 0).any():
        groups.append(Group(Constant(), np.zeros(0), np.flatnonzero(of < 0)))
    for number, (kernel, own) in enumerate(zip(kernels, theta, strict=True)):
        groups.append(Group(kernel, own, np.flatnonzero(of == number)))
    return groups


def with_theta(groups: Sequence[Group], theta: Sequence[np.ndarray]) -> list[Group]:
    """Return the groups with other parameters of their kernels."""
    return [replace(group, theta=own) for group, own in zip(groups, theta, strict=True)]


def _square_root(cov: np.ndarray) -> np.ndarray:
    value, vector = np.linalg.eigh(0.5 * (cov + cov.T))
    return np.asarray(vector * np.sqrt(np.maximum(value, 0.0)))
