"""Totals that each draw is scaled to: areas of levels that nest, several at once.

The scaled draw is the nearest one (least Kullback-Leibler divergence) that has the totals: what
iterative proportional fitting converges to. Where areas nest it has a closed form. An area with a
total passes its rest, what its parts with totals of their own leave over, to its other parts, all
by one factor. Totals that contradict are settled before: the level listed first holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_matrix

from pipeline.store.level_areas import INSIDE, Level

#: Totals that differ by less agree.
EQUAL = 1e-9
#: Cases: fewer cannot be scaled to a total, for the factor is no number.
LEAST = 1e-200


@dataclass(frozen=True)
class Conflict:
    """A total that contradicts the totals of the area's parts.

    Attributes
    ----------
    level, area : str
    total : float
        Of the area.
    inside : float
        Sum of the totals of its parts.
    kept : bool
        Whether the area's total holds, and those of its parts were scaled; else it was dropped.
    nobody : bool
        Whether nobody lives in its mapped pixels.
    """

    level: str
    area: str
    total: float
    inside: float
    kept: bool
    nobody: bool = False

    def __str__(self) -> str:
        """Say what contradicts what, by how much, and what holds."""
        if self.nobody:
            return f"{self.level} {self.area}: {self.total:,.0f}, but nobody lives in mapped pixels"
        gap = "its total is 0"
        if self.total > 0:
            more = 100 * (self.inside / self.total - 1)
            gap = f"{more:+.2g} %" if abs(more) < 99 else f"{more:+,.0f} %"
        holds = "its total holds" if self.kept else "those of its parts hold"
        return (
            f"{self.level} {self.area}: {self.total:,.0f}, but its parts add up to "
            f"{self.inside:,.0f} ({gap}); {holds}"
        )


@dataclass
class Tier:
    """One level of the tree, coarse to fine.

    Attributes
    ----------
    level : Level
    drawn : (n_draws, n_area) float64
        Cases of each draw.
    target : (n_area,) float64
        NaN where there is none, and once totals were settled, where it was dropped.
    parent : (n_area,) int64
        In the tier above, -1 for none.
    rank : int
        Place among the levels of the configuration: the least holds.
    given : (n_area,) float64
        The totals before they were settled.
    rest : (n_draws, n_area) float64
        Cases outside all areas of the tier below.
    inside : (n_area,) float64
        Sum of the totals of its parts.
    loose : (n_draws, n_area) float64
        Cases in it that none of these totals decides.
    fixed : (n_area,) float64
        Sum of the totals that areas above cannot change.
    free : (n_draws, n_area) float64
        Cases that they can.
    first : (n_area,) float64
        Least rank of a total in the area, itself included.
    scale : (n_area,) float64
        Factor of the totals of its parts.
    factor : (n_draws, n_area) float64
        Of the rest.
    total : (n_draws, n_area) float64
        The scaled cases.
    """

    level: Level
    drawn: np.ndarray
    target: np.ndarray
    parent: np.ndarray
    rank: int
    given: np.ndarray = field(init=False)
    rest: np.ndarray = field(init=False)
    inside: np.ndarray = field(init=False)
    loose: np.ndarray = field(init=False)
    fixed: np.ndarray = field(init=False)
    free: np.ndarray = field(init=False)
    first: np.ndarray = field(init=False)
    scale: np.ndarray = field(init=False)
    factor: np.ndarray = field(init=False)
    total: np.ndarray = field(init=False)

    @property
    def nobody(self) -> np.ndarray:
        """Areas without cases in any draw: (n_area,) bool."""
        found: np.ndarray = self.drawn.mean(axis=0) <= LEAST
        return found

    def __post_init__(self) -> None:
        """Keep the totals as they were given."""
        self.given = self.target.copy()

    def up(self, values: np.ndarray, n_parent: int) -> np.ndarray:
        """Sum values of the areas, (..., n_area), over the areas above."""
        inside = np.flatnonzero(self.parent >= 0)
        shape = (self.parent.size, n_parent)
        to = csr_matrix((np.ones(inside.size), (inside, self.parent[inside])), shape=shape)
        return np.asarray(values @ to)


@dataclass(frozen=True)
class Raked:
    """Draws that were scaled to totals.

    Attributes
    ----------
    tiers : list of Tier
        Coarse to fine.
    conflicts : list of Conflict
    """

    tiers: list[Tier]
    conflicts: list[Conflict]


def rake(tiers: list[Tier], people: Sequence[np.ndarray]) -> Raked:
    """Scale the draws of nested areas to their totals.

    Parameters
    ----------
    tiers : list of Tier
        Coarse to fine; filled in.
    people : sequence of (n_area,) arrays
        Of each tier: an area whose people are in the tier below, but for 1 %, has no rest.

    Returns
    -------
    Raked
    """
    conflicts: list[Conflict] = []
    for number in range(len(tiers) - 1, -1, -1):
        below = tiers[number + 1] if number + 1 < len(tiers) else None
        _settle(tiers[number], below, people, number, conflicts)
    for number, tier in enumerate(tiers):
        _scale(tier, tiers[number - 1] if number else None)
    for number in range(len(tiers) - 1, -1, -1):
        tier = tiers[number]
        tier.total = tier.rest * tier.factor
        if number + 1 < len(tiers):
            below = tiers[number + 1]
            tier.total = tier.total + below.up(below.total, tier.target.size)
    return Raked(tiers, conflicts)


def mean_totals(tiers: Sequence[Tier], plain: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the mean scaled cases of the areas of each tier.

    What no total changes keeps its mean on the map, which is exact: that of the draws has a Monte
    Carlo error, and would be a second number of one quantity.

    Parameters
    ----------
    tiers : sequence of Tier
        Coarse to fine, scaled.
    plain : sequence of (n_area,) arrays
        Mean cases of the map, of each tier.
    """
    found: list[np.ndarray] = []
    for number in range(len(tiers) - 1, -1, -1):
        tier, own = tiers[number], plain[number]
        n, below = tier.target.size, tiers[number + 1] if number + 1 < len(tiers) else None
        inside = np.zeros(n) if below is None else below.up(found[0], n)
        parts = np.zeros(n) if below is None else below.up(plain[number + 1], n)
        kept = (tier.factor == 1.0).all(axis=0)
        rest = np.where((tier.rest > 0).any(axis=0), np.maximum(own - parts, 0.0), 0.0)
        rest = np.where(kept, rest, (tier.rest * tier.factor).mean(axis=0))
        found.insert(0, rest + inside)
    return found


def _settle(
    tier: Tier,
    below: Tier | None,
    people: Sequence[np.ndarray],
    number: int,
    conflicts: list[Conflict],
) -> None:
    """Sum what is fixed and what is free in each area, and settle the totals that contradict."""
    n = tier.target.size
    inside, first = np.zeros(n), np.full(n, np.inf)
    tier.rest = tier.drawn
    free = tier.drawn
    if below is not None:
        has_rest = people[number] * (1 - INSIDE) < people[number] - below.up(people[number + 1], n)
        rest = np.maximum(tier.drawn - below.up(below.drawn, n), 0.0)
        tier.rest = np.where(has_rest, rest, 0.0)
        inside, free = below.up(below.fixed, n), tier.rest + below.up(below.free, n)
        own = np.flatnonzero(below.parent >= 0)
        np.minimum.at(first, below.parent[own], below.first[own])
    tier.scale = np.ones(n)
    tier.target = tier.target.copy()
    middle, titles = free.mean(axis=0), tier.level.titles
    for k in np.flatnonzero(np.isfinite(tier.target)):
        total, name = float(tier.target[k]), titles[k]
        open_ = middle[k] > LEAST
        agrees = abs(total - inside[k]) <= EQUAL * max(total, inside[k])
        if agrees or (open_ and inside[k] <= total):
            if agrees and not open_ and inside[k] > 0:
                tier.scale[k] = total / inside[k]
            continue
        kept = bool(inside[k] > 0 and tier.rank < first[k])
        nobody = bool(tier.nobody[k])
        conflicts.append(Conflict(tier.level.name, name, total, float(inside[k]), kept, nobody))
        if kept:
            tier.scale[k] = total / (inside[k] + middle[k])
        else:
            tier.target[k] = np.nan
    given = np.isfinite(tier.target)
    tier.first = np.where(given, np.minimum(first, tier.rank), first)
    tier.fixed = np.where(given, tier.target, inside)
    tier.free = np.where(given, 0.0, free)
    tier.inside, tier.loose = inside, free


def _scale(tier: Tier, above: Tier | None) -> None:
    """Set the factor of each area's rest, from the totals above."""
    n_draws = tier.drawn.shape[0]
    inherited = np.ones((n_draws, tier.target.size))
    scale = np.ones(tier.target.size)
    if above is not None:
        has = tier.parent >= 0
        inherited[:, has] = above.factor[:, tier.parent[has]]
        scale[has] = above.scale[tier.parent[has]]
    tier.target = tier.target * scale
    tier.scale = tier.scale * scale
    left = np.maximum(tier.target - tier.inside * tier.scale, 0.0)
    own = np.ones_like(tier.loose)
    np.divide(left, tier.loose, out=own, where=tier.loose > LEAST)
    tier.factor = np.where(np.isfinite(tier.target), own, inherited)
