r"""What is expected of a likelihood's log density when its aggregate is uncertain: ``E h(eta)``.

``eta`` enters by its mean ``c`` and variance ``V`` under the posterior (see
:mod:`models.gp.bag_variance`). Two estimates, for any
likelihood:

* second order: ``h(c) + h''(c) V / 2``. Exact for the normal likelihood; for Poisson counts under
  the square link it is eq. (14) of Law et al. (2018), corrected. It holds only while ``V`` is far
  below ``c^2``.
* log-normal: ``eta`` is given the log-normal distribution of mean ``c`` and variance ``V``, and
  ``h`` is integrated by Gauss-Hermite quadrature. It agrees with the former for small ``V / c^2``
  and stays sensible for large ones; for positive aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.likelihoods.area_effect import log_normal_mixture
from models.likelihoods.hermite import hermite_nodes
from models.likelihoods.likelihood import Terms
from models.likelihoods.observation import Observation

N_NODE = 16
LEAST_LOG_VARIANCE = 1e-14
LEAST_REST = 1e-7  # variance that is integrated out: below, rounding would rule its derivative


@dataclass(frozen=True)
class Expected:
    """``E h`` of each bag and its derivatives, (n_bag,).

    Attributes
    ----------
    value, by_mean, by_variance : (n_bag,) float64
        By ``c`` and ``V``.
    by : dict of (n_bag,) float64
        By the likelihood's parameters.
    by_linear : (n_bag,) float64 or None
        By the part of ``V`` that is linear in ``f``.
    """

    value: Any
    by_mean: Any
    by_variance: Any
    by: dict[str, Any]
    by_linear: Any = None


def second_order(seen: Observation, c: Any, v: Any) -> Expected:
    """Expand to second order around the mean.

    Parameters
    ----------
    seen : Observation
    c, v : (n_bag,)
        Mean and variance of the aggregate.
    """
    at = seen.terms(c, order=3)
    half = 0.5 * v
    by = {name: slope + half * at.by_d2[name] for name, slope in at.by.items()}
    return Expected(at.value + half * at.d2, at.d1 + half * at.d3, 0.5 * at.d2, by)


def log_normal(seen: Observation, c: Any, v: Any) -> Expected:
    """Do as :func:`second_order`, over the log-normal distribution of that mean and variance."""
    xp = namespace(c)
    node, weight = (xp.asarray(a)[:, None] for a in hermite_nodes(N_NODE))
    node, weight = np.sqrt(2.0) * node, weight / np.sqrt(np.pi)
    ratio = v / c**2
    log_variance = xp.maximum(xp.log1p(ratio), LEAST_LOG_VARIANCE)
    sigma = xp.sqrt(log_variance)
    eta = c * xp.exp(sigma * node - 0.5 * log_variance)
    at = seen.terms(eta)
    by_log = weight * at.d1 * eta  # by the logarithm of each node
    by_log_variance = (by_log * (0.5 * node / sigma - 0.5)).sum(axis=0)
    by_variance = by_log_variance / (c**2 * (1.0 + ratio))
    by_mean = by_log.sum(axis=0) / c - 2.0 * ratio * c * by_variance
    by = {name: (weight * slope).sum(axis=0) for name, slope in at.by.items()}
    return Expected((weight * at.value).sum(axis=0), by_mean, by_variance, by)


def marginal(seen: Observation, c: Any, v: Any, linear: Any) -> Expected:
    r"""Do as :func:`log_normal`, with what is not linear in ``f`` integrated out.

    ``log eta = t + l + r``: ``l`` is linear in ``f``, which a Gaussian posterior follows, and ``r``
    is not: how much ``f`` varies inside the bag. Its posterior cannot be Gaussian together with
    ``f``'s, and ``E h`` would count all of its prior variance as loss: the best parameters would
    call it noise between the bags, and the field too smooth. To second order ``r`` is independent
    of ``l`` and of other bags, so that it is integrated inside the logarithm instead:

        E_l log E_r p(y | e^{t + l + r}),    Var l = linear / c^2,  Var (l + r) = log(1 + V / c^2).

    Parameters
    ----------
    seen : Observation
    c, v, linear : (n_bag,)
        Mean and variance of the aggregate, and the part of the variance that is linear in ``f``.
    """
    xp = namespace(c)
    node, weight = (xp.asarray(a)[:, None] for a in hermite_nodes(N_NODE))
    node, weight = np.sqrt(2.0) * node, weight / np.sqrt(np.pi)
    ratio = v / c**2
    total = xp.maximum(xp.log1p(ratio), 2.0 * LEAST_LOG_VARIANCE)
    straight = linear / c**2
    # Nodes chosen among many pixels, or rounding, can take the part above the whole.
    inside = straight < total - LEAST_REST
    own = xp.where(inside, straight, total - LEAST_REST)
    own = xp.maximum(own, 0.5 * LEAST_LOG_VARIANCE)  # none at all, far from all inducing points
    rest = xp.maximum(total - own, LEAST_REST)
    sigma = xp.sqrt(own)
    t = xp.log(c) - 0.5 * total + sigma * node
    at = marginal_terms(seen, t, rest)
    by_t = (weight * at.d1).sum(axis=0)
    by_own = (weight * at.d1 * (0.5 * node / sigma)).sum(axis=0)
    by_rest = (weight * at.d2).sum(axis=0)
    # total moves t and, where the linear part is what it is, the rest; else the linear part.
    by_total = -0.5 * by_t + xp.where(inside, by_rest, by_own)
    by_straight = xp.where(inside, by_own - by_rest, 0.0)
    by_variance = by_total / (c**2 * (1.0 + ratio))
    by_mean = by_t / c - 2.0 * ratio * c * by_variance - 2.0 * straight / c * by_straight
    by = {name: (weight * slope).sum(axis=0) for name, slope in at.by.items()}
    value = (weight * at.value).sum(axis=0)
    return Expected(value, by_mean, by_variance, by, by_straight / c**2)


def marginal_terms(seen: Observation, t: Any, rest: Any) -> Terms:
    """Return ``log E_r p(y | e^{t + r})``, ``d1`` by ``t``, ``d2`` by ``Var r`` (n_bag,)."""
    base, _ = seen.likelihood.without_factor(seen.params)
    tau2 = seen.likelihood.factor_variance(seen.params, seen.bag_data)
    at = log_normal_mixture(base, seen.y, t - 0.5 * tau2, rest + tau2, seen.params, seen.bag_data)
    if base is seen.likelihood:
        return at
    by_factor = 2.0 * tau2 * (at.d2 - 0.5 * at.d1)
    return replace(at, by={**at.by, **seen.likelihood.by_factor(by_factor, seen.bag_data)})
