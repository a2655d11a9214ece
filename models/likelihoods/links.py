r"""Links ``Psi`` from the latent surface to a rate: moments and distributions under a Gaussian.

With ``f ~ N(m, s)`` the numbers ``a_k = E Psi^(k)(f) = d^k E Psi(f) / dm^k`` give everything a bag
needs: the mean ``a_0``, and, for jointly Gaussian ``f_i, f_j`` with covariance ``S``, Mehler's
series

    Cov(Psi(f_i), Psi(f_j)) = sum_{k >= 1} a_k(i) a_k(j) S^k / k!,

which has one term for the identity, two for the square, and sums to ``a_0 a_0 (e^S - 1)`` for the
exponential. Derivatives follow: ``d a_k / dm = a_{k+1}``, ``d a_k / ds = a_{k+2} / 2``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from models.backend.arrays import namespace, ndtr, ndtri, owens_t
from models.core.errors import ParameterError
from models.core.protocol import override

NEWTON_STEPS = 60
PROBIT_TERMS = 6
SQRT_2PI = float(np.sqrt(2 * np.pi))


class Link(ABC):
    """A link function and what is known in closed form of ``Psi(f)``, ``f ~ N(m, s)``.

    Attributes
    ----------
    name : str
    n_term : int or None
        Terms of Mehler's series; None for the exponential, whose series is summed.
    estimator : str
        What ``estimator="auto"`` of :class:`models.VBAgg` means under it.
    start_variance : float
        Prior variance of ``f`` that a fit starts at.
    large_sd : float
        A large deviation of ``f``, for the weak priors (:mod:`models.gp.priors`).
    relative : bool
        Whether a change of the rate is told as a share of it; else as a difference.
    level_free : bool
        Whether that change is the same whatever the level of ``f``.
    """

    name: ClassVar[str]
    n_term: ClassVar[int | None]
    estimator: ClassVar[str] = "second_order"
    start_variance: ClassVar[float] = 1.0
    large_sd: ClassVar[float] = 1.0
    relative: ClassVar[bool] = False
    level_free: ClassVar[bool] = False

    @abstractmethod
    def value(self, f: np.ndarray) -> Any:
        """Return ``Psi(f)``."""

    @abstractmethod
    def slope(self, f: np.ndarray) -> Any:
        """Return ``Psi'(f)``."""

    @abstractmethod
    def inverse(self, level: float) -> float:
        """Return the ``f`` of which ``Psi(f) = level``."""

    def start(self, level: float) -> float:
        """Return a mean of ``f`` to begin with, so that ``Psi(f)`` has mean ``level``."""
        return self.inverse(level)

    @abstractmethod
    def moments(self, m: np.ndarray, s: np.ndarray | float, order: int) -> list[Any]:
        """Return ``a_0, ..., a_order``, each (n_pix,)."""

    @abstractmethod
    def sd(self, m: np.ndarray, s: np.ndarray) -> Any:
        """Return the standard deviation of ``Psi(f)``: (n_pix,)."""

    @abstractmethod
    def square(self, m: np.ndarray, s: np.ndarray) -> tuple[Any, Any, Any]:
        """Return ``E Psi(f)^2`` and its derivatives by ``m`` and ``s``: (n_pix,) each."""

    @abstractmethod
    def quantile(self, m: np.ndarray, s: np.ndarray, q: float) -> Any:
        """Return the quantile of ``Psi(f)`` at probability ``q``: (n_pix,)."""

    @abstractmethod
    def exceed(self, m: np.ndarray, s: np.ndarray, c: Any) -> Any:
        """Return ``P(Psi(f) > c)`` where ``s > 0``: (n_pix,)."""

    def mean(self, m: np.ndarray, s: np.ndarray) -> Any:
        """Return the mean of ``Psi(f)``: (n_pix,)."""
        return self.moments(m, s, 0)[0]


class Exp(Link):
    """``Psi = exp``: log-normal rates."""

    name = "exp"
    n_term = None
    estimator = "log_normal"
    relative = True
    level_free = True

    @override
    def value(self, f: np.ndarray) -> Any:
        return namespace(f).exp(f)

    slope = value

    @override
    def inverse(self, level: float) -> float:
        return float(np.log(level))

    @override
    def start(self, level: float) -> float:
        """Leaves room for half of a variance of 1."""
        return self.inverse(level) - 0.5

    @override
    def moments(self, m: np.ndarray, s: np.ndarray | float, order: int) -> list[Any]:
        """All the same."""
        mean = namespace(m).exp(m + 0.5 * s)
        return [mean] * (order + 1)

    @override
    def sd(self, m: np.ndarray, s: np.ndarray) -> Any:
        return self.mean(m, s) * np.sqrt(np.expm1(s))

    @override
    def square(self, m: np.ndarray, s: np.ndarray) -> tuple[Any, Any, Any]:
        value = namespace(m).exp(2.0 * (m + s))
        return value, 2.0 * value, 2.0 * value

    @override
    def quantile(self, m: np.ndarray, s: np.ndarray, q: float) -> Any:
        return np.exp(m + np.sqrt(s) * ndtri(q))

    @override
    def exceed(self, m: np.ndarray, s: np.ndarray, c: Any) -> Any:
        return ndtr((m - np.log(np.maximum(c, 0.0))) / np.sqrt(s))


class Square(Link):
    """``Psi(f) = f^2``: a scaled non-central chi-square distribution with one degree of freedom."""

    name = "square"
    n_term = 2
    start_variance = 0.2
    large_sd = 0.5
    relative = True

    @override
    def value(self, f: np.ndarray) -> Any:
        return f * f

    @override
    def slope(self, f: np.ndarray) -> Any:
        return 2.0 * f

    @override
    def inverse(self, level: float) -> float:
        """Return the positive branch."""
        return float(np.sqrt(level))

    @override
    def moments(self, m: np.ndarray, s: np.ndarray | float, order: int) -> list[Any]:
        xp = namespace(m)
        known = [m * m + s, 2.0 * m, xp.full_like(m, 2.0)]
        return (known + [xp.zeros_like(m)] * max(0, order - 2))[: order + 1]

    @override
    def sd(self, m: np.ndarray, s: np.ndarray) -> Any:
        return np.sqrt(4 * m**2 * s + 2 * s**2)

    @override
    def square(self, m: np.ndarray, s: np.ndarray) -> tuple[Any, Any, Any]:
        return (m**2 + 6.0 * s) * m**2 + 3.0 * s**2, 4.0 * m * (m**2 + 3.0 * s), 6.0 * (m**2 + s)

    @override
    def quantile(self, m: np.ndarray, s: np.ndarray, q: float) -> Any:
        """Newton on the folded normal distribution."""
        return _folded_quantile(np.abs(m), np.sqrt(s), q) ** 2

    @override
    def exceed(self, m: np.ndarray, s: np.ndarray, c: Any) -> Any:
        sd, root = np.sqrt(s), np.sqrt(np.maximum(c, 0.0))
        return ndtr((m - root) / sd) + ndtr((-m - root) / sd)


class Identity(Link):
    """``Psi(f) = f``: for the normal likelihood."""

    name = "identity"
    n_term = 1
    large_sd = 3.0
    level_free = True

    @override
    def value(self, f: np.ndarray) -> Any:
        return f

    @override
    def slope(self, f: np.ndarray) -> Any:
        return namespace(f).ones_like(f)

    @override
    def inverse(self, level: float) -> float:
        return level

    @override
    def moments(self, m: np.ndarray, s: np.ndarray | float, order: int) -> list[Any]:
        xp = namespace(m)
        known = [m, xp.ones_like(m)]
        return (known + [xp.zeros_like(m)] * max(0, order - 1))[: order + 1]

    @override
    def sd(self, m: np.ndarray, s: np.ndarray) -> Any:
        return np.sqrt(s)

    @override
    def square(self, m: np.ndarray, s: np.ndarray) -> tuple[Any, Any, Any]:
        return m**2 + s, 2.0 * m, namespace(m).ones_like(m)

    @override
    def quantile(self, m: np.ndarray, s: np.ndarray, q: float) -> Any:
        return m + np.sqrt(s) * ndtri(q)

    @override
    def exceed(self, m: np.ndarray, s: np.ndarray, c: Any) -> Any:
        return ndtr((m - c) / np.sqrt(s))


class Probit(Link):
    """``Psi = Phi``, the normal distribution function: proportions."""

    name = "probit"
    n_term = PROBIT_TERMS

    @override
    def value(self, f: np.ndarray) -> Any:
        return ndtr(f)

    @override
    def slope(self, f: np.ndarray) -> Any:
        return namespace(f).exp(-0.5 * f * f) / SQRT_2PI

    @override
    def inverse(self, level: float) -> float:
        return float(ndtri(min(max(level, 1e-6), 1 - 1e-6)))

    @override
    def moments(self, m: np.ndarray, s: np.ndarray | float, order: int) -> list[Any]:
        """``Phi(h)``, ``h = m / sqrt(1 + s)``, and Hermite polynomials."""
        xp = namespace(m)
        r = 1.0 / xp.sqrt(1.0 + s)
        h = m * r
        out = [ndtr(h)]
        # The n-th derivative of the density is (-1)^n He_n(h) phi(h).
        scaled = r * xp.exp(-0.5 * h * h) / SQRT_2PI
        before, current = xp.zeros_like(h), xp.ones_like(h)
        for n in range(order):
            out.append(scaled * current)
            before, current = current, h * current - n * before
            scaled = -scaled * r
        return out

    @override
    def sd(self, m: np.ndarray, s: np.ndarray) -> Any:
        """By Owen's T function."""
        h = m / np.sqrt(1.0 + s)
        mean = ndtr(h)
        second = mean - 2.0 * owens_t(h, 1.0 / np.sqrt(1.0 + 2.0 * s))
        return np.sqrt(np.maximum(second - mean**2, 0.0))

    @override
    def square(self, m: np.ndarray, s: np.ndarray) -> tuple[Any, Any, Any]:
        """By Owen's T function, whose derivatives are elementary."""
        xp = namespace(m)
        h, a = m / xp.sqrt(1.0 + s), 1.0 / xp.sqrt(1.0 + 2.0 * s)
        by_h = 2.0 * xp.exp(-0.5 * h * h) / SQRT_2PI * ndtr(a * h)
        by_a = -xp.exp(-0.5 * h * h * (1.0 + a * a)) / (np.pi * (1.0 + a * a))
        by_s = -0.5 * by_h * h / (1.0 + s) - by_a * a**3
        return ndtr(h) - 2.0 * owens_t(h, a), by_h / xp.sqrt(1.0 + s), by_s

    @override
    def quantile(self, m: np.ndarray, s: np.ndarray, q: float) -> Any:
        return ndtr(m + np.sqrt(s) * ndtri(q))

    @override
    def exceed(self, m: np.ndarray, s: np.ndarray, c: Any) -> Any:
        return ndtr((m - ndtri(np.clip(c, 0.0, 1.0))) / np.sqrt(s))


LINKS: dict[str, Link] = {link.name: link for link in (Square(), Exp(), Identity(), Probit())}


def find_link(name: str) -> Link:
    """Return the link of that name.

    Raises
    ------
    ParameterError
        If there is none.
    """
    if name not in LINKS:
        msg = f"link: {name!r} is not one of {', '.join(LINKS)}"
        raise ParameterError(msg)
    return LINKS[name]


def _folded_quantile(m: np.ndarray, sd: np.ndarray, q: float) -> np.ndarray:
    """Solve ``P(|N(m, sd^2)| <= t) = q`` for t, ``m >= 0``, by Newton kept inside a bracket."""
    # |f| <= t has probability between P(f <= t) - P(f <= 0) and P(f <= t): two normal quantiles.
    low = np.maximum(m + sd * ndtri(q), 0.0)
    high = m + sd * ndtri(0.5 * (1 + q))
    # m + sd z_{(1+q)/2} over-covers: P(|f| <= m + sd z) >= P(|f - m| <= sd z) = q.
    t = 0.5 * (low + high)
    safe = np.where(sd > 0, sd, 1.0)
    for _ in range(NEWTON_STEPS):
        upper, lower = (t - m) / safe, (-t - m) / safe
        value = ndtr(upper) - ndtr(lower) - q
        low, high = np.where(value < 0, t, low), np.where(value < 0, high, t)
        density = (np.exp(-0.5 * upper**2) + np.exp(-0.5 * lower**2)) / (SQRT_2PI * safe)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            new = t - value / density
        new = np.where((new > low) & (new < high), new, 0.5 * (low + high))
        moved = np.abs(new - t)
        t = new
        if (moved <= 1e-12 * (m + sd)).all():
            break
    return np.where(sd > 0, t, m)
