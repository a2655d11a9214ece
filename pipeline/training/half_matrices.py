"""Symmetric matrices on their way between driver and workers: half of each is sent.

Only matrices that equal their transpose to the last bit are halved, and they come back in the same
layout, so that nothing that is computed with them changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.core.protocol import Arrays, Stats
from models.training.reduction import Partial

LEAST_ROWS = 32  # of a matrix that is worth it


@dataclass(frozen=True)
class Half:
    """The upper triangle of a symmetric float64 matrix, row by row.

    Attributes
    ----------
    n_row : int
    values : (n_row * (n_row + 1) / 2,) float64
    """

    n_row: int
    values: np.ndarray


def halved(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays with the symmetric matrices replaced by their halves."""
    return {name: _half(each) if _is_symmetric(each) else each for name, each in arrays.items()}


def whole(arrays: Mapping[str, Any]) -> Arrays:
    """Return the arrays that :func:`halved` got."""
    return {
        name: each.values[_positions(each.n_row)] if isinstance(each, Half) else each
        for name, each in arrays.items()
    }


def halved_sums(parts: list[Partial]) -> list[Partial]:
    """Return partial sums with halves in them."""
    return [replace(each, stats=_with(each.stats, halved(each.stats.sums))) for each in parts]


def whole_sums(parts: list[Partial]) -> list[Partial]:
    """Return the partial sums that :func:`halved_sums` got."""
    return [replace(each, stats=_with(each.stats, whole(each.stats.sums))) for each in parts]


def _with(stats: Stats, sums: dict[str, Any]) -> Stats:
    return replace(stats, sums=sums)


def _is_symmetric(array: Any) -> bool:
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype != np.float64:
        return False
    if array.shape[0] != array.shape[1] or array.shape[0] < LEAST_ROWS:
        return False
    if not array.flags.c_contiguous:  # it would come back in another layout
        return False
    bits = array.view(np.int64)  # 0 and -0 are equal numbers, and other bits
    return bool(np.array_equal(bits, bits.T))


def _half(array: np.ndarray) -> Half:
    return Half(array.shape[0], array.reshape(-1)[_upper(array.shape[0])])


@functools.lru_cache(maxsize=8)
def _upper(n: int) -> np.ndarray:
    """Return the flat positions of the upper triangle."""
    row, column = np.triu_indices(n)
    return row * n + column


@functools.lru_cache(maxsize=8)
def _positions(n: int) -> np.ndarray:
    """Return where each element of the whole matrix is in the half."""
    positions = np.empty((n, n), dtype=np.intp)
    row, column = np.triu_indices(n)
    positions[row, column] = positions[column, row] = np.arange(row.size)
    return positions
