r"""Kernels in time with a Markov state: small classes in the shape of tinygp's.

A kernel ``k(t - t')`` with ``k(0) = 1`` is the covariance of ``h' s(t)``, where ``ds = F s dt +
noise`` is stationary with covariance ``P``. Over a step ``d`` the state moves exactly by

    s(t + d) = A(d) s(t) + noise of covariance P - A(d) P A(d)',    A(d) = exp(F d)

(Hartikainen & Sarkka 2010; Solin & Sarkka 2014). States are in units that leave ``P`` near 1: the
derivatives of a Matern are divided by powers of its rate. A kernel owns no numbers: its parameters
are logarithms, ``theta``. Its matrices are analytic in them, so that a step along the imaginary
axis gives their slopes to all digits (Squire & Trapp 1998).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from models.core.protocol import override

TAIL = 0.1
SHORT = 1.0  # P(scale < SHORT typical steps) = TAIL: a shorter drift is noise of a period
SHORT_DAMPING = 1.0  # the same of a season's damping, in seasons
START, START_DAMPING = 6.0, 5.0  # in typical steps, in seasons
IMAGINARY = 1e-30


class MarkovKernel(ABC):
    """A correlation in time with a finite state; ``theta`` holds logarithms."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Name of each element of ``theta``."""

    @property
    def n_theta(self) -> int:
        """Number of parameters."""
        return len(self.names)

    @property
    def still_states(self) -> np.ndarray:
        """Which states never move: (n_state,) bool. They are independent of those that do."""
        return np.zeros(self.n_state, dtype=bool)

    @property
    def still(self) -> bool:
        """Whether no state ever moves."""
        return bool(self.still_states.all())

    @abstractmethod
    def start(self, step: float) -> np.ndarray:
        """Return the starting ``theta``; ``step`` is the typical time between periods."""

    @abstractmethod
    def design_matrix(self, theta: np.ndarray) -> np.ndarray:
        """Return ``F``: (n_state, n_state), per unit of time."""

    @abstractmethod
    def stationary_covariance(self, theta: np.ndarray) -> np.ndarray:
        """Return ``P``: (n_state, n_state)."""

    @abstractmethod
    def observation_model(self) -> np.ndarray:
        """Return ``h``: (n_state,)."""

    @abstractmethod
    def transition_matrix(self, theta: np.ndarray, step: float) -> np.ndarray:
        """Return ``A(step)``: (n_state, n_state)."""

    def log_prior(self, theta: np.ndarray, step: float) -> Any:
        """Return the log density of ``theta``, up to a constant."""
        del theta, step
        return 0.0

    @property
    def n_state(self) -> int:
        """Number of states."""
        return int(self.observation_model().size)

    def covariance(self, theta: np.ndarray, lag: np.ndarray) -> np.ndarray:
        """Return ``k`` at lags (n,): (n,)."""
        h, p = self.observation_model(), self.stationary_covariance(theta)
        return np.array([h @ self.transition_matrix(theta, abs(each)) @ p @ h for each in lag])

    def slopes(self, theta: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives of ``A(step)`` and of ``P``: (n_theta, n_state, n_state) each."""
        n = self.n_state
        by_a, by_p = np.zeros((2, self.n_theta, n, n))
        for k in range(self.n_theta):
            away = theta.astype(np.complex128)
            away[k] += IMAGINARY * 1j
            by_a[k] = np.imag(self.transition_matrix(away, step)) / IMAGINARY
            by_p[k] = np.imag(self.stationary_covariance(away)) / IMAGINARY
        return by_a, by_p

    def log_prior_slope(self, theta: np.ndarray, step: float) -> np.ndarray:
        """Return the gradient of :meth:`log_prior`: (n_theta,)."""
        found = np.zeros(self.n_theta)
        for k in range(self.n_theta):
            away = theta.astype(np.complex128)
            away[k] += IMAGINARY * 1j
            found[k] = np.imag(self.log_prior(away, step)) / IMAGINARY
        return found


def log_prior_scale(log_scale: Any, short: float) -> Any:
    """Return a penalised-complexity density that shrinks a scale in time to no change at all.

    That of a length-scale in one dimension (Fuglstad et al. 2019), see :mod:`models.gp.priors`:
    ``P(scale < short) = TAIL``.
    """
    rate = -np.log(TAIL) * short**0.5
    return -0.5 * log_scale - rate * np.exp(-0.5 * log_scale)


class Constant(MarkovKernel):
    """1: what stays as it is."""

    names = ()

    @property
    @override
    def still_states(self) -> np.ndarray:
        return np.ones(1, dtype=bool)

    @override
    def start(self, step: float) -> np.ndarray:
        return np.zeros(0)

    @override
    def design_matrix(self, theta: np.ndarray) -> np.ndarray:
        return np.zeros((1, 1))

    @override
    def stationary_covariance(self, theta: np.ndarray) -> np.ndarray:
        return np.ones((1, 1))

    @override
    def observation_model(self) -> np.ndarray:
        return np.ones(1)

    @override
    def transition_matrix(self, theta: np.ndarray, step: float) -> np.ndarray:
        return np.ones((1, 1))


class Matern(MarkovKernel):
    """Base of the Materns of smoothness ``nu``; ``theta`` is the logarithm of the scale."""

    rate: ClassVar[float]  # times 1 / scale: sqrt(2 nu)
    drift: ClassVar[np.ndarray]  # F at rate 1
    stationary: ClassVar[np.ndarray]

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return (f"{type(self).__name__.lower()}.scale",)

    @override
    def start(self, step: float) -> np.ndarray:
        return np.array([np.log(START * step)])

    @override
    def design_matrix(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(self.rate * np.exp(-theta[0]) * self.drift)

    @override
    def stationary_covariance(self, theta: np.ndarray) -> np.ndarray:
        return self.stationary

    @override
    def observation_model(self) -> np.ndarray:
        return np.eye(self.stationary.shape[0])[0]

    @override
    def transition_matrix(self, theta: np.ndarray, step: float) -> np.ndarray:
        x = self.rate * np.exp(-theta[0]) * step
        return np.asarray(np.exp(-x) * self._polynomial(x))

    @abstractmethod
    def _polynomial(self, x: Any) -> np.ndarray:
        """Return ``e^x exp(drift x)``."""

    @override
    def log_prior(self, theta: np.ndarray, step: float) -> Any:
        return log_prior_scale(theta[0], SHORT * step)


class Matern12(Matern):
    """``exp(-d)``: the Ornstein-Uhlenbeck process."""

    rate = 1.0
    drift = np.array([[-1.0]])
    stationary = np.ones((1, 1))

    @override
    def _polynomial(self, x: Any) -> np.ndarray:
        return np.ones((1, 1))


class Matern32(Matern):
    """``(1 + a) exp(-a)``, ``a = sqrt(3) d``."""

    rate = float(np.sqrt(3.0))
    drift = np.array([[0.0, 1.0], [-1.0, -2.0]])
    stationary = np.eye(2)

    @override
    def _polynomial(self, x: Any) -> np.ndarray:
        return np.array([[1.0 + x, x], [-x, 1.0 - x]])


class Matern52(Matern):
    """``(1 + a + a^2 / 3) exp(-a)``, ``a = sqrt(5) d``."""

    rate = float(np.sqrt(5.0))
    drift = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]])
    stationary = np.array([[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]])

    @override
    def _polynomial(self, x: Any) -> np.ndarray:
        half = 0.5 * x * x
        return np.array(
            [
                [half + x + 1.0, x * (x + 1.0), half],
                [-half, 1.0 + x - x * x, x - half],
                [half - x, x * x - 3.0 * x, half - 2.0 * x + 1.0],
            ]
        )


@dataclass(frozen=True)
class Season(MarkovKernel):
    """``exp(-d / damping) sum_j w_j cos(2 pi j d / period)``: a season whose shape drifts.

    ``w_j`` falls by a learnt ratio from each harmonic to the next, and adds up to 1.

    Parameters
    ----------
    period : float
        Time that a season takes.
    harmonics : int
    """

    period: float
    harmonics: int = 2

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return ("season.damping", "season.ratio")[: 1 + (self.harmonics > 1)]

    @override
    def start(self, step: float) -> np.ndarray:
        return np.log([START_DAMPING * self.period, 0.3])[: self.n_theta]

    def _weights(self, theta: np.ndarray) -> np.ndarray:
        if self.harmonics == 1:
            return np.ones(1)
        each = np.exp(theta[1]) ** np.arange(self.harmonics)
        return np.asarray(each / each.sum())

    @property
    def _angles(self) -> np.ndarray:
        return 2.0 * np.pi * np.arange(1, self.harmonics + 1) / self.period

    @override
    def design_matrix(self, theta: np.ndarray) -> np.ndarray:
        turn = np.array([[0.0, -1.0], [1.0, 0.0]])
        return np.kron(np.diag(self._angles), turn) - np.exp(-theta[0]) * np.eye(self.n_state)

    @override
    def stationary_covariance(self, theta: np.ndarray) -> np.ndarray:
        return np.diag(np.repeat(self._weights(theta), 2))

    @override
    def observation_model(self) -> np.ndarray:
        return np.tile([1.0, 0.0], self.harmonics)

    @override
    def transition_matrix(self, theta: np.ndarray, step: float) -> np.ndarray:
        found = np.zeros((self.n_state, self.n_state), dtype=np.asarray(theta).dtype)
        for j, angle in enumerate(self._angles * step):
            cos, sin = np.cos(angle), np.sin(angle)
            found[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = [[cos, -sin], [sin, cos]]
        return np.asarray(np.exp(-np.exp(-theta[0]) * step) * found)

    @override
    def log_prior(self, theta: np.ndarray, step: float) -> Any:
        value = log_prior_scale(theta[0], SHORT_DAMPING * self.period)
        if self.harmonics > 1:  # a third, give or take a factor of three
            value = value - 0.5 * ((theta[1] - np.log(0.3)) / np.log(3.0)) ** 2
        return value


@dataclass(frozen=True)
class TimeSum(MarkovKernel):
    """Kernels in time with shares that add up to 1.

    ``theta``: the logarithms of all shares but the first over the first, then those of the parts.
    """

    parts: tuple[MarkovKernel, ...]

    @property
    @override
    def names(self) -> tuple[str, ...]:
        shares = [f"share[{k}]" for k in range(1, len(self.parts))]
        return (*shares, *(name for part in self.parts for name in part.names))

    @property
    @override
    def still_states(self) -> np.ndarray:
        return np.concatenate([part.still_states for part in self.parts])

    def _split(self, theta: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([len(self.parts) - 1, *(part.n_theta for part in self.parts)])
        return [theta[i:j] for i, j in pairwise(ends.tolist())]

    def _shares(self, theta: np.ndarray) -> np.ndarray:
        each = np.exp(np.concatenate([[0.0], theta[: len(self.parts) - 1]]))
        return np.asarray(each / each.sum())

    @override
    def start(self, step: float) -> np.ndarray:
        return np.concatenate([np.zeros(len(self.parts) - 1), *(p.start(step) for p in self.parts)])

    @override
    def design_matrix(self, theta: np.ndarray) -> np.ndarray:
        own = zip(self.parts, self._split(theta), strict=True)
        return _diagonal([part.design_matrix(each) for part, each in own])

    @override
    def stationary_covariance(self, theta: np.ndarray) -> np.ndarray:
        own = zip(self.parts, self._split(theta), self._shares(theta), strict=True)
        return _diagonal([w * part.stationary_covariance(each) for part, each, w in own])

    @override
    def observation_model(self) -> np.ndarray:
        return np.concatenate([part.observation_model() for part in self.parts])

    @override
    def transition_matrix(self, theta: np.ndarray, step: float) -> np.ndarray:
        own = zip(self.parts, self._split(theta), strict=True)
        return _diagonal([part.transition_matrix(each, step) for part, each in own])

    @override
    def log_prior(self, theta: np.ndarray, step: float) -> Any:
        value = np.log(self._shares(theta)).sum()  # all shares alike, by their logarithms
        for part, own in zip(self.parts, self._split(theta), strict=True):
            value = value + part.log_prior(own, step)
        return value


def _diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    ends = np.cumsum([0, *(block.shape[0] for block in blocks)])
    found = np.zeros((ends[-1], ends[-1]), dtype=np.result_type(*blocks))
    for block, i, j in zip(blocks, ends[:-1], ends[1:], strict=True):
        found[i:j, i:j] = block
    return found
