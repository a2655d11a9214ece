r"""Which instances of a bag are positive: mean-field updates of ``q(y_n) = Bernoulli(pi_n)``.

    logit pi_n = m_n + log H (2 T_b - 1) prod_{j in b, j != n} (1 - pi_j)      (eqs. 11, 25)

The product is the probability that no other instance is positive, so that it is ``n`` that has to
explain the bag. The ``pi_n`` of a bag depend on each other: they are updated one after the other,
the one with the largest ``m_n`` first, each seeing what those before it have become; updating them
at once need not raise the bound and can go round in circles. ``pi`` is kept by its logit, from
which ``log(1 - pi) = -log(1 + exp(logit))`` without a loss; nothing is divided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from models.backend.compiled import compiled

NEGATIVE = 0.05  # pi of negative bags at the start
MAX_SWEEPS = 200
STILL = 1e-10  # largest change of a pi at which the inner iteration stops


def start_logits(start: float, y: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return logits of the first ``pi``: ``start`` in positive bags, NEGATIVE in others: (n_pix,).

    The paper draws them from U(0, 1), whatever the label. The first ``q(u)`` then knows nothing of
    the labels, and the sweep after it picks the witness of each positive bag by chance: in large
    bags the end is an optimum of a lower bound (docs/design/psi-vgpmil.md).

    Parameters
    ----------
    start : float
    y : (n_bag,) float64
        Labels of the bags, 0 or 1.
    offsets : (n_bag + 1,) int64
    """
    pi = np.repeat(np.where(y > 0.5, start, NEGATIVE), np.diff(offsets))
    return np.asarray(np.log(pi) - np.log1p(-pi))


def update_logits(
    logit: np.ndarray, m: np.ndarray, y: np.ndarray, offsets: np.ndarray, log_h: float, sweeps: int
) -> np.ndarray:
    """Return the logits after ``sweeps`` rounds through each bag, fewer where nothing moves.

    Parameters
    ----------
    logit, m : (n_pix,) float64
        Logits before; means of ``f``.
    y : (n_bag,) float64
        Labels of the bags, 0 or 1.
    offsets : (n_bag + 1,) int64
    log_h : float
    sweeps : int
    """
    bag = np.repeat(np.arange(y.shape[0]), np.diff(offsets))
    order = np.lexsort((-m, bag))
    new = logit.copy()
    _sweep(order, offsets, m, log_h * (2.0 * y - 1.0), new, sweeps, STILL)
    return new


def label_terms(
    logit: np.ndarray, y: np.ndarray, offsets: np.ndarray, log_h: float
) -> tuple[np.ndarray, float]:
    """Return ``pi`` (n_pix,) and its part of the bound that ``f`` has no part in, nats.

    That is ``E log p(T_b | y)`` (eq. 4) and the entropy of ``q(y)``, summed over the bags.
    """
    pi, size = expit(logit), np.abs(logit)
    entropy = np.log1p(np.exp(-size)) + size * expit(-size)
    none = np.exp(-np.add.reduceat(softplus(logit), offsets[:-1]))
    right = np.where(y > 0.5, 1.0 - none, none)
    agree = log_h * (right - 1.0) - np.log1p(np.exp(-log_h))
    return pi, float(entropy.sum() + agree.sum())


def softplus(x: np.ndarray) -> np.ndarray:
    """Return ``log(1 + e^x)``: like ``x``."""
    return np.logaddexp(0.0, x)


# mypy: disable-error-code="no-untyped-def"
# Types below are numba's: float64 scalars, and arrays as update_logits names them.


@compiled
def _log1pexp(x):
    if x > 0.0:
        return x + np.log1p(np.exp(-x))
    return np.log1p(np.exp(x))


@compiled
def _logistic(x):
    if x > 0.0:
        return 1.0 / (1.0 + np.exp(-x))
    return np.exp(x) / (1.0 + np.exp(x))


@compiled
def _sweep(order: Any, offsets, m, pull, logit, sweeps, still):
    """Update ``logit`` in place; ``order`` lists each bag's pixels where the bag's own would be."""
    for a in range(offsets.size - 1):
        for _ in range(sweeps):
            # Anew each time: what rounding leaves of a taken-off term must not pile up.
            none = 0.0
            for k in range(offsets[a], offsets[a + 1]):
                none -= _log1pexp(logit[order[k]])
            largest = 0.0
            for k in range(offsets[a], offsets[a + 1]):
                n = order[k]
                others = min(none + _log1pexp(logit[n]), 0.0)
                now = m[n] + pull[a] * np.exp(others)
                largest = max(largest, abs(_logistic(now) - _logistic(logit[n])))
                logit[n] = now
                none = others - _log1pexp(now)
            if largest < still:
                break
