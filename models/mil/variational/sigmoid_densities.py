r"""Densities for the hyperbolic secant of the logistic likelihood (Castro-Macias et al. 2024).

    p(y | f) ~ exp((y - 1/2) f) psi(f),    with the hyperbolic secant the logistic likelihood
    itself.

Any Gaussian scale mixture ``psi`` has the bound ``log psi(f) >= log psi(c) - theta(c) (f^2 - c^2)
/ 2`` with ``theta(c) = -psi'(c) / (c psi(c))``, the mean of the mixing variable (eqs. 28, 39, 64),
since ``log psi`` is convex in ``f^2``. For the hyperbolic secant it is Jaakkola's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from models.core.errors import ParameterError
from models.core.protocol import override
from models.likelihoods.probability import gauss_hermite

N_NODE = 24
NARROWEST = 1e-12  # variance that stands for a smaller one in a slope
SMALL = 1e-4  # below it tanh(x) / x is taken from its series
WRONG = 1e-5  # relative difference from the slope that a registered theta may have
GRID = np.array([0.05, 0.3, 1.0, 2.5, 6.0, 15.0])


class Density(ABC):
    """A differentiable Gaussian scale mixture, even, with its mode at 0."""

    @property
    def logistic(self) -> bool:
        """Whether it is the hyperbolic secant, under which the model is the logistic one."""
        return False

    @abstractmethod
    def log_ratio(self, c: np.ndarray) -> np.ndarray:
        """Return ``log psi(c) - log psi(0)``: like ``c``."""

    @abstractmethod
    def theta(self, c: np.ndarray) -> np.ndarray:
        """Return ``-psi'(c) / (c psi(c))``, its limit at 0: like ``c``."""

    def slope(self, c: np.ndarray) -> np.ndarray:
        """Return the derivative of ``log psi``: like ``c``."""
        return -c * self.theta(c)

    def expected_slopes(self, m: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes of ``E log psi(f)``, ``f ~ N(m, s)``, by ``m`` and by ``s``: each (n,).

        By Gauss-Hermite quadrature, where the paper draws.
        """
        d_m, d_s = np.zeros_like(m), np.zeros_like(m)
        sd = np.sqrt(np.maximum(s, NARROWEST))
        for node, weight in zip(*gauss_hermite(N_NODE), strict=True):
            slope = weight * self.slope(m + node * sd)
            d_m += slope
            d_s += slope * node
        return d_m, 0.5 * d_s / sd

    def tilt(self, f: np.ndarray) -> np.ndarray:
        """Return the log of what it does to the prior of ``f``, 0 at 0: like ``f``.

        ``log psi(f) - log phi(f)`` with ``phi`` the hyperbolic secant (eqs. 20-22).
        """
        return self.log_ratio(f) - HYPERBOLIC_SECANT.log_ratio(f)

    def tilt_slope(self, f: np.ndarray) -> np.ndarray:
        """Return the derivative of :meth:`tilt`: like ``f``."""
        return self.slope(f) + 0.5 * np.tanh(0.5 * f)


@dataclass(frozen=True)
class HyperbolicSecant(Density):
    """``1 / (2 pi cosh(c / 2))``: PG-VGPMIL, which is VGPMIL (section 3.1)."""

    @property
    @override
    def logistic(self) -> bool:
        return True

    @override
    def log_ratio(self, c: np.ndarray) -> np.ndarray:
        """``-log cosh(c / 2)``."""
        a = np.abs(c)
        return np.log(2.0) - 0.5 * a - np.log1p(np.exp(-a))

    @override
    def theta(self, c: np.ndarray) -> np.ndarray:
        """``tanh(c / 2) / (2 c)``, 1/4 at 0."""
        small = np.abs(c) < SMALL
        safe = np.where(small, 1.0, c)
        return np.where(small, 0.25 - c * c / 48.0, 0.5 * np.tanh(0.5 * safe) / safe)


@dataclass(frozen=True)
class Gamma(Density):
    """``(beta + c^2 / 2)^-alpha``: mixing variables of a gamma distribution, G-VGPMIL (eq. 37)."""

    alpha: float
    beta: float

    @override
    def log_ratio(self, c: np.ndarray) -> np.ndarray:
        return -self.alpha * np.log1p(0.5 * c * c / self.beta)

    @override
    def theta(self, c: np.ndarray) -> np.ndarray:
        return self.alpha / (self.beta + 0.5 * c * c)


@dataclass(frozen=True)
class StudentT(Density):
    """Student's t with ``nu`` degrees of freedom and the given scale."""

    nu: float
    scale: float

    @override
    def log_ratio(self, c: np.ndarray) -> np.ndarray:
        return -0.5 * (self.nu + 1.0) * np.log1p((c / self.scale) ** 2 / self.nu)

    @override
    def theta(self, c: np.ndarray) -> np.ndarray:
        return (self.nu + 1.0) / (self.nu * self.scale**2 + c * c)


HYPERBOLIC_SECANT = HyperbolicSecant()
DENSITIES: dict[str, Density] = {
    "hyperbolic_secant": HYPERBOLIC_SECANT,
    # Four degrees of freedom, and the logistic likelihood's curvature at 0.
    "student_t": StudentT(4.0, 5.0**0.5),
}


def register_density(name: str, density: Density) -> None:
    """Make a density known to ``PsiVGPMIL(density=name)``, in this process.

    Raises
    ------
    ParameterError
        If the name is taken, ``theta`` is not what the slope of ``log_ratio`` says, or it grows,
        as that of no scale mixture does.
    """
    wrong = None
    step = 1e-6 * (1.0 + GRID)
    slope = (density.log_ratio(GRID + step) - density.log_ratio(GRID - step)) / (2.0 * step)
    theta = density.theta(GRID)
    if name in known_densities():
        wrong = "is taken; choose another name"
    elif not np.allclose(theta, -slope / GRID, rtol=WRONG, atol=1e-9):
        wrong = "theta is not -psi'(c) / (c psi(c)); correct theta or log_ratio"
    elif (theta <= 0).any() or (np.diff(theta) > 0).any():
        wrong = "theta is not positive and falling; it is no Gaussian scale mixture"
    if wrong:
        msg = f"density {name!r}: {wrong}"
        raise ParameterError(msg)
    DENSITIES[name] = density


def find_density(name: str, alpha: float, beta: float) -> Density:
    """Return the density of a name; ``alpha`` and ``beta`` are those of ``gamma``.

    Raises
    ------
    ParameterError
        If it is not known, or a parameter is not above 0.
    """
    if name == "gamma":
        for key, value in (("alpha", alpha), ("beta", beta)):
            if not 0 < value < np.inf:
                msg = f"{key}: {value} is not above 0"
                raise ParameterError(msg)
        return Gamma(alpha, beta)
    if name not in DENSITIES:
        msg = f"density: {name!r} is not one of {', '.join(known_densities())}"
        raise ParameterError(msg)
    return DENSITIES[name]


def known_densities() -> list[str]:
    """Return the names that ``density`` may have."""
    return ["gamma", *DENSITIES]
