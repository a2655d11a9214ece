"""Quantiles of mixtures of normal distributions, one pixel after the other.

What :mod:`models.likelihoods.mixture` does with arrays of all pixels, as a device needs, in one
loop: a pixel ends where its own root is found, and nothing is written but the roots.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from math import erfc, exp, pi, sqrt

import numba
import numpy as np

from models.backend.compiled import compiled

SQRT_2, SQRT_2PI = sqrt(2.0), sqrt(2.0 * pi)


@numba.njit(inline="always")
def _below(off, sd, closed):
    """Return ``Phi(off / sd)`` and its slope; of no variance a step, whose value at 0 is closed."""
    if sd > 0.0:
        z = off / sd
        return 0.5 * erfc(-z / SQRT_2), exp(-0.5 * z * z) / (SQRT_2PI * sd)
    return (1.0 if off > 0.0 or (closed and off == 0.0) else 0.0), 0.0


@numba.njit(inline="always")
def _law(t, w, m, sd, q, folded):
    """Return the distribution function at ``t`` less ``q``, without loss in a tail; its slope."""
    value, slope, lower = 0.0, 0.0, q <= 0.5
    for k in range(w.size):
        near, by_near = _below(t - m[k] if lower else m[k] - t, sd[k], lower)
        value += w[k] * near if lower else -w[k] * near
        slope += w[k] * by_near
        if folded:  # beyond 0, on the other side of m
            far, by_far = _below(-t - m[k], sd[k], False)
            value -= w[k] * far
            slope += w[k] * by_far
    return (value - q if lower else (1.0 - q) + value), slope


@compiled
def mixture_quantiles(w, m, sd, q, z, z_high, folded, most_steps, tolerance, near):
    """Return quantiles of ``sum_k w_k N(m_k, sd_k^2)`` of each pixel.

    Newton's steps inside a bracket, which is halved where they are slow.

    Parameters
    ----------
    w : (n_part,) float64
        Weights, above 0, which add up to 1.
    m, sd : (n_pix, n_part) float64
        With ``folded``, ``m`` not below 0.
    q : float
        Probability, in (0, 1).
    z, z_high : float
        Quantile of the normal distribution at ``q``, and at ``(1 + q) / 2``.
    folded : bool
        Quantiles of ``|f|`` instead of ``f``.
    most_steps : int
    tolerance : float
        Of a root, as a share of the size of ``f``.
    near : float
        Of a root, in probability.

    Returns
    -------
    (n_pix,) float64
    """
    found = np.empty(m.shape[0])
    for i in range(m.shape[0]):
        low, high, mean, square = np.inf, -np.inf, 0.0, 0.0
        for k in range(w.size):
            mean += w[k] * m[i, k]
        for k in range(w.size):
            least = m[i, k] + z * sd[i, k]
            most = m[i, k] + z_high * sd[i, k] if folded else least
            low, high = min(low, max(least, 0.0) if folded else least), max(high, most)
            square += w[k] * (sd[i, k] ** 2 + (m[i, k] - mean) ** 2)
        spread = sqrt(square)
        t = min(max(mean + z * spread, low), high)
        before = high - low
        smallest = tolerance * (max(abs(low), abs(high)) + spread)
        for _ in range(most_steps):
            value, slope = _law(t, w, m[i], sd[i], q, folded)
            if value < 0.0:
                low = t
            else:
                high = t
            new = t - value / slope if slope > 0.0 else np.inf
            step, close = abs(new - t), abs(value) <= near
            # Newton must come twice as near each time; a tiny step is an end only near the root,
            # and elsewhere a part of tiny variance, whose slope is steep.
            inside = low <= new <= high and step <= 0.5 * before
            if not (inside and (close or step > smallest)):
                new = 0.5 * (low + high)
            before, t = abs(new - t), new
            if (before <= smallest and close) or high - low <= smallest:
                break
        found[i] = t
    return found
