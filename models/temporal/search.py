"""The stages of a fit of several periods: those of one, on its own profile bound."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from models.aggregate.fit_memory import CLIMB, CURVATURE, DONE, START_INVERSE, Memory, Search
from models.aggregate.hyperparameter_chain import AGREE, Chain, explore
from models.aggregate.profile_bound import Point, Profile, with_phi
from models.aggregate.quasi_newton import fall_at, member_offsets
from models.aggregate.refinement import (
    FAR,
    UNPROMISED,
    Climb,
    Members,
    Refinement,
    stages_of,
)
from models.backend.arrays import give_back_freed_memory
from models.backend.blas import on_all_cores
from models.core.block import BagBlock
from models.core.errors import NumericalError
from models.core.protocol import BagSums, Info, State, override
from models.temporal.profile import HeldSites, ParamsOf, Take, TemporalProfile
from models.temporal.series_evidence import SeriesEvidence, find_series_places
from models.temporal.sites import filled
from models.temporal.temporal_model import TemporalModel
from models.training.few_pixels import ALL_PIXELS

OWN_STEP = 0.05  # of a difference with ``q`` held, in logarithms
# Areas times periods whose evidence is explored: its cost grows by the third power.
MOST_CHAINED = 1000
# Nats a bag that half the draws of a chain may be above the optimum of the bound.
BY_BAG = 0.05
# Of all hyperparameters, in logarithms: nearer than this the held sites' Hessian is not taken anew.
# It costs a smoother for each hyperparameter.
NEAR_BY = 1.0


# Nats that natural steps may leave to gain, at least: they add up over periods, and an error of
# ``q`` enters the slopes by its square.
LEAST_LEFT = 2e-3


@dataclass
class TemporalSearch(Search):
    """What the stages share, with the curvature that the sites of all periods tell."""

    space_time: TemporalModel | None = None

    @override
    def point(
        self,
        profile: Profile[Any],
        state: State,
        tolerance: float,
        least: float = -np.inf,
        *,
        slopes: bool = True,
    ) -> Point:
        return super().point(profile, state, max(tolerance, LEAST_LEFT), least, slopes=slopes)

    _hessian: tuple[np.ndarray, np.ndarray] | None = None  # and where it was taken

    @override
    def site_hessian(self, state: State, n_phi: int) -> np.ndarray:
        phi = self.few.pack(state.params)
        if self._hessian is not None and np.abs(phi - self._hessian[0]).max() < NEAR_BY:
            return self._hessian[1].copy()
        hessian = super().site_hessian(state, n_phi)
        for k in self.unknown(state, n_phi):
            hessian[k, k] = self._curvature_by(state, phi, k)
        self._hessian = (phi, hessian)
        return hessian.copy()

    def _curvature_by(self, state: State, phi: np.ndarray, k: int) -> float:
        """Return the curvature by one of the likelihood's own parameters, with ``q`` held.

        A pass over the bags on either side. Where ``q`` follows there is less of it: a step is
        rather too short than too long, and steps too long are what costs.
        """
        profile, ends, guess = self.few, [], -1.0 / START_INVERSE
        assert isinstance(profile, TemporalProfile)
        with contextlib.suppress(NumericalError):  # at the edge of numbers
            for sign in (1.0, -1.0):
                away = phi.copy()
                away[k] += sign * OWN_STEP
                params = with_phi(state.params, profile.names, away)
                own = {name: params[name] for name in self.model.resolved_likelihood.parameters}
                ends.append(profile.slopes_with_q_held(state, own)[k])
                self.passes += 1
            found = float(ends[0] - ends[1]) / (2.0 * OWN_STEP)
            return min(found, guess) if np.isfinite(found) else guess
        return guess

    @override
    def _told_by_sites(self, state: State) -> np.ndarray:
        assert self.space_time is not None
        return HeldSites(self.space_time, state).hessian()

    @override
    def unknown(self, state: State, n_phi: int) -> list[int]:
        params = state.params
        return list(range(1 + params["theta"].size + params["time"].size, n_phi))


class TemporalMembers(Members):
    """Draws of the hyperparameters by the evidence between areas and periods, or a normal law.

    Parameters
    ----------
    search : TemporalSearch
    model : TemporalModel
    profile : TemporalProfile
    pieces : FewByPeriod
        Few pixels of each bag.
    """

    def __init__(
        self,
        search: TemporalSearch,
        model: TemporalModel,
        profile: TemporalProfile,
        pieces: FewByPeriod,
    ) -> None:
        super().__init__(search)
        self._space_time, self._smoother, self._pieces = model, profile, pieces

    @override
    def init(self, state: State) -> State:
        search, memory = self._search, Memory.of(state)
        phi, covariance = search.few.pack(state.params), memory.inverse
        chain = self._explored(state, phi, covariance)
        if chain is not None:
            rows = chain.representatives(search.n_member)
            fall = chain.fall[rows] - chain.fall.min()  # below the best: that is not at the fit
            told = np.zeros((0, 4))  # that a chain vouches for the draws
            drawn = replace(memory, draws=chain.phi[rows], fall=fall, explained=told)
            return replace(drawn, chain=chain.told).into(state)
        offsets = member_offsets(covariance, search.n_member, search.model.seed)
        fall = fall_at(offsets, covariance)
        return replace(memory, draws=phi + offsets, fall=fall).into(state)

    @override
    def step(self, state: State) -> State:
        if "draws" not in state.memory:
            state = self.init(state)
        # Where inducing variables are few the bound falls by more than the evidence at draws that
        # move a short field from the areas' to the surface. Draws of a chain are members as they
        # are: nearer to the optimum, intervals of pixels hold .77 where they hold .86.
        drawn = Memory.of(state).explained is not None
        self.unpromised = np.inf if drawn else UNPROMISED
        return super().step(state)

    def _explored(self, state: State, phi: np.ndarray, covariance: np.ndarray) -> Chain | None:
        """Return a chain on the evidence; None where bags are many, or it does not tell."""
        model, n_area = self._space_time, int(state.fixed["n_area"][0])
        if model.priors != "weak" or n_area < 2 or self._search.n_bag > MOST_CHAINED:
            return None
        basis, now = self._smoother.smoothed(state)
        shared = model.shared_params(state)
        periods = {
            t: (
                {**shared, **basis.block_arrays(now.mean[t], now.cov[t])},
                model.with_area(shared, bags),
            )
            for t, bags in self._pieces.blocks.items()
        }
        with np.errstate(all="ignore"):
            evidence = SeriesEvidence(model, state, periods)
            if not evidence.usable:
                return None
            places = find_series_places(model, state)
            agree = max(AGREE, BY_BAG * self._search.n_bag)
            seed = self._search.model.seed
            return explore(evidence, phi, covariance, places, seed, agree=agree)

    @staticmethod
    @override
    def _joined(rows: list[np.ndarray]) -> np.ndarray:
        if len({each.shape[1:] for each in rows}) > 1:
            most = max(each.shape[2] for each in rows)  # roots of sites, of other ranks
            rows = [filled(each, most) for each in rows]
        return np.concatenate(rows)


class TemporalClimb(Climb):
    """A climb that asks for the curvature as soon as its steps gain little.

    Noise of the counts and short drifts take each other's place along bent ridges, where steps that
    learn the curvature on the way creep: they do not know how the two bend together, and the
    curvature's differences do. One pass costs here as much as a fit of one period.
    """

    @override
    def terminate(self, state: State) -> int:
        memory = Memory.of(state)
        first = memory.curved is None and not memory.tries
        return CURVATURE if first and memory.gained < FAR else super().terminate(state)


class TemporalRefinement(Refinement):
    """Advances a fit of several periods to its optimum.

    Parameters
    ----------
    model : TemporalModel
    sums : BagSums
    state : State
        At the start: it knows the period of each block.
    n_bag : int
    """

    def __init__(self, model: TemporalModel, sums: BagSums, state: State, n_bag: int) -> None:
        block_period, cap = state.fixed["block_period"], int(state.fixed["climb_pixels"][0])
        blocks = {int(t): np.flatnonzero(block_period == t).tolist() for t in set(block_period)}

        def ask(periods: Sequence[int], params_of: ParamsOf, slopes: bool, take: Take) -> list[Any]:
            wanted = {"slopes": np.array([slopes])}
            each = sums.parts(({**params_of(t), **wanted}, blocks[t]) for t in periods)
            return [take(t, own) for t, own in zip(periods, each, strict=True)]

        whole = few = TemporalProfile(model, ask, sorted(blocks))
        pieces = FewByPeriod(model, sums, state, cap or ALL_PIXELS)
        if cap:
            few = TemporalProfile(model, pieces.sums, sorted(blocks))
        self._search = TemporalSearch(
            model=model,
            sums=sums,
            n_bag=n_bag,
            cap=cap,
            gathered=cap,
            few=few,
            whole=whole,
            n_member=model.n_member,
            tolerance=model.nats_left,
            space_time=model,
        )
        self._stages = stages_of(self._search, TemporalMembers(self._search, model, whole, pieces))
        self._stages[CLIMB] = TemporalClimb(self._search, few)

    @override
    def step(self, state: State) -> tuple[State, Info]:
        state, info = super().step(state)
        if Memory.of(state).stage == DONE:
            give_back_freed_memory()  # matrices of all periods, of many sizes: gigabytes of gaps
        return state, info


class FewByPeriod:
    """Sums of few pixels of each bag, on the driver: a thread for each of some periods.

    Parameters
    ----------
    model : TemporalModel
    sums : BagSums
        They bring the pixels here.
    state : State
    cap : int
        Pixels of a bag, at most.
    """

    def __init__(self, model: TemporalModel, sums: BagSums, state: State, cap: int) -> None:
        self._model, self._cap = model, cap
        self._n_area = int(state.fixed["n_area"][0])
        self._bring = partial(sums.bags, state, cap)

    @cached_property
    def blocks(self) -> dict[int, BagBlock]:
        """Blocks by period, brought where they are asked for first."""
        bags = self._bring()
        period = bags.bag // self._n_area
        return {t: bags.at(np.flatnonzero(period == t)) for t in np.unique(period).tolist()}

    def sums(
        self, periods: Sequence[int], params_of: ParamsOf, slopes: bool, take: Take
    ) -> list[Any]:
        """Return what is taken from the sums of periods; see :data:`Evaluate` of the profile."""
        few = {"slopes": np.array([slopes]), "thin": np.array([self._cap])}
        blocks = self.blocks

        def one(t: int) -> Any:
            return take(t, self._model.block_stats({**params_of(t), **few}, blocks[t], None)[0])

        return on_all_cores(one, periods)
