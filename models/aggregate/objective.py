"""A bag's part of the objective, from the moments of ``f`` on its pixels: one way or another.

The estimators of ``E_q log p(y | eta)``; ``docs/design/aggregates.md`` says what each costs and
gets wrong. Draws of whole functions are in :mod:`models.gp.pathwise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.aggregate import bounds
from models.aggregate import moment_matching as expected
from models.aggregate.bag_variance import bag_variance
from models.backend.arrays import namespace, segment_sum, spread
from models.core.errors import NumericalError
from models.gp.pixel_pass import PairAdjoint, PixelPass
from models.likelihoods.counts import TINY, Likelihood, check_positive
from models.likelihoods.links import Link

ESTIMATORS = ("auto", "bound", "second_order", "log_normal", "monte_carlo")
AUTO = {
    "exp": "log_normal",
    "square": "second_order",
    "identity": "second_order",
    "probit": "second_order",
}


@dataclass(frozen=True)
class Aggregated:
    """The objective's part of some bags, and its adjoints.

    Attributes
    ----------
    value : float
        Sum over the bags, nats.
    d_m, d_s : (n_pix,) float64
    pairs : PairAdjoint or None
        Through the covariances inside the bags.
    by : dict of float
        By the law's own parameters.
    """

    value: float
    d_m: Any
    d_s: Any
    pairs: PairAdjoint | None
    by: dict[str, float]


def available(law: Likelihood, link: str, estimator: str) -> bool:
    """Tell whether an estimator exists for a law and a link."""
    if estimator == "bound":
        return (law.name, link) in bounds.BOUNDED
    if estimator == "log_normal":
        return link in ("exp", "square")
    return estimator in ESTIMATORS


def bag_weights(law: Likelihood, weight: Any, offsets: Any, base: float) -> Any:
    """Return the weights ``p`` of the aggregate: (n_pix,) float64."""
    xp = namespace(weight)
    p = base * weight.astype(xp.float64, copy=False)
    if law.averages:
        total = segment_sum(p, offsets)
        p = p / spread(xp.where(total > 0, total, 1.0), offsets)
    return p


def aggregate(
    fwd: PixelPass,
    law: Likelihood,
    link: Link,
    estimator: str,
    y: Any,
    p: Any,
    offsets: Any,
    bag: Any,
    own: Mapping[str, float],
    unit: Any,
    most: int,
) -> Aggregated:
    """Estimate ``sum_a E_q log p(y_a | eta_a)``.

    Parameters
    ----------
    fwd : PixelPass
    law, link : Likelihood, Link
    estimator : {"bound", "second_order", "log_normal"}
    y, bag, unit : (n_bag,);  p : (n_pix,);  offsets : (n_bag + 1,)
    own : dict of float
        The law's own parameters.
    most : int
        Pixels of a bag whose pairs are visited.

    Raises
    ------
    NumericalError
        If the value is not finite.
    """
    xp = namespace(fwd.m)
    if estimator == "bound":
        term = bounds.lower_bound(law, link, y, p, offsets, fwd.m, fwd.s, own, unit)
        return Aggregated(_finite(term.value), term.d_m, term.d_s, None, term.by)
    a0, a1, a2 = link.moments(fwd.m, fwd.s, 2)
    mean = segment_sum(p * a0, offsets)
    if law.name != "normal":
        check_positive(y, mean)
        mean = xp.maximum(mean, TINY)
    variance = bag_variance(fwd, link, p, offsets, bag, most)
    rule = expected.log_normal if estimator == "log_normal" else expected.second_order
    at = rule(law, y, mean, variance.value, own, unit)
    value = _finite(at.value)
    slope = spread(at.by_mean, offsets) * p
    by_spread = spread(at.by_variance, offsets)
    return Aggregated(
        value,
        slope * a1 + by_spread * variance.d_m,
        0.5 * slope * a2 + by_spread * variance.d_s,
        variance.scaled(at.by_variance),
        {name: float(each.sum()) for name, each in at.by.items()},
    )


def _finite(value: Any) -> float:
    total = float(value.sum())
    if not math.isfinite(total):
        msg = "the objective is not finite: the fit diverged; lower the learning rate"
        raise NumericalError(msg)
    return total
