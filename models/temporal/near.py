"""Blocks near some areas: of the effects of single areas, those of their own alone.

A pixel has the effect of its own area, and of no other. So a block of some areas is computed with
the shared inducing values and the effects of these areas: its cost does not grow with the number of
areas of the country.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from models.aggregate.observed_draws import Condition, Whole
from models.backend.arrays import like, namespace, to_host
from models.core.block import BagBlock
from models.core.protocol import Arrays, Stats, override
from models.temporal.sites import PARTS, Arrow, Split

AREAS = 48  # of a block: beyond, their own effects cost more than a second pass
OF_PIXELS = ("q", "cov")  # matrices over the inducing values


def near(params: Arrays, areas: np.ndarray) -> Arrays:
    """Return block parameters with the effects of some areas alone.

    Parameters
    ----------
    params : dict of arrays
        With ``own``, the places of such effects; returned as they are without.
    areas : (n,) int64
        Ascending.
    """
    if "own" not in params:
        return params
    split = Split.of(params)
    rows = _rows(split, areas)
    values, nodes = params["term_values"], params["term_nodes"]
    term = int(np.flatnonzero(np.cumsum(values) == split.stop)[0])
    first = int((values * nodes)[:term].sum())  # of its nodes; each is a value
    n_node = params["w"].shape[0]
    at = np.concatenate([np.arange(first), first + areas, np.arange(first + split.n_own, n_node)])
    sizes = values.copy()
    sizes[term] = areas.size
    found = {name: each for name, each in params.items() if name not in _GONE}
    found |= {name: params[name][at] for name in ("w", "node_share")}
    found |= {"term_values": sizes, "value_time": params["value_time"][rows]}
    if "alpha" in params:
        found["alpha"] = params["alpha"][rows]
    if "cov" in params:
        cov = Arrow.named(params, "cov").near(areas)
        found["q"] = _dense(Arrow.explained(params, cov), split)
        found["cov"] = _dense(cov, split)
    return found


_GONE = ("own", "own_prior", *(f"{name}_{part}" for name in OF_PIXELS for part in PARTS))


def _rows(split: Split, areas: np.ndarray) -> np.ndarray:
    """Return the places of the shared values and of those of some areas."""
    first = split.first
    return np.concatenate([split.shared[:first], first + areas, split.shared[first:]])


def _places(split: Split, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the shared values, and of ``n`` areas', where they are together."""
    own = np.arange(split.first, split.first + n)
    return np.delete(np.arange(split.shared.size + n), own), own


def _dense(arrow: Arrow, split: Split) -> np.ndarray:
    """Return the matrix over the shared values and those of the arrow's areas."""
    shared, own = _places(split, arrow.own.size)
    found = np.zeros((shared.size + own.size, shared.size + own.size))
    found[np.ix_(shared, shared)] = arrow.shared
    found[np.ix_(shared, own)], found[np.ix_(own, shared)] = arrow.cross, arrow.cross.T
    found[own, own] = arrow.own
    return found


def parts_of(block: BagBlock) -> Iterator[BagBlock]:
    """Yield a block in parts of few areas; on a device whole."""
    if block.n_bag <= AREAS or namespace(block.x) is not np:
        yield block
        return
    n = -(-block.n_bag // AREAS)
    for bags in np.array_split(np.arange(block.n_bag), n):
        yield block.at(bags)


def near_inputs(params: Arrays, z: Any) -> Arrays:
    """Return the block parameters near scaled inputs (..., n_dim); -1 is in no area."""
    if "own" not in params:
        return params
    areas = np.unique(to_host(z[..., params["x_mean"].size - 1]))
    return near(params, areas[areas >= 0].astype(np.int64))


def stats_near(
    compute: Callable[[Arrays, BagBlock, Any], tuple[Stats, Any]],
    params: Arrays,
    block: BagBlock,
    local: Any,
) -> tuple[Stats, Any]:
    """Return the sums of a block, computed in parts of few areas.

    Parameters
    ----------
    compute : callable
        Returns the sums of a part.
    params, block, local
        As of ``block_stats``.
    """
    if "own" not in params or "gather" in params:
        return compute(params, block, local)
    found: Stats | None = None
    for part in parts_of(block):
        areas = np.unique(to_host(part.bag) % int(params["n_area"][0]))
        stats, local = compute(near(params, areas), part, local)
        stats = _of_all_areas(stats, params, areas)
        found = stats if found is None else found + stats
    assert found is not None
    return found, local


def _of_all_areas(stats: Stats, params: Arrays, areas: np.ndarray) -> Stats:
    """Return the sums of a block near some areas as those of all areas."""
    split = Split.of(params)
    sums = dict(stats.sums)
    xp = namespace(sums["alpha"])
    rows = like(_rows(split, areas), sums["alpha"])
    alpha = xp.zeros(split.n_value)
    alpha[rows] = sums["alpha"]
    sums["alpha"] = alpha
    del sums["w"]  # inducing variables of a series stay where they are
    shared, near_own = (like(each, sums["alpha"]) for each in _places(split, areas.size))
    at = like(areas, sums["alpha"])
    for name in OF_PIXELS:
        if name in sums:
            whole = sums[name]
            cross, own = xp.zeros((shared.size, split.n_own)), xp.zeros(split.n_own)
            by_shared = whole[shared]
            cross[:, at], own[at] = by_shared[:, near_own], xp.diag(whole)[near_own]
            sums[name] = by_shared[:, shared]
            sums[f"{name}_cross"], sums[f"{name}_own"] = cross, own
    return Stats(stats.bound, stats.n_bag, sums)


class ConditionNear(Condition):
    """The same of bags of many areas: the last column of their inputs is the number of the area.

    ``away`` has a row for each inducing value, also for the effect of each area.
    """

    @override
    def factors(
        self,
        bags: BagBlock,
        drawn: np.ndarray,
        few: BagBlock | None = None,
        whole: Whole | None = None,
    ) -> np.ndarray:
        if not self._tells(bags) or "own" not in self.params:
            return super().factors(bags, drawn, few, whole)
        few = self.few(bags) if few is None else few
        split, found = Split.of(self.params), np.empty_like(drawn)
        for start in range(0, bags.n_bag, AREAS):
            rows = np.arange(start, min(start + AREAS, bags.n_bag))
            own = bags.at(rows)
            areas = np.unique(own.x[:, -1]).astype(np.int64)
            away = self.away[_rows(split, areas)]
            part = Condition(self.model, partial(near, self.params, areas), away)
            chosen = own if few is bags else few.at(rows)
            sums = None if whole is None else Whole(whole.level[rows], whole.line[:, rows])
            found[:, rows] = part.factors(own, drawn[:, rows], chosen, sums)
        return found
