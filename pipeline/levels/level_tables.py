"""The table of each level: people, cases, rates, exceedance and ranks, from joint draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from geo.core.errors import name_first
from pipeline.levels.area_sums import LevelDraws
from pipeline.products.area_rows import uninhabited
from pipeline.products.level_columns import threshold_columns
from pipeline.products.suppressed import LOWER
from pipeline.products.together import Together
from pipeline.store.level_areas import INSIDE, Level, Overlaps

SUPPRESSED = "suppressed"
N_NAMED = 3  # training areas that say why a total is unknown
RANKED = 0.5  # share of the people of an area on the map from which it has a rank


@dataclass(frozen=True)
class Observed:
    """What was reported of the training areas, in the order of their level.

    Attributes
    ----------
    cases, tested : (n_area,) float64 arrays
        NaN where unknown.
    why : (n_area,) object array of str, optional
        Why the cases are unknown; empty where they are known.
    has_trials : bool
        Whether people were tested at all.
    empty : (n_area,) bool array, optional
        Where nobody lives: totals miss nothing without its count.
    together : Together, optional
        Counts of several of the areas together.
    """

    cases: np.ndarray
    tested: np.ndarray
    why: np.ndarray | None = None
    has_trials: bool = False
    together: Together | None = None
    empty: np.ndarray | None = None

    @classmethod
    def of(cls, table: pd.DataFrame, training: Level) -> Observed:
        """Take the columns of the table of ``areas.csv``; areas that it lacks have no count."""
        told = table["in_training"] | uninhabited(table, list(table.index))

        def column(name: str) -> np.ndarray:
            if name not in table:
                return np.full(len(training), np.nan)
            known = table[name].where(told)
            return known.reindex(training.ids).to_numpy(np.float64)

        cases = column("observed")
        why = np.where(np.isfinite(cases), "", "no count was given").astype(object)
        why[np.isfinite(column(LOWER))] = SUPPRESSED
        together = Together.of_table(table, list(training.ids))
        if together is not None:
            known = np.where(np.isfinite(together.cases), "counted together: ", "no count: ")
            words = np.where(together.suppressed, f"{SUPPRESSED}: ", known).astype(object)
            inside = together.number >= 0
            why[inside] = (words + together.titles)[together.number[inside]]
        empty = uninhabited(table, list(training.ids))
        return cls(cases, column("tested"), why, "tested" in table, together, empty)

    def totals(
        self, level: Level, overlaps: Overlaps, covered: np.ndarray, names: np.ndarray
    ) -> Observed:
        """Sum over the areas of another level: counts of areas together once, if all are inside.

        Parameters
        ----------
        level : Level
        overlaps : Overlaps
            Of the training areas with it.
        covered : (n_area,) float64
            Share of the people of each area that the training areas can hold; less than nearly all
            leaves the sum unknown.
        names : (n_training,) array of str
            Of the training areas.
        """
        parts, pairs = self._parts(names, overlaps)
        whole = np.where(covered >= INSIDE, 1.0, np.nan)
        cases = whole * pairs.total(parts.cases, len(level))
        why = np.full(len(level), "", object)
        missing, hidden = ~np.isfinite(parts.cases), parts.suppressed
        for k in np.flatnonzero(~np.isfinite(cases)):
            here = pairs.coarse == k
            own, cut = pairs.fine[here & pairs.inside], pairs.fine[here & ~pairs.inside]
            each = (
                ("in part only: ", cut),
                ("no count: ", own[missing[own] & ~hidden[own]]),
                (f"{SUPPRESSED}: ", own[hidden[own]]),
            )
            said = [
                what + name_first([str(parts.names[n]) for n in some], N_NAMED)
                for what, some in each
                if some.size
            ]
            if not here.any():
                said = ["no area with counts lies inside"]
            elif covered[k] < INSIDE:
                said.append(f"the training areas hold {100 * covered[k]:.0f} % of its people")
            why[k] = "; ".join(said)
        tested = whole * pairs.total(parts.tested, len(level))
        return Observed(cases, tested, why, self.has_trials)

    def _parts(self, names: np.ndarray, overlaps: Overlaps) -> tuple[_Parts, Overlaps]:
        """Return what has a count of its own, areas and unions of them, and where each lies."""
        n, found = self.cases.size, self.together
        hidden = np.zeros(n, bool) if self.why is None else self.why == SUPPRESSED
        # Of a count that was reported the number tested is not known: it is not filled.
        nothing = np.zeros(n, bool) if self.empty is None else self.empty & np.isnan(self.cases)
        cases, tested = (np.where(nothing, 0.0, own) for own in (self.cases, self.tested))
        own = _Parts(names, cases, tested, hidden)
        if found is None or not overlaps.fine.size:
            return own, overlaps
        joined = _Parts(
            np.concatenate([own.names, found.titles]),
            np.concatenate([own.cases, found.cases]),
            np.concatenate([own.tested, found.tested]),
            np.concatenate([own.suppressed, found.suppressed]),
        )
        part = np.where(found.number >= 0, n + found.number, np.arange(n))
        n_area, n_coarse = np.bincount(part), int(overlaps.coarse.max()) + 1
        pair = part[overlaps.fine] * n_coarse + overlaps.coarse
        each, at = np.unique(pair, return_inverse=True)
        fine, n_inside = each // n_coarse, np.bincount(at, overlaps.inside)
        # A union lies inside if all of its areas do.
        return joined, Overlaps(fine, each % n_coarse, n_inside == n_area[fine])


@dataclass(frozen=True)
class _Parts:
    """Areas, and unions of them behind: what has a count of its own."""

    names: np.ndarray
    cases: np.ndarray
    tested: np.ndarray
    suppressed: np.ndarray


@dataclass(frozen=True)
class Summary:
    """How draws are summarised.

    Attributes
    ----------
    interval : float
        Central probability of the intervals.
    rate_per : float
        People in the denominator of rates.
    thresholds : tuple of float
        Per ``rate_per`` people.
    totals : bool
        Whether the map shows totals.
    """

    interval: float
    rate_per: float
    thresholds: tuple[float, ...]
    totals: bool

    def ends(self, draws: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central interval over the first axis."""
        tails = [(1 - self.interval) / 2, (1 + self.interval) / 2]
        lower, upper = np.quantile(draws, tails, axis=0, **options)
        return lower, upper

    def columns(self, name: str, mean: Any, draws: np.ndarray, **options: Any) -> dict[str, Any]:
        """Return a column with its interval."""
        lower, upper = self.ends(draws, **options)
        return {name: mean, f"{name}_lower": lower, f"{name}_upper": upper}


def tabulate_level(
    level: Level,
    draws: LevelDraws,
    at: slice,
    observed: Observed,
    summary: Summary,
    pixel: float,
    inside: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return the table of a level, one row an area, without shapes.

    Parameters
    ----------
    level : Level
    draws : LevelDraws
        Of all levels.
    at : slice
        The areas of this one.
    observed : Observed
        Of these areas.
    summary : Summary
    pixel : float
        Surface of a pixel on the grid's plane.
    inside : (n_area,) float64 array, optional
        Share of the people of each area on the map: one below `RANKED` has no rank, for a sliver of
        a neighbour says nothing of it.

    Returns
    -------
    DataFrame
        Columns as in :mod:`pipeline.products.level_columns`; ``people`` has the exposure. Numbers
        of an area without people in mapped pixels are missing.
    """
    exposure = draws.exposure[at]
    filled = exposure > 0
    blank = np.where(filled, 1.0, np.nan)
    per_person = summary.rate_per * _share(np.ones_like(exposure), exposure)
    cases, drawn = draws.cases[at], draws.cases_drawn[:, at]
    table: dict[str, Any] = {"id": level.ids}
    if level.names is not None:
        table["name"] = level.names
    table["people"] = exposure
    table["mapped"] = np.minimum(_share(draws.mapped[at] * pixel, level.surface), 1.0)
    table["extrapolating"] = _share(draws.extrapolating[at], exposure)
    if summary.totals:
        tested = observed.has_trials
        if tested:
            table["tested"] = observed.tested
        table["observed"] = observed.cases
        if observed.why is not None and (observed.why != "").any():
            table["observed_why"] = observed.why
        per = observed.tested if tested else exposure
        table["observed_rate"] = summary.rate_per * _share(observed.cases, per)
        table |= summary.columns("cases", cases * blank, drawn * blank)
    table |= summary.columns("rate", cases * per_person, drawn * per_person)
    for number, threshold in enumerate(summary.thresholds):
        probability, above = threshold_columns(threshold)
        table[probability] = (drawn * per_person > threshold).mean(axis=0) * blank
        table |= summary.columns(
            above, draws.above[number, at] * blank, draws.above_drawn[number][:, at] * blank
        )
    if len(level) > 1:
        known = filled if inside is None else filled & (inside >= RANKED)
        table |= _ranks(cases * per_person, drawn * per_person, known, summary)
    return pd.DataFrame(table)


def order_by_rate(rate: np.ndarray) -> np.ndarray:
    """Return the areas that have a rate, highest first; those of equal rate in their order."""
    known = np.flatnonzero(np.isfinite(rate))
    return known[np.argsort(-rate[known], kind="stable")]


def add_columns(
    table: pd.DataFrame, rows: np.ndarray | slice, values: dict[str, Any]
) -> pd.DataFrame:
    """Return a table with more columns, given for some of its rows."""
    new = pd.DataFrame(np.nan, index=table.index, columns=list(values), dtype=np.float64)
    for name, value in values.items():
        new.iloc[rows, new.columns.get_loc(name)] = value
    return pd.concat([table, new], axis=1)


def _ranks(
    rate: np.ndarray, drawn: np.ndarray, filled: np.ndarray, summary: Summary
) -> dict[str, np.ndarray]:
    """Rank the areas that are known; an end of an interval is one of the drawn ranks."""
    ranked = {name: np.full(rate.shape, np.nan) for name in ("rank", "rank_lower", "rank_upper")}
    if filled.any():
        each = rankdata(-drawn[:, filled], method="min", axis=1)
        own = rankdata(-rate[filled], method="min")
        found = summary.columns("rank", own, each, method="inverted_cdf")
        for name, values in found.items():
            ranked[name][filled] = values
    return ranked


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Divide; NaN where the whole is no positive number."""
    found = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
