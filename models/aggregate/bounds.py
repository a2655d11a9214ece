r"""Lower bounds on ``E h(eta)`` by the marginals of ``f`` alone (Law et al. 2018, section 3).

For counts ``h(eta) = y log eta - tail(eta)`` with a concave tail, so that

    E h >= y B - tail(E eta),    B = log sum_i p_i e^{E log Psi(f_i)} <= E log eta.

With the exponential link ``E log Psi = m`` (Lemma 1, eq. 15 with its weights); with the square link
it is the logarithmic mean of a non-central chi-square (Lemma 2). For the exponential one
``E[-1 / eta] >= -1 / sum_i p_i / E[1 / Psi(f_i)]`` (eq. 27, corrected), finite for the exponential
link alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # its parts are imported when first used: interpolate starts slowly
from scipy.special import dawsn, digamma

from models.backend.arrays import like, namespace, segment_max, segment_sum, spread, to_host
from models.likelihoods.censored import Censored, without_margin
from models.likelihoods.intervals import counts_within, mixed
from models.likelihoods.likelihood import TINY, Likelihood
from models.likelihoods.observation import Observation

LARGE_T = 50.0  # beyond, E log v^2 by its asymptotic series: within 1e-10


@dataclass(frozen=True)
class BagTerm:
    """The bags' part of the bound and its adjoints.

    Attributes
    ----------
    value : (n_bag,) float64
        Nats.
    d_m, d_s : (n_pix,) float64
        By the moments of ``f``.
    by : dict of (n_bag,) float64
        By the likelihood's parameters.
    """

    value: Any
    d_m: Any
    d_s: Any
    by: dict[str, Any]


def is_bounded(likelihood: Likelihood, link: str) -> bool:
    """Tell whether :func:`lower_bound` has a closed form for a likelihood and a link."""
    return likelihood.bound_form in FORMS and link in FORMS[likelihood.bound_form][1]


def lower_bound(seen: Observation, m: Any, s: Any) -> BagTerm:
    """Return the bound and its adjoints.

    Of an interval it is ``log sum_k e^{bound_k}`` over its counts: a bound as well, for with any
    shares ``w``, ``E log sum_k p_k >= sum_k w_k (E log p_k - log w_k)``, and these are the best.

    Parameters
    ----------
    seen : Observation
        Of a likelihood and a link that :func:`is_bounded`.
    m, s : (n_pix,)
        Moments of ``f``.
    """
    likelihood = seen.likelihood
    if not isinstance(likelihood, Censored):
        return FORMS[likelihood.bound_form][0](seen, m, s)
    own, margin = without_margin(seen.bag_data), seen.bag_data[-1]
    each, inside = [], []
    for count, is_inside in counts_within(seen.y, margin):
        one = replace(seen, likelihood=likelihood.base, y=count, bag_data=own)
        each.append(FORMS[likelihood.base.bound_form][0](one, m, s))
        inside.append(is_inside)
    xp = namespace(m)
    value, share = mixed(xp.stack([at.value for at in each]), xp.stack(inside))
    pairs = list(zip(share, each, strict=True))
    return BagTerm(
        value,
        sum(spread(w, seen.offsets) * at.d_m for w, at in pairs),
        sum(spread(w, seen.offsets) * at.d_s for w, at in pairs),
        {name: sum(w * at.by[name] for w, at in pairs) for name in each[0].by},
    )


def _logarithmic(seen: Observation, m: Any, s: Any) -> BagTerm:
    """``y B - tail(E eta)``."""
    xp = namespace(m)
    y, p, offsets, link = seen.y, seen.p, seen.offsets, seen.link
    a = link.moments(m, s, 2)
    mean = segment_sum(p * a[0], offsets)
    if link.name == "exp":
        exponent, by_m, by_s = m, 1.0, 0.0
    else:
        exponent, by_m, by_s = log_square_moment(m, s)
    # The largest exponent of each bag is taken out, so that none overflows or vanishes whole.
    top = segment_max(exponent, offsets)
    each = p * xp.exp(exponent - spread(top, offsets))
    total = segment_sum(each, offsets)
    seen.likelihood.check_mean(y, mean)
    safe, safe_mean = xp.maximum(total, TINY), xp.maximum(mean, TINY)
    at = seen.terms(safe_mean)
    counted = xp.where(y > 0, y * (top + xp.log(safe) - xp.log(safe_mean)), 0.0)
    share = spread(y / safe, offsets) * each
    slope = spread(at.d1 - y / safe_mean, offsets) * p
    return BagTerm(
        at.value + counted,
        share * by_m + slope * a[1],
        share * by_s + 0.5 * slope * a[2],
        at.by,
    )


def _harmonic(seen: Observation, m: Any, s: Any) -> BagTerm:
    """``-log E eta - y / sum_i p_i e^{m_i - s_i / 2}``, under the exponential link."""
    xp = namespace(m)
    y, p, offsets = seen.y, seen.p, seen.offsets
    each = p * xp.exp(m + 0.5 * s)
    mean = segment_sum(each, offsets)
    inverse = p * xp.exp(m - 0.5 * s)
    total = segment_sum(inverse, offsets)
    seen.likelihood.check_mean(xp.ones_like(y), mean)
    by_inverse = inverse * spread(y / total**2, offsets)
    by_mean = each * spread(-1.0 / mean, offsets)
    value = -xp.log(mean) - y / total
    return BagTerm(value, by_inverse + by_mean, 0.5 * (by_mean - by_inverse), {})


# By ``Likelihood.bound_form``: the bound, and the links that it is finite and closed under.
FORMS: dict[str, tuple[Callable[[Observation, Any, Any], BagTerm], tuple[str, ...]]] = {
    "logarithmic": (_logarithmic, ("exp", "square")),
    "harmonic": (_harmonic, ("exp",)),
}


def log_square_moment(m: Any, s: Any) -> tuple[Any, Any, Any]:
    r"""Return ``xi = E log f^2``, ``f ~ N(m, s)``, and its derivatives by ``m`` and ``s``.

    ``xi = log(s / 2) - gamma + g(t)``, ``t = m^2 / (2 s)``, with
    ``g(t) = 2t 2F2(1,1; 3/2,2; -t)`` and ``g'(t) = 2 D(sqrt t) / sqrt t``, D Dawson's function (Law
    et al. 2018, Lemma 2 and E.2, corrected: there ``t`` is printed ``m / 2s``).
    """
    xp = namespace(m)
    if xp is not np:
        value, by_m, by_s = log_square_moment(to_host(m), to_host(s))
        return like(value, m), like(by_m, m), like(by_s, m)
    s = np.maximum(s, TINY)
    t = 0.5 * m * m / s
    large = t > LARGE_T
    root = np.sqrt(np.where(large, 1.0, t))
    small_value = _table()(root) + np.log(0.5 * s)
    twice_root_dawson = 2.0 * root * dawsn(root)
    safe = np.where(large, t, LARGE_T)
    delta = 0.5 / safe  # s / m^2
    # E log (1 + z sqrt(delta))^2 in powers of delta: -2 sum_k E z^2k delta^k / (2k).
    series, odd, power = np.zeros_like(safe), 1.0, np.ones_like(safe)
    excess = np.zeros_like(safe)  # 2 sqrt(t) D(sqrt(t)) - 1
    for k in range(1, 9):
        odd *= 2 * k - 1
        power = power * delta
        series -= odd * power / k
        excess += odd * power
    value = np.where(large, np.log(np.where(large, m * m, 1.0)) + series, small_value)
    one_less = np.where(large, -excess, 1.0 - twice_root_dawson)
    # d xi / d s = (1 - t g') / s, d xi / d m = g' m / s, and t g' = 2 sqrt(t) D(sqrt(t)).
    by_s = one_less / s
    over_m = np.where(large, (1.0 + excess) * 2.0 / np.where(large, m, 1.0), 0.0)
    g_slope = np.where(root > 0, 2.0 * dawsn(root) / np.where(root > 0, root, 1.0), 2.0)
    return value, np.where(large, over_m, g_slope * m / s), by_s


@lru_cache(maxsize=1)
def _table() -> scipy.interpolate.CubicHermiteSpline:
    """Tabulate ``g(u^2) - gamma`` by ``u``; within 1e-11."""
    from scipy.stats import poisson  # starts slowly

    u = np.arange(0.0, np.sqrt(LARGE_T) + 0.01, 0.0025)
    # E log v^2 is a Poisson mixture of E log chi^2: psi(1/2 + j) with weights Poisson(j; t).
    j = np.arange(160)
    value = poisson.pmf(j, u[:, None] ** 2) @ digamma(0.5 + j) + np.log(4.0)
    # log v^2 = log s + E log chi'^2, and E log chi^2_k = log 2 + psi(k/2): take out log(s/2).
    return scipy.interpolate.CubicHermiteSpline(u, value, 4.0 * dawsn(u))
