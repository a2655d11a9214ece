r"""Searches for the hyperparameters of GPMIL that maximise its evidence (eq. 13).

Under the soft-max likelihood the evidence has an exact gradient, and L-BFGS climbs it. Under the
witness likelihood the shares depend on the kernel too, through the annealing. Held while the kernel
moves and annealed while it stands (algorithm 1 read literally), they settle at longer length-scales
and a lower evidence than the best; so the shares are annealed anew at every point, and the simplex
method searches without a gradient where there are at most ``FEW`` hyperparameters. With more of
them the literal alternation is all there is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from models.core.errors import NumericalError
from models.mil.gpmil.gpmil_evidence import Problem, anneal, log_prior, posterior
from models.mil.gpmil.laplace import Projection

MAX_ROUNDS = 12  # of annealing and search under the witness likelihood
SAME = 0.01  # move of a hyperparameter between rounds below which they have settled
UNUSABLE = 1e6  # nats that a point without evidence is taken to be worse than the start
FEW = 4  # hyperparameters that the simplex method can do
SIMPLEX = 0.7  # side of its first simplex
REACH = 7.0  # of a hyperparameter (logarithm; the mean, plainly) from its start


@dataclass(frozen=True)
class Search:
    """Where a search over hyperparameters ended.

    Attributes
    ----------
    point : (n_theta + 1,) float64
    evidence : float
    share : (n_pix,) float64 or None
        Witness shares; None under the soft-max likelihood.
    history : list of dict
    converged : bool
    """

    point: np.ndarray
    evidence: float
    share: np.ndarray | None
    history: list[dict[str, float]]
    converged: bool


@dataclass(frozen=True)
class Searcher:
    """The evidence of some bags, and how it is climbed.

    Attributes
    ----------
    problem : Problem
    free : (n_theta + 1,) bool
        Which of the kernel's parameters and the mean are learnt.
    projection : {"whole", "blocks"}
    coldest : float or None
        Last inverse temperature of the witness likelihood; the soft-max likelihood where None.
    weak_priors : bool
        See :func:`models.mil.gpmil.gpmil_evidence.log_prior`.
    centre : float
        Of the mean's prior.
    max_steps : int
    tolerance : float
    """

    problem: Problem
    free: np.ndarray
    projection: Projection
    coldest: float | None
    weak_priors: bool
    centre: float
    max_steps: int
    tolerance: float

    def search(self, start: np.ndarray) -> Search:
        """Climb the evidence from one start (n_theta + 1,)."""
        history: list[dict[str, float]] = []
        free = self.free
        if self.coldest is None:
            end, value, done = self._climb(start, start, None, history)
            return Search(end, value, None, history, done)
        if 0 < int(free.sum()) <= FEW:
            return self._profile(start, self.coldest, history)
        rounds: list[Search] = []
        point = start
        for _ in range(MAX_ROUNDS):
            share = anneal(self.problem, point, self.coldest)
            end, value, done = self._climb(point, start, share, history)
            settled = done and float(np.abs(end - point).max()) < SAME
            rounds.append(Search(end, value, share, list(history), settled))
            if settled:
                return rounds[-1]
            point = end
        return max(rounds, key=lambda each: each.evidence)

    def _profile(
        self, start: np.ndarray, coldest: float, history: list[dict[str, float]]
    ) -> Search:
        """Maximise the evidence with the shares annealed anew at every point (Nelder & Mead)."""
        started, free = time.perf_counter(), self.free
        best = (-np.inf, start, np.empty(0))

        def full(x: np.ndarray) -> np.ndarray:
            out = start.copy()
            out[free] = np.clip(x, start[free] - REACH, start[free] + REACH)
            return out

        def down(x: np.ndarray) -> float:
            nonlocal best
            point = full(x)
            try:
                share = anneal(self.problem, point, coldest)
                at = posterior(self.problem, point, share, self.projection, learn=False)
            except NumericalError:  # a step too far: the simplex will come back
                if not np.isfinite(best[0]):
                    raise
                return UNUSABLE
            value = at.evidence + self._log_prior(point)[0]
            if value > best[0]:
                best = (value, point, share)
            seconds = time.perf_counter() - started - sum(row["seconds"] for row in history)
            row = {"epoch": len(history) + 1, "bound": best[0], "rate": 0.0, "seconds": seconds}
            history.append(row)
            return -value

        first = start[free]
        result = minimize(
            down,
            first,
            method="Nelder-Mead",
            options={
                "initial_simplex": np.vstack([first, first + SIMPLEX * np.eye(first.shape[0])]),
                "maxfev": 4 * self.max_steps,
                "xatol": SAME if first.shape[0] == 1 else 5 * SAME,
                "fatol": max(self.tolerance, 1e-3),
            },
        )
        value, point, share = best
        return Search(point, value, share, history, bool(result.success))

    def _log_prior(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        if not self.weak_priors:
            return 0.0, np.zeros_like(point)
        return log_prior(self.problem.kernel.names, point, self.centre)

    def _climb(
        self,
        point: np.ndarray,
        start: np.ndarray,
        share: np.ndarray | None,
        history: list[dict[str, float]],
    ) -> tuple[np.ndarray, float, bool]:
        """Maximise the evidence by L-BFGS, within reach of ``start``; witness shares are held."""
        before, free = time.perf_counter(), self.free
        seen: list[float] = []

        def full(x: np.ndarray) -> np.ndarray:
            out = point.copy()
            out[free] = x
            return out

        def down(x: np.ndarray) -> tuple[float, np.ndarray]:
            try:
                at = posterior(self.problem, full(x), share, self.projection, learn=True)
            except NumericalError:  # the line search went too far: it will come back
                if not seen:
                    raise
                return seen[0] + UNUSABLE, np.zeros(int(free.sum()))
            prior, slope = self._log_prior(full(x))
            seen.append(-at.evidence - prior)
            return seen[-1], -(at.grad + slope)[free]

        def note(value: float) -> None:
            seconds = time.perf_counter() - before - sum(row["seconds"] for row in history[first:])
            row = {"epoch": len(history) + 1, "bound": value, "rate": 0.0, "seconds": seconds}
            history.append(row)

        first = len(history)
        if not free.any():
            value = posterior(self.problem, point, share, self.projection, learn=False).evidence
            value += self._log_prior(point)[0]
            note(value)
            return point, value, True
        low, high = start[free] - REACH, start[free] + REACH
        result = minimize(
            down,
            np.clip(point[free], low, high),
            jac=True,
            method="L-BFGS-B",
            bounds=np.stack([low, high], axis=1),
            callback=lambda intermediate_result: note(-float(intermediate_result.fun)),
            options={"maxiter": self.max_steps, "gtol": self.tolerance, "ftol": 1e-9},
        )
        if len(history) == first:
            note(-float(result.fun))
        return full(result.x), -float(result.fun), bool(result.success)
