r"""From a start to the optimum of the profile bound, and draws of the hyperparameters around it.

A fit advances in steps, each a few passes over the bags, whose whole memory is in the state:

1. *climb*: quasi-Newton (BFGS) steps up the profile bound, on few pixels of each bag
   (:mod:`models.core.thinning`) where these are many;
2. *curvature*: the Hessian of the profile bound (:mod:`models.aggregate.site_evidence`; by
   differences of its gradient for the likelihood's own parameters). It decides whether the climb is
   over: the Newton decrement ``g' (-H)^-1 g / 2`` is what is left to gain, in nats;
3. *whole*: Newton steps with that Hessian on all pixels, until their decrement is small as well;
4. *members*: hyperparameters drawn from ``N(phi, (-H)^-1)``, ``q`` climbing to its best for each.

Each stage is a class with ``init``, ``step`` and ``terminate``.
docs/design/hyperparameters.md has what was weighed and measured.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.fit_memory import (
    CLIMB,
    CURVATURE,
    DONE,
    MEMBERS,
    START_INVERSE,
    WHOLE,
    Memory,
    Search,
)
from models.aggregate.hyperparameter_chain import explanations, explore, find_places
from models.aggregate.profile_bound import Point, Profile, ProfileBound
from models.aggregate.quasi_newton import (
    bfgs,
    bounded_inverse,
    bounded_step,
    fall_at,
    member_offsets,
    remembered,
)
from models.aggregate.surface_model import SurfaceModel
from models.core.errors import NumericalError
from models.core.protocol import Arrays, BagSums, Info, State
from models.gp.kernel_terms import whole_kernel
from models.training.few_pixels import ALL_PIXELS

CLOSE_Q = 0.005  # nats that a natural step may still gain, at the end of the climb
FAR_Q = 0.3  # at the very start
MIDDLE_Q, SHARE_Q = 0.02, 0.01  # before: at most, and as a share of what is left to gain
EXACT_Q = 1e-4  # where differences are taken, and where no step gained
MEMBER_Q = 0.03
MOST_CHAINED = 600  # areas whose evidence is explored: its cost grows by the third power
EVIDENCE_PIXELS = 40_000  # of all areas, that their averages are over
DIFFERENCE = 0.3  # step of a difference, in logarithms
FAR = 1.0  # nats that a step gained, from which on the curvature is taken anew
DRAWN_IN = 5  # times that a member is drawn nearer to the optimum, before it is the optimum
# Most that the bound falls at a member: as a share of what was promised, and nats besides.
STEEP, UNPROMISED = 1.5, 2.0
BACKTRACKS = 5
MISLED = 5.0  # nats from which on such a climb was misled by its curvature
ROUGH = 0.5  # nats that the climb may leave where a stage on all pixels follows
MOST_CURVED = 4  # times that the curvature sends a fit back to the climb, and once more
LEAST_GAIN = 1e-4  # of a step, as a share of what its slope promises
# Over the bags, before the members. Of 37 fits of noisy worlds the longest that converged took
# 1,561 with them, when climbs of q had twice as many steps.
MOST_PASSES = 2000


class Stage(Protocol):
    """One stage of a fit."""

    def init(self, state: State) -> State:
        """Return the state that the first step needs; :meth:`step` calls it where it is due."""

    def step(self, state: State) -> State:
        """Take a step."""

    def terminate(self, state: State) -> int:
        """Return the stage of the next step."""

    def phase(self, state: State) -> str:
        """Return what the next step does, in a few words."""


class Climb:
    """Quasi-Newton steps up the profile bound, which learn its curvature on the way."""

    name = "climb"

    def __init__(self, search: Search, profile: Profile[Any]) -> None:
        self._search, self._profile = search, profile
        # All pixels have another optimum, further away than this.
        self._tolerance = max(search.tolerance, ROUGH) if search.cap else search.tolerance

    def init(self, state: State) -> State:
        """Climb to the best ``q`` of the start."""
        search, memory = self._search, Memory.of(state)
        cold = self._profile is search.few and memory.curved is None
        first = search.point(self._profile, state, FAR_Q if cold else CLOSE_Q)
        inverse = memory.inverse
        if cold:
            inverse = bounded_inverse(-search.site_hessian(first.state, first.grad.size))
        return memory.at(first, inverse, np.inf).into(first.state)

    def step(self, state: State) -> State:
        """Step as far as the bound rises; the first point is a step by itself."""
        memory = Memory.of(state)
        grad = memory.grad
        if grad is None:
            return self.init(state)
        search, inverse = self._search, memory.inverse
        found = self._searched(state, memory, bounded_step(inverse, grad), grad)
        if found is None:  # no step gains: q is off, the curvature is wrong, or this is the top
            again = search.point(self._profile, state, EXACT_Q)
            inverse = bounded_inverse(-search.site_hessian(again.state, grad.size))
            failed = (memory.failed or 0) + 1
            return replace(memory.at(again, inverse, 0.0), failed=failed).into(again.state)
        at, step = found
        gained = at.value - memory.value
        bent = grad - at.grad
        if memory.curved is not None:
            inverse = bfgs(inverse, step, bent)
        elif gained > FAR:
            # The held site's curvature has nothing of the likelihood's own parameters and little of
            # how sites follow: the last steps tell of these.
            steps, bends = remembered(memory.steps, step), remembered(memory.bends, bent)
            memory = replace(memory, steps=steps, bends=bends)
            inverse = bounded_inverse(-search.known_hessian(at.state, memory, grad.size))
            for own, change in zip(steps, bends, strict=True):
                inverse = bfgs(inverse, own, change)
        else:
            if memory.steps is not None:  # near the end steps from afar mislead
                memory = replace(memory, steps=None, bends=None)
                inverse = bounded_inverse(-search.known_hessian(at.state, memory, grad.size))
            inverse = bfgs(inverse, step, bent)
        return memory.at(at, inverse, gained).into(at.state)

    def _searched(
        self, state: State, memory: Memory, step: np.ndarray, grad: np.ndarray
    ) -> tuple[Point, np.ndarray] | None:
        """Return the first point along a step that gains, and the step there; None without one."""
        profile, value = self._profile, memory.value
        phi = profile.pack(state.params)
        close = float(np.clip(SHARE_Q * memory.left, CLOSE_Q, MIDDLE_Q))
        for _ in range(BACKTRACKS):
            slope, share = float(step @ grad), 0.3
            with contextlib.suppress(NumericalError):
                at = self._search.point(profile, profile.unpack(state, phi + step), close, value)
                if at.value > value + LEAST_GAIN * slope:
                    return at, step
                # To the top of the parabola through both ends, or nearer.
                fall = value + slope - at.value  # 0 where both ends are equal but for rounding
                share = float(np.clip(0.5 * slope / fall, 0.1, 0.5)) if fall > 0.0 else share
            step = share * step
        return None

    def terminate(self, state: State) -> int:
        """Go on where a step and what is left are small; to the curvature, where it is unknown."""
        memory = Memory.of(state)
        if max(memory.left, memory.gained) < self._tolerance or memory.stuck:
            # A fit that began at another's optimum has its curvature from there.
            return CURVATURE if memory.curved is None else self._search.after_curvature
        return CLIMB

    def phase(self, state: State) -> str:
        """Return the stage's name."""
        del state
        return self.name


class Whole(Climb):
    """The same on all pixels."""

    name = "climb on all pixels"

    def step(self, state: State) -> State:
        """Step, and look closely where little is left."""
        state = super().step(state)
        memory = Memory.of(state)
        if memory.left < self._search.tolerance:
            # A gradient near the best q can err by as much as is left.
            at = self._search.point(self._profile, state, EXACT_Q)
            state = memory.at(at, memory.inverse, memory.gained).into(at.state)
        return state

    def terminate(self, state: State) -> int:
        """Go on where little is left."""
        memory = Memory.of(state)
        ended = memory.left < self._search.tolerance or memory.stuck
        return self._search.after_whole if ended else WHOLE


class Curvature:
    """The Hessian at the end of a climb: of the held site, and by differences for the rest."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def init(self, state: State) -> State:
        """Return the state: the climb left all that is needed."""
        return state

    def step(self, state: State) -> State:
        """Take the Hessian."""
        search, profile, before = self._search, self._search.few, Memory.of(state)
        at = search.point(profile, state, EXACT_Q)
        phi = profile.pack(at.state.params)
        hessian = search.site_hessian(at.state, phi.size)
        unknown = search.unknown(at.state, phi.size)
        for k in unknown:
            away = np.zeros(phi.size)
            away[k] = DIFFERENCE
            with contextlib.suppress(NumericalError):  # no bound there: the guess stays
                up = search.point(profile, profile.unpack(at.state, phi + away), EXACT_Q)
                down = search.point(profile, profile.unpack(at.state, phi - away), EXACT_Q)
                hessian[k] = hessian[:, k] = (up.grad - down.grad) / (2 * DIFFERENCE)
        fresh = Memory(
            stage=CURVATURE,
            tries=(before.tries or 0) + 1,
            curved_at=at.value,
            unknown=np.array(unknown, dtype=np.int64),
            differences=hessian[unknown],
        )
        inverse = bounded_inverse(-0.5 * (hessian + hessian.T))
        found = replace(fresh.at(at, inverse, np.inf), failed=None)
        if before.curved_at is not None and not before.stuck:
            # Along bent ridges a curvature promises more than there is: what a whole climb with
            # the last one gained is known.
            left = abs(at.value - before.curved_at) + at.left
            found = replace(found, left=left) if left < search.tolerance else found
        return found.into(at.state)

    def terminate(self, state: State) -> int:
        """Go back to a climb that its curvature misled."""
        memory = Memory.of(state)
        # Where all pixels follow, what is left moves less than they do.
        most = MISLED if self._search.cap else self._search.tolerance
        back = memory.left > most and (memory.tries or 0) < MOST_CURVED
        return CLIMB if back else self._search.after_curvature

    def phase(self, state: State) -> str:
        """Return the stage's name."""
        del state
        return "curvature"


class Members:
    """Draws of the hyperparameters, each with its ``q``.

    Attributes
    ----------
    unpromised : float
        Nats that the bound may fall at a draw besides what was promised.
    """

    unpromised = UNPROMISED

    def __init__(self, search: Search, *, brief: bool = False) -> None:
        self._search, self._brief = search, brief
        self._profile = search.whole if search.cap else search.few

    def init(self, state: State) -> State:
        """Draw hyperparameters: by the areas' evidence, or from a normal distribution."""
        search, memory = self._search, Memory.of(state)
        model, chain = search.model, None
        model.forget_kernels()  # of the optimum: the chain takes their memory, draws have others
        phi, covariance = search.few.pack(state.params), memory.inverse
        if model.priors == "weak" and 1 < search.n_bag <= MOST_CHAINED:
            # The evidence is to be that of all pixels, on which the bound is climbed.
            bags = search.sums.bags(state, max(search.gathered, EVIDENCE_PIXELS // search.n_bag))
            kernel = whole_kernel(model._kernel(state.fixed))
            places = find_places(kernel, model.resolved_likelihood, state.fixed)
            with np.errstate(all="ignore"):
                evidence = AreaEvidence(model, state, bags)
                if evidence.usable:
                    # What a fit that only scores draws is little, and nobody reads its chain.
                    few = (search.n_member,) if self._brief else ()
                    chain = explore(evidence, phi, covariance, places, model.seed, *few)
        if chain is None:
            offsets = member_offsets(covariance, search.n_member, model.seed)
            fall = fall_at(offsets, covariance)
            return replace(memory, draws=phi + offsets, fall=fall).into(state)
        rows = chain.representatives(search.n_member)
        explained = explanations(chain, places, evidence.side)
        # A reader is told of a factor.
        likelihood = model.resolved_likelihood
        explained[:, 1] = likelihood.factor_deviation(explained[:, 1], evidence.middle)
        found = replace(
            memory,
            draws=chain.phi[rows],
            fall=chain.fall[rows],
            explained=explained,
            chain=chain.told,
        )
        return found.into(state)

    def step(self, state: State) -> State:
        """Add two members."""
        if "draws" not in state.memory:
            state = self.init(state)
        memory, made = Memory.of(state), dict(state.members)
        nearer = memory.nearer or 0
        pair = slice(_n_made(state), _n_made(state) + 2)
        rows: dict[str, list[np.ndarray]] = {}
        for draw, fall in zip(memory.draws[pair], memory.fall[pair], strict=True):
            row, brought = self._member(state, memory.value, draw, float(fall))
            nearer += brought
            for name, own in row.items():
                rows.setdefault(name, [made[name]] if name in made else []).append(own)
        # Once for both: of a series of many areas the draws take half a gigabyte.
        made |= {name: self._joined(each) for name, each in rows.items()}
        total = made["theta"].shape[0]
        made["weight"] = np.full(total, 1.0 / total)
        return replace(replace(memory, nearer=nearer).into(state), members=made)

    @staticmethod
    def _joined(rows: list[np.ndarray]) -> np.ndarray:
        """Return the rows of draws in one array."""
        return np.concatenate(rows)

    def _member(
        self, state: State, value: float, draw: np.ndarray, fall: float
    ) -> tuple[Arrays, bool]:
        """Return a draw of the hyperparameters with its ``q``, each array as a row.

        Also, whether it had to be brought nearer to the optimum.
        """
        search, profile = self._search, self._profile
        phi = profile.pack(state.params)
        offset, at = draw - phi, None
        asked = offset
        most = STEEP * max(fall, 0.0) + self.unpromised
        for _ in range(DRAWN_IN):
            try:
                away = profile.unpack(state, phi + offset)
                at = search.point(profile, away, MEMBER_Q, value - most, slopes=False)
            except NumericalError:  # so far away that the bound has no number there
                at, offset = None, 0.5 * offset
                continue
            fell = value - at.value
            if fell <= most:
                break
            fell = max(fell - at.left, most)  # a climb that is given up has something left
            # The posterior falls faster than was promised, or the best q was not found there: about
            # as deep as was promised, and not to the edge of what is allowed: steps that aim there
            # end beyond it, again and again.
            at, offset = None, offset * np.sqrt(max(fall, 0.5 * self.unpromised) / fell)
        if at is None:
            at = search.point(profile, state, MEMBER_Q, slopes=False)
        params = at.state.params
        names = (*profile.names, *profile.of_q)
        rows = {name: params[name][None] for name in names if name in params}
        return rows, offset is not asked

    def terminate(self, state: State) -> int:
        """Go on until all are made."""
        return DONE if _n_made(state) >= self._search.n_member else MEMBERS

    def phase(self, state: State) -> str:
        """Return which draw is next."""
        n_member = self._search.n_member
        return f"hyperparameter draw {min(_n_made(state) + 1, n_member)} of {n_member}"


def _n_made(state: State) -> int:
    return state.members["weight"].size if state.members else 0


def stages_of(search: Search, members: Members) -> dict[int, Stage]:
    """Return the stages of a fit by number."""
    return {
        CLIMB: Climb(search, search.few),
        CURVATURE: Curvature(search),
        WHOLE: Whole(search, search.whole),
        MEMBERS: members,
    }


class Refinement:
    """Advances a VBAgg fit to its optimum, stage by stage.

    Parameters
    ----------
    model : SurfaceModel
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
        Whether the fit ends on the pixels of the climb; its chain is short then.
    """

    def __init__(
        self,
        model: SurfaceModel,
        sums: BagSums,
        n_bag: int,
        *,
        cap: int,
        all_pixels: int,
        n_member: int,
        tolerance: float,
        few_pixels: bool = False,
    ) -> None:
        few = cap or all_pixels
        self._search = search = Search(
            model,
            sums,
            n_bag,
            cap=0 if few_pixels else cap,  # without a stage on all pixels the climb is all
            gathered=few or ALL_PIXELS,
            few=ProfileBound(model, lambda *args: sums(args[0], few, args[1]), n_bag),
            whole=ProfileBound(model, lambda *args: sums(args[0], all_pixels, args[1]), n_bag),
            n_member=n_member,
            tolerance=tolerance,
        )
        self._stages = stages_of(search, Members(search, brief=few_pixels))

    def init(self, state: State) -> State:
        """Begin, where the state has no memory of a step."""
        if "stage" in state.memory:
            return state
        n_phi = self._search.few.pack(state.params).size
        return Memory(inverse=START_INVERSE * np.eye(n_phi)).into(state)

    def step(self, state: State) -> tuple[State, Info]:
        """Take one step of the stage that the fit is at."""
        before, self._search.passes = Memory.of(state), 0
        stage = self._stages[before.stage]
        state = stage.step(state)
        memory = Memory.of(state)
        following = stage.terminate(state)
        passes, why = (before.passes or 0) + self._search.passes, ""
        if passes >= MOST_PASSES and following < MEMBERS:
            following = DONE
            if self._search.n_member:
                why = ", and draws of the hyperparameters are missing"
            why += "; a count that is far off may be why"
        grad = None if before.stage != following == WHOLE else memory.grad
        memory = replace(memory, stage=following, passes=passes, grad=grad)
        if following == DONE:
            self._search.model.forget_kernels()
        report = {
            "stage": before.stage,
            "passes": self._search.passes,
            "nats_left": memory.left,
        }
        if grad is not None:
            report["gradient"] = float(np.abs(grad).max())
        state = replace(memory.into(state), step=state.step + 1)
        return state, Info(memory.value, stopped=why, report=report)

    def terminate(self, state: State, info: Info) -> tuple[bool, str]:
        """Return whether the fit has converged, and why it ends where it has not."""
        memory = Memory.of(state)
        if memory.stage != DONE:
            return False, ""
        if info.stopped or not memory.left <= self._search.tolerance:  # or not a number
            return False, f"{memory.left:.2g} nats may be left to gain{info.stopped}"
        return True, ""

    def phase(self, state: State) -> str:
        """Return what the next step does, in a few words."""
        stage = Memory.of(state).stage
        return "done" if stage == DONE else self._stages[stage].phase(state)
