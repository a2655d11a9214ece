"""Totals of zones in the months of a series: what is left of each for its areas without a count.

As in a map of one period (:mod:`pipeline.ingest.zones`) the counts of areas are taken off those of
their zone, so that no case is used twice. The rest is a count of the areas without one together: a
union, as areas of before a split are (:mod:`pipeline.ingest.counted`). A suppressed count is taken
off as its interval, and the rest is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import AREA_ID, has_column, id_text, suggest
from geo.core.errors import Problem, name_first
from geo.tables.area_changes import Union
from models.core.unions import OWN
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config
from pipeline.ingest.point_tables import ONE_LEVEL, across, read_source
from pipeline.responses.table import Columns

N_NAMED = 5  # rows named in one message
#: What is known of a union, by the name of its column.
Known = Mapping[str, float]


class ZoneTotals:
    """The totals of the zones of a configuration with ``time``, in every period.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Of today.
    problems : list of Problem
        Those of the tables, zones without an area, and totals below their areas' are appended.
    """

    def __init__(self, config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]) -> None:
        self._problems, self._series = problems, config.known_series
        self._ids = areas[AREA_ID].astype(str).to_numpy()
        self._sources: list[tuple[Points, pd.DataFrame, np.ndarray]] = []
        for spec in config.points:
            assert spec.zone is not None  # others are refused with `time`
            place = f"points.{spec.name} ({spec.path})"
            key = f"points.{spec.name}.zone"
            if not has_column(areas.columns, spec.zone, "areas", key, problems):
                continue
            zone, table = id_text(areas[spec.zone]).to_numpy(object), read_source(spec, problems)
            known = sorted({str(name) for name in zone if name})
            unknown = table[~table["id"].isin(known)]
            if len(unknown):
                rows = name_first([f"{n} (row {r})" for n, r in unknown[["id", "row"]].to_numpy()])
                found = f"no area has {spec.zone} {rows}"
                remedy = suggest(str(unknown["id"].iloc[0]), known, "zone")
                problems.append(Problem(place, found, remedy))
            number = self._series.calendar.number
            wrong = [number(str(text)) is None for text in table["period"]]
            if any(wrong):
                rows = name_first(
                    [f"{t} (row {r})" for t, r in table.loc[wrong, ["period", "row"]].to_numpy()]
                )
                step = self._series.calendar.step
                found = f"column {spec.period!r} is no {step} in {rows}"
                problems.append(Problem(place, found, f"give the total of each {step}"))
            elif len(table):
                self._check_periods(place, spec, table)
            self._sources.append((spec, table, zone))

    def _check_periods(self, place: str, spec: Points, table: pd.DataFrame) -> None:
        """Append a problem where all totals are of periods before those of the run.

        Later ones have their time: a run of an earlier month leaves them out.
        """
        number, periods = self._series.calendar.number, self._series.periods
        times = [number(str(text)) for text in table["period"]]
        last, first = max(time for time in times if time is not None), number(periods[0])
        if first is not None and last < first:
            found = f"column {spec.period!r} ends before the periods of the run, {periods[0]} to "
            found += f"{periods[-1]}"
            self._problems.append(Problem(place, found, "give totals of these, or leave it out"))

    def told(self) -> dict[str, str]:
        """Say by configuration key how many totals there are, and how many are of other periods."""
        number, found = self._series.calendar.number, {}
        mine = {number(label) for label in self._series.periods}
        for spec, table, _ in self._sources:
            here = np.array([number(str(text)) in mine for text in table["period"]], bool)
            n, empty = int(here.sum()), int(table.loc[here, "value"].isna().sum())
            text = f"{n:,} totals of {table['id'].nunique():,} zones"
            text += f", {empty:,} of them empty" if empty else ""
            text += (
                f"; {int((~here).sum()):,} of other periods are left out" if n < here.size else ""
            )
            found[f"points.{spec.name}"] = text
        return found

    def together(self) -> list[list[str]]:
        """Return the areas of each zone: in some period they may be one union."""
        return [
            self._ids[zone == name].tolist()
            for _, _, zone in self._sources
            for name in dict.fromkeys(each for each in zone if each)
        ]

    def at(
        self, label: str, columns: Columns, unions: Sequence[tuple[Union, Known]]
    ) -> list[tuple[Union, Known]]:
        """Return the rests of a period.

        Parameters
        ----------
        label : str
            Of the period.
        columns : Columns
            By area of today.
        unions : sequence of (Union, dict)
            Of several areas each, whose counts are known together: one inside a zone is taken off
            as an area is.
        """
        number = self._series.calendar.number
        rows: list[tuple[Points, dict[str, Any], list[str]]] = []
        for spec, table, zone in self._sources:
            here = [number(str(each)) == number(label) for each in table["period"]]
            own = table[np.array(here, bool)]
            for row in own[own["value"].notna()].to_dict("records"):
                members = self._ids[zone == row["id"]].tolist()
                if members:
                    rows.append((spec, row, members))
        found: list[tuple[Union, Known]] = []
        before: dict[str, frozenset[str]] = {}
        # Of provinces first, then what is left of their regions.
        for spec, row, members in sorted(rows, key=lambda each: len(each[2])):
            own_place = f"points.{spec.name} ({spec.path}) row {row['row']}"
            wrong = across(before, frozenset(members))
            before[f"{row['id']} (points.{spec.name})"] = frozenset(members)
            if wrong:
                self._problems.append(Problem(own_place, f"{row['id']} {wrong}", ONE_LEVEL))
                continue
            rest = self._rest(spec, row, members, columns, [*unions, *found])
            if rest is not None:
                found.append(rest)
        return found

    def _rest(
        self,
        spec: Points,
        row: Mapping[str, Any],
        members: list[str],
        columns: Columns,
        unions: Sequence[tuple[Union, Known]],
    ) -> tuple[Union, Known] | None:
        """Return what is left of a total for the areas of a zone that have no count."""
        inside = set(members)
        off = {name: _column(columns, name, members) for name in ("counts", "tested", "margins")}
        counted = off["counts"].notna()
        taken = {name: float(values[counted].sum()) for name, values in off.items()}
        open_ = set(counted.index[~counted])
        for union, known in unions:
            if not inside & set(union.today):
                continue
            if not set(union.today) <= inside:
                return None  # how much of it is the zone's is not known
            for name in taken:
                taken[name] += float(known.get(name, 0.0))
            open_ -= set(union.today)
        if not open_:
            return None
        taken["margins"] += row["margin"]
        rest = {"counts": row["value"] - taken["counts"]}
        most, wrong = rest["counts"] + taken["margins"], ""
        if most < 0:
            areas = taken["counts"] - taken["margins"] + row["margin"]
            total = row["value"] + row["margin"]
            wrong = f"{total:,.0f} in the zone, and {areas:,.0f} at least in its areas"
        elif columns.tested is not None:
            rest["tested"] = row["tested"] - taken["tested"]
            if not rest["tested"] >= rest["counts"]:
                wrong = f"less its areas, {rest['counts']:,.0f} positives of "
                wrong += f"{rest['tested']:,.0f} tested"
        if wrong:
            place = f"points.{spec.name} ({spec.path}) row {row['row']}"
            remedy = "correct one of them, or leave the row out"
            self._problems.append(Problem(place, wrong, remedy))
            return None
        if taken["margins"] > 0:
            least = max(rest["counts"] - taken["margins"], 0.0)
            rest |= {"counts": 0.5 * (least + most), "margins": 0.5 * (most - least)}
        name = f"rest of {row['id']}"
        return Union((name,), tuple(sorted(open_))), rest


def _column(columns: Columns, name: str, members: Sequence[str]) -> pd.Series:
    """Return a column of some areas; of counts NaN where there is none, of others 0."""
    none, values = np.nan if name == "counts" else 0.0, getattr(columns, name)
    if values is None:
        return pd.Series(none, index=list(members))
    return values.reindex(list(members)).fillna(none)


def kept_together(groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return a number for the areas of groups that share an area, by id; others have none."""
    number: dict[str, int] = {}
    for k, group in enumerate(groups):
        if len(group) < 2:
            continue
        known = {number[each] for each in group if each in number}
        own = min(known, default=k)
        number = {each: own if n in known else n for each, n in number.items()}
        number |= dict.fromkeys(group, own)
    return number


def as_order(together: Mapping[str, int], ids: Sequence[str]) -> np.ndarray | None:
    """Return the numbers of areas, (n,) int64, :data:`OWN` for those by themselves; None if all."""
    if not together:
        return None
    return np.array([together.get(each, OWN) for each in ids], np.int64)
