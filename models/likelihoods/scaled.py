r"""Laws of sources beside the areas, which read the aggregate ``eta`` on a scale of their own.

A count a person a year and a prevalence are not the same quantity. With the source's scale
``kappa``, learnt with the rest, the mean of its law is

    counts beside counts             kappa eta
    proportions beside counts        1 - exp(-kappa eta)
    proportions beside proportions   kappa eta / (1 - eta + kappa eta)

The logarithm of ``kappa`` is the offset of generalised linear models: on the logarithm of the rate,
on the complementary log-log of the probability, and on its logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.protocol import override
from models.likelihoods.likelihood import Likelihood, Parameter, Params, Terms, exponential

SCALE = "log_scale"
SPREAD = 3.0  # deviation of the prior of a scale's logarithm, around what the totals say


@dataclass(frozen=True)
class Reading:
    """The mean of a law as a function of ``eta`` and of the scale.

    Attributes
    ----------
    value, d1, d2, d3
        It and its derivatives by ``eta``.
    by, by_d1, by_d2
        Derivatives of the first three by the logarithm of the scale.
    """

    value: Any
    d1: Any
    d2: Any
    d3: Any
    by: Any
    by_d1: Any
    by_d2: Any


def _rate(eta: Any, k: Any) -> Reading:
    value, zero = k * eta, 0.0 * eta
    return Reading(value, k + zero, zero, zero, value, k + zero, zero)


def _hazard(eta: Any, k: Any) -> Reading:
    xp = namespace(eta)
    at = k * eta
    left = xp.exp(-at)
    slope = k * left
    return Reading(
        -xp.expm1(-at),
        slope,
        -k * slope,
        k**2 * slope,
        at * left,
        slope * (1.0 - at),
        -k * slope * (2.0 - at),
    )


def _odds(eta: Any, k: Any) -> Reading:
    up = 1.0 + (k - 1.0) * eta
    return Reading(
        k * eta / up,
        k / up**2,
        -2.0 * k * (k - 1.0) / up**3,
        6.0 * k * (k - 1.0) ** 2 / up**4,
        k * eta * (1.0 - eta) / up**2,
        k * (up - 2.0 * k * eta) / up**3,
        (-2.0 * k * (2.0 * k - 1.0) * up + 6.0 * k**2 * (k - 1.0) * eta) / up**4,
    )


class Scaled(Likelihood):
    """A law of a source beside the areas, whose mean is read off ``eta`` on a learnt scale.

    Parameters
    ----------
    base : Likelihood
        Of counts, or of positives among people tested.
    proportions : bool
        Whether ``eta`` is a proportion.
    """

    def __init__(self, base: Likelihood, *, proportions: bool) -> None:
        self.base = base
        self.name = base.name  # type: ignore[misc]
        self.links = base.links  # type: ignore[misc]
        self.needs_trials = base.needs_trials  # type: ignore[misc]
        self.responses = base.responses  # type: ignore[misc]
        self.aggregates = (0.0, 1.0 if proportions else np.inf)  # type: ignore[misc]
        self._read = _odds if proportions else _hazard if base.needs_trials else _rate
        self.parameters = {
            **base.parameters,
            SCALE: Parameter(0.0, in_units=True, spread=SPREAD),
        }

    def __str__(self) -> str:
        """Return the name of its law."""
        return str(self.base)

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        return self.base.bag_data(weight, offsets, trials, squares)

    def mean(self, eta: Any, params: Params) -> Any:
        """Return the mean of the law at aggregates (..., n_bag): a rate, or a probability."""
        return self._read(eta, exponential(params[SCALE], eta)).value

    def scale_at(self, eta: float, mean: float) -> float:
        """Return the scale's logarithm with which an aggregate has a mean."""
        if self._read is _odds:
            return float(np.log(mean / (1.0 - mean)) - np.log(eta / (1.0 - eta)))
        return float(np.log(mean if self._read is _rate else -np.log1p(-mean)) - np.log(eta))

    @override
    def told(self, y: Any, params: Params, bag_data: Any) -> Any:
        xp = namespace(y)
        if self._read is _rate:
            at = super().told(y, params, bag_data)
        else:
            at = (y + 0.5) / (bag_data + 1.0)
            at = -xp.log1p(-at) if self._read is _hazard else at / (1.0 - at)
        at = at / exponential(params[SCALE], y)
        return at / (1.0 + at) if self._read is _odds else at

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        g = self._read(eta, exponential(params[SCALE], eta))
        at = self.base.terms(y, g.value, params, bag_data, order)
        by = {**at.by, SCALE: at.d1 * g.by}
        if order == 1:
            return Terms(at.value, at.d1 * g.d1, by=by)
        bent = self._read is not _rate
        by_d2 = {
            name: slope * g.d1**2 + (at.by_d1[name] * g.d2 if bent else 0.0)
            for name, slope in at.by_d2.items()
        }
        by_d2[SCALE] = (
            at.d3 * g.by * g.d1**2 + at.d2 * (2.0 * g.d1 * g.by_d1 + g.by * g.d2) + at.d1 * g.by_d2
        )
        return Terms(
            at.value,
            at.d1 * g.d1,
            at.d2 * g.d1**2 + at.d1 * g.d2,
            at.d3 * g.d1**3 + 3.0 * at.d2 * g.d1 * g.d2 + at.d1 * g.d3,
            by,
            by_d2,
        )

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        return self.base.draw(self.mean(eta, params), params, bag_data, rng)
