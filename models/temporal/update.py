"""A new month without a refit: the sites of new or corrected periods alone, all else held.

The filter takes the new period in, a few natural steps visit its pixels alone, and the smoother
takes what it says back. Under each draw of the hyperparameters ``theta_k``, whose weights are those
of sequential importance sampling (Chopin 2002, Biometrika 89(3), 539-551),

    w_k <- w_k p(y_new | all others, theta_k) / p(y_old | all others, theta_k),

with ``y_old`` what was known of the same periods: 1 where that was nothing. The weights of the fit,
or of an earlier update, have it in them; undivided it would count twice. Both densities are bounds
at the best sites, ``p(y_t | f_t)`` near ``exp(level_t) site_t``:

    log p(y_V | others) = log Z(all sites) + sum_{t in V} level_t - log Z(without those of V).

The cost in pixels is that of the new periods; the driver's algebra is linear in all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from models.aggregate.posterior import WEIGHT, member_states
from models.aggregate.vbagg import NARROW_ROOT
from models.backend.blas import one_blas_thread
from models.core.errors import BagsError
from models.core.protocol import Arrays, Model, State
from models.temporal.path_prior import PathPrior
from models.temporal.periods import Period, PeriodSource
from models.temporal.profile import Evaluate, ParamsOf, Take, TemporalProfile, carried_to
from models.temporal.sites import ROOT, SITE, Site, Split, filled, packed, together, unpacked
from models.temporal.temporal_model import TemporalModel
from models.training.executor import Executor

CLOSE = 1e-3  # nats that a natural step may still gain


@dataclass(frozen=True)
class Update:
    """What an update found.

    Attributes
    ----------
    state : State
    times : (n,) float64
        Of the visited periods.
    evidence : (n_part,) float64
        Log density of their responses given all others, at the optimum and under each draw of the
        hyperparameters, nats (a bound).
    known : (n_part,) float64
        The same of what had been known of them; 0 where that was nothing.
    passes : int
        Over the visited pixels, all draws together.
    """

    state: State
    times: np.ndarray
    evidence: np.ndarray
    known: np.ndarray
    passes: int


@one_blas_thread()  # small products: beside other work threads of BLAS wait for one another
def updated(
    model: TemporalModel,
    state: State,
    periods: Sequence[Period],
    *,
    n_thread: int | None = None,
    device: Literal["auto", "cpu", "gpu"] = "cpu",
    tolerance: float = CLOSE,
) -> Update:
    """Return the state that knows some periods more, or better.

    Parameters
    ----------
    model : TemporalModel
    state : State
        Fitted.
    periods : sequence of Period
        By rising time. One whose time is known takes the place of what was known of it; one
        without bags changes nothing, but that its time is now known.
    n_thread, device
        As of :meth:`models.temporal.space_time.SpaceTime.fit`.
    tolerance : float
        Nats that the sites may be away from their best.

    Raises
    ------
    BagsError
        If an area is new: its effect has no place in the fit.
    """
    from models.training.device import block_executor, find_device

    n_area = int(state.fixed["n_area"][0])
    most = max(int(period.areas.max(initial=-1)) for period in periods)
    if most >= n_area:
        msg = f"area {most} is new, the model knows {n_area}; fit again with all areas"
        raise BagsError(msg)
    times = np.array(sorted({*state.fixed["times"].tolist(), *(float(p.time) for p in periods)}))
    periods = [period for period in periods if period.bags is not None and period.bags.n_bag]
    if not periods:
        msg = "the periods hold no bag; give the responses of one at least"
        raise BagsError(msg)
    if any(period.bags is not None and period.bags.area is not None for period in periods):
        state = together(state)
    visited = [int(np.searchsorted(times, period.time)) for period in periods]
    first = min(visited)  # what was before enters by the filter alone
    source = PeriodSource(periods, n_area, numbers=visited)
    fixed = {**state.fixed, "times": times}
    split = Split.of(state.fixed)
    found: list[State] = []
    evidence: list[float] = []
    known: list[float] = []
    passes, among, none = 0, [t - first for t in visited], Site.none(split)
    threads, fitted = n_thread or os.cpu_count() or 1, cast(Model, model)
    with block_executor(fitted, source, threads, find_device(device)) as executor:
        ask = _asking(executor, source, first)
        for own in (replace(state, members={}), *member_states(state)):
            sites, fresh = _placed(own, times, visited)
            own = replace(own, fixed=fixed)
            space = model.state_space(own).after(sites[:first])
            before, told = _told_before(model, ask, space, own, sites[first:], among)
            sites[first:] = _expected(model, space, own, sites[first:], fresh, found, first)
            profile = TemporalProfile(model, ask, among, space)
            start = replace(own, params={**own.params, **packed(sites[first:])})
            at = profile.at(start, tolerance, slopes=False)
            now = unpacked(at.state.params, split)
            without = [none if t in among else site for t, site in enumerate(now)]
            log_z = space.smooth(without).log_z
            evidence.append(_density(profile.smoothed(at.state)[1].log_z, now, among) - log_z)
            passes += at.passes + told
            # Without anything known of them that is 0, and no smoother is needed to say so.
            held = any(before[t].level for t in among)
            was = _density(space.smooth(before).log_z, before, among) if held else log_z
            known.append(was - log_z)
            after = packed([*sites[:first], *now])
            found.append(replace(own, params={**own.params, **after}))
    model.forget_kernels()
    mode, *parts = found
    members: Arrays = {}
    if parts:
        rank = max(part.params[ROOT].shape[1] for part in parts)
        names = [name for name in state.members if name not in (WEIGHT, *SITE)]
        gained = np.array(evidence[1:]) - known[1:]
        weight = _reweighted(state.members[WEIGHT], gained)
        members = {
            **{name: state.members[name] for name in names},
            **{
                name: np.stack([part.params[name] for part in parts])
                for name in SITE
                if name != ROOT and name in mode.params
            },
            ROOT: np.concatenate([filled(part.params[ROOT][None], rank) for part in parts]),
            WEIGHT: weight,
        }
    final = replace(state, params=mode.params, fixed=mode.fixed, members=members, memory={})
    return Update(final, times[visited], np.array(evidence), np.array(known), passes)


def _density(log_z: float, sites: Sequence[Site], among: Sequence[int]) -> float:
    """Return the log density of the responses of some periods; that of the others' as sites say."""
    return log_z + sum(sites[t].level for t in among)


def _reweighted(weight: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """Return weights (n_part,) times the exponentials of (n_part,) nats; their sum is 1."""
    with np.errstate(divide="ignore"):
        found = np.log(weight) + gained
    found = np.exp(found - found.max())
    return np.asarray(found / found.sum())


def _told_before(
    model: TemporalModel,
    ask: Evaluate,
    space: PathPrior,
    state: State,
    sites: Sequence[Site],
    among: Sequence[int],
) -> tuple[list[Site], int]:
    """Return sites as they were, with all levels of the visited ones, and the passes that it took.

    A model of before kept no levels, and its old responses are gone. There the new ones tell the
    level, at the sites that the old ones had: exact where none has changed. Where some have, their
    own ratio of densities is missing, and the weights change by too little.
    """
    lost = [t for t in among if np.isnan(sites[t].level)]
    if not lost:
        return list(sites), 0
    was = replace(state, params={**state.params, **packed(sites)})
    levelled = TemporalProfile(model, ask, lost, space).levelled(was)
    return unpacked(levelled.params, Split.of(state.fixed)), 1


def _asking(executor: Executor, source: PeriodSource, first: int) -> Evaluate:
    blocks = {int(t): np.flatnonzero(source.block_period == t) for t in source.block_period}

    def ask(periods: Sequence[int], params_of: ParamsOf, slopes: bool, take: Take) -> list[Any]:
        wanted = {"slopes": np.array([slopes])}
        return [
            take(t, executor.sum({**params_of(t), **wanted}, blocks[t + first].tolist()))
            for t in periods
        ]

    return ask


def _placed(state: State, times: np.ndarray, visited: list[int]) -> tuple[list[Site], list[int]]:
    """Return the sites of all periods, and the periods that have none yet."""
    split = Split.of(state.fixed)
    known = dict(zip(state.fixed["times"].tolist(), unpacked(state.params, split), strict=True))
    sites = [known.get(time, Site.none(split)) for time in times.tolist()]
    return sites, [t for t in visited if sites[t].empty]


def _expected(
    model: TemporalModel,
    space: PathPrior,
    state: State,
    sites: list[Site],
    fresh: list[int],
    found: list[State],
    first: int,
) -> list[Site]:
    """Return sites to start from: of new periods narrow ones where they are expected.

    Under draws of the hyperparameters, those found at their optimum.
    """
    sites = list(sites)
    if fresh and found:
        at_mode = carried_to(model, replace(state, params=found[0].params), state.params)
        for t in fresh:
            sites[t - first] = at_mode[t]
    elif fresh:
        ahead = space.smooth(sites)
        for t in fresh:
            sites[t - first] = Site.narrow(
                Split.of(state.fixed), NARROW_ROOT, ahead.mean[t - first]
            )
    return sites
