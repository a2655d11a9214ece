"""Covariates that are tables of areas, as layers on the grid of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import (
    AREA_ID,
    attribute_columns,
    folded,
    id_text,
    paired,
    same_but_for_spelling,
)
from geo.core.errors import Problem, name_first
from geo.grids.grid import Grid
from geo.grids.membership import Membership, membership
from geo.grids.owners import Owners
from geo.grids.reproject import reproject
from geo.sources.align import TRANSFORMS
from geo.sources.area_source import AreaSource
from geo.tables.area_changes import AreaChanges, Union
from geo.tables.area_values import ID, PERIOD, ROW, VALUE, read_area_values
from pipeline.config.covariate_schema import Covariate
from pipeline.config.schema import Config
from pipeline.ingest.extent import measurable
from pipeline.store.aligned_grid import Layer
from pipeline.store.bag_writer import PixelRows, Rows

N_NAMED = 5  # areas named in one message


class AreaTables:
    """The tables of a run, each read once, and the area of each pixel.

    Parameters
    ----------
    areas : GeoDataFrame
        What :func:`geo.sources.boundary.read_areas` returned.
    changes : AreaChanges, optional
        Of the areas: a table by period has the ids of its time.
    """

    def __init__(self, areas: gpd.GeoDataFrame, changes: AreaChanges | None = None) -> None:
        self._areas, self._changes = areas, changes
        self._tables: dict[tuple[str | None, ...], tuple[pd.DataFrame | None, list[Problem]]] = {}
        self._owners: dict[Grid, Owners] = {}

    def values(self, config: Config, name: str, problems: list[Problem]) -> np.ndarray | None:
        """Return the values of a covariate by area, in the period of a configuration.

        Parameters
        ----------
        config : Config
        name : str
        problems : list of Problem
            Problems are appended: those of the table, areas without a value or with two, a period
            that is not there.

        Returns
        -------
        (n_area,) float64 array or None
            In the order of the areas, before the transform; None where a problem was found.
        """
        spec = config.covariates[name]
        place = f"covariates.{name} ({spec.path})"
        table, wrong = self._table(spec, name)
        problems.extend(each for each in wrong if each not in problems)
        if table is None:
            return None
        own = table
        if spec.period is not None:
            is_own = _is_of(config, spec.time or "")
            known = list(dict.fromkeys(table[PERIOD].dropna()))
            own = table[table[PERIOD].isin([text for text in known if is_own(text)])]
            if own.empty:
                found = f"has no row of {spec.time} (column {spec.period!r} has "
                found += f"{name_first(sorted(known), 12)})"
                remedy = "add its rows, or give periods that it has (time.from, time.to)"
                problems.append(Problem(place, found, remedy))
                return None
        unions = None
        if self._changes is not None and spec.period is not None and config.series is not None:
            unions = self._changes.at(int(config.series.time_of(spec.time or "")))
        return self._by_area(own, spec, place, problems, unions)

    def layer(self, config: Config, name: str, grid: Grid, problems: list[Problem]) -> Layer | None:
        """Return a covariate on a grid; see :meth:`values` for problems."""
        values = self.values(config, name, problems)
        if values is None:
            return None
        spec = config.covariates[name]
        source = AreaSource(
            spec.path, grid, self.owners_on(grid), values, spec.value or name, spec.units or ""
        )
        return Layer(f"covariates.{name} ({spec.path})", source, "nearest", spec.transform)

    def _table(self, spec: Covariate, name: str) -> tuple[pd.DataFrame | None, list[Problem]]:
        key = spec.path, spec.id, spec.value, spec.period, spec.match
        if key not in self._tables:
            problems: list[Problem] = []
            table = read_area_values(
                spec.path,
                f"covariates.{name}",
                spec.id or "",
                spec.value or name,
                spec.period,
                problems,
            )
            if table is not None and spec.match == "spelling":
                table[ID] = paired(table[ID], self._known)
            self._tables[key] = table, problems
        return self._tables[key]

    def _by_area(
        self,
        own: pd.DataFrame,
        spec: Covariate,
        place: str,
        problems: list[Problem],
        unions: Sequence[Union] | None,
    ) -> np.ndarray | None:
        ids = today = self._areas[AREA_ID].astype(str)
        if unions is not None:
            ids = pd.Series([each for union in unions for each in union.before])
        given = set(own[ID].dropna())
        own = own[own[ID].isin(set(ids))]
        when = f" in {spec.time}" if spec.period is not None else ""
        twice = own[own[ID].duplicated(keep=False)]
        if len(twice):
            rows = twice.loc[twice[ID] == twice[ID].iloc[0], ROW]
            found = f"has rows {name_first([str(row) for row in rows])} of area "
            found += f"{twice[ID].iloc[0]!r}{when}"
            remedy = "keep one of each"
            if spec.period is None:
                remedy += ", or name the column with the periods: period"
            problems.append(Problem(place, found, remedy))
            return None
        values = own.set_index(ID)[VALUE].reindex(ids).to_numpy(np.float64)
        lacking = list(ids[~np.isfinite(values)])
        if lacking:
            found = f"column {spec.value!r} has no value of {name_first(lacking, N_NAMED)}{when}"
            remedy = self._pairing(spec, place, given, set(lacking))
            problems.append(Problem(place, found, remedy))
            return None
        changed = TRANSFORMS[spec.transform](values)
        if not np.isfinite(changed).all():
            worst = ids[~np.isfinite(changed)].iloc[0]
            found = f"the value of {worst}{when} has no {spec.transform}"
            problems.append(Problem(place, found, "correct it, or give another transform"))
            return None
        if unions is None:
            return values
        # An area has the value of the one that it was a part of, or the mean of several.
        by_id = pd.Series(values, index=ids)
        mean = {each: by_id[list(u.before)].mean() for u in unions for each in u.today}
        return today.map(mean).to_numpy(np.float64)

    def _pairing(self, spec: Covariate, place: str, given: set[str], lacking: set[str]) -> str:
        """Return the remedy for areas without a value, by what the ids of the table are."""
        key, remedy = place.partition(" (")[0], "add it, or leave the area out of the areas"
        unknown = given - self._known
        pairs = same_but_for_spelling(unknown, lacking)
        if pairs:
            (theirs, ours), many = pairs[0], f" and {len(pairs) - 1} more so" if pairs[1:] else ""
            return f"if {theirs!r} is {ours!r}{many}, set {key}.match: spelling, else {remedy}"
        for column in attribute_columns(self._areas):
            named = {folded(text) for text in id_text(self._areas[column]).dropna()}
            if sum(folded(text) in named for text in unknown) > 0.5 * len(given):
                remedy = f"column {spec.id!r} has what the areas have in their column {column!r}: "
                return f"{remedy}write their ids instead, or name the column of ids: {key}.id"
        return remedy

    @property
    def _known(self) -> set[str]:
        former = set() if self._changes is None else self._changes.former
        return set(self._areas[AREA_ID].astype(str)) | former

    def owners_on(self, grid: Grid) -> Owners:
        """Return the area of each pixel of a grid."""
        if grid not in self._owners:
            usable = np.flatnonzero(measurable(self._areas))
            members = membership(reproject(self._areas.geometry.iloc[usable], grid), grid)
            sizes = np.zeros(len(self._areas), np.int64)
            sizes[usable] = np.diff(members.offsets)
            offsets = np.concatenate([[0], np.cumsum(sizes)])
            self._owners[grid] = Owners.of(Membership(offsets, members.pixel, members.fraction))
        return self._owners[grid]

    @cached_property
    def ids(self) -> list[str]:
        """Of the areas."""
        return list(self._areas[AREA_ID].astype(str))


def _is_of(config: Config, period: str) -> Callable[[str], bool]:
    """Return what tells whether a text is that of a period, however either is written."""
    if config.series is None:
        return lambda text: text == period
    number = config.series.calendar.number
    wanted = number(period)
    return lambda text: number(text) == wanted


def own_values(layers: Mapping[str, Layer], area: np.ndarray) -> dict[int, np.ndarray]:
    """Return the values of bags, by the number of the covariate that is a table.

    All pixels of an area have its own value, also those at its border that another area has more
    of, which the grid gives the value of that one.

    Parameters
    ----------
    layers : mapping of str to Layer
        Covariates, in their order.
    area : (n_bag,) int array
        Number of each bag's area.
    """
    return {
        k: TRANSFORMS[layer.transform](layer.source.values)[area]
        for k, layer in enumerate(layers.values())
        if isinstance(layer.source, AreaSource)
    }


def put_own(
    x: np.ndarray, own: Mapping[int, np.ndarray], bag: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Return covariates of pixels with the values of their bags.

    Parameters
    ----------
    x : (n_pix, n_feat) float32 array
    own : mapping of int to (n_bag,) array
        See :func:`own_values`.
    bag, size : (n,) int arrays
        Bags, one after the other, and how many of the pixels are of each.
    """
    if not own:
        return x
    found = x.copy()
    for k, values in own.items():
        found[:, k] = np.repeat(values[bag], size)
    return found


def rows_with_own(rows: Rows, own: Mapping[int, np.ndarray]) -> Rows:
    """Return a reader of pixels that has the values of their bags."""
    if not own:
        return rows

    def read(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        found = rows(bag, start, stop)
        x = put_own(found.x, own, bag, stop - start)
        return PixelRows(x, found.weight, found.coords, found.pixel)

    return read
