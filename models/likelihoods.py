r"""Expected log-likelihood of a bag's count, from the moments of ``f`` on its pixels.

Each function takes a whole block and returns the sum over bags with its adjoints. ``p`` are the
pixel weights; bag ``a`` has ``y_a ~ Poisson(sum_i p_i Psi(f_i))``, ``f_i ~ N(m_i, s_i)`` under q.
Non-integer counts are common (adjusted for reporting), hence ``lgamma`` for the factorial.
"""

from __future__ import annotations

from typing import Any

from models.errors import NumericalError
from models.xp import gammaln, namespace, segment_max, segment_sum


def poisson_exp(y: Any, p: Any, offsets: Any, m: Any, s: Any) -> tuple[float, Any, Any]:
    r"""Lemma-1 bound under the exponential link (Law et al. 2018, eq. 15, with its weights).

    ``y log sum_i p_i e^{m_i} - sum_i p_i e^{m_i + s_i / 2} - log y!``

    Parameters
    ----------
    y : (n_bag,) counts;  p, m, s : (n_pix,);  offsets : (n_bag + 1,)

    Returns
    -------
    bound : float
        Sum over the bags, nats.
    d_m, d_s : (n_pix,) float64

    Raises
    ------
    NumericalError
        If the bound is not finite.
    """
    xp = namespace(m)
    sizes = xp.diff(offsets)
    # The largest exponent of each bag is taken out, so that no e^m overflows or vanishes whole.
    top = segment_max(m, offsets)
    weighted = p * xp.exp(m - xp.repeat(top, sizes))
    total = segment_sum(weighted, offsets)
    expected = p * xp.exp(m + 0.5 * s)
    has = y > 0
    log_total = top + xp.log(xp.where(total > 0, total, 1.0))
    bound = xp.where(has, y * log_total, 0.0) - segment_sum(expected, offsets) - gammaln(y + 1.0)
    if not bool(xp.isfinite(bound).all()) or bool((has & (total <= 0)).any()):
        raise NumericalError(_cause("the Lemma-1 bound"))
    share = xp.repeat(xp.where(has, y / xp.where(total > 0, total, 1.0), 0.0), sizes)
    return float(bound.sum()), share * weighted - expected, -0.5 * expected


def poisson_square(
    y: Any, p: Any, offsets: Any, m: Any, s: Any, dispersion: Any
) -> tuple[float, Any, Any, Any]:
    r"""Second-order estimate under the square link (Law et al. 2018, eq. 14, corrected).

    ``y (log c - d / c^2) - c - log y!`` with ``c = sum_i p_i (m_i^2 + s_i)`` and
    ``d = 2 m'P S P m + tr((S P)^2)``, half the variance of the bag's expected count.

    Parameters
    ----------
    y : (n_bag,) counts;  p, m, s : (n_pix,);  offsets : (n_bag + 1,);  dispersion : (n_bag,) ``d``

    Returns
    -------
    estimate : float
        Sum over the bags, nats.
    d_m, d_s : (n_pix,) float64
        Through ``c`` only.
    d_dispersion : (n_bag,) float64

    Raises
    ------
    NumericalError
        If the estimate is not finite.
    """
    xp = namespace(m)
    c = segment_sum(p * (m * m + s), offsets)
    slope, d_dispersion = square_adjoints(y, c, dispersion)
    safe = xp.where(c > 0, c, 1.0)
    term = xp.where(y > 0, y * (xp.log(safe) - dispersion / safe**2), 0.0)
    value = term - c - gammaln(y + 1.0)
    if not bool(xp.isfinite(value).all()) or bool(((y > 0) & (c <= 0)).any()):
        raise NumericalError(_cause("the second-order estimate"))
    d_s = p * xp.repeat(slope, xp.diff(offsets))
    return float(value.sum()), 2.0 * m * d_s, d_s, d_dispersion


def square_adjoints(y: Any, c: Any, dispersion: Any) -> tuple[Any, Any]:
    """Return the derivatives of the square link's estimate by ``c`` and by ``d``: (n_bag,) each."""
    xp = namespace(c)
    safe = xp.where(c > 0, c, 1.0)
    return y / safe + 2.0 * y * dispersion / safe**3 - 1.0, -y / safe**2


def _cause(what: str) -> str:
    return (
        f"{what} is not finite: the fit diverged, or a bag with cases has no weight; "
        "lower the learning rate, or check the population"
    )
