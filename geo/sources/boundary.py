"""Read the polygons of areas and report all of their problems at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import geopandas as gpd
import numpy as np
import shapely
from pyproj import CRS

from geo.core.columns import AREA_ID, check_ids, has_column, id_text
from geo.core.errors import InputError, Problem, name_first
from geo.core.formats import is_local
from geo.grids.grid import is_mappable
from geo.sources.boundary_formats import BOUNDARIES, read_vector
from geo.sources.repair import Repairs, are_finite, repair_areas
from geo.sources.vector_access import feature_ids

#: Metres. Planes reach 2e7 to 2e8 near a pole or an edge; damaged bytes give 1e40.
FURTHEST_M = 1e9


def read_areas(
    path: str | Path,
    layer: str | None,
    id_column: str,
    place: str,
    problems: list[Problem],
    *,
    partial: bool = False,
    repairs: Repairs | None = None,
    encoding: str | None = None,
) -> gpd.GeoDataFrame | None:
    """Read areas and check them.

    Unless ``repairs`` is given, nothing is repaired: the inside of a polygon that crosses itself
    is ambiguous.

    Parameters
    ----------
    path : str or Path
        File or address; see :data:`geo.sources.boundary_formats.BOUNDARIES`.
    layer : str or None
        Layer; None for the only one.
    id_column : str
        Column of the areas' ids.
    place : str
        Configuration key that problems name ("areas").
    problems : list of Problem
        Problems are appended: no such file, layer or column, no CRS; missing or repeated ids;
        geometries that are missing, empty, not polygons or self-intersecting.
    partial : bool, optional
        Return areas even if ids are repeated or coordinates do not fit the CRS (the frame then has
        no CRS), so that other inputs can still be checked against them; for checks alone.
    repairs : Repairs, optional
        Repair the areas first (:func:`geo.sources.repair.repair_areas`), and report that here.
    encoding : str, optional
        Of the text of a Shapefile.

    Returns
    -------
    GeoDataFrame or None
        All columns of the file as they are, the ids as text in the column
        :data:`geo.core.columns.AREA_ID`, and ``geometry``, in the order of the file. None if a
        problem was found, except problems of single polygons: those areas are returned
        unchanged, so that the counts can still be checked.
    """
    name = f"{place} ({path})"
    n_before = len(problems)
    frame = _read_vector(path, layer, encoding, name, problems)
    if frame is None:
        return None
    if len(frame) == 0:
        problems.append(Problem(name, "holds no area", "give a layer with polygons"))
        return None
    frame, ids = frame.reset_index(drop=True), None
    if id_column == "id" and "id" not in frame:
        beside = feature_ids(path)
        frame = frame.assign(id=beside) if len(beside) == len(frame) else frame
    if has_column(
        frame.columns.drop(frame.geometry.name), id_column, name, f"{place}.id", problems
    ):
        ids = id_text(frame[id_column])
        if repairs is not None:
            labels = _labels(ids.index, ids)
            frame = _close_rings(frame, path, layer, encoding, labels, repairs)
            frame, ids = repair_areas(frame, ids, labels, repairs)
            if len(frame) == 0:
                found = "holds no area with a surface"
                problems.append(Problem(name, found, "give a layer with polygons"))
                return None
        rows = ids.index.to_numpy() + 1
        remedy = (
            f"{_repair(place)}, which merges them, if they are parts of one area; else give each "
            "an id of its own"
        )
        check_ids(ids, rows, name, "feature", problems, remedy)
    if frame.crs is None:
        found = "has no coordinate reference system (CRS)"
        problems.append(Problem(name, found, "assign the one it is in (QGIS: Set layer CRS)"))
    elif not is_mappable(CRS(frame.crs)):
        found = f"has a CRS that is neither geographic nor projected ({frame.crs.name})"
        problems.append(Problem(name, found, "assign the one it is in (QGIS: Set layer CRS)"))
        frame = frame.set_crs(None, allow_override=True)
    labels = _labels(frame.index, [None] * len(frame) if ids is None else ids)
    in_place = _check_coordinates(frame.geometry, labels, name, problems)
    unusable = len(problems) > n_before
    # A broken polygon must not hide other problems: the frame is returned with it.
    _check_polygons(frame.geometry, labels, name, problems, _repair(place))
    if ids is None or ids.isna().any() or (unusable and not partial):
        return None
    frame = frame.rename_geometry("geometry") if frame.geometry.name != "geometry" else frame
    frame[AREA_ID] = ids.to_numpy()
    crs = frame.crs if in_place or not partial else None
    flat = gpd.GeoSeries(shapely.force_2d(np.asarray(frame.geometry.array)), crs=crs)
    bare = frame.drop(columns="geometry").reset_index(drop=True)
    return gpd.GeoDataFrame(bare, geometry=flat.to_numpy(), crs=crs)


def _read_vector(
    path: str | Path, layer: str | None, encoding: str | None, name: str, problems: list[Problem]
) -> gpd.GeoDataFrame | None:
    if is_local(path) and not Path(path).exists():
        problems.append(Problem(name, "no such file", "correct the path"))
        return None
    try:
        reader = BOUNDARIES.of(path)
        if reader is read_vector or encoding is not None:  # which refuses one where it has no say
            return read_vector(path, layer, encoding=encoding)
        return reader(path, layer)
    except InputError as error:
        problems.extend(replace(p, place=name) for p in error.problems)
        return None


def _labels(rows: Iterable[int], ids: Iterable[str | None]) -> list[str]:
    return [
        f"feature {row + 1}" + (f" (id {text})" if text is not None else "")
        for row, text in zip(rows, ids, strict=True)
    ]


def _repair(place: str) -> str:
    return f"set `{place}: {{repair: true}}`"


def _close_rings(
    frame: gpd.GeoDataFrame,
    path: str | Path,
    layer: str | None,
    encoding: str | None,
    labels: list[str],
    done: Repairs,
) -> gpd.GeoDataFrame:
    """Read features without a geometry again, with their open rings closed."""
    absent = shapely.is_missing(np.asarray(frame.geometry.array))
    if not absent.any() or BOUNDARIES.of(path) is not read_vector:
        return frame
    again = read_vector(path, layer, close_rings=True, encoding=encoding).reset_index(drop=True)
    closed = absent & ~shapely.is_missing(np.asarray(again.geometry.array))
    done.mended += [labels[i] for i in np.flatnonzero(closed)]
    return again if closed.any() else frame


def _check_polygons(
    geometry: gpd.GeoSeries, labels: list[str], name: str, problems: list[Problem], repair: str
) -> None:
    shapes = np.asarray(geometry.array)
    kinds = shapely.get_type_id(shapes)
    absent = (kinds < 0) | shapely.is_empty(shapes)
    polygon = (kinds == 3) | (kinds == 6)
    if absent.any():
        which = [labels[i] for i in np.flatnonzero(absent)]
        found = f"no geometry in {name_first(which)}"
        remedy = f"draw the area, or {repair}: it closes open rings and drops empty features"
        problems.append(Problem(name, found, remedy))
    other = ~absent & ~polygon
    if other.any():
        which = [f"{labels[i]} is a {shapes[i].geom_type}" for i in np.flatnonzero(other)]
        problems.append(Problem(name, name_first(which), "give polygons or multipolygons only"))
    infinite = polygon & ~absent & ~are_finite(shapes)
    if infinite.any():
        which = [labels[i] for i in np.flatnonzero(infinite)]
        found = f"coordinates that are no finite numbers in {name_first(which)}"
        problems.append(Problem(name, found, "draw the area again, or drop the feature"))
    broken = polygon & ~absent & ~infinite & ~shapely.is_valid(shapes)
    if broken.any():
        reasons = shapely.is_valid_reason(shapes[broken])
        which = [
            f"{labels[i]}: {_in_words(str(reason))}"
            for i, reason in zip(np.flatnonzero(broken), reasons, strict=True)
        ]
        remedy = f"{repair}, or repair it yourself (QGIS: Fix geometries); check the repaired area"
        problems.append(Problem(name, f"invalid polygon, {name_first(which)}", remedy))
    areas = shapely.area(shapes)
    flat = polygon & ~absent & ~infinite & ~broken & ~(areas > 0)
    if flat.any():
        which = [labels[i] for i in np.flatnonzero(flat)]
        remedy = f"drop the feature ({repair})"
        problems.append(Problem(name, f"no area in {name_first(which)}", remedy))


def _check_plane(
    crs: CRS, shapes: np.ndarray, labels: list[str], name: str, problems: list[Problem]
) -> bool:
    far = np.abs(np.nan_to_num(shapely.bounds(shapes), nan=0.0, posinf=0.0, neginf=0.0)).max(axis=1)
    beyond = far * crs.axis_info[0].unit_conversion_factor > FURTHEST_M
    if beyond.any():
        which = [f"{labels[i]}: {far[i]:.3g}" for i in np.flatnonzero(beyond)]
        found = f"coordinates further out than any map of the Earth, {name_first(which)}"
        problems.append(Problem(name, found, "correct the polygon, or drop the feature"))
    return not beyond.any()


def _check_coordinates(
    geometry: gpd.GeoSeries, labels: list[str], name: str, problems: list[Problem]
) -> bool:
    """Return whether the coordinates fit the CRS; append a problem if not."""
    if geometry.crs is None:
        return True
    crs, shapes = CRS(geometry.crs), np.asarray(geometry.array)
    if not crs.is_geographic:
        return _check_plane(crs, shapes, labels, name, problems)
    left, bottom, right, top = shapely.total_bounds(shapes)  # NaN: all empty
    if left < -361 or right > 361 or bottom < -91 or top > 91:
        found = (
            f"coordinates reach from ({left:.6g}, {bottom:.6g}) to ({right:.6g}, {top:.6g}), "
            "which are not degrees, but the CRS is geographic"
        )
        problems.append(Problem(name, found, "assign the CRS that the coordinates are in"))
        return False
    return True


def _in_words(reason: str) -> str:
    """Convert GEOS' "Self-intersection[1 2]" into words."""
    match = re.match(r"^(.*)\[(\S+) (\S+)\]$", reason)
    if not match:
        return reason.lower()
    kind = match[1].lower()
    kind = "crosses itself" if kind == "self-intersection" else kind
    return f"{kind} at ({match[2]}, {match[3]})"
