r"""Likelihoods of a bag's response given its evidence ``s``, under a Gaussian ``q(s) = N(m, var)``.

Each gives ``E log p(y | s)``, or a bound on it, with its slopes by ``m`` and ``var``. Seen from
there it is a quadratic in ``s`` (a *site*),

    log p(y | s)  ~  a + h s - w s^2 / 2,    w = -2 d/dvar,   h = d/dm + w m,

which has the same expectation and slopes; sites add up to the natural parameters of ``q(v)``. For
Jaakkola's bound and for normal noise the quadratic bounds, or is, the likelihood, so that the
``q(v)`` that the sites ask for is the optimum and the bound cannot fall; for the probit it is a
step of natural gradient ascent (Khan & Lin 2017).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np
from scipy.special import erfcx, log_ndtr

from models.core.block import check_labels
from models.core.errors import BagsError
from models.core.protocol import override
from models.likelihoods.constant import OneRate
from models.likelihoods.prediction import Prediction
from models.likelihoods.probability import Probability, label_log_density

REACH = 9.0  # deviations of the Gaussian that the quadrature covers
WIDTHS = np.linspace(-REACH, REACH, 13)
DYADIC = 2.0 ** np.arange(18)
N_NODE = 8
NARROWEST = 1e-6  # deviation that stands for a smaller one, to keep differences of nodes exact
FAR = -1e3
LOG_2PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class Site:
    """Value and slopes of ``E log p(y | s)``, or of its bound, for each bag.

    Attributes
    ----------
    value, d_m, d_var : (n_bag,) float64
        Nats; ``d_var`` is negative.
    """

    value: np.ndarray
    d_m: np.ndarray
    d_var: np.ndarray

    def precision(self) -> np.ndarray:
        """Return ``w``: (n_bag,)."""
        return -2.0 * self.d_var

    def linear(self, m: np.ndarray) -> np.ndarray:
        """Return ``h`` of the site seen from mean ``m``: (n_bag,)."""
        return self.d_m + self.precision() * m

    def constant(self, m: np.ndarray, var: np.ndarray) -> np.ndarray:
        """Return ``a`` of the site seen from mean ``m`` and variance ``var``: (n_bag,)."""
        return self.value - self.d_m * m - 0.5 * self.precision() * (m * m - var)


class EvidenceLikelihood(ABC):
    """A likelihood of the response given the evidence.

    Attributes
    ----------
    labels : bool
        Whether a response is a label, 0 or 1.
    closed_form : bool
        Whether the ``q(v)`` of the sites is the optimum, and not a step towards it.
    has_noise : bool
        Whether the response has a noise variance, which a model learns.
    link : str
        From the evidence to the probability of label 1.
    """

    labels: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True
    has_noise: ClassVar[bool] = False
    link: ClassVar[Literal["logistic", "probit"]] = "logistic"

    def check(self, y: np.ndarray) -> None:
        """Raise BagsError where the responses of the training bags are unusable."""
        check_labels(y)

    def response_scale(self, y: np.ndarray) -> tuple[float, float]:
        """Return what is subtracted from responses, and what they are divided by."""
        del y
        return 0.0, 1.0

    def predicted(
        self, m: np.ndarray, var: np.ndarray, y_mean: float, y_scale: float
    ) -> Probability | Prediction:
        """Predict responses of evidence ``N(m, var)``, in the units that ``response_scale`` set."""
        del y_mean, y_scale
        return Probability(self.link, m, var)

    @abstractmethod
    def site(self, y: np.ndarray, m: np.ndarray, var: np.ndarray, noise: float) -> Site:
        """Evaluate at responses ``y`` and evidence ``N(m, var)``, each (n_bag,).

        ``noise`` is the variance of the response, for likelihoods that have one.
        """


class Logistic(EvidenceLikelihood):
    r"""``P(y = 1 | s) = 1 / (1 + e^-s)``, by the bound of Jaakkola and Jordan (2000).

    ``log p >= y s - (s + xi) / 2 + log sigma(xi) - lambda(xi) (s^2 - xi^2)`` (the paper prints the
    bound with a ``T`` too many) at its optimum ``xi^2 = E s^2``, where the last term is nothing.
    """

    @override
    def site(self, y: np.ndarray, m: np.ndarray, var: np.ndarray, noise: float) -> Site:
        return self.site_at(y, m, var, np.sqrt(m * m + var))

    def site_at(self, y: np.ndarray, m: np.ndarray, var: np.ndarray, xi: np.ndarray) -> Site:
        """Evaluate the bound at any ``xi`` (n_bag,), not the best one."""
        curve = lam(xi)
        value = (y - 0.5) * m - 0.5 * xi - np.log1p(np.exp(-xi)) - curve * (m * m + var - xi * xi)
        return Site(value, y - 0.5 - 2.0 * curve * m, -curve)


class Probit(EvidenceLikelihood):
    """``P(y = 1 | s) = Phi(s)``: the label is 1 where ``s`` plus unit white noise is positive.

    The paper's SVI variant adds noise of variance ``1 / alpha`` as well; the sum of the two is one
    noise, and its scale that of ``f``.
    """

    closed_form = False
    link = "probit"

    @override
    def site(self, y: np.ndarray, m: np.ndarray, var: np.ndarray, noise: float) -> Site:
        """By quadrature."""
        sign = 2.0 * y - 1.0
        s, weight = nodes(sign * m, var)
        log_p = log_ndtr(s)
        ratio = np.sqrt(2.0 / np.pi) / erfcx(-s / np.sqrt(2.0))  # phi / Phi
        # Far below 0 the ratio is -s - 1/s + ...: the sum would be rounding alone.
        bend = np.where(s < FAR, 1.0 - 1.0 / np.square(np.minimum(s, FAR)), ratio * (s + ratio))
        value, slope, curve = ((weight * each).sum(axis=0) for each in (log_p, ratio, -bend))
        return Site(value, sign * slope, 0.5 * curve)


class Normal(EvidenceLikelihood):
    """``y ~ N(s, noise)``: bags of real numbers (the paper's footnote 1)."""

    labels = False
    has_noise = True

    @override
    def check(self, y: np.ndarray) -> None:
        if not y.std() > 0:
            found = f"every bag's y is {y[0]:g}" if y.size else "there are no bags"
            msg = f"{found}; regression needs bags of different responses"
            raise BagsError(msg)

    @override
    def response_scale(self, y: np.ndarray) -> tuple[float, float]:
        return float(y.mean()), float(y.std())

    @override
    def predicted(
        self, m: np.ndarray, var: np.ndarray, y_mean: float, y_scale: float
    ) -> Probability | Prediction:
        return Prediction("identity", m + y_mean / y_scale, var, y_scale)

    @override
    def site(self, y: np.ndarray, m: np.ndarray, var: np.ndarray, noise: float) -> Site:
        value = -0.5 * ((y - m) ** 2 + var) / noise - 0.5 * (LOG_2PI + np.log(noise))
        return Site(value, (y - m) / noise, np.full_like(m, -0.5 / noise))


EVIDENCE_LIKELIHOODS: dict[str, EvidenceLikelihood] = {
    "logistic": Logistic(),
    "probit": Probit(),
    "normal": Normal(),
}


def lam(xi: np.ndarray) -> np.ndarray:
    """Return ``(sigma(xi) - 1/2) / (2 xi)``, 1/8 at 0."""
    small = np.abs(xi) < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.125 - xi * xi / 96.0, np.tanh(0.5 * safe) / (4.0 * safe))


def nodes(m: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights to integrate over ``N(m, var)`` what bends at 0 and nowhere else.

    Gauss-Legendre on panels of one and a half deviations, cut again at 0 and at powers of two on
    both its sides: a sum over hundreds of instances has a deviation of hundreds beside a sigmoid of
    width 1, which Gauss-Hermite nodes would step over.

    Parameters
    ----------
    m, var : (n_bag,) float64

    Returns
    -------
    s, weight : (n_node, n_bag) float64
    """
    m, var = np.asarray(m, np.float64), np.asarray(var, np.float64)
    sd = np.maximum(np.sqrt(var), NARROWEST * (1.0 + np.abs(m)))
    ends = m + WIDTHS[:, None] * sd
    graded = np.concatenate([-DYADIC[::-1], [0.0], DYADIC])[:, None]
    edges = np.sort(np.concatenate([ends, np.clip(graded, ends[0], ends[-1])]), axis=0)
    half = 0.5 * np.diff(edges, axis=0)[:, None]
    points, rule = (each[:, None] for each in _legendre())
    s = edges[:-1, None] + half * (1.0 + points)
    weight = half * rule * np.exp(-0.5 * ((s - m) / sd) ** 2) / (np.sqrt(2.0 * np.pi) * sd)
    shape = (-1, m.shape[0])
    return s.reshape(shape), weight.reshape(shape)


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(N_NODE)


@dataclass(frozen=True)
class LabelRate(OneRate):
    """Labels that are positive with one probability."""

    rate: float
    about = "one probability"

    @classmethod
    def fit(cls, y: np.ndarray) -> LabelRate:
        """Return the share of positives, half a label of either kind added."""
        return cls((float(y.sum()) + 0.5) / (y.shape[0] + 1.0))

    @override
    def mean(self, exposure: np.ndarray) -> np.ndarray:
        return np.full(exposure.shape, self.rate)

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return label_log_density(y, np.full(y.shape, self.rate))

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        rate = np.full((n_draws, exposure.shape[0]), self.rate)
        return rate, (rng.random(rate.shape) < rate).astype(np.float64)
