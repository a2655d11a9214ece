r"""Predictions of classifiers: distributions of probabilities of pixels and bags.

A latent Gaussian behind a sigmoid or a normal distribution function has its quantiles in closed
form; its mean and deviation are one-dimensional Gaussian integrals, done by Gauss-Hermite
quadrature (or in closed form for the probit). A probability that is a function of many latent
values has neither, and is described by joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri, owens_t

from models.core.errors import ParameterError

N_NODE = 48  # of Gauss-Hermite quadrature: the logistic mean is right to 1e-11 up to a deviation of
WIDE = 1.0  # this; above it the logistic density is integrated over, in steps
STEP, N_STEP = 0.5, 68
SMALLEST = 1e-12  # probability that a label scored by its log density has at least

LatentLink = Literal["logistic", "probit"]


class LabelScores:
    """Scores of observed labels under any distribution of a probability."""

    @property
    def mean(self) -> np.ndarray:
        """Expected probability: (n,)."""
        raise NotImplementedError

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive probability of the labels ``y`` (n,), 0 or 1: (n,), nats."""
        return label_log_density(y, self.mean)


@dataclass(frozen=True)
class Probability(LabelScores):
    """The distribution of ``sigma(f)``, ``f ~ N(m, s)``, one for each pixel or bag.

    Attributes
    ----------
    link : {"logistic", "probit"}
        ``sigma``: the logistic function, or the normal distribution function.
    m, s : (n,) float64
        Mean and variance of ``f``.
    """

    link: LatentLink
    m: np.ndarray
    s: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Expected probability: (n,)."""
        if self.link == "probit":
            return np.asarray(ndtr(self.m / np.sqrt(1.0 + self.s)))
        return self._moments()[0]

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of the probability: (n,)."""
        if self.link == "probit":
            # E Phi(f)^2 = Phi(h) - 2 T(h, (1 + 2 s)^-1/2), h = m (1 + s)^-1/2 (Owen 1956).
            h = self.m / np.sqrt(1.0 + self.s)
            second = ndtr(h) - 2.0 * owens_t(h, 1.0 / np.sqrt(1.0 + 2.0 * self.s))
            return np.asarray(np.sqrt(np.maximum(second - ndtr(h) ** 2, 0.0)))
        return self._moments()[1]

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        m, sd = np.asarray(self.m, np.float64), np.sqrt(np.asarray(self.s, np.float64))
        mean, square = np.empty_like(m), np.empty_like(m)
        wide = sd > WIDE
        for rule, where in ((_narrow, ~wide), (_wide, wide)):
            mean[where], square[where] = rule(m[where], sd[where])
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the probability at ``q`` in (0, 1): (n,)."""
        check_probability(q)
        return self._sigma(self.m + ndtri(q) * np.sqrt(self.s))

    def exceed(self, c: float) -> np.ndarray:
        """Probability that the probability is above ``c``: (n,)."""
        if not 0 < c < 1:
            return np.full(self.m.shape, float(c <= 0))
        edge = float(ndtri(c) if self.link == "probit" else logit(c))
        sd = np.sqrt(self.s)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = ndtr((self.m - edge) / sd)
        return np.where(sd > 0, above, (self.m > edge) * 1.0)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw each by itself: (n, n_pix)."""
        return self._sigma(self.m + np.sqrt(self.s) * rng.standard_normal((n, self.m.shape[0])))

    def _sigma(self, f: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr(f) if self.link == "probit" else expit(f))


@dataclass(frozen=True)
class Draws:
    """Draws of any number: over a posterior, or over the trees of a forest.

    Attributes
    ----------
    draws : (n_draws, n) float64
        Or (n_draws, n, n_class), and so are the answers.
    """

    draws: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean over the draws: (n,)."""
        return self.draws.mean(axis=0)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation over the draws, 0 for one: (n,)."""
        return self.draws.std(axis=0, ddof=min(1, self.draws.shape[0] - 1))

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the draws at ``q`` in (0, 1): (n,)."""
        check_probability(q)
        return np.quantile(self.draws, q, axis=0)

    def exceed(self, c: float) -> np.ndarray:
        """Share of the draws above ``c``: (n,)."""
        return (self.draws > c).mean(axis=0)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Choose ``n`` of the draws, with replacement: (n, n_bag)."""
        return self.draws[rng.integers(0, self.draws.shape[0], n)]


@dataclass(frozen=True)
class ProbabilityDraws(Draws, LabelScores):
    """Draws of probabilities (n_draws, n)."""


@dataclass(frozen=True)
class ClassDraws(Draws):
    """Draws of the probabilities of several classes.

    Attributes
    ----------
    draws : (n_draws, n, n_class) float64
    classes : (n_class,) float64
        Their labels, ascending.
    """

    classes: np.ndarray

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive probability of the labels ``y`` (n,): (n,), nats."""
        p = (self.mean * (np.asarray(y)[:, None] == self.classes)).sum(axis=1)
        return np.log(np.maximum(p, SMALLEST))


def label_log_density(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Log probability of labels ``y`` (n,), 0 or 1, that are 1 with probability ``p`` (n,)."""
    p = np.clip(p, SMALLEST, 1.0 - SMALLEST)
    return np.where(np.asarray(y) > 0.5, np.log(p), np.log1p(-p))


def check_probability(q: float) -> None:
    """Raise ParameterError unless ``q`` is inside (0, 1)."""
    if not 0 < q < 1:
        msg = f"quantile: {q} is not a probability; give a number between 0 and 1"
        raise ParameterError(msg)


def _narrow(m: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``E sigma(f)`` and ``E sigma(f)^2`` by Gauss-Hermite quadrature."""
    mean, square = np.zeros_like(m), np.zeros_like(m)
    # By node: a table of pixels by nodes would not stay in the cache.
    for node, weight in zip(*gauss_hermite(N_NODE), strict=True):
        p = expit(m + node * sd)
        mean += weight * p
        square += weight * p * p
    return mean, square


def _wide(m: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do the same the other way round, where the sigmoid is too steep for polynomials.

    ``sigma(f) = P(t < f)`` for a logistic ``t``, so that ``E sigma(f) = E Phi((m - t) / sd)``, and
    ``sigma^2 = sigma - sigma'`` with ``E sigma'(f) = E N(t; m, sd^2)``; the trapezoid rule over
    ``t`` converges exponentially (Trefethen & Weideman 2014).
    """
    mean, slope = np.zeros_like(m), np.zeros_like(m)
    for t in STEP * np.arange(-N_STEP, N_STEP + 1):
        weight = STEP * expit(t) * expit(-t)
        z = (m - t) / sd
        mean += weight * ndtr(z)
        slope += weight * np.exp(-0.5 * z * z)
    return mean, mean - slope / (np.sqrt(2.0 * np.pi) * sd)


@cache
def gauss_hermite(n_node: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights that integrate over the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_node)
    return nodes, weights / weights.sum()
