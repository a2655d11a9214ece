"""Predictions of pixels and of bags, with their uncertainty.

A pixel's rate has a closed-form distribution: log-normal under the exponential link, a scaled
non-central chi-square with one degree of freedom under the square link (Law et al. 2018, section
3), normal, or the normal distribution function of a normal. A sum over pixels has none, and is
described by joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from models.backend.arrays import to_host
from models.likelihoods.likelihood import Likelihood, Params
from models.likelihoods.links import find_link
from models.likelihoods.poisson import Poisson
from models.likelihoods.probability import Draws, check_probability

TINY = 1e-300


@dataclass(frozen=True)
class Prediction:
    """Distribution of each pixel's rate, ``scale * Psi(f)``, ``f ~ N(m, s)``.

    Attributes
    ----------
    link : str
        See :data:`models.likelihoods.links.LINKS`.
    m, s : (n_pix,) float64
        Mean and variance of ``f``; of a device where the pixels were, and so are the answers.
    scale : float
        Rate per unit of weight that ``Psi(f) = 1`` stands for.
    """

    link: str
    m: np.ndarray
    s: np.ndarray
    scale: float

    @property
    def parts(self) -> tuple[Prediction, ...]:
        """Itself: a mixture has several."""
        return (self,)

    @property
    def weights(self) -> np.ndarray:
        """Probabilities of the parts: (1,)."""
        return np.ones(1)

    @property
    def mean(self) -> np.ndarray:
        """Mean rate, per unit of weight: (n_pix,)."""
        mean: np.ndarray = self.scale * find_link(self.link).mean(self.m, self.s)
        return mean

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of the rate: (n_pix,)."""
        sd: np.ndarray = self.scale * find_link(self.link).sd(self.m, self.s)
        return sd

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the rate at probability ``q`` in (0, 1): (n_pix,)."""
        check_probability(q)
        value: np.ndarray = self.scale * find_link(self.link).quantile(self.m, self.s, q)
        return value

    def exceed(self, c: float | np.ndarray) -> np.ndarray:
        """Probability that the rate is above ``c``, one number or one a pixel: (n_pix,)."""
        link = find_link(self.link)
        edge = np.divide(c, self.scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = link.exceed(self.m, self.s, edge)
        sure = (link.value(self.m) > edge) * 1.0
        p = np.where(self.s > 0, p, sure)
        if self.link == "identity":
            return p
        if np.ndim(c) == 0:
            return np.ones_like(p) if c < 0 else p
        return np.where(np.less(c, 0), 1.0, p)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw each pixel by itself: (n, n_pix). Never add such draws up over pixels."""
        m, s = to_host(self.m), to_host(self.s)
        f = m + np.sqrt(s) * rng.standard_normal((n, m.shape[0]))
        return np.asarray(self.scale * find_link(self.link).value(f))


@dataclass(frozen=True)
class BagPrediction(Draws):
    """Joint draws of the aggregate of each bag, or of its response.

    Attributes
    ----------
    draws : (n_draws, n_bag) float64
    likelihood : Likelihood
        Of the response around its aggregate.
    params : dict of float, or of (n_draws, 1) arrays
        The likelihood's parameters, logarithms: of all draws, or one a draw where hyperparameters
        are integrated.
    bag_data : (..., n_bag)
        Data of each bag that the likelihood needs.
    """

    likelihood: Likelihood = Poisson()  # noqa: RUF009 (immutable)
    params: Params = field(default_factory=dict)
    bag_data: Any = 1.0

    def observed(self, rng: np.random.Generator) -> BagPrediction:
        """Draw a response around each drawn aggregate."""
        drawn = self.likelihood.draw(self.draws, self.params, self.bag_data, rng)
        return replace(self, draws=drawn)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive density of the responses ``y`` (n_bag,), averaged over the draws, nats."""
        y = np.asarray(y, dtype=np.float64)
        eta = np.maximum(self.draws, TINY) if self.likelihood.positive else self.draws
        each = self.likelihood.terms(y, eta, self.params, self.bag_data).value
        return np.asarray(logsumexp(each, axis=0) - np.log(each.shape[0]))

    def rearranged(self, chosen: np.ndarray) -> BagPrediction:
        """Take draws bag by bag, each with its parameters: ``chosen`` (n, n_bag) of their rows."""
        own = {
            name: value if np.ndim(value) == 0 else np.asarray(value)[:, 0][chosen]
            for name, value in self.params.items()
        }
        return replace(self, draws=np.take_along_axis(self.draws, chosen, axis=0), params=own)
