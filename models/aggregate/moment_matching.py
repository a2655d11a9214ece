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

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import roots_hermite

from models.backend.arrays import namespace
from models.likelihoods.observation import Observation

N_NODE = 16
LEAST_LOG_VARIANCE = 1e-14


@dataclass(frozen=True)
class Expected:
    """``E h`` of each bag and its derivatives, (n_bag,).

    Attributes
    ----------
    value, by_mean, by_variance : (n_bag,) float64
        By ``c`` and ``V``.
    by : dict of (n_bag,) float64
        By the likelihood's parameters.
    """

    value: Any
    by_mean: Any
    by_variance: Any
    by: dict[str, Any]


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
    node, weight = (xp.asarray(a)[:, None] for a in roots_hermite(N_NODE))
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
