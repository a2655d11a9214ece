"""What a model says of pixels and of bags, with its uncertainty.

A pixel's rate has a closed-form law: log-normal under the exponential link, a scaled non-central
chi-square with one degree of freedom under the square link (Law et al. 2018, section 3). A sum
over pixels has none, and is described by joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import gammaln, logsumexp

from models.errors import ParameterError
from models.xp import ndtr, ndtri

Link = Literal["square", "exp"]
LINKS: tuple[Link, ...] = ("square", "exp")
NEWTON_STEPS = 60


def link_value(link: Link, f: np.ndarray) -> np.ndarray:
    """Apply ``Psi``: ``f^2`` or ``exp(f)``."""
    return np.square(f) if link == "square" else np.exp(f)


@dataclass(frozen=True)
class Prediction:
    """The law of each pixel's rate, ``scale * Psi(f)``, ``f ~ N(m, s)``.

    Attributes
    ----------
    link : {"square", "exp"}
    m, s : (n_pix,) float64
        Mean and variance of ``f``.
    scale : float
        Rate per unit of weight that ``Psi(f) = 1`` stands for.
    """

    link: Link
    m: np.ndarray
    s: np.ndarray
    scale: float

    @property
    def mean(self) -> np.ndarray:
        """Mean rate, per unit of weight: (n_pix,)."""
        if self.link == "square":
            return self.scale * (self.m**2 + self.s)
        return self.scale * np.exp(self.m + 0.5 * self.s)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of the rate: (n_pix,)."""
        if self.link == "square":
            return self.scale * np.sqrt(4 * self.m**2 * self.s + 2 * self.s**2)
        return self.mean * np.sqrt(np.expm1(self.s))

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the rate at probability ``q`` in (0, 1): (n_pix,)."""
        _check_probability(q)
        sd = np.sqrt(self.s)
        if self.link == "exp":
            return self.scale * np.exp(self.m + sd * ndtri(q))
        return self.scale * _folded_quantile(np.abs(self.m), sd, q) ** 2

    def exceed(self, c: float | np.ndarray) -> np.ndarray:
        """Probability that the rate is above ``c``, one number or one a pixel: (n_pix,)."""
        edge = np.maximum(c, 0.0) / self.scale
        with np.errstate(divide="ignore", invalid="ignore"):
            sd = np.sqrt(self.s)
            if self.link == "exp":
                p = ndtr((self.m - np.log(edge)) / sd)
            else:
                root = np.sqrt(edge)
                p = ndtr((self.m - root) / sd) + ndtr((-self.m - root) / sd)
        p = np.where(sd > 0, p, (link_value(self.link, self.m) * self.scale > c) * 1.0)
        return np.where(np.less(c, 0), 1.0, p)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw each pixel by itself: (n, n_pix). Never add such draws up over pixels."""
        f = self.m + np.sqrt(self.s) * rng.standard_normal((n, self.m.shape[0]))
        return self.scale * link_value(self.link, f)


def _folded_quantile(m: np.ndarray, sd: np.ndarray, q: float) -> np.ndarray:
    """Solve ``P(|N(m, sd^2)| <= t) = q`` for t, ``m >= 0``, by Newton kept inside a bracket."""
    # |f| <= t has probability between P(f <= t) - P(f <= 0) and P(f <= t): two normal quantiles.
    low = np.maximum(m + sd * ndtri(q), 0.0)
    high = m + sd * ndtri(0.5 * (1 + q))
    # m + sd z_{(1+q)/2} over-covers: P(|f| <= m + sd z) >= P(|f - m| <= sd z) = q.
    t = 0.5 * (low + high)
    safe = np.where(sd > 0, sd, 1.0)
    for _ in range(NEWTON_STEPS):
        upper, lower = (t - m) / safe, (-t - m) / safe
        value = ndtr(upper) - ndtr(lower) - q
        low, high = np.where(value < 0, t, low), np.where(value < 0, high, t)
        density = (np.exp(-0.5 * upper**2) + np.exp(-0.5 * lower**2)) / (np.sqrt(2 * np.pi) * safe)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            new = t - value / density
        new = np.where((new > low) & (new < high), new, 0.5 * (low + high))
        moved = np.abs(new - t)
        t = new
        if (moved <= 1e-12 * (m + sd)).all():
            break
    return np.where(sd > 0, t, m)


@dataclass(frozen=True)
class BagPrediction:
    """Joint draws of something for each bag.

    Attributes
    ----------
    draws : (n_draws, n_bag) float64
    size : float or None
        Of the negative binomial law of a count around its expectation; None for Poisson.
    """

    draws: np.ndarray
    size: float | None = None

    @property
    def mean(self) -> np.ndarray:
        """Mean over the draws: (n_bag,)."""
        return self.draws.mean(axis=0)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation over the draws: (n_bag,)."""
        return self.draws.std(axis=0, ddof=1)

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the draws at probability ``q``: (n_bag,)."""
        _check_probability(q)
        return np.quantile(self.draws, q, axis=0)

    def exceed(self, c: float) -> np.ndarray:
        """Share of the draws above ``c``: (n_bag,)."""
        return (self.draws > c).mean(axis=0)

    def observed(self, rng: np.random.Generator) -> BagPrediction:
        """Add the noise of the count to draws of its expectation."""
        mean = self.draws
        if self.size is not None:  # a negative binomial is a Poisson law of gamma mean
            mean = mean * rng.gamma(self.size, 1.0 / self.size, mean.shape)
        return BagPrediction(rng.poisson(mean).astype(np.float64))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive density of the counts ``y`` (n_bag,), averaged over the draws, nats."""
        y = np.asarray(y, dtype=np.float64)
        rate = np.maximum(self.draws, 1e-300)
        each = y * np.log(rate) - gammaln(y + 1.0)
        if self.size is None:
            each -= rate
        else:
            r = self.size
            each += gammaln(y + r) - gammaln(r) + r * np.log(r) - (y + r) * np.log(rate + r)
        return logsumexp(each, axis=0) - np.log(each.shape[0])


def _check_probability(q: float) -> None:
    if not 0 < q < 1:
        msg = f"quantile: {q} is not a probability; give a number between 0 and 1"
        raise ParameterError(msg)
