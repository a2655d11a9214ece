r"""A log-normal effect of each area, integrated out.

``y ~ p(y | eta e^eps)``, ``eps ~ N(-tau^2 / 2, tau^2)``: areas differ by more than their covariates
and the likelihood's noise explain, by a factor of mean 1. Its deviation ``tau`` is learnt. With
``t = log eta - tau^2 / 2`` the marginal ``g(t) = log int e^{l(u)} N(u; t, tau^2) du`` is a
one-dimensional integral, done by Gauss-Hermite quadrature around its mode, and its derivatives by
``t`` are cumulants of the posterior of ``u``: ``g' = (E u - t) / tau^2``,
``g'' = Var u / tau^4 - 1 / tau^2``, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.protocol import Summary, override
from models.likelihoods.constant import OneRate
from models.likelihoods.hermite import hermite_nodes
from models.likelihoods.likelihood import (
    TINY,
    Likelihood,
    Parameter,
    Params,
    Terms,
    exponential,
)

AREA_SD = "log_area_sd"
N_NODE = 24
NEWTON_STEPS = 30
START_SD = 0.3
LONGEST_STEP = 3.0


class AreaEffect(Likelihood):
    """A likelihood with a log-normal area effect on its mean.

    Parameters
    ----------
    base : Likelihood
        Of the response given the area's mean; log-concave in the mean's logarithm.
    """

    name = "area_effect"

    def __init__(self, base: Likelihood) -> None:
        self.base = base
        self.describe_as(base)
        self.parameters = {
            **base.parameters,
            AREA_SD: Parameter(
                float(np.log(START_SD)),
                1.0,
                tells="Areas differ beyond the map by a factor of about {factor}.",
            ),
        }

    def __str__(self) -> str:
        """Return the base's name and its own."""
        return f"{self.base}+{self.name}"

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        base_rate, level, params = self.base.starting_scale(sample)
        return base_rate, level, {**self.start(sample), **params}

    @override
    def without_factor(self, params: Params) -> tuple[Likelihood, float]:
        return self.base, float(np.exp(2.0 * params[AREA_SD]))

    @override
    def by_factor(self, slope: Any, bag_data: Any) -> dict[str, Any]:
        return {AREA_SD: slope}

    @override
    def units(self, sample: Summary) -> dict[str, float]:
        return self.base.units(sample)

    @override
    def cases_at_one(self, sample: Summary, base: float) -> float | None:
        return self.base.cases_at_one(sample, base)

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        return self.base.bag_data(weight, offsets, trials, squares)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        # Where the base has a law of its own, its spread takes the place of the area effect.
        if type(self.base).constant is Likelihood.constant:
            return super().constant(y, exposure, bag_data)
        return self.base.constant(y, exposure, bag_data)

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        tau = exponential(params[AREA_SD], eta)
        effect = np.exp(tau * rng.standard_normal(eta.shape) - 0.5 * tau**2)
        return self.base.draw(eta * effect, params, bag_data, rng)

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        tau2 = exponential(2.0 * params[AREA_SD], eta)
        eta = xp.maximum(eta, TINY)
        t = xp.log(eta) - 0.5 * tau2
        value, u, share, at = _integrated(self.base, y, t, tau2, params, bag_data)
        mean = (share * u).sum(axis=0)
        off = u - mean
        k2 = (share * off**2).sum(axis=0)
        g1 = (mean - t) / tau2
        g2 = k2 / tau2**2 - 1.0 / tau2
        by = {name: (share * slope).sum(axis=0) for name, slope in at.by.items()}
        by_tau = tau2 * (g2 + g1**2 - g1)
        if order == 1:
            return Terms(value, g1 / eta, by={**by, AREA_SD: by_tau})
        k3 = (share * off**3).sum(axis=0)
        k4 = (share * off**4).sum(axis=0) - 3.0 * k2**2
        g3, g4 = k3 / tau2**3, k4 / tau2**4
        by_d2 = {}
        for name, slope in at.by.items():
            g1_by = (share * off * slope).sum(axis=0) / tau2
            g2_by = (share * (off**2 - k2) * slope).sum(axis=0) / tau2**2
            by_d2[name] = (g2_by - g1_by) / eta**2
        g1_tau = tau2 * (g3 + 2.0 * g1 * g2 - g2)
        g2_tau = tau2 * (g4 + 2.0 * g2**2 + 2.0 * g1 * g3 - g3)
        by_d2[AREA_SD] = (g2_tau - g1_tau) / eta**2
        return Terms(
            value,
            g1 / eta,
            (g2 - g1) / eta**2,
            (g3 - 3.0 * g2 + 2.0 * g1) / eta**3,
            {**by, AREA_SD: by_tau},
            by_d2,
        )


def log_normal_mixture(
    base: Likelihood,
    y: np.ndarray,
    t: Any,
    variance: Any,
    params: Params,
    bag_data: Any,
) -> Terms:
    r"""Return ``g = log int p(y | e^u) N(u; t, variance) du`` and its derivatives.

    Parameters
    ----------
    base : Likelihood
        Log-concave in the mean's logarithm.
    y : (n_bag,)
    t : (..., n_bag)
    variance : (n_bag,)
    params, bag_data
        See :meth:`Likelihood.terms`.

    Returns
    -------
    Terms
        ``d1`` by ``t``, ``d2`` by ``variance``, and ``by`` the base's parameters.
    """
    value, u, share, at = _integrated(base, y, t, variance, params, bag_data)
    off = u - t
    first = (share * off).sum(axis=0)
    second = (share * off**2).sum(axis=0)
    by = {name: (share * slope).sum(axis=0) for name, slope in at.by.items()}
    # The heat equation: d/d variance of the integral is half of its second derivative by t.
    return Terms(value, first / variance, 0.5 * (second / variance - 1.0) / variance, by=by)


def _integrated(
    base: Likelihood, y: np.ndarray, t: Any, variance: Any, params: Params, bag_data: Any
) -> tuple[Any, Any, Any, Terms]:
    """Integrate ``p(y | e^u) N(u; t, variance)`` over ``u``.

    Returns
    -------
    value : (..., n_bag)
        Logarithm of the integral.
    u, share : (N_NODE, ..., n_bag)
        Nodes, and the share that each has in the integral.
    at : Terms
        Of the base at the nodes.
    """
    xp = namespace(t)
    mode, sd = mixture_mode(base, y, t, params, bag_data, variance)
    shape = (N_NODE,) + (1,) * t.ndim
    node, weight = (xp.asarray(a).reshape(shape) for a in hermite_nodes(N_NODE))
    u = mode + np.sqrt(2.0) * sd * node
    at = base.terms(y, xp.exp(u), params, bag_data, order=1)
    log_each = at.value - 0.5 * (u - t) ** 2 / variance + xp.log(weight) + node**2
    top = log_each.max(axis=0)
    share = xp.exp(log_each - top)
    total = share.sum(axis=0)
    share /= total
    value = top + xp.log(total) + xp.log(sd) - 0.5 * np.log(np.pi * variance)
    return value, u, share, at


def mixture_mode(
    base: Likelihood, y: np.ndarray, t: Any, params: Params, bag_data: Any, variance: Any
) -> tuple[Any, Any]:
    """Find the mode of :func:`log_normal_mixture`'s integrand and its Laplace deviation."""
    xp = namespace(t)
    # The integrand is log-concave; from above its mode Newton would crawl down an exponential,
    # from far below it would overshoot: start at the data where there are any.
    at_data = xp.log(xp.broadcast_to(base.told(y, params, bag_data), t.shape))
    reach = 6.0 * np.sqrt(variance)
    u = xp.clip(t, at_data - reach, at_data + reach)
    moving, curvature = xp.ones_like(t) > 0, xp.ones_like(t)
    for _ in range(NEWTON_STEPS):
        eta = xp.exp(u)
        at = base.terms(y, eta, params, bag_data, order=3)
        slope = at.d1 * eta - (u - t) / variance
        curve = xp.maximum(-(at.d2 * eta**2 + at.d1 * eta), 0.0) + 1.0 / variance
        step = xp.clip(slope / curve, -LONGEST_STEP, LONGEST_STEP)
        # What is there stays: an area's numbers do not depend on what it is computed with.
        u = xp.where(moving, u + step, u)
        curvature = xp.where(moving, curve, curvature)
        moving = moving & (xp.abs(step) > 1e-9)
        if not bool(moving.any()):
            break
    return u, 1.0 / xp.sqrt(curvature)
