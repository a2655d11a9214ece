r"""Laws of a bag's response given its aggregate, ``h(eta) = log p(y | eta)``, and derivatives.

The aggregate is ``eta_a = sum_i p_i Psi(f_i)``. A law knows ``h`` and its derivatives by ``eta``
and by the logarithms of its own parameters; what is expected of ``h`` under a posterior of ``f`` is
the business of :mod:`moment_matching` (any law), :mod:`bounds` (some) and
:mod:`pathwise` (draws; any law). Counts need not be whole numbers (reported counts are often
adjusted), hence ``lgamma`` for factorials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from models.backend.arrays import digamma, gammaln, namespace
from models.core.errors import NumericalError, ParameterError

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Terms:
    """``h`` and its derivatives, all of the shape of ``eta``.

    Attributes
    ----------
    value, d1, d2, d3
        ``h`` and its derivatives by ``eta``; the last two are None at order 1.
    by, by_d2 : dict of arrays
        Derivative of ``h``, and of its second derivative, by each own parameter (a logarithm).
    """

    value: Any
    d1: Any
    d2: Any = None
    d3: Any = None
    by: dict[str, Any] = field(default_factory=dict)
    by_d2: dict[str, Any] = field(default_factory=dict)


class Likelihood(ABC):
    """A law of the response.

    Attributes
    ----------
    name : str
    links : tuple of str
        Links that make sense under it, the usual one first.
    start : dict
        Its own parameters, each the logarithm of something positive, and where they start.
    averages : bool
        Whether the aggregate is the weighted mean over the bag, not the weighted sum.
    """

    name: ClassVar[str]
    links: ClassVar[tuple[str, ...]]
    start: Mapping[str, float] = {}
    averages: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return its name."""
        return self.name

    @abstractmethod
    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """Evaluate ``h``.

        Parameters
        ----------
        y : (n_bag,)
        eta : (..., n_bag), in the support of the law
        own : dict of float
            The law's parameters, logarithms.
        unit : (n_bag,)
            What :meth:`unit` returned for these bags.
        order : {1, 3}
            Highest derivative by ``eta`` wanted.
        """

    @abstractmethod
    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw a response for each ``eta`` (n_draws, n_bag)."""

    def unit(self, weight: Any, offsets: Any, trials: Any) -> Any:
        """Return what the law needs to know of each bag besides ``eta``: (n_bag,)."""
        del trials
        return namespace(weight).ones(offsets.shape[0] - 1)


class Poisson(Likelihood):
    """``y ~ Poisson(eta)``: ``h = y log eta - eta - log y!``."""

    name = "poisson"
    links = ("exp", "square")

    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """See :class:`Likelihood`."""
        del own, unit
        log_eta, ratio = _log_and_ratio(y, eta)
        value = y * log_eta - eta - gammaln(y + 1.0)
        if order == 1:
            return Terms(value, ratio - 1.0)
        return Terms(value, ratio - 1.0, -ratio / eta, 2.0 * ratio / eta**2)

    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`Likelihood`."""
        del own, unit
        return rng.poisson(eta).astype(np.float64)


class NegativeBinomial(Likelihood):
    """Counts of mean ``eta`` and variance ``eta + eta^2 / r``; ``log_size = log r`` is learnt."""

    name = "negative_binomial"
    links = ("exp", "square")
    start: Mapping[str, float] = {"log_size": float(np.log(10.0))}  # areas differ by a third

    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """See :class:`Likelihood`."""
        del unit
        xp = namespace(eta)
        r = float(np.exp(own["log_size"]))
        log_eta, ratio = _log_and_ratio(y, eta)
        up = eta + r
        share = (y + r) / up
        value = (
            y * log_eta
            - (y + r) * xp.log(up)
            + r * np.log(r)
            + gammaln(y + r)
            - float(gammaln(r))
            - gammaln(y + 1.0)
        )
        d_r = np.log(r) + 1.0 - xp.log(up) - share + digamma(y + r) - float(digamma(r))
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

    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`Likelihood`: a Poisson law of gamma mean."""
        del unit
        r = float(np.exp(own["log_size"]))
        return rng.poisson(eta * rng.gamma(r, 1.0 / r, eta.shape)).astype(np.float64)


class Normal(Likelihood):
    """``y ~ N(eta, tau sum_i w_i^2)``; ``log_noise = log tau`` is learnt."""

    name = "normal"
    links = ("identity",)
    start: Mapping[str, float] = {"log_noise": 0.0}

    def unit(self, weight: Any, offsets: Any, trials: Any) -> Any:
        """See :class:`Likelihood`: ``omega_a = sum_i w_i^2``."""
        del trials
        from models.backend.arrays import segment_sum

        return segment_sum(weight * weight, offsets)

    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """See :class:`Likelihood`."""
        xp = namespace(eta)
        variance = xp.broadcast_to(np.exp(own["log_noise"]) * unit, eta.shape)
        off = y - eta
        square = off * off / variance
        value = -0.5 * (square + xp.log(variance) + LOG_2PI)
        by = {"log_noise": 0.5 * (square - 1.0)}
        if order == 1:
            return Terms(value, off / variance, by=by)
        curve = -1.0 / variance
        return Terms(
            value, off / variance, curve, xp.zeros_like(eta), by, {"log_noise": 1.0 / variance}
        )

    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`Likelihood`."""
        return eta + np.sqrt(np.exp(own["log_noise"]) * unit) * rng.standard_normal(eta.shape)


class Exponential(Likelihood):
    """``y`` exponential with mean ``eta``: ``h = -log eta - y / eta``."""

    name = "exponential"
    links = ("exp", "square")

    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """See :class:`Likelihood`."""
        del own, unit
        inverse = 1.0 / eta
        ratio = y * inverse
        value = -namespace(eta).log(eta) - ratio
        d1 = inverse * (ratio - 1.0)
        if order == 1:
            return Terms(value, d1)
        return Terms(value, d1, inverse**2 * (1.0 - 2.0 * ratio), inverse**3 * (6.0 * ratio - 2.0))

    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`Likelihood`."""
        del own, unit
        return eta * rng.standard_exponential(eta.shape)


class Binomial(Likelihood):
    """``y`` positives of ``trials`` tested, each with probability ``eta``, a mean over the bag."""

    name = "binomial"
    links = ("probit",)
    averages = True

    def unit(self, weight: Any, offsets: Any, trials: Any) -> Any:
        """See :class:`Likelihood`: the numbers tested."""
        del weight, offsets
        if trials is None:
            msg = "likelihood: binomial needs the number tested in each bag; give trials (n_bag,)"
            raise ParameterError(msg)
        return trials

    def terms(self, y: Any, eta: Any, own: Mapping[str, float], unit: Any, order: int = 1) -> Terms:
        """See :class:`Likelihood`."""
        del own
        log_eta, ratio = _log_and_ratio(y, eta)
        rest = unit - y
        log_rest, ratio_rest = _log_and_ratio(rest, 1.0 - eta)
        log_choose = gammaln(unit + 1.0) - gammaln(y + 1.0) - gammaln(rest + 1.0)
        value = y * log_eta + rest * log_rest + log_choose
        if order == 1:
            return Terms(value, ratio - ratio_rest)
        return Terms(
            value,
            ratio - ratio_rest,
            -ratio / eta - ratio_rest / (1.0 - eta),
            2.0 * ratio / eta**2 - 2.0 * ratio_rest / (1.0 - eta) ** 2,
        )

    def draw(
        self, eta: np.ndarray, own: Mapping[str, float], unit: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`Likelihood`."""
        del own
        return rng.binomial(np.rint(unit).astype(np.int64), np.clip(eta, 0, 1)).astype(np.float64)


LIKELIHOODS: dict[str, Likelihood] = {
    law.name: law for law in (Poisson(), NegativeBinomial(), Normal(), Exponential(), Binomial())
}


def _log_and_ratio(y: Any, eta: Any) -> tuple[Any, Any]:
    """Return ``log eta`` and ``y / eta``; both 0 where ``y`` is, which allows ``eta = 0``."""
    xp = namespace(eta)
    counted = xp.broadcast_to(y > 0, eta.shape)
    safe = xp.where(counted, eta, 1.0)
    return xp.log(safe), xp.where(counted, y / safe, 0.0)


TINY = 1e-100


def check_positive(y: Any, mean: Any) -> None:
    """Raise NumericalError where a mean is not finite, or is 0 under a response above 0."""
    xp = namespace(mean)
    if not bool(xp.isfinite(mean).all()) or bool(((y > 0) & (mean <= 0)).any()):
        msg = (
            "the bound is not finite: the fit diverged, or a bag with cases has no weight; "
            "lower the learning rate, or check the population"
        )
        raise NumericalError(msg)
