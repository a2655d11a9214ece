"""The counts of an interval, such as the 0 to 4 of ``<5``, and sums of their densities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from models.backend.arrays import namespace

LEAST = -1e300  # log density of a count that cannot be: the sum's derivatives stay finite


def counts_within(y: Any, margin: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the counts of intervals of middle ``y`` one after the other, and which have so many.

    Parameters
    ----------
    y, margin : (n_bag,) arrays

    Yields
    ------
    count : (n_bag,) array
    inside : (n_bag,) bool array
    """
    xp = namespace(margin)
    n_more = xp.floor(2.0 * margin + 0.5)
    for k in range(int(n_more.max()) + 1 if n_more.size else 1):
        yield y - margin + xp.minimum(n_more, float(k)), n_more >= k


def mixed(each: Any, inside: Any) -> tuple[Any, Any]:
    """Return ``log sum_k e^each_k`` over the counts inside, and the share of each.

    Parameters
    ----------
    each : (n_count, ..., n_bag) array
    inside : (n_count, n_bag) bool array
    """
    xp = namespace(each)
    shape = (each.shape[0],) + (1,) * (each.ndim - 2) + each.shape[-1:]
    each = xp.where(inside.reshape(shape), xp.maximum(each, LEAST), -np.inf)
    top = each.max(axis=0)
    share = xp.exp(each - top)
    total = share.sum(axis=0)
    return top + xp.log(total), share / total
