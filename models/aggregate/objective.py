"""A bag's part of the objective, from the moments of ``f`` on its pixels.

The estimators of ``E_q log p(y | eta)``; ``docs/design/aggregates.md`` compares their
costs and errors. Draws of whole functions are in :mod:`models.gp.pathwise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from models.aggregate import bounds, moment_matching
from models.aggregate.displaced import Displaced
from models.backend.arrays import like, namespace, segment_sum, spread
from models.core.errors import NumericalError
from models.core.protocol import Arrays
from models.gp.bag_variance import bag_variance
from models.gp.drawn_share import DrawnShare
from models.gp.pixel_pass import Aggregated, Followed, PixelPass
from models.likelihoods.likelihood import TINY, Likelihood
from models.likelihoods.observation import Observation

Estimation = Literal["auto", "bound", "second_order", "log_normal", "monte_carlo"]


@dataclass(frozen=True)
class Objective:
    """The bound and its derivatives at one state, estimated from some of the bags.

    Attributes
    ----------
    bound : float
        Nats, all bags.
    grad : dict of arrays
        By every unconstrained parameter.
    d_mean, d_cov : (n_ind,), (n_ind, n_ind) float64
        Adjoints of the mean and covariance of the whitened inducing values, without the KL term.
    """

    bound: float
    grad: Arrays
    d_mean: np.ndarray
    d_cov: np.ndarray


def available(likelihood: Likelihood, link: str, estimator: str) -> bool:
    """Tell whether an estimator exists for a likelihood and a link."""
    if estimator == "bound":
        return bounds.is_bounded(likelihood, link)
    if estimator == "log_normal":
        return link in ("exp", "square")
    return estimator in get_args(Estimation)


def aggregate(
    fwd: PixelPass, seen: Observation, estimator: str, max_pixels: int, *, slopes: bool = True
) -> Aggregated:
    """Estimate ``sum_a E_q log p(y_a | eta_a)``.

    Parameters
    ----------
    fwd : PixelPass
    seen : Observation
    estimator : {"bound", "second_order", "log_normal"}
    max_pixels : int
        Pixels of a bag whose pairs are visited.
    slopes : bool
        Whether the kernel's parameters are wanted.

    Raises
    ------
    NumericalError
        If the value is not finite.
    """
    if estimator == "bound":
        term = bounds.lower_bound(seen, fwd.m, fwd.s)
        by = {name: float(value.sum()) for name, value in term.by.items()}
        return Aggregated(finite(float(term.value.sum())), term.d_m, term.d_s, None, by)
    likelihood, p, offsets = seen.likelihood, seen.p, seen.offsets
    a0, a1, a2, a3 = seen.link.moments(fwd.m, fwd.s, 3)
    mean = segment_sum(p * a0, offsets)
    likelihood.check_mean(seen.y, mean)
    if likelihood.positive:
        mean = namespace(mean).maximum(mean, TINY)
    variance = bag_variance(fwd, seen.link, p, offsets, seen.bag, max_pixels)
    marginal = estimator == "log_normal" and seen.link.name == "exp" and "cov" in fwd.params
    line: Followed | None = None
    share: DrawnShare | None = None
    value, above = variance.value, 1.0
    displaced = Displaced.of(seen, fwd.m, fwd.s, mean)
    together = 1.0 if displaced is None else ~displaced.bags  # whose pairs of pixels count
    if marginal or (variance.drawn is not None and "cov" in fwd.params):
        line = fwd.followed(p * a1, offsets)
    if line is not None and variance.drawn is not None:
        share = DrawnShare(fwd, a1, variance.drawn, offsets.shape[0] - 1)
        value = value + share.has * line.value - share.value
    if variance.drawn is not None and not marginal:
        # V is no less than its linear part, but its estimate from nodes can be: unless this ends
        # there, a large variance of f counts as gain, and the best fit is the wildest.
        least = 0.0 if line is None else line.value
        exact = np.ones(offsets.shape[0] - 1, dtype=bool)
        exact[variance.drawn.bag] = False
        above = like(exact, value) | (value >= least)
        value = namespace(value).where(above, value, least)
    value = value if displaced is None else displaced.instead_of(value)
    if marginal and line is not None:
        at = moment_matching.marginal(seen, mean, value, line.value)
    else:
        rule = {
            "log_normal": moment_matching.log_normal,
            "second_order": moment_matching.second_order,
        }[estimator]
        at = rule(seen, mean, value)
    by_pairs = at.by_variance * together
    by_linear = at.by_linear if marginal else 0.0
    if share is not None:
        by_linear = by_linear + share.has * by_pairs
    by_pairs = by_pairs * above
    total = finite(float(at.value.sum()))
    by_mean = at.by_mean if displaced is None else displaced.by_mean(at.by_mean, at.by_variance)
    slope = spread(by_mean, offsets) * p
    pair_m, pair_s, pairs = variance.backward(by_pairs, slopes=slopes)
    d_m, d_s = slope * a1 + pair_m, 0.5 * slope * a2 + pair_s
    if displaced is not None:
        own_m, own_s = displaced.backward(at.by_variance, offsets)
        d_m, d_s = d_m + own_m, d_s + own_s
    followed = None
    if line is not None:
        followed = (line, by_linear)
        by_factor = spread(by_linear, offsets) * line.by_weight(fwd.k) * p
        d_m += by_factor * a2
        d_s += 0.5 * by_factor * a3
    drawn = None
    if share is not None:
        by_factor, drawn = share.backward(-by_pairs, fwd.m.shape[0], slopes=slopes)
        d_m += by_factor * a2
        d_s += 0.5 * by_factor * a3
    return Aggregated(
        total,
        d_m,
        d_s,
        pairs,
        {name: float(each.sum()) for name, each in at.by.items()},
        followed,
        drawn,
    )


def finite(value: float) -> float:
    """Return a part of the objective, or raise NumericalError where it is not finite."""
    if not math.isfinite(value):
        msg = "the objective is not finite: the fit diverged; lower the learning rate"
        raise NumericalError(msg)
    return value
