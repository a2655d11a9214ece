"""What kernels say of the functions that they add up, against differences of the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from models.gp.components import Held, held
from models.gp.kernel_terms import columns_of
from models.gp.kernel_text import parse_kernel

N_FEAT, N_DIM = 3, 5
KERNELS = (
    "smooth_additive",
    "flexible",
    "additive",
    "linear",
    "linear + constant",
    "linear(space) + matern32(space)",
    "linear(space) + ard",
    "constant * linear",
    "linear * linear(space)",
    "ard * matern32(space) + ridge",
    "smooth",
    "matern52(space) * constant",
)


def _difference(kernel, theta, z, w, columns, step=0.5):
    """Mixed difference of ``k(z, w)`` by ``z``, once for each of the columns."""
    total = 0.0
    for signs in np.ndindex(*(2 for _ in columns)):
        moved = z.copy()
        for column, on in zip(columns, signs, strict=True):
            moved[:, column] += step * on
        total = total + (-1.0) ** (len(columns) - sum(signs)) * kernel.matrix(theta, moved, w)
    return float(np.abs(total).max())


@pytest.mark.parametrize("text", KERNELS)
def test_columns_are_held_as_differences_of_the_kernel_have_it(text):
    """A mixed difference of ``f`` is zero where its covariance with every ``f(w)`` is."""
    rng = np.random.default_rng(0)
    kernel = parse_kernel(text, N_FEAT, has_coords=True)
    theta = kernel.start(1.0)
    z, w = rng.normal(size=(4, N_DIM)), rng.normal(size=(6, N_DIM))
    looked = []
    for column in range(N_DIM):
        found = held(kernel.components, column)
        if _difference(kernel, theta, z, w, [column]) < 1e-12:
            assert found is None
            continue
        looked.append(column)
        others = [k for k in range(N_DIM) if k != column]
        beside = {k for k in others if _difference(kernel, theta, z, w, [column, k]) > 1e-9}
        twice = sum(
            sign * kernel.matrix(theta, z + shift * np.eye(N_DIM)[column], w)
            for sign, shift in ((1, 1.0), (-2, 0.0), (1, -1.0))
        )
        bent = np.abs(twice).max() > 1e-9
        assert found == Held(linear=not bent and not beside, beside=frozenset(beside))
    assert columns_of(kernel) == ((min(looked), max(looked) + 1) if looked else (0, 0))
