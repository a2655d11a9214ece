"""A new month without a refit: the sites of new or corrected periods alone, all else held.

The filter takes the new period in, a few natural steps visit its pixels alone, and the smoother
takes what it says back. Under each draw of the hyperparameters; their weights follow what each had
predicted of the new counts. The cost in pixels is that of the new periods; the driver's algebra is
linear in all.
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
        Log density of their responses given all others, under each draw of the hyperparameters,
        nats (a bound).
    passes : int
        Over the visited pixels, all draws together.
    """

    state: State
    times: np.ndarray
    evidence: np.ndarray
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
    evidence, passes = [], 0
    threads, fitted = n_thread or os.cpu_count() or 1, cast(Model, model)
    with block_executor(fitted, source, threads, find_device(device)) as executor:
        for own in (replace(state, members={}), *member_states(state)):
            sites, fresh = _placed(own, times, visited)
            own = replace(own, fixed=fixed)
            space = model.state_space(own).after(sites[:first])
            sites[first:] = _expected(model, space, own, sites[first:], fresh, found, first)
            profile = TemporalProfile(
                model, _asking(executor, source, first), [t - first for t in visited], space
            )
            start = replace(own, params={**own.params, **packed(sites[first:])})
            at = profile.at(start, tolerance, slopes=False)
            none = Site.none(split)
            without = [none if t in visited else site for t, site in enumerate(sites)][first:]
            evidence.append(at.value - space.smooth(without).log_z - model.log_prior(own)[0])
            passes += at.passes
            after = packed([*sites[:first], *unpacked(at.state.params, split)])
            found.append(replace(own, params={**own.params, **after}))
    model.forget_kernels()
    mode, *parts = found
    members: Arrays = {}
    if parts:
        rank = max(part.params[ROOT].shape[1] for part in parts)
        names = [name for name in state.members if name not in (WEIGHT, *SITE)]
        weight = state.members[WEIGHT] * np.exp(np.array(evidence[1:]) - max(evidence[1:]))
        members = {
            **{name: state.members[name] for name in names},
            **{
                name: np.stack([part.params[name] for part in parts])
                for name in SITE
                if name != ROOT and name in mode.params
            },
            ROOT: np.concatenate([filled(part.params[ROOT][None], rank) for part in parts]),
            WEIGHT: weight / weight.sum(),
        }
    final = replace(state, params=mode.params, fixed=mode.fixed, members=members, memory={})
    return Update(final, times[visited], np.array(evidence), passes)


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
