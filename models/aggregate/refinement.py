r"""From a start to the optimum of the profile bound, and draws of the hyperparameters around it.

A fit advances in steps, each a few passes over the bags, whose whole memory is in the state:

1. *climb*: quasi-Newton (BFGS) steps up the profile bound, on few pixels of each bag
   (:mod:`models.core.thinning`) where these are many;
2. *curvature*: the Hessian of the profile bound (:mod:`models.aggregate.site_evidence`; by
   differences of its gradient for the likelihood's own parameters). It decides whether the climb is
   over: the Newton decrement ``g' (-H)^-1 g / 2`` is what is left to gain, in nats;
3. *whole*: Newton steps with that Hessian on all pixels, until their decrement is small as well;
4. *members*: hyperparameters drawn from ``N(phi, (-H)^-1)``, ``q`` climbing to its best for each.

docs/design/hyperparameters.md has what was weighed and measured.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.hyperparameter_chain import explanations, explore, find_places
from models.aggregate.profile_bound import Point, ProfileBound
from models.aggregate.site_evidence import SiteEvidence
from models.core.errors import NumericalError
from models.core.protocol import Arrays, BagSums, Info, State
from models.gp.kernel_terms import whole_kernel
from models.training.few_pixels import ALL_PIXELS

CLIMB, CURVATURE, WHOLE, MEMBERS, DONE = range(5)
CLOSE_Q = 0.005  # nats that a natural step may still gain, at the end of the climb
FAR_Q = 0.3  # at the very start
MIDDLE_Q, SHARE_Q = 0.02, 0.01  # before: at most, and as a share of what is left to gain
EXACT_Q = 1e-4  # where differences are taken, and where no step gained
MEMBER_Q = 0.03
LONGEST = 1.0  # that a logarithm moves in one step
START_INVERSE = 0.3  # inverse Hessian at the start
MOST_CHAINED = 600  # areas whose evidence is explored: its cost grows by the third power
DIFFERENCE = 0.3  # step of a difference, in logarithms
FAR = 1.0  # nats that a step gained, from which on the curvature is taken anew
MOST_DEVIATION = 1.0  # of a member from the optimum's logarithm, as a standard deviation
DRAWN_IN = 5  # times that a member is drawn nearer to the optimum, before it is the optimum
# Most that the bound falls at a member: as a share of what was promised, and nats besides.
STEEP, UNPROMISED = 1.5, 2.0
BACKTRACKS = 5
MISLED = 5.0  # nats from which on such a climb was misled by its curvature
ROUGH = 0.5  # nats that the climb may leave where a stage on all pixels follows
FEW_PARAMETERS = 10  # up to here the held site's curvature is better than what steps tell of it
LEAST_GAIN = 1e-4  # of a step, as a share of what its slope promises
# Over the bags, before the members. Of 37 fits of noisy worlds the longest that converged took
# 1,561 with them, when climbs of q had twice as many steps.
MOST_PASSES = 2000

_PHASES = {CLIMB: "climb", CURVATURE: "curvature", WHOLE: "climb on all pixels", DONE: "done"}


class Refinement:
    """Advances a VBAgg fit to its optimum.

    Parameters
    ----------
    model : VBAgg
    sums : BagSums
    n_bag : int
    cap : int
        Pixels of a bag in the climb; 0 for all.
    all_pixels : int
        What ``sums`` takes for all pixels: 0, or the number that brings them to the driver.
    n_member : int
        Draws of the hyperparameters; 0 for none.
    tolerance : float
        Nats that may be left to gain.
    few_pixels : bool
        Whether the fit ends on the pixels of the climb.
    """

    def __init__(
        self,
        model: Any,
        sums: BagSums,
        n_bag: int,
        *,
        cap: int,
        all_pixels: int,
        n_member: int,
        tolerance: float,
        few_pixels: bool = False,
    ) -> None:
        self._model = model
        self._cap = 0 if few_pixels else cap  # without a stage on all pixels the climb is all
        self._n_member, self._tolerance = n_member, tolerance
        # All pixels have another optimum, further away than this.
        self._climb_tolerance = max(tolerance, ROUGH) if self._cap else tolerance
        few = cap or all_pixels
        self._few = ProfileBound(model, lambda *args: sums(args[0], few, args[1]), n_bag)
        self._all = ProfileBound(model, lambda *args: sums(args[0], all_pixels, args[1]), n_bag)
        self._sums, self._n_bag, self._gathered = sums, n_bag, few or ALL_PIXELS
        self._passes = 0

    def advance(self, state: State) -> tuple[State, Info]:
        """Take one step of the fit."""
        memory = state.memory
        if "stage" not in memory:
            n_phi = self._few.pack(state.params).size
            memory = {"stage": np.array(CLIMB), "inverse": START_INVERSE * np.eye(n_phi)}
            state = replace(state, memory=memory)
        stage = int(memory["stage"])
        self._passes, before = 0, int(memory.get("passes", 0))
        step = {
            CLIMB: self._climb,
            CURVATURE: self._curvature,
            WHOLE: self._whole,
            MEMBERS: self._members,
        }[stage]
        state = step(state)
        passes = before + self._passes
        memory = {**state.memory, "passes": np.array(passes)}
        given_up = passes >= MOST_PASSES and int(memory["stage"]) < MEMBERS
        if given_up:
            memory["stage"] = np.array(DONE)
        state = replace(state, memory=memory, step=state.step + 1)
        done = int(memory["stage"]) == DONE
        if done:
            self._model.forget_kernels()
        stopped = ""
        if done and (given_up or float(memory["left"]) > self._tolerance):
            stopped = f"{float(memory['left']):.2g} nats may be left to gain"
        if given_up:
            draws = ", and draws of the hyperparameters are missing" if self._n_member else ""
            stopped += f"{draws}; a count that is far off may be why"
        report = {
            "stage": stage,
            "passes": self._passes,
            "nats_left": float(memory.get("left", np.inf)),
        }
        if "grad" in memory:
            report["gradient"] = float(np.abs(memory["grad"]).max())
        return state, Info(float(memory["value"]), done, stopped, report)

    def phase(self, state: State) -> str:
        """Return what the next step does, in a few words."""
        stage = int(state.memory.get("stage", CLIMB))
        if stage == MEMBERS:
            n_made = state.members["weight"].size if state.members else 0
            return f"hyperparameter draw {min(n_made + 1, self._n_member)} of {self._n_member}"
        return _PHASES[stage]

    # -- the stages ----------------------------------------------------------------------------

    def _climb(self, state: State) -> State:
        state = self._quasi_newton(state, self._few)
        memory = state.memory
        still = max(float(memory["left"]), float(memory["gained"])) < self._climb_tolerance
        if still or _stuck(memory):
            # A fit that began at another's optimum has its curvature from there.
            stage = self._after_curvature() if "curved" in memory else CURVATURE
            memory = {**memory, "stage": np.array(stage)}
            if stage == WHOLE:
                del memory["grad"]
        return replace(state, memory=memory)

    def _after_curvature(self) -> int:
        if self._cap:
            return WHOLE
        return MEMBERS if self._n_member else DONE

    def _curvature(self, state: State) -> State:
        """Take the Hessian: of the held site, and by differences for the likelihood's own."""
        memory, profile = state.memory, self._few
        at = self._point(profile, state, EXACT_Q)
        phi = profile.pack(at.state.params)
        hessian = self._site_hessian(at.state, phi.size)
        unknown = list(range(1 + at.state.params["theta"].size, phi.size))
        if not SiteEvidence(self._model, at.state).knows_mean:
            unknown.append(0)
        for k in unknown:
            away = np.zeros(phi.size)
            away[k] = DIFFERENCE
            with contextlib.suppress(NumericalError):  # no bound there: the guess stays
                up = self._point(profile, profile.unpack(at.state, phi + away), EXACT_Q)
                down = self._point(profile, profile.unpack(at.state, phi - away), EXACT_Q)
                hessian[k] = hessian[:, k] = (up.grad - down.grad) / (2 * DIFFERENCE)
        differences = hessian[unknown]
        inverse = bounded_inverse(-0.5 * (hessian + hessian.T))
        left = 0.5 * float(at.grad @ inverse @ at.grad) + at.left
        tries = int(memory.get("tries", 0)) + 1
        # Where all pixels follow, what is left moves less than they do.
        most = MISLED if self._cap else self._tolerance
        stage = CLIMB if left > most and tries < 4 else self._after_curvature()
        memory = {
            "stage": np.array(stage),
            "tries": np.array(tries),
            "inverse": inverse,
            "value": np.array(at.value),
            "grad": at.grad,
            "left": np.array(left),
            "gained": np.array(np.inf),
            "unknown": np.array(unknown, dtype=np.int64),
            "differences": differences,
        }
        if stage == WHOLE:
            del memory["grad"]
        return replace(at.state, memory=memory)

    def _site_hessian(self, state: State, n_phi: int) -> np.ndarray:
        """Return the Hessian with the site held; a guess for the likelihood's own parameters."""
        hessian = -np.eye(n_phi) / START_INVERSE
        n = 1 + state.params["theta"].size
        with contextlib.suppress(np.linalg.LinAlgError, NumericalError):  # at the edge of numbers
            found = SiteEvidence(self._model, state).hessian()
            if np.isfinite(found).all():
                hessian[:n, :n] = found
        return hessian

    def _whole(self, state: State) -> State:
        state = self._quasi_newton(state, self._all)
        if float(state.memory["left"]) < self._tolerance:
            # A gradient near the best q can err by as much as is left.
            memory, at = state.memory, self._point(self._all, state, EXACT_Q)
            gained = float(memory["gained"])
            memory = self._remember(memory, at, memory["inverse"], gained)
            state = replace(at.state, memory=memory)
        if float(state.memory["left"]) < self._tolerance or _stuck(state.memory):
            stage = MEMBERS if self._n_member else DONE
            state = replace(state, memory={**state.memory, "stage": np.array(stage)})
        return state

    def _members(self, state: State) -> State:
        """Add two members: draws of the hyperparameters, each with its ``q``."""
        memory, made = dict(state.memory), dict(state.members)
        if "draws" not in memory:
            memory |= self._draws(state)
        n_made = made["weight"].size if made else 0
        for draw, fall in zip(memory["draws"][n_made:][:2], memory["fall"][n_made:], strict=False):
            for name, own in self._member(state, memory, draw, float(fall)).items():
                made[name] = np.concatenate([made[name], own]) if name in made else own
        n_made = made["theta"].shape[0]
        made["weight"] = np.full(n_made, 1.0 / n_made)
        if n_made >= self._n_member:
            memory["stage"] = np.array(DONE)
        return replace(state, members=made, memory=memory)

    def _draws(self, state: State) -> Arrays:
        """Draw hyperparameters: by the areas' evidence, or from a normal distribution.

        Returns
        -------
        dict of arrays
            ``draws`` (n_member, n_phi); ``fall`` (n_member,), nats below the optimum that the bound
            should be there; and ``explained``, see :func:`explanations`.
        """
        phi, covariance = self._few.pack(state.params), state.memory["inverse"]
        model, chain = self._model, None
        if model.priors == "weak" and 1 < self._n_bag <= MOST_CHAINED:
            bags = self._sums.bags(state, self._gathered)
            kernel = whole_kernel(model._kernel(state.fixed))
            places = find_places(kernel, model.resolved_likelihood, state.fixed)
            with np.errstate(all="ignore"):
                evidence = AreaEvidence(model, state, bags)
                if evidence.usable:
                    chain = explore(evidence, phi, covariance, places, model.seed)
        if chain is None:
            offsets = member_offsets(covariance, self._n_member, model.seed)
            fall = 0.5 * ((offsets @ np.linalg.inv(covariance)) * offsets).sum(axis=1)
            return {"draws": phi + offsets, "fall": fall}
        rows = chain.representatives(self._n_member)
        explained = explanations(chain, places, evidence.side)
        return {"draws": chain.phi[rows], "fall": chain.fall[rows], "explained": explained}

    def _member(self, state: State, memory: Arrays, draw: np.ndarray, fall: float) -> Arrays:
        """Return a draw of the hyperparameters with its ``q``, each array as a row."""
        profile, value = self._all if self._cap else self._few, float(memory["value"])
        phi = profile.pack(state.params)
        offset, at = draw - phi, None
        for _ in range(DRAWN_IN):
            try:
                away = profile.unpack(state, phi + offset)
                at = self._point(profile, away, MEMBER_Q, slopes=False)
            except NumericalError:  # so far away that the bound has no number there
                at, offset = None, 0.5 * offset
                continue
            fell = value - at.value
            if fell <= STEEP * max(fall, 0.0) + UNPROMISED:
                break
            # The posterior falls faster than was promised, or the best q was not found there: about
            # as deep as was promised.
            at, offset = None, offset * np.sqrt(max(fall, UNPROMISED) / fell)
        if at is None:
            at = self._point(profile, state, MEMBER_Q, slopes=False)
        params = at.state.params
        return {name: params[name][None] for name in (*profile.names, "v_mean", "root")}

    # -- steps ---------------------------------------------------------------------------------

    def _quasi_newton(self, state: State, profile: ProfileBound) -> State:
        """Step up the profile bound, and learn its curvature from the step."""
        memory = state.memory
        if "grad" not in memory:
            cold = profile is self._few and "curved" not in memory
            first = self._point(profile, state, FAR_Q if cold else CLOSE_Q)
            inverse = memory["inverse"]
            if cold:
                inverse = bounded_inverse(-self._site_hessian(first.state, first.grad.size))
            return replace(first.state, memory=self._remember(memory, first, inverse, np.inf))
        inverse, grad, value = memory["inverse"], memory["grad"], float(memory["value"])
        phi = profile.pack(state.params)
        step = bounded_step(inverse, grad)
        close = float(np.clip(SHARE_Q * float(memory["left"]), CLOSE_Q, MIDDLE_Q))
        at: Point | None = None
        for _ in range(BACKTRACKS):
            slope = float(step @ grad)
            try:
                at = self._point(profile, profile.unpack(state, phi + step), close, value)
            except NumericalError:
                at = None
            if at is not None and at.value > value + LEAST_GAIN * slope:
                break
            # To the top of the parabola through both ends, or nearer.
            share = 0.3
            if at is not None:
                fall = value + slope - at.value  # 0 where both ends are equal but for rounding
                share = float(np.clip(0.5 * slope / fall, 0.1, 0.5)) if fall > 0.0 else share
            at, step = None, share * step
        if at is None:  # no step gains: q is off, the curvature is wrong, or this is the top
            failed = np.array(int(memory.get("failed", 0)) + 1)
            again = self._point(profile, state, EXACT_Q)
            inverse = bounded_inverse(-self._site_hessian(again.state, phi.size))
            memory = self._remember(memory, again, inverse, 0.0)
            return replace(again.state, memory={**memory, "failed": failed})
        gained = at.value - value
        bent = grad - at.grad
        if "curved" in memory:
            inverse = bfgs(inverse, step, bent)
        elif gained > FAR:
            # The held site's curvature has nothing of the likelihood's own parameters and little of
            # how sites follow: the last steps tell of these.
            memory = {**memory, **remembered_step(memory, step, bent)}
            inverse = bounded_inverse(-self._known_hessian(at.state, memory, phi.size))
            for own, change in zip(memory["steps"], memory["bends"], strict=True):
                inverse = bfgs(inverse, own, change)
        else:
            if "steps" in memory:  # near the end steps from afar mislead
                memory = {k: v for k, v in memory.items() if k not in ("steps", "bends")}
                inverse = bounded_inverse(-self._known_hessian(at.state, memory, phi.size))
            inverse = bfgs(inverse, step, bent)
        return replace(at.state, memory=self._remember(memory, at, inverse, gained))

    def _known_hessian(self, state: State, memory: Arrays, n_phi: int) -> np.ndarray:
        """Return the held site's Hessian, with the differences that the curvature stage took."""
        hessian = self._site_hessian(state, n_phi)
        for k, row in zip(memory.get("unknown", ()), memory.get("differences", ()), strict=True):
            hessian[k] = hessian[:, k] = row
        return np.asarray(0.5 * (hessian + hessian.T))

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

    def _point(
        self,
        profile: ProfileBound,
        state: State,
        tolerance: float,
        least: float = -np.inf,
        *,
        slopes: bool = True,
    ) -> Point:
        at = profile.at(state, tolerance, least, slopes=slopes)
        self._passes += at.passes
        return at


def bounded_step(inverse: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return the Newton step, no part of it longer than ``LONGEST``.

    Of a longer one Levenberg's way: directions in which the bound is flat are cut first.
    """
    variance, vectors = np.linalg.eigh(inverse)
    variance = np.maximum(variance, 1e-12)
    along = vectors.T @ grad

    def step(damping: float) -> np.ndarray:
        return np.asarray(vectors @ (along / (1.0 / variance + damping)))

    def excess(log_damping: float) -> float:
        return float(np.abs(step(np.exp(log_damping))).max()) - LONGEST

    if np.abs(step(0.0)).max() <= LONGEST:
        return step(0.0)
    low = high = -6.0
    while excess(high) > 0:
        high += 2.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return step(np.exp(high))


def remembered_step(memory: Arrays, step: np.ndarray, bent: np.ndarray) -> Arrays:
    """Return the last steps and the changes of the gradient (of what is minimised) along them.

    One for every second hyperparameter beyond few.
    """
    most = max(0, (step.size - FEW_PARAMETERS) // 2)
    steps, bends = step[None], bent[None]
    if "steps" in memory:
        steps = np.concatenate([memory["steps"], steps])
        bends = np.concatenate([memory["bends"], bends])
    return {
        "steps": steps[steps.shape[0] - min(most, steps.shape[0]) :],
        "bends": bends[bends.shape[0] - min(most, bends.shape[0]) :],
    }


def _stuck(memory: Arrays) -> bool:
    """Tell whether no step gained, from the diagonal either."""
    return int(memory.get("failed", 0)) > 1


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
    # The symmetric root: it changes little where the covariance does.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    found: list[np.ndarray] = []
    while len(found) < n_member:
        frame, _ = np.linalg.qr(rng.standard_normal((n_phi, n_phi)))
        for direction in frame.T:
            radius = np.sqrt(rng.chisquare(n_phi))
            found += [root @ direction * radius, -(root @ direction) * radius]
    return np.stack(found[:n_member])
