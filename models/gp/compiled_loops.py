"""Loops over pairs of pixels and nodes, in one pass each: kernels, their adjoints, pairs in bags.

Functions of a shape come in two forms. ``matrix`` reads squared distances, ``scale`` times, made by
a product of matrices; ``line`` makes the distances of one column itself. Both write the kernel and
``u`` (:mod:`models.gp.shapes`), all of them C-contiguous. None writes what it reads: the compiler
takes the vector unit only where arrays are apart. ``written`` is
``line`` without ``u``, into some columns of a matrix.

Of pairs inside bags the nodes of a bag are one after the other. Of a strip, rows are those from
``first`` on, and columns all nodes of the group; what belongs to pairs of different bags is 0.

``docs/design/compiled.md`` has what was weighed and measured.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from models.backend.compiled import compiled_pairs, compiled_sums

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: added, it leaves the nearest integer in the last bits
LEAST, MOST = -708.0, 709.0  # outside, e^x is taken for 0 and for infinity
NOTHING_LEFT = -40.0  # e^x is lost in -1 + e^x


def _bits() -> tuple[Any, Any]:
    @intrinsic
    def bits_of(typing: Any, x: Any) -> Any:
        del typing, x

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return builder.bitcast(args[0], ir.IntType(64))

        return types.int64(types.float64), generate

    @intrinsic
    def of_bits(typing: Any, x: Any) -> Any:
        del typing, x

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return builder.bitcast(args[0], ir.DoubleType())

        return types.float64(types.int64), generate

    return bits_of, of_bits


_bits_of, _of_bits = _bits()


@numba.njit(inline="always")
def _slope(r):
    """Return ``(e^r - 1) / r``, by Taylor's polynomial of degree 12: for ``|r| <= log(2) / 2``."""
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    return p * r + 1.0


@numba.njit(inline="always")
def exp(x):
    """Return ``e^x`` within 2 units in the last place, as the vector unit can: no branch, no table.

    ``x = n log 2 + r``; ``e^r`` is a polynomial, ``2^n`` an exponent. Below
    -708 it is 0, above 709 infinite.
    """
    at = min(max(x, LEAST), MOST)
    shifted = at * LOG2_E + TO_INTEGER
    n = shifted - TO_INTEGER
    r = (at - n * LN2_HIGH) - n * LN2_LOW
    p = _slope(r) * r + 1.0
    p *= _of_bits((_bits_of(shifted) + np.int64(1023)) << np.int64(52))
    if x < LEAST:
        return 0.0
    if x > MOST:
        return np.inf
    return p if x == x else x


@numba.njit(inline="always")
def expm1(x):
    """Return ``e^x - 1`` as :func:`exp` does, near 0 with all digits."""
    at = min(max(x, NOTHING_LEFT), MOST)
    shifted = at * LOG2_E + TO_INTEGER
    n = shifted - TO_INTEGER
    r = (at - n * LN2_HIGH) - n * LN2_LOW
    p = _slope(r)
    two = _of_bits((_bits_of(shifted) + np.int64(1023)) << np.int64(52))
    p = two * (p * r) + (two - 1.0)
    if x > MOST:
        return np.inf
    return p if x == x else x


THIRD = 1.0 / 3.0


@numba.njit(inline="always")
def _matern32(a, log_variance):
    """Return ``(1 + a) e^-a`` and ``e^-a``, times the variance."""
    decay = exp(log_variance - a)
    return (a + 1.0) * decay, decay


@numba.njit(inline="always")
def _matern52(square, a, log_variance):
    """Return ``(1 + a + a^2 / 3) e^-a`` and ``(1 + a) e^-a``, times the variance."""
    decay = exp(log_variance - a)
    first = (a + 1.0) * decay
    return square * THIRD * decay + first, first


@compiled_pairs
def rbf_matrix(d2, value):
    """``scale`` and the log variance are in ``d2`` already."""
    for i in range(d2.shape[0]):
        for j in range(d2.shape[1]):
            value[i, j] = exp(d2[i, j])


@compiled_pairs
def rbf_line(z, w, log_variance, value):
    """``exp(-d^2 / 2)``."""
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            d = z[i] - w[j]
            value[i, j] = exp(log_variance - 0.5 * d * d)


@compiled_pairs
def rbf_written(z, w, log_variance, out, first):
    """:func:`rbf_line` into the columns of ``out`` from ``first`` on."""
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            d = z[i] - w[j]
            out[i, first + j] = exp(log_variance - 0.5 * d * d)


@compiled_pairs
def matern12_written(z, w, log_variance, out, first):
    """See :func:`rbf_written`."""
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            out[i, first + j] = exp(log_variance - abs(z[i] - w[j]))


@compiled_pairs
def matern32_written(z, w, log_variance, out, first):
    """See :func:`rbf_written`."""
    root = np.sqrt(3.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            out[i, first + j] = _matern32(root * abs(z[i] - w[j]), log_variance)[0]


@compiled_pairs
def matern52_written(z, w, log_variance, out, first):
    """See :func:`rbf_written`."""
    root = np.sqrt(5.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            a = root * abs(z[i] - w[j])
            out[i, first + j] = _matern52(a * a, a, log_variance)[0]


@compiled_pairs
def matern12_matrix(d2, least, log_variance, value, u):
    """``u = k / d``, and 0 where a distance is rounding, at most ``least``."""
    for i in range(d2.shape[0]):
        for j in range(d2.shape[1]):
            apart = d2[i, j] > least
            r = np.sqrt(d2[i, j] if apart else 0.0)
            k = exp(log_variance - r)
            value[i, j] = k
            u[i, j] = k / (r if apart else 1.0) if apart else 0.0


@compiled_pairs
def matern12_line(z, w, least, log_variance, value, u):
    """See :func:`matern12_matrix`."""
    least = np.sqrt(least)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            r = abs(z[i] - w[j])
            apart = r > least
            k = exp(log_variance - r)
            value[i, j] = k
            u[i, j] = k / (r if apart else 1.0) if apart else 0.0


@compiled_pairs
def matern32_matrix(d2, log_variance, value, u):
    """``(1 + a) e^-a``, ``u = e^-a``, with ``a = sqrt3 d``."""
    for i in range(d2.shape[0]):
        for j in range(d2.shape[1]):
            a = np.sqrt(max(d2[i, j], 0.0))
            value[i, j], u[i, j] = _matern32(a, log_variance)


@compiled_pairs
def matern32_line(z, w, log_variance, value, u):
    """See :func:`matern32_matrix`."""
    root = np.sqrt(3.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            value[i, j], u[i, j] = _matern32(root * abs(z[i] - w[j]), log_variance)


@compiled_pairs
def matern52_matrix(d2, log_variance, value, u):
    """``(1 + a + a^2 / 3) e^-a``, ``u = (1 + a) e^-a``, with ``a = sqrt5 d``."""
    for i in range(d2.shape[0]):
        for j in range(d2.shape[1]):
            square = max(d2[i, j], 0.0)
            value[i, j], u[i, j] = _matern52(square, np.sqrt(square), log_variance)


@compiled_pairs
def matern52_line(z, w, log_variance, value, u):
    """See :func:`matern52_matrix`."""
    root = np.sqrt(5.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            a = root * abs(z[i] - w[j])
            value[i, j], u[i, j] = _matern52(a * a, a, log_variance)


@compiled_sums
def line_adjoints(adjoint, value, u, z, w, by_w):
    """Return ``sum G k`` and ``sum G u (z - w)^2``; add ``sum_i G u (z - w)`` to ``by_w`` (m,)."""
    by_variance, by_scale = 0.0, 0.0
    for i in range(z.shape[0]):
        own, total = 0.0, 0.0
        for j in range(w.shape[0]):
            d = z[i] - w[j]
            g = adjoint[i, j] * u[i, j]
            own += adjoint[i, j] * value[i, j]
            total += g * d * d
            by_w[j] += g * d
        by_variance += own
        by_scale += total
    return by_variance, by_scale


@compiled_sums
def weighed(adjoint, value, u, g, rows):
    """Write ``g = G u`` and its sums ``rows`` (n,), and return ``sum G k``."""
    by_variance = 0.0
    for i in range(adjoint.shape[0]):
        own, total = 0.0, 0.0
        for j in range(adjoint.shape[1]):
            each = adjoint[i, j] * u[i, j]
            g[i, j] = each
            total += each
            own += adjoint[i, j] * value[i, j]
        rows[i] = total
        by_variance += own
    return by_variance


@compiled_sums
def averaged(k, share, out):
    """Average the columns (n, n_value * n_node) of each inducing variable into (n, n_value)."""
    n_node = share.shape[1]
    for i in range(k.shape[0]):
        for v in range(share.shape[0]):
            total = 0.0
            for j in range(n_node):
                total += k[i, v * n_node + j] * share[v, j]
            out[i, v] = total


@compiled_pairs
def write_waves(tangent, amplitude, spans, out):
    """Write cosines and sines of angles, by the tangents of half of them.

    ``cos = 2 / (1 + t^2) - 1``, ``sin = 2 t / (1 + t^2)``: one vectorised tangent is six times as
    fast as NumPy's cosine and sine, float64.

    Parameters
    ----------
    tangent : (n, n_wave)
    amplitude : (n_span,), of the type of ``tangent``
    spans : (n_span, 3) int64
        First wave, waves, and the column of ``out`` from which on their cosines are; their sines
        follow.
    out : (n, n_column)
    """
    one = tangent.dtype.type(1)
    for i in range(tangent.shape[0]):
        for s in range(spans.shape[0]):
            first, n, column = spans[s]
            size = amplitude[s]
            for j in range(n):
                t = tangent[i, first + j]
                cos = (size + size) / (t * t + one)
                out[i, column + j] = cos - size
                out[i, column + n + j] = t * cos


@compiled_pairs
def add_blend(total, low, high, by_low, by_high, diagonal):
    """Add ``by_low low + by_high high`` to the lower triangle of ``total``; write its diagonal."""
    for i in range(total.shape[0]):
        for j in range(i):
            total[i, j] += by_low * low[i, j] + by_high * high[i, j]
        diagonal[i] = by_low * low[i, i] + by_high * high[i, i]
        total[i, i] += diagonal[i]


@compiled_pairs
def add_lower(total, matrix):
    """Add the lower triangle of a matrix to that of ``total``."""
    for i in range(total.shape[0]):
        for j in range(i + 1):
            total[i, j] += matrix[i, j]


@compiled_pairs
def exponential_pairs(prior, kq, k, starts, first, factor, over, rows):
    """Write ``e^S - 1``, ``S = prior - K Q K'``, and its sums with ``factor``.

    Parameters
    ----------
    prior : (n_row, n_node)
    kq, k : (n_node, n_ind)
        ``K T`` for a ``T`` with ``T + T' = 2 Q``, such as ``Q``; and ``K``.
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
        one = np.dot(kq[first + top : first + end], k[lo:hi].T)
        other = np.dot(kq[lo:hi], k[first + top : first + end].T)
        for i in range(top, end):
            for j in range(over.shape[1]):
                over[i, j] = 0.0
            for j in range(lo, hi):
                shared = 0.5 * (one[i - top, j - lo] + other[j - lo, i - top])
                over[i, j] = expm1(prior[i, j] - shared)
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
            own[i - top, first + i - lo] = 0.0
            for j in range(lo, hi):
                adjoint[i, j] = own[i - top, j - lo]
        np.dot(own, k[lo:hi], by_k[top:end])
