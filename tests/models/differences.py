"""Finite differences: the second route of every gradient written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]

#: Kernels of every shape, with and without space, added and multiplied.
KERNELS = (
    "additive",
    "rbf",
    "matern12(space) + linear",
    "matern52(x) * rbf(space) + ard",
    "matern32(x)",
    "rbf + constant",
)


def objective(model, state, bags, n_bag=None):
    """Return a model's objective of bags as one block; as half of all, if not given how many."""
    stats, _ = model.block_stats(model.block_params(state), bags, None)
    return model.objective(state, stats, n_bag or 2 * bags.n_bag)


def differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6):
    """Return central differences by each entry, in the shape of ``at``."""
    found = np.empty_like(at)
    for index in np.ndindex(at.shape):
        away = np.zeros_like(at)
        away[index] = step
        found[index] = (value(at + away) - value(at - away)) / (2 * step)
    return found


def check_gradient(
    value: Callable[[Arrays], float],
    at: Arrays,
    grad: Arrays,
    *,
    step: float = 1e-5,
    tolerance: float = 1e-6,
    most: int = 4,
) -> None:
    """Compare slopes of fourth order, array by array.

    By each entry of an array of at most ``most``; along as many random directions of a larger
    one: a wrong entry is in each of them.
    """
    assert set(grad) == set(at)
    rng = np.random.default_rng(0)
    for name, array in at.items():
        n = array.size
        ways = np.eye(n) if n <= most else rng.standard_normal((most, n)) / np.sqrt(n)
        ways = ways.reshape(-1, *array.shape)

        def along(way: np.ndarray, by: float, name: str = name, array: np.ndarray = array) -> float:
            return value({**at, name: array + by * way})

        numeric = np.array(
            [
                8 * (along(way, step) - along(way, -step))
                - (along(way, 2 * step) - along(way, -2 * step))
                for way in ways
            ]
        ) / (12 * step)
        told = np.array([(way * grad[name]).sum() for way in ways])
        error = np.abs(numeric - told).max() / np.abs(numeric).max()
        assert error < tolerance, f"{name}: relative error {error:.1e}"
