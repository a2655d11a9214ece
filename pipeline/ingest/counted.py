"""The responses of every period of a series, in areas of today.

Where areas were split or merged, a count of before is of a union of areas of today
(:mod:`geo.tables.area_changes`): here it is read by the ids of its time, and brought to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import AREA_ID, ELSEWHEN
from geo.core.errors import Problem, name_first
from geo.sources.repair import Repairs
from geo.tables.area_changes import AreaChanges, Union, read_area_changes
from geo.tables.unmatched import at_period, together
from models.core.unions import exact_shares
from pipeline.config.schema import Config
from pipeline.ingest.responses import read_responses
from pipeline.ingest.zone_months import ZoneTotals, kept_together
from pipeline.responses.table import Columns

N_NAMED = 5  # unions named in one message


@dataclass(frozen=True)
class Counted:
    """The responses of one period.

    Attributes
    ----------
    columns : Columns
        By area of today; of an area in a union of several, nothing is known.
    unions : tuple of (Union, dict)
        Areas of today whose response is known together, and what is known by the name of its
        column.
    """

    columns: Columns
    unions: tuple[tuple[Union, Mapping[str, float]], ...] = field(default_factory=tuple)

    @property
    def least(self) -> pd.Series | None:
        """The smallest that the count of each area may be: 0 of one that is counted with others."""
        least = self.columns.least
        if least is None:
            return None
        inside = {each for union, _ in self.unions for each in union.today}
        return least.where(~least.index.isin(inside), 0.0)

    def shared(self, people: pd.Series) -> tuple[Columns, pd.Series, list[Union]]:
        """Return the columns with a share of its union's response for each area.

        Parameters
        ----------
        people : Series
            By area; the shares are in proportion to them, and areas without any have none.

        Returns
        -------
        Columns
        Series of str
            Name of each area's union; empty where the response is its own.
        list of Union
            Those in which nobody lives: their responses are left out.
        """
        found = {name: values.copy() for name, values in self.columns.given.items()}
        union, lost = pd.Series("", index=people.index, dtype=object), list[Union]()
        for own, known in self.unions:
            inside = people.loc[list(own.today)]
            inside = inside[inside > 0]
            if inside.empty:
                lost.append(own)
                continue
            share = exact_shares(inside.to_numpy(np.float64))
            for name, value in known.items():
                if name not in found:  # no area has an interval, but the rest of a zone
                    found[name] = pd.Series(0.0, index=people.index)
                found[name].loc[inside.index] = share * value
            union.loc[inside.index] = own.name if len(inside) > 1 else ""
        return Columns(**found), union, lost


def area_changes(
    config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]
) -> AreaChanges | None:
    """Read the changes of the areas; None where there are none, or a problem was found."""
    path, series = config.areas.changes, config.series
    if path is None or series is None:
        return None
    today = list(dict.fromkeys(areas[AREA_ID].dropna().astype(str)))
    return read_area_changes(path, "areas.changes", today, series.calendar, problems)


def counted_at(
    config: Config,
    areas: gpd.GeoDataFrame,
    repairs: Repairs,
    changes: AreaChanges | None,
    problems: list[Problem],
) -> Counted:
    """Read the responses of the period of a configuration.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Of today.
    repairs : Repairs
        What was done to them.
    changes : AreaChanges or None
    problems : list of Problem
        Appended to.
    """
    series, label, own = config.series, config.period, list[Problem]()
    if changes is None or series is None or label is None:
        columns = read_responses(config, areas, repairs, own)
        problems.extend(at_period(own, label or ""))
        return Counted(columns)
    number = int(series.time_of(label))
    unions = changes.at(number)
    then = _areas_of(config, areas, [each for union in unions for each in union.before])
    first = [series.calendar.label(step) for step, _ in changes.steps]
    then.attrs[ELSEWHEN] = changes.elsewhen(number, first)
    columns = read_responses(config, then, repairs, own)
    problems.extend(at_period(own, label))
    return in_today(columns, unions, areas[AREA_ID].astype(str).to_numpy())


def in_today(columns: Columns, unions: Sequence[Union], today: np.ndarray) -> Counted:
    """Bring columns by areas of a period to areas of today.

    Parameters
    ----------
    columns : Columns
        By area of before.
    unions : sequence of Union
        Of the period.
    today : (n_area,) str array
    """
    given = columns.given
    found = {name: values.reindex(today) for name, values in given.items()}
    several: dict[Union, dict[str, float]] = {}
    for union in unions:
        if union.before == union.today:
            continue
        for name, values in given.items():
            # Without one of them the sum is not known.
            total = float(values.reindex(list(union.before)).sum(skipna=False))
            one = len(union.today) == 1
            found[name].loc[list(union.today)] = total if one else np.nan
            if not one:
                several.setdefault(union, {})[name] = total
    if "margins" in found:
        found["margins"] = found["margins"].fillna(0.0)
    kept = [(u, known) for u, known in several.items() if np.isfinite(list(known.values())).any()]
    return Counted(Columns(**found), tuple(kept))


def _areas_of(config: Config, areas: gpd.GeoDataFrame, ids: Sequence[str]) -> gpd.GeoDataFrame:
    """Return the areas of a period: those that are no longer there have an id alone."""
    once = areas[~areas[AREA_ID].duplicated()]  # others are reported
    then = once.set_index(once[AREA_ID].astype(str)).reindex(list(ids))
    gone = then[AREA_ID].isna().to_numpy()
    then.loc[gone, AREA_ID] = then.index[gone]
    for column in {config.areas.id, config.areas.name} & set(then.columns):
        then[column] = then[column].astype(object).where(~gone, then.index)
    return then.reset_index(drop=True)


def each_period(
    config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]
) -> dict[str, Counted]:
    """Return the responses of every period that has some.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    problems : list of Problem
        Appended to, each once; an id that no area has is one of all periods.
    """
    series = config.known_series
    own, found = list[Problem](), dict[str, Counted]()
    changes = area_changes(config, areas, own)
    zones = ZoneTotals(config, areas, own) if config.points else None
    problems.extend(each for each in own if each not in problems)
    if changes is None and config.areas.changes is not None:
        return {}
    none = pd.Series(np.nan, index=areas[AREA_ID].astype(str).to_numpy())
    for label in series.periods:
        own.clear()
        if not series.spelled or label in series.spelled:
            counted = counted_at(config.at(label), areas, Repairs(), changes, own)
        elif zones is not None:  # only totals have arrived
            tested = config.counts is not None and config.counts.tested is not None
            counted = Counted(Columns(none, none if tested else None))
        else:
            continue
        if zones is not None:
            rests = zones.at(label, counted.columns, counted.unions)
            counted = replace(counted, unions=(*counted.unions, *rests))
        found[label] = counted
        problems.extend(each for each in own if each not in problems)
    problems[:] = together(problems)
    return found


def areas_together(config: Config, areas: gpd.GeoDataFrame) -> dict[str, int]:
    """Return a number for areas that are one union in some period, by id; others have none."""
    changes, groups = area_changes(config, areas, []), list[Sequence[str]]()
    if changes is not None:
        groups += changes.groups
    if config.series is not None and config.points:
        groups += ZoneTotals(config, areas, []).together()
    return kept_together(groups)


def told_unions(each: Mapping[str, Counted]) -> str:
    """Say which areas have counts of their union alone; "" if none."""
    labels: dict[Union, list[str]] = {}
    for label, counted in each.items():
        for union, _ in counted.unions:
            if len(union.today) > 1:
                labels.setdefault(union, []).append(label)
    if not labels:
        return ""
    named = [
        f"{union.name} ({' + '.join(union.today)}, to {own[-1]})" for union, own in labels.items()
    ]
    return f"counts of several areas of today together: {name_first(named, N_NAMED)}"
