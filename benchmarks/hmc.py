r"""Hamiltonian Monte Carlo (Neal 2011, section 5.3) and what tells whether its chains have mixed.

The mass matrix is ``D + J' J`` with few rows ``J``, the data's directions: momenta and velocities
then cost no more than products with ``J``. Trajectories have random length; the step is tuned by
dual averaging (Hoffman and Gelman 2014, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Also = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Density = Callable[[np.ndarray], tuple[float, np.ndarray]]
ACCEPT = 0.8  # share of proposals that the step is tuned to
TIMES = (0.5, 3.5)  # of a trajectory, in deviations of what the mass matrix describes
MOST_STEPS = 60
DIVERGED = 1000.0  # nats


@dataclass(frozen=True)
class Mass:
    """``M = diag(d) + J' J``.

    Attributes
    ----------
    d : (n,) float64, positive
    j : (n_row, n) float64
    """

    d: np.ndarray
    j: np.ndarray

    def __post_init__(self) -> None:
        inner = np.eye(self.j.shape[0]) + (self.j / self.d) @ self.j.T
        object.__setattr__(self, "_inner", cho_factor(inner))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a momentum from ``N(0, M)``: (n,)."""
        first = np.sqrt(self.d) * rng.standard_normal(self.d.size)
        return first + self.j.T @ rng.standard_normal(self.j.shape[0])

    def velocity(self, p: np.ndarray) -> np.ndarray:
        """Return ``M^-1 p`` by Woodbury's identity: (n,)."""
        first = p / self.d
        inner = self._inner  # type: ignore[attr-defined]
        return first - (self.j.T @ cho_solve(inner, self.j @ first)) / self.d


@dataclass
class Chain:
    """Where a chain is, and its step.

    Attributes
    ----------
    q : (n,) float64
    value, grad : float, (n,) float64
        Log density there and its gradient.
    step : float
    """

    q: np.ndarray
    value: float
    grad: np.ndarray
    step: float = 0.1

    def move(self, density: Density, mass: Mass, rng: np.random.Generator) -> float:
        """Propose the end of a trajectory; return the probability that it was accepted with."""
        p = mass.draw(rng)
        energy = -self.value + 0.5 * p @ mass.velocity(p)
        step = self.step * rng.uniform(0.8, 1.2)
        n_step = int(np.clip(np.ceil(rng.uniform(*TIMES) / step), 1, MOST_STEPS))
        q, value, grad = self.q, self.value, self.grad
        for _ in range(n_step):
            p = p + 0.5 * step * grad
            q = q + step * mass.velocity(p)
            value, grad = density(q)
            p = p + 0.5 * step * grad
            if not np.isfinite(value):
                return 0.0
        lost = -value + 0.5 * p @ mass.velocity(p) - energy
        if not np.isfinite(lost) or lost > DIVERGED:
            return 0.0
        if rng.random() < np.exp(-max(lost, 0.0)):
            self.q, self.value, self.grad = q, value, grad
        return float(np.exp(-max(lost, 0.0)))


def slice_step(
    log_density: Callable[[float], float], at: float, rng: np.random.Generator, width: float = 1.0
) -> float:
    """Draw one number by slice sampling, stepping out and shrinking (Neal 2003, figs. 3 and 5)."""
    level = log_density(at) - rng.exponential()
    low = at - width * rng.random()
    high = low + width
    while log_density(low) > level:
        low -= width
    while log_density(high) > level:
        high += width
    while True:
        new = rng.uniform(low, high)
        if log_density(new) > level:
            return float(new)
        low, high = (new, high) if new < at else (low, new)


def _and_then(chain: Chain, density: Density, also: Also | None, rng: np.random.Generator) -> None:
    if also is not None:
        chain.q = also(chain.q, rng)
        chain.value, chain.grad = density(chain.q)


def tune(
    chain: Chain,
    density: Density,
    mass: Mass,
    n: int,
    rng: np.random.Generator,
    also: Also | None = None,
) -> np.ndarray:
    """Move ``n`` times while the step is tuned; return the positions (n, n_dim)."""
    centre, slow, lag = np.log(10.0 * chain.step), 0.0, 0.0
    kept = np.empty((n, chain.q.size))
    for i in range(n):
        accepted = chain.move(density, mass, rng)
        t = i + 1.0
        lag += (ACCEPT - accepted - lag) / (t + 10.0)
        log_step = centre - np.sqrt(t) / 0.05 * lag
        slow += t**-0.75 * (log_step - slow)
        chain.step = float(np.exp(np.clip(log_step, -12.0, 1.0)))
        _and_then(chain, density, also, rng)
        kept[i] = chain.q
    chain.step = float(np.exp(np.clip(slow, -12.0, 1.0)))
    return kept


def sample(
    density: Density,
    start: np.ndarray,
    mass_at: Callable[[np.ndarray], Mass],
    rng: np.random.Generator,
    *,
    n_warm: int = 500,
    n_keep: int = 1000,
    view: Callable[[np.ndarray], np.ndarray] = np.asarray,
    also: Also | None = None,
) -> tuple[np.ndarray, float]:
    """Run a chain.

    Parameters
    ----------
    density : callable
        Log density and its gradient.
    start : (n,) array
    mass_at : callable
        Mass matrix that suits the surroundings of a point.
    rng : numpy Generator
    n_warm, n_keep : int
        Moves thrown away, in three stages with a new mass matrix each, and moves kept.
    view : callable
        What to keep of a position.
    also : callable, optional
        Another move that leaves the density as it is, after each trajectory.

    Returns
    -------
    draws : (n_keep, ...) float64
    accepted : float
        Mean probability of acceptance.
    """
    chain = Chain(start, *density(start))
    at = start
    for share in (0.2, 0.3, 0.5):
        mass = mass_at(at)
        kept = tune(chain, density, mass, max(2, int(share * n_warm)), rng, also)
        at = kept[kept.shape[0] // 2 :].mean(axis=0)
    draws, accepted = [], 0.0
    for _ in range(n_keep):
        accepted += chain.move(density, mass, rng) / n_keep
        _and_then(chain, density, also, rng)
        draws.append(np.array(view(chain.q)))
    return np.array(draws), accepted


def split_rhat(chains: np.ndarray) -> np.ndarray:
    """Return split R-hat (Gelman et al. 2013, section 11.4) of draws (n_chain, n, ...): (...)."""
    half = chains.shape[1] // 2
    parts = np.concatenate([chains[:, :half], chains[:, -half:]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = half * parts.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt(((half - 1) / half * within + between / half) / within))


def effective_size(chains: np.ndarray) -> np.ndarray:
    """Return effective sample sizes of draws (n_chain, n, ...): (...).

    Autocovariances of all chains together, summed by Geyer's initial monotone sequence (Vehtari et
    al. 2021, eqs. 10 to 13).
    """
    n_chain, n = chains.shape[:2]
    flat = chains.reshape(n_chain, n, -1)
    off = flat - flat.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(off, 2 * n, axis=1)) ** 2
    cov = np.fft.irfft(spectrum, axis=1)[:, :n].mean(axis=0) / n
    within = cov[0] * n / (n - 1)
    between = flat.mean(axis=1).var(axis=0, ddof=1) if n_chain > 1 else 0.0
    total = cov[0] + between
    rho = 1.0 - (within - cov * n / (n - 1)) / total
    pairs = rho[: n - n % 2].reshape(-1, 2, flat.shape[2]).sum(axis=1)
    positive = np.cumprod(pairs > 0, axis=0)
    kept = np.minimum.accumulate(np.where(positive > 0, pairs, 0.0), axis=0)
    time = np.maximum(2.0 * kept.sum(axis=0) - 1.0, 1.0 / np.log10(max(n_chain * n, 11)))
    return np.asarray(n_chain * n / time).reshape(chains.shape[2:])
