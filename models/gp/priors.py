r"""Prior densities of the kernel's and the likelihood's parameters, for their MAP estimates.

A hundred areas do not determine twenty length-scales, and a bound has ridges along which a kernel
degenerates (a range of one pixel, a variance of thousands). Penalised-complexity priors (Simpson et
al. 2017; Fuglstad et al. 2019) shrink towards the simpler model, a flat surface without excess
noise:

    sd:            p(sd) = rate e^{-rate sd},                         P(sd > U) = alpha
    sd of smooths and of interactions:
                   p(sd) = 2 / (pi U (1 + (sd / U)^2)),               P(sd > U) = 1/2
    length-scale:  p(l) = d/2 rate l^{-d/2 - 1} e^{-rate l^{-d/2}},   P(l < l0) = alpha

with ``d`` the dimension of what shares the length-scale: a number of columns, or two for the
Earth's surface, whether its points have two coordinates or three. Densities are by the logarithm of
the parameter, which is what the optimiser moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, log_ndtr

from models.core.protocol import Arrays, State, Summary
from models.gp.area_kernel import Areas
from models.gp.kernel_sums import Product, Sum
from models.gp.kernel_terms import whole_kernel
from models.gp.kernels import Constant, Kernel, Linear, Radial
from models.gp.regression_kernels import Ridge, Smooths
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import find_link

TAIL = 0.1  # alpha
# U of the smooth function of one covariate, as a share of that of the surface. Most covariates have
# no more than a slope, but where one has, its curve is not small: a half-Cauchy distribution
# (Gelman 2006) shrinks the many and lets the few be (docs/design/noise.md).
SMOOTH = 0.1
# Likewise of a function of several covariates together (an isotropic kernel), and l0 of it over the
# root of their number, by which distances among them grow.
JOINT, SHORT_JOINT = 0.3, 0.5
SHORT = 0.5  # l0, in deviations of a covariate or of the coordinates (a country is 3 to 5 across)
SHORT_AREA = 0.6  # l0 of space, in sides of a typical area
# Of an area's factor, or of the negative binomial's 1 / sqrt(size): P(sd > 0.5) = 0.1. Counts that
# differ by more than chance are the rule; a prior that forbids it, as P(sd > 0.1) = 0.01 of R
# disaggregation does, has a field shorter than an area stand for the noise (docs/design/noise.md).
LARGE_NOISE, TAIL_NOISE = 0.5, 0.1
# U of a noise in the responses' own units, those of an area's average: P(sd > their deviation) =
# TAIL. What areas vary by bounds what noise can be.
LARGE_SHARE = 1.0
UNIT = "unit_"

LEAST_ROOT = 1e-6  # of a mean under the square link, whose density is 0 at 0
FEW = 10.0  # cases in all, below which their number has a flat density, and not its logarithm


def log_prior(
    kernel: Kernel, theta: np.ndarray, link: str, area_side: float | None = None
) -> tuple[float, np.ndarray]:
    """Return the log density of the kernel's parameters, up to a constant, and its gradient.

    Parameters
    ----------
    kernel : Kernel
    theta : (n_theta,) float64
        Logarithms of its parameters.
    link : str
        It sets the scale of a large deviation of ``f``.
    area_side : float, optional
        Side of a typical area, scaled as the coordinates are. The length-scale of space may be
        shorter: below an area's size the responses tell nothing of it, and the prior decides.
    """
    laws, grad = _laws_of(whole_kernel(kernel), link, area_side), np.zeros_like(theta)
    at, scales = theta[laws.deviations], theta[laws.lengths]
    linear = laws.rate * np.exp(0.5 * at)
    square = (np.exp(0.5 * at) / laws.heavy) ** 2
    inverse = laws.inverse_rate * np.exp(-laws.half_dim * scales)
    value = float((0.5 * at - linear - np.log1p(square)).sum())
    value -= float((laws.half_dim * scales + inverse).sum())
    grad[laws.deviations] = 0.5 - 0.5 * linear - square / (1.0 + square)
    grad[laws.lengths] = laws.half_dim * (inverse - 1.0)
    return value, grad


class _Laws(NamedTuple):
    """Which density each parameter of a kernel has.

    Attributes
    ----------
    deviations, lengths : (n,) int64
        Places of the variances and of the length-scales.
    rate, heavy : (n,) float64
        Of each deviation: the rate of an exponential distribution, or 0; the median of a
        half-Cauchy one, or infinite.
    half_dim, inverse_rate : (n,) float64
        Of each length-scale.
    """

    deviations: np.ndarray
    lengths: np.ndarray
    rate: np.ndarray
    heavy: np.ndarray
    half_dim: np.ndarray
    inverse_rate: np.ndarray


@lru_cache(maxsize=64)
def _laws_of(kernel: Kernel, link: str, area_side: float | None) -> _Laws:
    """Return the densities of a kernel's parameters: a chain asks thousands of times."""
    large = find_link(link).large_sd
    rows: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for leaf, part in _leaves(kernel, 0):
        n_variance = min(leaf.n_theta, 1)
        if isinstance(leaf, Linear | Ridge):
            n_variance = leaf.n_theta
        elif isinstance(leaf, Smooths):
            n_variance = leaf.n_theta - 1
        heavy = SMOOTH if isinstance(leaf, Smooths) else JOINT if _is_joint(leaf) else None
        law = (-np.log(TAIL) / large, np.inf) if heavy is None else (0.0, heavy * large)
        half_dim, short = 0.5, SHORT
        if isinstance(leaf, Radial) and not leaf.ard:
            n_dim = 2 if leaf.spatial else leaf.columns[1] - leaf.columns[0]
            half_dim = 0.5 * n_dim
        if isinstance(leaf, Radial) and leaf.spatial and area_side is not None:
            short = SHORT_AREA * area_side
        if _is_joint(leaf):
            half_dim, short = 1.0, SHORT_JOINT * n_dim**0.5
        own = half_dim, -np.log(TAIL) * short**half_dim
        for number, place in enumerate(range(part.start, part.stop)):
            varies = number < n_variance
            rows[varies].append((place, *(law if varies else own)))
    at, rate, scale = np.array(rows[True]).reshape(-1, 3).T
    lengths, dims, inverse = np.array(rows[False]).reshape(-1, 3).T
    return _Laws(at.astype(np.int64), lengths.astype(np.int64), rate, scale, dims, inverse)


def _is_joint(leaf: Kernel) -> bool:
    """Tell whether a kernel is of several covariates with one length-scale."""
    if not isinstance(leaf, Radial) or leaf.ard or leaf.spatial:
        return False
    return leaf.columns[1] - leaf.columns[0] > 1


def side_of(fixed: Mapping[str, Any]) -> float | None:
    """Return the side of a typical area, scaled as the coordinates are; None where not known."""
    return float(fixed["area_side"][0]) if "area_side" in fixed else None


def log_prior_noise(
    likelihood: Likelihood, params: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the log density of a likelihood's parameters and its gradient; (1,) arrays.

    A parameter with an ``excess_power`` has a prior, by the deviation that it stands for; one with
    a ``spread``, a normal one around its unit. ``fixed``
    holds the units of those that have units; what was fitted before it had a prior has none.
    """
    value, grad = 0.0, {}
    for name, parameter in likelihood.parameters.items():
        power, unit = parameter.excess_power, 0.0
        rate = -np.log(TAIL_NOISE) / LARGE_NOISE
        if parameter.in_units:
            if fixed is None or unit_of(name) not in fixed:
                continue
            if parameter.spread is not None:
                off = (params[name] - fixed[unit_of(name)]) / parameter.spread
                value -= 0.5 * float((off**2).sum())
                grad[name] = -off / parameter.spread
                continue
            unit, rate = float(fixed[unit_of(name)][0]), -np.log(TAIL) / LARGE_SHARE
        if power is not None:
            log_sd = power * (params[name] - unit)
            sd = np.exp(log_sd)
            value += float((log_sd - rate * sd).sum())
            grad[name] = power * (1.0 - rate * sd)
    return value, grad


def unit_of(name: str) -> str:
    """Return where a fit's constants hold the unit of a likelihood's parameter, a logarithm."""
    return UNIT + name


def log_prior_level(link: str, mean: float, fixed: Mapping[str, Any]) -> tuple[float, float]:
    r"""Return the log density of the mean of ``f``, up to a constant, and its slope.

    Where nobody has a case the likelihood allows any rate that is low enough, and a flat density of
    its logarithm would have all of its weight at no rate at all. So the density of the expected
    cases of all bags, ``L = unit Psi(mean)``, is flat below ``FEW``, and flat in ``log L`` above:
    proportional to ``1 / (FEW + L)``. No case then has the upper limits of the textbooks, and many
    cases are not moved. Cases and non-cases alike under the probit link. Under the square link a
    flat ``mean`` would be a rate of density ``L^(-1/2)``, whose limits are too low.

    Parameters
    ----------
    link : str
        ``exp``, ``square`` or ``probit``; others have no such limit.
    mean : float
    fixed : dict of arrays
        ``level_unit`` (1,): cases of all bags where ``Psi(f)`` is 1; absent: no prior.
    """
    if "level_unit" not in fixed or link not in ("exp", "square", "probit"):
        return 0.0, 0.0
    few = float(np.log(FEW / fixed["level_unit"][0]))
    if link == "square":
        at = mean if abs(mean) > LEAST_ROOT else float(np.copysign(LEAST_ROOT, mean))
        square = at**2 * float(np.exp(-few))
        value = float(np.log(abs(at)) - np.log1p(square))
        return value, (1.0 - square) / (1.0 + square) / at
    if link == "exp":
        return -float(np.logaddexp(0.0, few - mean)), float(expit(few - mean))
    value = slope = 0.0
    for sign in (1.0, -1.0):
        log_share = float(log_ndtr(sign * mean))
        ratio = np.exp(-0.5 * mean**2 - log_share) / np.sqrt(2.0 * np.pi)
        value -= float(np.logaddexp(0.0, few - log_share))
        slope += sign * float(ratio * expit(few - log_share))
    return value, slope


def log_priors(
    kernel: Kernel, likelihood: Likelihood, link: str, state: State, *, weak: bool
) -> tuple[float, Arrays]:
    """Return the log density of all parameters of a state, and its gradient by name.

    Of the mean, the kernel and the likelihood; of the mean alone without ``weak`` priors. Inducing
    variables have theirs in the divergence.
    """
    params, fixed = state.params, state.fixed
    value, by_level = log_prior_level(link, float(params["mean"][0]), fixed)
    grad: Arrays = {"mean": np.array([by_level]), "theta": np.zeros_like(params["theta"])}
    grad.update({name: np.zeros(1) for name in likelihood.parameters})
    if weak:
        at, grad["theta"] = log_prior(kernel, params["theta"], link, side_of(fixed))
        own = {name: params[name] for name in likelihood.parameters}
        noise, by_noise = log_prior_noise(likelihood, own, fixed)
        value += at + noise
        grad.update(by_noise)
    return value, grad


def few_cases(link: str, mean: float, fixed: Mapping[str, Any]) -> bool:
    """Return whether a mean has fewer cases than :func:`log_prior_level` calls few."""
    if "level_unit" not in fixed:
        return False
    found: float = log_prior_level(link, mean, fixed)[1]
    return found * mean > 0.0 if link == "square" else found > 0.5


def level_unit(
    likelihood: Likelihood, sample: Summary, base: float, *, weak: bool
) -> dict[str, np.ndarray]:
    """Return what :func:`log_prior_level` reads; nothing where there is no such prior.

    Without ``weak`` priors it is there where nobody, or everybody, is a case, and nothing else
    bounds the level.
    """
    cases = likelihood.cases_at_one(sample, base)
    most = np.inf if sample.trials is None else float(sample.trials.sum())
    if cases is None or not (weak or not 0.0 < float(sample.y.sum()) < most):
        return {}
    return {"level_unit": np.array([cases])}


Leaf = Radial | Linear | Ridge | Smooths | Constant | Areas


def _leaves(kernel: Kernel, start: int) -> Iterator[tuple[Leaf, slice]]:
    if isinstance(kernel, Sum | Product):
        yield from _leaves(kernel.left, start)
        yield from _leaves(kernel.right, start + kernel.left.n_theta)
    elif isinstance(kernel, Radial | Linear | Ridge | Smooths | Constant | Areas):
        yield kernel, slice(start, start + kernel.n_theta)
