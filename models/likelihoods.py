r"""Expected log-likelihood of a bag's count, from the moments of ``f`` on its pixels.

Each function takes a whole block and returns the sum over bags with its adjoints. ``p`` are the
pixel weights; the expected count of bag ``a`` is ``eta_a = sum_i p_i Psi(f_i)`` with
``f_i ~ N(m_i, s_i)`` under q. The count is Poisson, or negative binomial with that mean and a
``size`` r (variance ``eta + eta^2 / r``): areas differ by more than Poisson noise in all real data.
Non-integer counts are common (adjusted for reporting), hence ``lgamma`` for the factorial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.errors import NumericalError
from models.xp import digamma, gammaln, namespace, segment_max, segment_sum


@dataclass(frozen=True)
class BagTerm:
    """The bags' part of the bound and its adjoints.

    Attributes
    ----------
    bound : float
        Sum over the bags, nats.
    d_m, d_s : (n_pix,) float64
        By the moments of ``f``.
    d_log_size : float
        By the logarithm of the size; 0 for the Poisson law.
    """

    bound: float
    d_m: Any
    d_s: Any
    d_log_size: float


def exp_link(y: Any, p: Any, offsets: Any, m: Any, s: Any, size: float | None) -> BagTerm:
    r"""Lower bound under the exponential link (Law et al. 2018, Lemma 1, eq. 15 with its weights).

    Poisson: ``y log sum_i p_i e^{m_i} - E eta - log y!``,
    ``E eta = sum_i p_i e^{m_i + s_i / 2}``. Negative binomial: ``- (y + r) log(E eta + r)`` in the
    place of ``- E eta`` (Jensen), and the terms of ``r``.

    Parameters
    ----------
    y : (n_bag,) counts;  p, m, s : (n_pix,);  offsets : (n_bag + 1,)
    size : float or None
        Of the negative binomial; None for Poisson.

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
    each = p * xp.exp(m + 0.5 * s)
    mean = segment_sum(each, offsets)
    safe = xp.where(total > 0, total, 1.0)
    counted = xp.where(y > 0, y * (top + xp.log(safe)), 0.0)
    tail = _tail(y, mean, 0.0, size)
    value = counted - tail.value - gammaln(y + 1.0)
    _check_finite(xp, value, (y > 0) & (total <= 0))
    share = xp.repeat(xp.where(y > 0, y / safe, 0.0), sizes)
    slope = xp.repeat(-tail.by_mean, sizes)
    d_m = share * weighted + slope * each
    return BagTerm(float(value.sum()), d_m, 0.5 * slope * each, _d_log_size(tail, size))


def square_link(
    y: Any, p: Any, offsets: Any, m: Any, s: Any, dispersion: Any, size: float | None
) -> BagTerm:
    r"""Second-order estimate under the square link (Law et al. 2018, eq. 14, corrected).

    Poisson: ``y (log c - d / c^2) - c - log y!`` with ``c = E eta = sum_i p_i (m_i^2 + s_i)`` and
    ``d = 2 m'P S P m + tr((S P)^2)``, half the variance of ``eta``. Negative binomial:
    ``- (y + r) (log(c + r) - d / (c + r)^2)`` in the place of ``- c``, and the terms of ``r``.

    Parameters
    ----------
    y : (n_bag,) counts;  p, m, s : (n_pix,);  offsets : (n_bag + 1,);  dispersion : (n_bag,) ``d``
    size : float or None
        Of the negative binomial; None for Poisson.

    Returns
    -------
    BagTerm
        Its adjoints are those through ``c``; :func:`dispersion_slope` gives the one by ``d``.

    Raises
    ------
    NumericalError
        If the estimate is not finite.
    """
    xp = namespace(m)
    c = segment_sum(p * (m * m + s), offsets)
    safe = xp.where(c > 0, c, 1.0)
    counted = xp.where(y > 0, y * (xp.log(safe) - dispersion / safe**2), 0.0)
    tail = _tail(y, c, dispersion, size)
    value = counted - tail.value - gammaln(y + 1.0)
    _check_finite(xp, value, (y > 0) & (c <= 0))
    slope = y / safe + 2.0 * y * dispersion / safe**3 - tail.by_mean
    d_s = p * xp.repeat(slope, xp.diff(offsets))
    return BagTerm(float(value.sum()), 2.0 * m * d_s, d_s, _d_log_size(tail, size))


def dispersion_slope(y: Any, p: Any, offsets: Any, m: Any, s: Any, size: float | None) -> Any:
    """Return the derivative of the square link's estimate by ``d`` (it needs no d): (n_bag,)."""
    xp = namespace(m)
    c = segment_sum(p * (m * m + s), offsets)
    slope = -y / xp.where(c > 0, c, 1.0) ** 2
    return slope if size is None else slope + (y + size) / (c + size) ** 2


@dataclass(frozen=True)
class _Tail:
    """What is subtracted for the mean of a count, (n_bag,), with its derivatives."""

    value: Any
    by_mean: Any
    by_size: Any


def _tail(y: Any, mean: Any, d: Any, size: float | None) -> _Tail:
    """Return ``E eta``, or ``(y + r) E log(eta + r)`` and the other terms of the size."""
    xp = namespace(mean)
    if size is None:
        return _Tail(mean, xp.ones_like(mean), xp.zeros_like(mean))
    lifted = mean + size
    log_lifted = xp.log(lifted) - d / lifted**2
    slope = (y + size) * (1.0 / lifted + 2.0 * d / lifted**3)
    log_size = float(xp.log(xp.asarray(size)))
    of_size = xp.asarray(size, dtype=mean.dtype)
    value = (y + size) * log_lifted - size * log_size - gammaln(y + size) + gammaln(of_size)
    by_size = log_lifted + slope - log_size - 1.0 - digamma(y + size) + digamma(of_size)
    return _Tail(value, slope, by_size)


def _d_log_size(tail: _Tail, size: float | None) -> float:
    return 0.0 if size is None else -size * float(tail.by_size.sum())


def _check_finite(xp: Any, value: Any, impossible: Any) -> None:
    if not bool(xp.isfinite(value).all()) or bool(impossible.any()):
        msg = (
            "the bound is not finite: the fit diverged, or a bag with cases has no weight; "
            "lower the learning rate, or check the population"
        )
        raise NumericalError(msg)
