r"""Calibration of a Laplace posterior on bags that it has not seen, hyperparameters held.

Laplace's method keeps the mode, which lies nearer to the prior than the mean does: with few labels
and a wide prior its probabilities are too cautious (Kuss & Rasmussen 2005). So the training bags
are split into folds, the mode is found anew without each fold, and a shift ``a`` and a scale
``e^c`` are fitted to the log score of the bags left out,

    sum_b log P(T_b | a, c) + log p(a, c),    P(1 | a, c) = E sigma(A_b),

``A_b ~ N(m_b, s_b)`` the logit of the bag without its fold, with a normal prior of ``a`` and ``c``:
few bags cannot tell them, and what is known of Laplace's method then says more. They move the logit
of the bag under ``soft_max``, which is the same as to move those of its instances, with a ``t`` of
``t e^-c``. ``noisy_or`` is no such law: there they move the instances, ``a + e^c f_i``, and the bag
follows. That holds at the mode alone: a bag's probability is of its logit linearised there, an
instance's is averaged over its own uncertainty, and where that is wide a bag can have a lower
probability than one of its instances. The closed form for one bag left out (Vehtari et al. 2016)
needs no new modes, but the pooling's own weights have seen the label: at a high ``t`` it is far too
hopeful (docs/design/pooled-gp.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from models.core.protocol import Arrays
from models.likelihoods.probability import gauss_hermite

N_FOLD = 10
N_NODE = 64
Prior = tuple[tuple[float, float], tuple[float, float]]
# Means and deviations of the shift and of the logarithm of the scale. The scale that held-out bags
# ask for is about 2 on most sets (docs/design/pooled-gp.md); instances under noisy-or have none.
OF_BAGS: Prior = (0.0, float(np.log(2.0))), (0.5, 0.5)
OF_INSTANCES: Prior = (0.0, 0.0), (1.0, 1.0)
LEAST = 1e-9  # probability of a label, at least
MOST_STEPS, CLOSE, LONGEST = 25, 1e-8, 0.5


def fold_of(bag: np.ndarray) -> np.ndarray:
    """Return the fold of each bag by its number, whatever block it comes in: (n_bag,) int."""
    mixed = np.asarray(bag).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    # SplitMix64 (Steele et al. 2014): numbers often follow labels, or go round.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(N_FOLD)).astype(np.int64)


@dataclass(frozen=True)
class Logits:
    """Gaussian logits of some bags, as a shift and a scale leave them.

    Attributes
    ----------
    m, sd : (n_bag,) float64
        Mean and standard deviation.
    by_m, by_sd : (2, n_bag) float64
        Their derivatives by ``a`` and ``c``.
    """

    m: np.ndarray
    sd: np.ndarray
    by_m: np.ndarray
    by_sd: np.ndarray

    def of(self, used: np.ndarray) -> Logits:
        """Return those of the bags where ``used`` (n_bag,) is true."""
        return Logits(self.m[used], self.sd[used], self.by_m[:, used], self.by_sd[:, used])


def moved_logits(m: np.ndarray, s: np.ndarray, calibration: np.ndarray) -> Logits:
    """Shift and scale logits of means ``m`` and variances ``s``, (n_bag,) each."""
    scale = float(np.exp(calibration[1]))
    by, sd = scale * m, scale * np.sqrt(s)
    none = np.zeros_like(m)
    return Logits(float(calibration[0]) + by, sd, np.stack([none + 1.0, by]), np.stack([none, sd]))


def score_sums(at: Logits, y: np.ndarray) -> tuple[float, Arrays]:
    """Return the log score of some bags, with its gradient and Fisher information.

    Parameters
    ----------
    at : Logits
    y : (n_bag,) float64
        Labels.
    """
    p = np.zeros_like(at.m)
    slope = np.zeros((2, at.m.shape[0]))
    for node, weight in zip(*gauss_hermite(N_NODE), strict=True):
        f = at.m + node * at.sd
        each = expit(f)
        p += weight * each
        slope += weight * each * expit(-f) * (at.by_m + node * at.by_sd)
    p = np.clip(p, LEAST, 1.0 - LEAST)
    loglik = float(np.where(y > 0.5, np.log(p), np.log1p(-p)).sum())
    gradient = slope @ ((y - p) / (p * (1.0 - p)))
    return loglik, {"score": gradient, "information": (slope / (p * (1.0 - p))) @ slope.T}


def fit_calibration(
    sums: Callable[[np.ndarray], tuple[float, Arrays]], prior: Prior = OF_INSTANCES
) -> np.ndarray:
    """Return the best ``a`` and ``c`` by Fisher scoring: (2,).

    Parameters
    ----------
    sums : callable
        From ``a`` and ``c`` to :func:`score_sums` of all bags.
    prior : ((2,), (2,))
        Means and deviations of ``a`` and ``c``.
    """
    at = np.array(prior[0])
    value, found = _with_prior(sums, prior, at)
    for _ in range(MOST_STEPS):
        step = np.linalg.solve(found["information"], found["score"])
        promised = float(step @ found["score"])
        if promised < CLOSE:
            break
        step *= min(1.0, LONGEST / float(np.abs(step).max()))
        new, there = _with_prior(sums, prior, at + step)
        while new < value and float(np.abs(step).max()) > CLOSE:
            step *= 0.5
            new, there = _with_prior(sums, prior, at + step)
        if new < value:
            break
        at, value, found = at + step, new, there
    return at


def _with_prior(
    sums: Callable[[np.ndarray], tuple[float, Arrays]], prior: Prior, at: np.ndarray
) -> tuple[float, Arrays]:
    value, found = sums(at)
    off, precision = at - np.array(prior[0]), np.array(prior[1]) ** -2
    return value - 0.5 * float(precision @ off**2), {
        "score": found["score"] - precision * off,
        "information": found["information"] + np.diag(precision),
    }
