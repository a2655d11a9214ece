"""Areas of the training and of other levels: their files, and which lie inside which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geo.core.columns import AREA_ID, attribute_columns, has_column
from geo.core.columns import name_column as usual_name
from geo.core.errors import GridError, InputError, Problem, name_first
from geo.grids.grid import Grid
from geo.grids.membership import Membership, membership
from geo.grids.overlaps import name_overlaps
from geo.grids.reproject import reproject
from geo.sources.boundary import read_areas
from geo.sources.repair import Repairs
from pipeline.config.input_schema import Areas
from pipeline.config.level_schema import COUNTRY, COUNTS, TRAINING
from pipeline.config.schema import Config

#: Share of its surface with which an area lies inside another: boundaries of two levels are often
#: drawn at two scales.
INSIDE = 0.99
N_NAMED = 5  # areas, or pairs of them, that a message names


@dataclass(frozen=True)
class Level:
    """The areas of one level.

    Attributes
    ----------
    name : str
        ``training``, ``country``, or as the configuration says.
    ids : (n_area,) object array of str
    names : (n_area,) object array of str, or None
    geometry : GeoSeries
        As in the file.
    shapes : (n_area,) object array
        Valid polygons in the grid's CRS.
    members : Membership or None
        None for the country: its share of a pixel is what the training areas cover.
    targets : (n_area,) float64 array, or None
        Totals of a column to agree with; NaN where it is empty.
    """

    name: str
    ids: np.ndarray
    names: np.ndarray | None
    geometry: gpd.GeoSeries
    shapes: np.ndarray
    members: Membership | None
    targets: np.ndarray | None = None

    @property
    def titles(self) -> np.ndarray:
        """Id of each area with its name behind it, as messages have it, (n_area,) of str."""
        return titled(self.ids, self.names)

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def surface(self) -> np.ndarray:
        """Surface of each area on the grid's plane, (n_area,)."""
        return np.asarray(shapely.area(self.shapes))


def titled(ids: Iterable[str], names: Iterable[str] | None) -> np.ndarray:
    """Return ids with names behind them: ``M04 (Anosy)``."""
    found = list(ids)
    pairs = zip(found, found if names is None else names, strict=True)
    texts = [i if not n or n == i else f"{i} ({n})" for i, n in pairs]
    return np.array([*texts, None], object)[:-1]


def names_of(frame: gpd.GeoDataFrame, column: str | None = None) -> np.ndarray | None:
    """Return the names of areas, empty where missing: of a usual column if none is given."""
    column = column or usual_name(attribute_columns(frame))
    if column is None or column not in frame.columns:
        return None
    return (
        frame[column].astype(object).where(frame[column].notna(), "").astype(str).to_numpy(object)
    )


def titles_of(frame: gpd.GeoDataFrame, column: str | None = None) -> np.ndarray:
    """Return the ids of areas with their names behind them, as messages have them."""
    return titled(frame[AREA_ID].astype(str), names_of(frame, column))


def areas_of(
    spec: Areas,
    place: str,
    problems: list[Problem],
    repairs: Repairs | None = None,
    *,
    partial: bool = False,
) -> gpd.GeoDataFrame | None:
    """Read the areas of a section, mended if it says so: :func:`geo.sources.boundary.read_areas`.

    Parameters
    ----------
    spec : Areas
    place : str
        Key of the section.
    problems : list of Problem
        Appended to.
    repairs : Repairs, optional
        What is mended is added to it.
    partial : bool
        See there.
    """
    mended = (Repairs() if repairs is None else repairs) if spec.repair else None
    return read_areas(
        spec.path, spec.layer, spec.id, place, problems, partial=partial, repairs=mended,
        encoding=spec.encoding,
    )  # fmt: skip


def training_areas(config: Config) -> gpd.GeoDataFrame:
    """Return the areas of the training; InputError with their problems."""
    problems: list[Problem] = []
    areas = areas_of(config.areas, "areas", problems)
    if areas is None:
        raise InputError(problems)
    return areas


def read_level_frames(config: Config, problems: list[Problem]) -> dict[str, gpd.GeoDataFrame]:
    """Read the files of ``output.areas`` and check them.

    Parameters
    ----------
    config : Config
    problems : list of Problem
        Appended to: what :func:`geo.sources.boundary.read_areas` finds, a column that is not
        there, totals that are no numbers.

    Returns
    -------
    dict of GeoDataFrame
        By level, of the levels without a problem.
    """
    found = {}
    for number, spec in enumerate(config.output.areas):
        place = f"output.areas[{number}]"
        n_before = len(problems)
        frame = areas_of(spec, place, problems)
        if frame is None:
            continue
        where = f"{place} ({spec.path})"
        check_name(frame, spec.name, where, problems)
        column = target_column(config, spec.level)
        if column is not None:
            read_targets(frame, column, where, problems)
        if len(problems) == n_before:
            found[spec.level] = frame
    return found


def check_name(
    frame: gpd.GeoDataFrame, column: str | None, where: str, problems: list[Problem]
) -> None:
    """Append a problem if the column of the names is not there."""
    if column is not None:
        key = f"{where.partition(' (')[0]}.name"
        has_column(attribute_columns(frame), column, where, key, problems)


def target_column(config: Config, level: str) -> str | None:
    """Return the column of a level's file with the totals to agree with; None if there is none."""
    spec = config.output.reconcile
    return None if spec is None or spec.to == COUNTS or level not in spec.levels else spec.to


def read_targets(
    frame: gpd.GeoDataFrame, column: str, where: str, problems: list[Problem]
) -> np.ndarray:
    """Return the totals in a column, (n_area,) float64, NaN where it is empty.

    Appends a problem if the column is not there, is empty, or has values that are no totals.
    """
    key = "output.reconcile.to"
    if not has_column(attribute_columns(frame), column, where, key, problems):
        return np.full(len(frame), np.nan)
    given = frame[column]
    values = pd.to_numeric(given, errors="coerce").to_numpy(np.float64)
    wrong = (given.notna().to_numpy() & np.isnan(values)) | (values < 0) | np.isinf(values)
    if wrong.any():
        named = name_first([f"{i} ({given[k]})" for k, i in enumerate(frame[AREA_ID]) if wrong[k]])
        what = f"column {column!r} has values that are no totals: {named}"
        problems.append(Problem(where, what, "give numbers of at least 0, or leave them empty"))
    elif np.isnan(values).all():
        problems.append(Problem(where, f"column {column!r} is empty", "give another column"))
    return values


def level_overlap(
    config: Config, number: int, geometry: gpd.GeoSeries, titles: np.ndarray
) -> Problem | None:
    """Return what is odd about a level whose areas overlap; None if they do not.

    Parameters
    ----------
    config : Config
    number : int
        Place of the level in ``output.areas``.
    geometry : GeoSeries
        Valid polygons.
    titles : (n_area,) array
    """
    each = name_overlaps(geometry, titles)
    if not each:
        return None
    spec = config.output.areas[number]
    found = (
        f"areas of the level {spec.level} overlap, by share of the smaller: "
        f"{name_first(each, N_NAMED)}; what they share counts in each of them, and so more than "
        "once in the level's targeting curve"
    )
    remedy = "correct the boundaries, or give each set of areas without overlaps a level of its own"
    return Problem(f"output.areas[{number}] ({spec.path})", found, remedy)


def make_level(
    name: str, frame: gpd.GeoDataFrame, grid: Grid, name_column: str | None, place: str
) -> Level:
    """Measure the areas of a level on a grid.

    Parameters
    ----------
    name : str
    frame : GeoDataFrame
        From :func:`geo.sources.boundary.read_areas`.
    grid : Grid
    name_column : str or None
        A usual one, such as ``name``, if not given.
    place : str
        Key and file, for messages.

    Raises
    ------
    InputError
        If the areas lie outside the grid's CRS.
    """
    geometry = frame.geometry.reset_index(drop=True)
    try:
        moved = reproject(geometry, grid)
        members = membership(moved, grid)
    except GridError as error:
        found = f"lie outside the CRS of the grid ({grid.crs.name})"
        raise InputError(Problem(place, found, "give areas of the same country")) from error
    names = names_of(frame, name_column)
    ids = frame[AREA_ID].astype(str).to_numpy(object)
    names = None if names is None or (names == ids).all() else names
    return Level(name, ids, names, geometry, _valid(np.asarray(moved.array)), members)


def bare_level(
    name: str, frame: gpd.GeoDataFrame, plane: object, name_column: str | None = None
) -> Level:
    """Return a level without its pixels, on a plane (a CRS): for checks alone."""
    moved = frame.geometry.to_crs(plane).reset_index(drop=True)
    ids = frame[AREA_ID].astype(str).to_numpy(object)
    return Level(
        name,
        ids,
        names_of(frame, name_column),
        frame.geometry,
        _valid(np.asarray(moved.array)),
        None,
    )


def country_of(training: Level, title: str) -> Level:
    """Return the level of one area: all training areas together.

    Parameters
    ----------
    training : Level
    title : str
        Name of the map.
    """
    whole = np.array([shapely.union_all(training.shapes)], object)
    sound = _valid(np.asarray(training.geometry.array))
    geometry = gpd.GeoSeries([shapely.union_all(sound)], crs=training.geometry.crs)
    ids, names = np.array([COUNTRY], object), np.array([title], object)
    return Level(COUNTRY, ids, names, geometry, whole, None)


def _valid(shapes: np.ndarray) -> np.ndarray:
    whole = np.where(shapely.is_missing(shapes), shapely.Polygon(), shapes)
    return np.where(shapely.is_valid(whole), whole, shapely.make_valid(whole))


@dataclass(frozen=True)
class Overlaps:
    """Pairs of areas of two levels that share some surface.

    Attributes
    ----------
    fine, coarse : (n_pair,) int64 arrays
        Numbers of the areas.
    inside : (n_pair,) bool array
        Whether the fine area lies inside the coarse one: by 99 % of its surface.
    """

    fine: np.ndarray
    coarse: np.ndarray
    inside: np.ndarray

    @classmethod
    def of(cls, fine: Level, coarse: Level) -> Overlaps:
        """Find the pairs; those that share less than 1 % of both are neighbours and no pairs."""
        if coarse.name == COUNTRY and fine.name == TRAINING:
            every = np.arange(len(fine))
            return cls(every, np.zeros(len(fine), np.int64), np.ones(len(fine), bool))
        tree = shapely.STRtree(fine.shapes)
        at_coarse, at_fine = tree.query(coarse.shapes, predicate="intersects")
        shared = shapely.area(shapely.intersection(fine.shapes[at_fine], coarse.shapes[at_coarse]))
        own, other = fine.surface[at_fine], coarse.surface[at_coarse]
        pair = shared > (1 - INSIDE) * np.minimum(own, other)
        order = np.lexsort((at_coarse[pair], at_fine[pair]))
        inside = shared[pair] >= INSIDE * own[pair]
        return cls(at_fine[pair][order], at_coarse[pair][order], inside[order])

    def parent(self, n_fine: int) -> np.ndarray:
        """Return the coarse area that each fine one lies inside, (n_fine,) int64; -1 for none."""
        found = np.full(n_fine, -1, np.int64)
        found[self.fine[self.inside]] = self.coarse[self.inside]
        return found

    def total(self, values: np.ndarray, n_coarse: int) -> np.ndarray:
        """Sum values of the fine areas, (n_fine,), over each coarse one, (n_coarse,).

        NaN where one of the fine areas has none, lies inside only in part, or there is none.
        """
        each = np.where(self.inside, values[self.fine], np.nan)
        found = np.bincount(self.coarse, each, n_coarse)
        found[np.bincount(self.coarse, minlength=n_coarse) == 0] = np.nan
        return found


def nested_order(levels: Sequence[Level]) -> list[tuple[Level, np.ndarray]]:
    """Return the levels from coarse to fine, with the area of the level above of each area.

    Raises
    ------
    InputError
        If areas of one cross the borders of another.
    """
    # The country is the coarsest, even where another level has one area, too.
    ordered = sorted(levels, key=lambda level: (level.name != COUNTRY, len(level)))
    result: list[tuple[Level, np.ndarray]] = []
    problems = []
    for number, level in enumerate(ordered):
        parent = np.full(len(level), -1, np.int64)
        if number:
            above = ordered[number - 1]
            pairs = Overlaps.of(level, above)
            crossing = np.unique(pairs.fine[~pairs.inside])
            if crossing.size:
                found = (
                    f"areas of {level.name} cross the borders of {above.name}: "
                    f"{name_first(list(level.titles[crossing]))}"
                )
                remedy = "give levels that nest, to 1 % of each area's surface"
                problems.append(Problem("output.reconcile.levels", found, remedy))
            parent = pairs.parent(len(level))
        result.append((level, parent))
    if problems:
        raise InputError(problems)
    return result
