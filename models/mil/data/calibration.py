r"""Recalibration of bags' probabilities: intercept and slopes on the logit (after Platt 2000).

    logit p' = intercept + slope logit p + size_slope (log n - log_size),    slope > 0,

of a bag of ``n`` instances, fitted to predictions of bags that a model was fitted without. The size
is there because laws of the bag err by it: "any instance is positive" takes instances that
resemble each other for as many chances. A bag's whole distribution moves with its mean: ``f' =
slope f + shift`` of the latent value, or of every draw's logit, with the shift at which the mean is
``p'``. That keeps the order of draws, and of bags of one size.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtri

from models.core.errors import UnsupportedError
from models.likelihoods.probability import SMALLEST, Probability, ProbabilityDraws

PRIOR_SD = 1.0  # of the intercept, of the slope's logarithm and of the slope by size
EDGE = 1e-9  # probability that a draw of 0 stands for, and 1 less it for a draw of 1
HALVINGS = 60
FARTHEST = 80.0  # that a mean's logit is moved


@dataclass(frozen=True)
class Recalibration:
    """A map of probabilities onto probabilities that rises.

    Attributes
    ----------
    slope, intercept : float
        On the logit; 1 and 0 leave everything as it is.
    size_slope : float
        By the logarithm of the number of instances.
    log_size, log_smallest, log_largest : float
        Mean and range of that logarithm over the bags of the fit. Bags beyond the range count as
        those at its end.
    """

    slope: float = 1.0
    intercept: float = 0.0
    size_slope: float = 0.0
    log_size: float = 0.0
    log_smallest: float = 0.0
    log_largest: float = 0.0

    @classmethod
    def fit(
        cls,
        y: np.ndarray,
        score: np.ndarray,
        size: np.ndarray | None = None,
        prior_sd: float | None = PRIOR_SD,
    ) -> Recalibration:
        """Fit to labels of bags that were held out.

        Of ``n`` bags with a label, Platt's targets are ``(n + 1) / (n + 2)`` for it, not 1; so that
        bags that separate do not make the slope infinite.

        Parameters
        ----------
        y : (n_bag,)
            Labels, 0 or 1.
        score : (n_bag,) float64
            Logits of the predictions, see :func:`mean_logit`.
        size : (n_bag,), optional
            Instances of each bag; without, or where all have as many, there is no slope by size.
        prior_sd : float, optional
            Deviation of the normal priors (about 0) of the intercept, of the logarithm of the slope
            and of the slope by size, so that few bags change little; None for none.
        """
        positive = np.asarray(y) > 0.5
        n_one = int(positive.sum())
        n_zero = positive.size - n_one
        target = np.where(positive, (n_one + 1.0) / (n_one + 2.0), 1.0 / (n_zero + 2.0))
        weight = 0.0 if prior_sd is None else prior_sd**-2
        log_size = np.zeros(positive.size) if size is None else np.log(size)
        centre, ends = float(log_size.mean()), (float(log_size.min()), float(log_size.max()))
        by_size = log_size - centre

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            slope = np.exp(x[1])
            z = x[0] + slope * score + x[2] * by_size
            off = expit(z) - target
            value = float((np.logaddexp(0.0, z) - target * z).sum() + 0.5 * weight * (x @ x))
            gradient = np.array([off.sum(), slope * (off @ score), off @ by_size])
            return value, gradient + weight * x

        # Without a prior the slope of useless scores would go to 0 for ever.
        same = ends[0] == ends[1]
        bounds = [(-30, 30), (-12, 6), (0, 0) if same else (-10, 10)]
        found = minimize(loss, np.zeros(3), jac=True, bounds=bounds)
        return cls(float(np.exp(found.x[1])), float(found.x[0]), float(found.x[2]), centre, *ends)

    @classmethod
    def of_array(cls, values: np.ndarray) -> Recalibration:
        """Read what :attr:`array` gave; of older models the slope and the intercept alone."""
        return cls(*values.tolist())

    @property
    def array(self) -> np.ndarray:
        """Every number of it."""
        return np.array(astuple(self))

    def logit(self, score: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Return the recalibrated logits of bags of ``size`` (n_bag,) instances."""
        found = self.intercept + self.slope * score
        if self.size_slope != 0.0:
            log_size = np.clip(np.log(size), self.log_smallest, self.log_largest)
            found = found + self.size_slope * (log_size - self.log_size)
        return np.asarray(found)

    def apply(self, predicted: Any, size: np.ndarray) -> Any:
        """Return the recalibrated distribution of each bag's probability.

        Parameters
        ----------
        predicted : Probability or ProbabilityDraws
        size : (n_bag,) int
            Instances of each bag.

        Raises
        ------
        UnsupportedError
            If it is no distribution of probabilities of a label.
        """
        if (self.slope, self.intercept, self.size_slope) == (1.0, 0.0, 0.0):
            return predicted
        wanted = expit(self.logit(mean_logit(predicted), size))
        if isinstance(predicted, Probability):
            return _moved(predicted, self.slope, wanted)
        if isinstance(predicted, ProbabilityDraws):
            f = self.slope * logit(np.clip(predicted.draws, EDGE, 1.0 - EDGE))
            shift = _shift(lambda by: expit(f + by).mean(axis=0), wanted)
            return replace(predicted, draws=expit(f + shift))
        msg = f"{type(predicted).__name__} cannot be recalibrated; use calibrate='none'"
        raise UnsupportedError(msg)


def mean_logit(predicted: Any) -> np.ndarray:
    """Return the logit of each bag's mean probability: (n_bag,), finite.

    Of draws, with half a draw of either label added: all trees of a forest may agree.
    """
    mean = predicted.mean
    if isinstance(predicted, ProbabilityDraws):
        n = predicted.draws.shape[0]
        mean = (n * mean + 0.5) / (n + 1.0)
    return np.asarray(logit(np.clip(mean, SMALLEST, 1.0 - SMALLEST)))


def _moved(predicted: Probability, slope: float, wanted: np.ndarray) -> Probability:
    """Return the sigmoid of ``slope f + shift``, with the mean ``wanted``."""
    s = slope**2 * np.asarray(predicted.s, np.float64)
    if predicted.link == "probit":
        return Probability("probit", ndtri(wanted) * np.sqrt(1.0 + s), s)
    m = slope * np.asarray(predicted.m, np.float64)
    shift = _shift(lambda by: Probability("logistic", m + by, s).mean, wanted)
    return Probability("logistic", m + shift, s)


def _shift(mean, wanted: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Return where ``mean``, which rises from 0 to 1, is ``wanted``: (n,), by halving."""
    low, high = np.full(wanted.shape, -FARTHEST), np.full(wanted.shape, FARTHEST)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        above = mean(middle) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)
