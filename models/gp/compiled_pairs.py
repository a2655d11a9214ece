"""Loops over the pairs of nodes inside bags: the products of other pairs are not made.

Nodes of a bag are one after the other. Of a strip, rows are those from ``first`` on, and columns
all nodes of the group; what belongs to pairs of different bags is 0.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from models.backend.compiled import compiled_pairs, expm1


@compiled_pairs
def exponential_pairs(prior, kq, k, starts, first, factor, over, rows):
    """Write ``e^S - 1``, ``S = prior - kq k'``, and its sums with ``factor``.

    Parameters
    ----------
    prior : (n_row, n_node)
    kq : (n_row, n_ind)
    k : (n_node, n_ind)
    starts : (n_bag + 1,) int64
        Nodes of each bag.
    first : int
        Node of the first row.
    factor : (n_node,)
    over : (n_row, n_node)
        Written; 0 for pairs of different bags, and of a node with itself.
    rows : (n_row,)
        Written: ``sum_j (e^S_ij - 1) factor_j``.
    """
    n_row = prior.shape[0]
    for a in range(starts.shape[0] - 1):
        lo, hi = starts[a], starts[a + 1]
        top, end = max(lo, first) - first, min(hi, first + n_row) - first
        if top >= end:
            continue
        product = np.dot(kq[top:end], k[lo:hi].T)
        for i in range(top, end):
            for j in range(over.shape[1]):
                over[i, j] = 0.0
            for j in range(lo, hi):
                over[i, j] = expm1(prior[i, j] - product[i - top, j - lo])
            over[i, first + i] = 0.0
            total = 0.0
            for j in range(lo, hi):
                total += over[i, j] * factor[j]
            rows[i] = total


@compiled_pairs
def pair_adjoints(over, k, starts, first, by_row, factor, adjoint, by_k):
    """Write the adjoint ``by_row_i factor_j e^S_ij`` of ``S`` and its product with ``k``.

    ``over`` is what :func:`exponential_pairs` wrote; where that is 0, ``adjoint`` (n_row, n_node)
    is.
    """
    n_row = over.shape[0]
    for a in range(starts.shape[0] - 1):
        lo, hi = starts[a], starts[a + 1]
        top, end = max(lo, first) - first, min(hi, first + n_row) - first
        if top >= end:
            continue
        own = np.empty((end - top, hi - lo), over.dtype)
        for i in range(top, end):
            for j in range(adjoint.shape[1]):
                adjoint[i, j] = 0.0
            for j in range(lo, hi):
                own[i - top, j - lo] = by_row[i] * factor[j] * (over[i, j] + 1.0)
            if lo <= first + i < hi:
                own[i - top, first + i - lo] = 0.0
            for j in range(lo, hi):
                adjoint[i, j] = own[i - top, j - lo]
        by_k[top:end] = np.dot(own, k[lo:hi])
