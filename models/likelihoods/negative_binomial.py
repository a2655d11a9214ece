"""Negative binomial counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from models.backend.arrays import digamma, gammaln, namespace
from models.core.protocol import override
from models.likelihoods.constant import MixedRate, OneRate
from models.likelihoods.likelihood import (
    Likelihood,
    Parameter,
    Params,
    Terms,
    exponential,
    log_and_ratio,
)

LARGEST_DRAWN = 2.0**53  # float64 tells no single case beyond


class NegativeBinomial(Likelihood):
    """Counts of mean ``eta`` and variance ``eta + eta^2 / r``; ``log_size = log r`` is learnt."""

    name = "negative_binomial"
    about = "counts with more spread than Poisson's"
    links = ("exp", "square")
    # At the start areas differ by a third.
    parameters: Mapping[str, Parameter] = {
        "log_size": Parameter(
            float(np.log(10.0)),
            -0.5,
            tells="Areas differ beyond the map by a factor of about {factor}.",
        )
    }
    bound_form = "logarithmic"

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        r = exponential(params["log_size"], eta)
        log_eta, ratio = log_and_ratio(y, eta)
        up = eta + r
        share = (y + r) / up
        value = (
            y * log_eta
            - (y + r) * xp.log(up)
            + r * np.log(r)
            + gammaln(y + r)
            - gammaln(r)
            - gammaln(y + 1.0)
        )
        d_r = np.log(r) + 1.0 - xp.log(up) - share + digamma(y + r) - digamma(r)
        if order == 1:
            return Terms(value, ratio - share, by={"log_size": r * d_r})
        return Terms(
            value,
            ratio - share,
            share / up - ratio / eta,
            2.0 * ratio / eta**2 - 2.0 * share / up**2,
            {"log_size": r * d_r},
            {"log_size": r * (1.0 / up**2 - 2.0 * share / up**2)},
        )

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        # Poisson counts of gamma mean.
        r = exponential(params["log_size"], eta)
        return draw_counts(eta * rng.gamma(r, 1.0 / r, eta.shape), rng)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return CountRate.fit(y, exposure)


def _pooled(y: np.ndarray, exposure: np.ndarray) -> float:
    """Return the overall rate; half a case for none, which would make any case impossible."""
    return max(float(y.sum()), 0.5) / float(exposure.sum())


class CountRate(MixedRate):
    """Counts under one rate: negative binomial, Poisson where areas do not differ."""

    about = "negative binomial counts around one rate"
    _alone = staticmethod(_pooled)

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return count_log_density(y, self.rate * exposure, self.size)

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_draws, exposure.shape[0])
        spread = np.ones(shape)
        if np.isfinite(self.size):
            spread = rng.gamma(self.size, 1 / self.size, shape)
        expected = self.rate * exposure * spread
        return expected, draw_counts(expected, rng)


def draw_counts(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw Poisson counts of any mean, as float64.

    From ``LARGEST_DRAWN`` on a count is its mean to eight digits and taken to be it: samplers of
    whole numbers end there.
    """
    small = mean < LARGEST_DRAWN
    drawn = rng.poisson(np.where(small, mean, 0.0)).astype(np.float64)
    return np.where(small, drawn, mean)


def count_log_density(
    y: np.ndarray, mean: np.ndarray, size: float | np.ndarray = np.inf
) -> np.ndarray:
    """Log density of negative binomial counts; Poisson where ``size`` is infinite.

    Counts need not be whole (they may be adjusted for reporting): gamma functions, not factorials.

    Parameters
    ----------
    y, mean : (n,) arrays
        Counts, and their expectations; where an expectation is 0 only a count of 0 can be.
    size : float or (n,) array
        Variance is ``mean + mean^2 / size``.

    Returns
    -------
    (n,) float64 array, nats
    """
    positive = np.where(mean > 0, mean, 1.0)
    finite = np.isfinite(size)
    r = np.where(finite, size, 1.0)
    wide = special.gammaln(y + r) - special.gammaln(r) + y * np.log(positive / (positive + r))
    wide -= r * np.log1p(positive / r)
    result = np.where(finite, wide, y * np.log(positive) - positive) - special.gammaln(y + 1)
    return np.where(mean > 0, result, np.where(y > 0, -np.inf, 0.0))
