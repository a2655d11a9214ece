r"""One rate for all areas: what a map must beat, under each likelihood.

The responses of areas share one rate, and vary around it by the likelihood's own law, mixed over
rates that differ from area to area by chance. Neither covariates nor positions enter. Rate and
spread are maximum likelihood estimates. A pooled rate would be a weaker yardstick: with real spread
it is not the rate that predicts the areas best, and a map that is flat would beat it
(``docs/design/yardsticks.md``).

=====================================  ==========================================================
likelihood                             responses under one rate ``r``, exposure ``e``
=====================================  ==========================================================
Poisson, negative binomial             negative binomial, mean ``r e``: a Poisson of gamma mean
binomial                               beta-binomial of ``e`` tested: a binomial of beta rate
normal                                 normal, mean ``r e``, variance ``tau sum w^2 + s^2 e^2``
exponential                            Lomax, mean ``r e``: exponential of inverse gamma mean
a label                                positive with one probability
any other                              the likelihood itself at aggregate ``r e``
=====================================  ==========================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy  # its parts are imported when first used: optimize starts slowly
from scipy.special import expit, logit

from models.core.protocol import override
from models.likelihoods.intervals import counts_within, mixed

LOG_SIZES = (-7.0, 16.0)  # beyond, areas differ by a factor of thousands, or by 0.03 %
LEAST_GAIN = 1e-6  # nats by which a spread must fit better than none


class OneRate(ABC):
    """Distribution of responses that share one rate.

    Attributes
    ----------
    rate : float
        Response per unit of exposure.
    about : str
        The law, in a few words.
    """

    rate: float
    about: ClassVar[str]

    def mean(self, exposure: np.ndarray) -> np.ndarray:
        """Return the expected responses, (n,)."""
        return self.rate * exposure

    def log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Log density of responses.

        Parameters
        ----------
        y, exposure : (n,) arrays
            Responses, and people (km2, numbers tested). Where nobody is exposed, only a response
            of 0 can be.
        noise : (n,) array
            What :meth:`models.likelihoods.likelihood.Likelihood.bag_data` returns.

        Returns
        -------
        (n,) float64 array, nats
        """
        known = exposure > 0
        result = np.where(y == 0, 0.0, -np.inf)
        result[known] = self._log_density(y[known], exposure[known], noise[..., known])
        return result

    def draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw expected responses and responses around them, (n_draws, n) each."""
        shape = (n_draws, exposure.shape[0])
        expected, responses = np.zeros(shape), np.zeros(shape)
        known = exposure > 0
        if known.any():
            expected[:, known], responses[:, known] = self._draw(
                exposure[known], noise[..., known], n_draws, rng
            )
        return expected, responses

    @abstractmethod
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Log density where somebody is exposed."""

    @abstractmethod
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw where somebody is exposed."""


@dataclass(frozen=True)
class MixedRate(OneRate):
    """One rate, and areas that differ from it by a size; infinite: they do not differ."""

    rate: float
    size: float

    @classmethod
    def fit(cls, y: np.ndarray, exposure: np.ndarray, margin: np.ndarray | None = None) -> Self:
        """Return the maximum likelihood estimate from responses ``y`` (n,).

        With ``margin`` (n,) some are intervals: see :class:`models.core.block.BagBlock`.
        """
        used = exposure > 0
        y, exposure = y[used], exposure[used]
        within = None if margin is None else list(counts_within(y, margin[used]))
        start = cls._alone(y, exposure) if used.any() else 0.5
        alone = cls(start, np.inf)
        if y.shape[0] < 2 or (within is None and np.ptp(y / exposure) == 0):
            return alone
        nothing = np.zeros(y.shape)
        into, out = cls._scale()

        def loss(rate: float, log_size: float) -> float:
            with np.errstate(all="ignore"):  # far from the optimum
                one = cls(rate, float(np.exp(log_size)))
                if within is None:
                    value = one._log_density(y, exposure, nothing).sum()
                else:
                    each = [one._log_density(k, exposure, nothing) for k, _ in within]
                    value = mixed(np.stack(each), np.stack([own for _, own in within]))[0].sum()
            return float(-value) if np.isfinite(value) else 1e300

        if within is not None:  # the middles of intervals tell of no rate
            found = scipy.optimize.minimize_scalar(
                lambda u: loss(out(u), np.inf), [into(start) - 1.0, into(start)]
            )
            alone = cls(float(out(found.x)), np.inf)
            start = alone.rate

        # A wide first search, for the likelihood of the size need not have one maximum.
        sizes = np.linspace(*LOG_SIZES, 24)
        near = int(np.argmin([loss(start, each) for each in sizes]))
        low, high = sizes[max(near - 1, 0)], sizes[min(near + 1, sizes.size - 1)]
        first = scipy.optimize.minimize_scalar(
            lambda s: loss(start, s), bounds=(low, high), method="bounded"
        )
        best = scipy.optimize.minimize(
            lambda p: loss(out(p[0]), p[1]),
            [into(start), first.x],
            method="Nelder-Mead",
            bounds=[(None, None), LOG_SIZES],
            options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 2000},
        )
        no_spread = loss(alone.rate, np.inf)
        if not best.fun < no_spread - LEAST_GAIN:
            return alone
        return cls(float(out(best.x[0])), float(np.exp(best.x[1])))

    @staticmethod
    @abstractmethod
    def _alone(y: np.ndarray, exposure: np.ndarray) -> float:
        """Return the best rate where areas do not differ."""

    @staticmethod
    def _scale() -> tuple[Callable[[float], float], Callable[[float], float]]:
        """Return the function from a rate to a number without limits, and its inverse."""
        return lambda rate: float(np.log(rate)), lambda u: float(np.exp(u))


@dataclass(frozen=True)
class LikelihoodRate(OneRate):
    """A likelihood itself at one rate: for those that name no law of their own.

    Attributes
    ----------
    law : Likelihood
    rate : float
    params : dict of float
        The likelihood's parameters, logarithms.
    """

    law: Any
    rate: float
    params: Mapping[str, float]
    about = "the likelihood's own responses around one rate"

    @classmethod
    def fit(
        cls, law: Any, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray
    ) -> LikelihoodRate:
        """Return the maximum likelihood estimate of the rate and the likelihood's parameters."""
        used = exposure > 0
        y, exposure, noise = y[used], exposure[used], noise[..., used]
        names = list(law.start())
        unit = exposure if law.needs_trials or not law.averages else np.ones(y.shape)
        low, high = law.aggregates
        rate = float(y.sum()) / float(unit.sum()) if used.any() else 1.0
        into: Callable[[float], float] = float
        out: Callable[[float], float] = float
        if low == 0.0 and law.averages and np.isfinite(high):
            rate = float(np.clip(rate, 0.5 / (unit.sum() + 1), 1 - 0.5 / (unit.sum() + 1))) * high
            into, out = (lambda r: float(logit(r / high))), (lambda u: high * float(expit(u)))
        elif low == 0.0:
            rate = max(rate, 0.5 / float(unit.sum()) if used.any() else 1.0)
            into, out = (lambda r: float(np.log(r))), (lambda u: float(np.exp(u)))
        start = cls(law, rate, law.start())
        if y.shape[0] < 2:
            return start

        def of(p: np.ndarray) -> LikelihoodRate:
            return cls(law, out(p[0]), dict(zip(names, map(float, p[1:]), strict=True)))

        def loss(p: np.ndarray) -> float:
            value = of(p)._log_density(y, exposure, noise).sum()
            return float(-value) if np.isfinite(value) else 1e300

        first = np.array([into(rate), *law.start().values()])
        options = {"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000}
        with np.errstate(all="ignore"):
            found = scipy.optimize.minimize(
                loss,
                first,
                method="Nelder-Mead",
                bounds=[(None, None), *[(-20.0, 20.0)] * len(names)],
                options=options,
            )
        return of(found.x) if found.fun < loss(first) else start

    def _aggregate(self, exposure: np.ndarray) -> np.ndarray:
        return np.full(exposure.shape, self.rate) if self.law.averages else self.rate * exposure

    @override
    def mean(self, exposure: np.ndarray) -> np.ndarray:
        return self.rate * exposure if self.law.needs_trials else self._aggregate(exposure)

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        at = self.law.terms(y, self._aggregate(exposure), self.params, noise)
        return np.asarray(at.value, dtype=np.float64)

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_draws, exposure.shape[0])
        eta = np.broadcast_to(self._aggregate(exposure), shape).copy()
        responses = self.law.draw(eta, self.params, noise, rng)
        return np.broadcast_to(self.mean(exposure), shape).copy(), np.asarray(responses, float)
