r"""How the label of a bag sees its instances: pooling functions with their derivatives.

A pooling turns the latent values ``f_i`` of a bag's instances into the logit ``A_b`` of its label:

    soft_max:  A_b = (1/t) log (1/n_b) sum_i exp(t f_i),     mean at t -> 0, maximum at infinity
    noisy_or:  P(T_b = 0 | f) = prod_i (1 - sigma(f_i)),     A_b = log(exp(sum log(1 + e^f_i)) - 1)

``soft_max`` does not know the size of the bag; under ``noisy_or`` more instances make a bag more
probably positive. For both, with ``p_i = dA_b / df_i``, the second derivative is
``diag(d) - g_b p p'``, which is all that Laplace's approximation asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

from models.backend.arrays import segment_max, segment_sum, spread

Pooling = Literal["soft_max", "noisy_or"]
LEAST = 1e-300  # of noisy-or's sum of soft-plus values


@dataclass(frozen=True)
class Pooled:
    """Logits of some bags and their derivatives.

    Attributes
    ----------
    logit : (n_bag,) float64
        ``A``.
    share : (n_pix,) float64
        ``p = dA / df``; adds up to one over each bag under ``soft_max``.
    diagonal : (n_pix,) float64
        ``d``.
    rank_one : (n_bag,) float64
        ``g``: the second derivative of ``A_b`` is ``diag(d) - g_b p p'``.
    by_log_t : (n_bag,) float64
        Derivative of ``A`` by ``log t``; 0 under ``noisy_or``.
    share_by_log_t : (n_pix,) float64
        Derivative of ``p`` by ``log t``.
    """

    logit: np.ndarray
    share: np.ndarray
    diagonal: np.ndarray
    rank_one: np.ndarray
    by_log_t: np.ndarray
    share_by_log_t: np.ndarray


def pool(kind: Pooling, f: np.ndarray, offsets: np.ndarray, t: float) -> Pooled:
    """Pool latent values bag by bag.

    Parameters
    ----------
    kind : {"soft_max", "noisy_or"}
    f : (n_pix,) float64
    offsets : (n_bag + 1,) int64
    t : float
        Inverse temperature of ``soft_max``, above 0.
    """
    return _soft_max(f, offsets, t) if kind == "soft_max" else _noisy_or(f, offsets)


def _soft_max(f: np.ndarray, offsets: np.ndarray, t: float) -> Pooled:
    size = np.diff(offsets).astype(np.float64)
    top = segment_max(f, offsets)
    below = f - spread(top, offsets)
    # All terms have one sign: nothing cancels, however small t is.
    grown = np.expm1(t * below)
    mean = segment_sum(grown, offsets) / size
    logit = top + np.log1p(mean) / t
    share = (1.0 + grown) / spread(size * (1.0 + mean), offsets)
    centre = segment_sum(share * below, offsets)
    return Pooled(
        logit,
        share,
        t * share,
        np.full(size.shape, t),
        centre - np.log1p(mean) / t,
        t * share * (below - spread(centre, offsets)),
    )


def _noisy_or(f: np.ndarray, offsets: np.ndarray) -> Pooled:
    total = np.maximum(segment_sum(np.logaddexp(0.0, f), offsets), LEAST)
    positive = -np.expm1(-total)  # P(T = 1)
    share = expit(f) / spread(positive, offsets)
    nothing = np.zeros_like(total)
    return Pooled(
        total + np.log(positive),
        share,
        share * expit(-f),
        np.exp(-total),
        nothing,
        np.zeros_like(f),
    )
