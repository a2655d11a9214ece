"""Loops over the pairs of pixels and nodes, in one pass each: kernels, and their adjoints.

Functions of a shape come in two forms. ``matrix`` reads squared distances, ``scale`` times, made by
a product of matrices; ``line`` makes the distances of one column itself. Both write the kernel and
``u`` (:mod:`models.gp.shapes`), all of them C-contiguous. None writes what it reads: the compiler
takes the vector unit only where arrays are apart.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from models.backend.compiled import compiled_pairs, compiled_sums, exp

THIRD = 1.0 / 3.0


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
            decay = exp(log_variance - a)
            u[i, j] = decay
            value[i, j] = (a + 1.0) * decay


@compiled_pairs
def matern32_line(z, w, log_variance, value, u):
    """See :func:`matern32_matrix`."""
    root = np.sqrt(3.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            a = root * abs(z[i] - w[j])
            decay = exp(log_variance - a)
            u[i, j] = decay
            value[i, j] = (a + 1.0) * decay


@compiled_pairs
def matern52_matrix(d2, log_variance, value, u):
    """``(1 + a + a^2 / 3) e^-a``, ``u = (1 + a) e^-a``, with ``a = sqrt5 d``."""
    for i in range(d2.shape[0]):
        for j in range(d2.shape[1]):
            square = max(d2[i, j], 0.0)
            a = np.sqrt(square)
            decay = exp(log_variance - a)
            first = (a + 1.0) * decay
            u[i, j] = first
            value[i, j] = square * THIRD * decay + first


@compiled_pairs
def matern52_line(z, w, log_variance, value, u):
    """See :func:`matern52_matrix`."""
    root = np.sqrt(5.0)
    for i in range(z.shape[0]):
        for j in range(w.shape[0]):
            a = root * abs(z[i] - w[j])
            decay = exp(log_variance - a)
            first = (a + 1.0) * decay
            u[i, j] = first
            value[i, j] = a * a * THIRD * decay + first


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
