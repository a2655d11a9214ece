r"""From a start to the optimum of the profile bound, and draws of the hyperparameters around it.

A fit advances in steps, each a few passes over the bags, whose whole memory is in the state:

1. *climb*: quasi-Newton (BFGS) steps up the profile bound, on few pixels of each bag
   (:mod:`models.core.thinning`) where these are many;
2. *curvature*: the Hessian of the profile bound by differences of its gradient. It decides whether
   the climb is over: the Newton decrement ``g' (-H)^-1 g / 2`` is what is left to gain, in nats;
3. *whole*: Newton steps with that Hessian on all pixels, until their decrement is small as well;
4. *members*: hyperparameters drawn from ``N(phi, (-H)^-1)``, ``q`` climbing to its best for each.

docs/design/hyperparameters.md has what was weighed and measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from models.aggregate.profile_bound import Point, ProfileBound
from models.core.errors import NumericalError
from models.core.protocol import Arrays, Info, State, Stats

CLIMB, CURVATURE, WHOLE, MEMBERS, DONE = range(5)
CLOSE_Q = 1e-3  # nats that a natural step may still gain, during the climb
EXACT_Q = 1e-5  # where differences are taken
LONGEST = 1.0  # that a logarithm moves in one step
START_INVERSE = 0.3  # inverse Hessian at the start
DIFFERENCE = 0.5  # step of a difference, in posterior deviations
MOST_DEVIATION = 1.0  # of a member from the optimum's logarithm, as a standard deviation
LEAST_GAIN = 1e-4  # of a step, as a share of what its slope promises

Sums = Callable[[State, int], Stats]


class Refinement:
    """Advances a VBAgg fit to its optimum.

    Parameters
    ----------
    model : VBAgg
    sums : callable
        From a state and the most pixels of a bag (0 for all), the sums of all bags.
    n_bag : int
    cap : int
        Pixels of a bag in the climb; 0 for all.
    n_member : int
        Draws of the hyperparameters; 0 for none.
    tolerance : float
        Nats that may be left to gain.
    """

    def __init__(
        self, model: Any, sums: Sums, n_bag: int, *, cap: int, n_member: int, tolerance: float
    ) -> None:
        self._model, self._cap = model, cap
        self._n_member, self._tolerance = n_member, tolerance
        self._few = ProfileBound(model, lambda state: sums(state, cap), n_bag)
        self._all = ProfileBound(model, lambda state: sums(state, 0), n_bag)
        self._passes = 0

    def advance(self, state: State) -> tuple[State, Info]:
        """Take one step of the fit."""
        memory = state.memory
        if "stage" not in memory:
            n_phi = self._few.pack(state.params).size
            memory = {"stage": np.array(CLIMB), "inverse": START_INVERSE * np.eye(n_phi)}
            state = replace(state, memory=memory)
        stage = int(memory["stage"])
        self._passes = 0
        step = {
            CLIMB: self._climb,
            CURVATURE: self._curvature,
            WHOLE: self._whole,
            MEMBERS: self._members,
        }[stage]
        state = replace(step(state), step=state.step + 1)
        memory = state.memory
        done = int(memory["stage"]) == DONE
        report = {
            "stage": stage,
            "passes": self._passes,
            "nats_left": float(memory.get("left", np.inf)),
            "gradient": float(np.abs(memory["grad"]).max()) if "grad" in memory else np.inf,
        }
        return state, Info(float(memory["value"]), converged=done, report=report)

    # -- the stages ----------------------------------------------------------------------------

    def _climb(self, state: State) -> State:
        state = self._quasi_newton(state, self._few)
        memory = state.memory
        if float(memory["left"]) < self._tolerance and float(memory["gained"]) < self._tolerance:
            memory = {**memory, "stage": np.array(CURVATURE)}
        return replace(state, memory=memory)

    def _curvature(self, state: State) -> State:
        """Take the Hessian by central differences of the gradient."""
        memory, profile = state.memory, self._few
        at = self._point(profile, state, EXACT_Q)
        phi = profile.pack(at.state.params)
        sd = np.sqrt(np.clip(np.diag(memory["inverse"]), 0.04, MOST_DEVIATION**2))
        hessian = np.empty((phi.size, phi.size))
        for k in range(phi.size):
            away = np.zeros(phi.size)
            away[k] = DIFFERENCE * sd[k]
            up = self._point(profile, profile.unpack(at.state, phi + away), EXACT_Q)
            down = self._point(profile, profile.unpack(at.state, phi - away), EXACT_Q)
            hessian[k] = (up.grad - down.grad) / (2 * away[k])
        inverse = bounded_inverse(-0.5 * (hessian + hessian.T))
        left = 0.5 * float(at.grad @ inverse @ at.grad)
        tries = int(memory.get("tries", 0)) + 1
        stage = CLIMB if left > self._tolerance and tries < 3 else WHOLE
        if stage == WHOLE and not self._cap:
            stage = MEMBERS if self._n_member else DONE
        memory = {
            "stage": np.array(stage),
            "tries": np.array(tries),
            "inverse": inverse,
            "value": np.array(at.value),
            "grad": at.grad,
            "left": np.array(left + at.left),
            "gained": np.array(np.inf),
        }
        if stage == WHOLE:
            for name in ("value", "grad"):
                del memory[name]
            memory["value"] = np.array(at.value)
        return replace(at.state, memory=memory)

    def _whole(self, state: State) -> State:
        state = self._quasi_newton(state, self._all)
        if float(state.memory["left"]) < self._tolerance:
            stage = MEMBERS if self._n_member else DONE
            state = replace(state, memory={**state.memory, "stage": np.array(stage)})
        return state

    def _members(self, state: State) -> State:
        """Add a pair of members at either side of the optimum."""
        phi, made = self._all.pack(state.params), state.members
        n_made = made["weight"].size if made else 0
        offsets = member_offsets(state.memory["inverse"], self._n_member, self._model.seed)
        members = dict(made)
        drops = list(state.memory.get("drops", np.zeros(0)))
        for offset in offsets[n_made : n_made + 2]:
            at = self._point(self._all, self._all.unpack(state, phi + offset), CLOSE_Q)
            drops.append(float(state.memory["value"]) - at.value)
            for name in (*self._all.names, "v_mean", "root"):
                own = at.state.params[name][None]
                members[name] = np.concatenate([members[name], own]) if name in members else own
        n_made = members["theta"].shape[0]
        members["weight"] = np.full(n_made, 1.0 / n_made)
        memory = {**state.memory, "drops": np.array(drops)}
        if n_made >= self._n_member:
            memory["stage"] = np.array(DONE)
        return replace(state, members=members, memory=memory)

    # -- steps ---------------------------------------------------------------------------------

    def _quasi_newton(self, state: State, profile: ProfileBound) -> State:
        """Step up the profile bound, and learn its curvature from the step."""
        memory = state.memory
        if "grad" not in memory:
            at = self._point(profile, state, CLOSE_Q)
            return replace(at.state, memory=self._remember(memory, at, memory["inverse"], np.inf))
        inverse, grad, value = memory["inverse"], memory["grad"], float(memory["value"])
        phi = profile.pack(state.params)
        step = inverse @ grad
        largest = float(np.abs(step).max())
        if largest > LONGEST:
            step *= LONGEST / largest
        for _ in range(8):
            try:
                at = self._point(profile, profile.unpack(state, phi + step), CLOSE_Q)
            except NumericalError:
                at = None
            if at is not None and at.value > value + LEAST_GAIN * float(step @ grad):
                break
            if at is not None and abs(float(step @ grad)) < 4 * CLOSE_Q:
                break  # what is promised is less than the error of the bound
            # Halve, or go to the top of the parabola through both ends.
            share = 0.3
            if at is not None:
                slope = float(step @ grad)
                share = float(np.clip(-0.5 * slope / (at.value - value - slope), 0.1, 0.5))
            step = share * step
        if at is None or at.value < value - CLOSE_Q:
            # The curvature was wrong: begin anew from the diagonal.
            inverse = START_INVERSE * np.eye(phi.size)
            left = 0.5 * float(grad @ inverse @ grad)
            failed = int(memory.get("failed", 0)) + 1
            gained = np.inf if failed < 2 else 0.0
            return replace(
                state,
                memory={
                    **memory,
                    "inverse": inverse,
                    "failed": np.array(failed),
                    "gained": np.array(gained),
                    "left": np.array(left if failed < 2 else 0.0),
                },
            )
        inverse = bfgs(inverse, step, grad - at.grad)
        return replace(
            at.state, memory=self._remember(memory, at, inverse, max(at.value - value, 0.0))
        )

    def _remember(self, memory: Arrays, at: Point, inverse: np.ndarray, gained: float) -> Arrays:
        left = 0.5 * float(at.grad @ inverse @ at.grad) + at.left
        return {
            **memory,
            "inverse": inverse,
            "value": np.array(at.value),
            "grad": at.grad,
            "left": np.array(left),
            "gained": np.array(gained),
            "failed": np.array(0),
        }

    def _point(self, profile: ProfileBound, state: State, tolerance: float) -> Point:
        at = profile.at(state, tolerance)
        self._passes += at.passes
        return at


def bfgs(inverse: np.ndarray, step: np.ndarray, bent: np.ndarray) -> np.ndarray:
    """Update an inverse Hessian (of what is minimised) by a step and the change of the gradient."""
    curvature = float(step @ bent)
    if curvature <= 1e-8 * float(np.linalg.norm(step) * np.linalg.norm(bent)):
        return inverse
    rho = 1.0 / curvature
    left = np.eye(step.size) - rho * np.outer(step, bent)
    updated = left @ inverse @ left.T + rho * np.outer(step, step)
    return 0.5 * (updated + updated.T)


def bounded_inverse(precision: np.ndarray) -> np.ndarray:
    """Invert a symmetric matrix; no direction gets a deviation above ``MOST_DEVIATION``."""
    values, vectors = np.linalg.eigh(precision)
    variance = 1.0 / np.maximum(values, 1.0 / MOST_DEVIATION**2)
    return np.asarray((vectors * variance) @ vectors.T)


def member_offsets(covariance: np.ndarray, n_member: int, seed: int) -> np.ndarray:
    """Draw from ``N(0, covariance)`` in antithetic pairs along orthogonal directions.

    Parameters
    ----------
    covariance : (n_phi, n_phi)
    n_member : int
    seed : int

    Returns
    -------
    (n_member, n_phi)
    """
    n_phi = covariance.shape[0]
    rng = np.random.default_rng([seed, 7])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: list[np.ndarray] = []
    while len(found) < n_member:
        frame, _ = np.linalg.qr(rng.standard_normal((n_phi, n_phi)))
        for direction in frame.T:
            radius = np.sqrt(rng.chisquare(n_phi))
            found += [root @ direction * radius, -(root @ direction) * radius]
    return np.stack(found[:n_member])
