"""Polygons in the CRS of a grid, also across the 180th meridian and at the poles.

In degrees, a place has many longitudes: polygons may be split at 180, run from 0 to 360 or past
180. They are moved to the turn about the grid's centre. In a projection, an edge may be torn at the
meridian opposite to its centre, and a pole may be an edge of the polygon; in degrees, a ring about
a pole has no inside. Only polygons that one of these touches take the slower way.
"""

from __future__ import annotations

import math
from typing import Any

import geopandas as gpd
import numpy as np
import shapely
from pyproj import CRS, Transformer

from geo.core.errors import GridError
from geo.grids.grid import Grid, same_crs
from geo.grids.longitudes import full_turn

#: Vertices that the length of edges is chosen from.
N_VERTEX = 2000
#: Share of a turn beyond which a difference of longitudes is rounding no more.
EPS = 1e-9
#: Metres between the two sides of a meridian where a projection is torn.
TORN = 1e5
#: Metres to which vertices are rounded where pieces of a polygon are joined.
SNAP = 1e-3


def reproject(geometry: gpd.GeoSeries, grid: Grid) -> gpd.GeoSeries:
    """Return polygons in the grid's CRS.

    A straight edge in one CRS is curved in another. Edges are first split into pieces of about a
    pixel, so that the error between two points is far below a pixel.

    Parameters
    ----------
    geometry : geopandas.GeoSeries
        Valid polygons. Longitudes may be in any turn.
    grid : Grid

    Returns
    -------
    geopandas.GeoSeries
        Where the grid's CRS is geographic, inside the turn about the grid's centre.

    Raises
    ------
    GridError
        If the polygons have no CRS, or some points cannot be projected to the grid's.
    """
    if geometry.crs is None:
        msg = "the polygons have no CRS; set the one they are in (set_crs)"
        raise GridError(msg)
    crs, shapes = CRS(geometry.crs), np.asarray(geometry.array)
    turn, grid_turn = full_turn(crs), full_turn(grid.crs)
    if not same_crs(crs, grid.crs):
        size = _piece(shapes, crs, grid)
        if turn is None:
            moved = _from_plane(shapes, size, crs, grid.crs)
        elif grid_turn is None:
            moved = _to_plane(shapes, size, crs, grid.crs)
        else:
            moved = _to_degrees(shapely.segmentize(shapes, size), crs, grid.crs)
    elif grid_turn is None:
        return geometry
    else:
        moved = shapes
    if grid_turn is not None:
        left, _, right, _ = grid.bounds
        moved = _in_turn(moved, 0.5 * (left + right - grid_turn), grid_turn)
    lost = ~np.isfinite(shapely.bounds(moved)).all(axis=1)
    lost &= ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
    if lost.any():
        msg = (
            f"{int(lost.sum())} polygon(s), first number {int(np.argmax(lost))}, lie outside the "
            f"grid's CRS {grid.crs.name}; choose a grid CRS that covers all areas"
        )
        raise GridError(msg)
    return gpd.GeoSeries(moved, index=geometry.index, crs=grid.crs)


def _piece(shapes: np.ndarray, crs: CRS, grid: Grid) -> float:
    """Return the length of a pixel where the polygons are, in units of their CRS.

    That of nearly the finest pixels (98 %): beside a seam or a pole single ones mean nothing.
    """
    points = shapely.get_coordinates(shapes)
    points = points[:: max(1, len(points) // N_VERTEX)]
    turn, grid_turn = full_turn(crs), full_turn(grid.crs)
    step = 10.0 / crs.axis_info[0].unit_conversion_factor if turn is None else 1e-6 * turn
    there = Transformer.from_crs(crs, grid.crs, always_xy=True)
    x, y = there.transform(*points.T)
    rate = np.zeros(len(points))
    with np.errstate(invalid="ignore"):
        for way in ([step, 0.0], [0.0, step]):
            sides = []
            for side in (1.0, -1.0):
                to_x, to_y = there.transform(*(points + side * np.array(way)).T)
                moved = to_x - x
                if grid_turn is not None:
                    moved = moved - grid_turn * np.round(moved / grid_turn)
                sides.append(np.hypot(moved / grid.res[0], (to_y - y) / grid.res[1]) / step)
            # On a torn meridian one of the sides is at the other end of the map.
            rate = np.maximum(rate, np.fmin(*sides))
    rate = rate[np.isfinite(rate) & (rate > 0)]
    return float(1.0 / np.quantile(rate, 0.98)) if rate.size else math.inf


def _moved(shapes: np.ndarray, crs: CRS, to: CRS) -> np.ndarray:
    there = Transformer.from_crs(crs, to, always_xy=True)
    return shapely.transform(shapes, lambda xy: np.column_stack(there.transform(*xy.T)))


def _to_degrees(shapes: np.ndarray, crs: CRS, to: CRS) -> np.ndarray:
    """Convert between geographic CRSs; each vertex stays in its turn."""
    there = Transformer.from_crs(crs, to, always_xy=True)
    turn, to_turn = full_turn(crs) or 360.0, full_turn(to) or 360.0

    def convert(xy: np.ndarray) -> np.ndarray:
        x, y = there.transform(*xy.T)
        return np.column_stack([x + to_turn * np.round(xy[:, 0] / turn - x / to_turn), y])

    return shapely.transform(shapes, convert)


def _in_turn(shapes: np.ndarray, first: float, turn: float) -> np.ndarray:
    """Move polygons to longitudes ``first`` to ``first + turn``; split those across its ends."""
    left, _, right, _ = shapely.bounds(shapes).T
    slack = EPS * turn
    with np.errstate(invalid="ignore"):
        outside = (left < first - slack) | (right > first + turn + slack)
    if not outside.any():
        return shapes
    result = shapes.copy()
    for number in np.flatnonzero(outside):
        result[number] = _split(shapes[number], first, turn)
    return result


def _split(shape: Any, first: float, turn: float) -> Any:
    found = []
    for part in shapely.get_parts(shape):
        left, bottom, right, top = part.bounds
        window = shapely.box(first, bottom - 1.0, first + turn, top + 1.0)
        low = math.floor((left - first) / turn + EPS)
        high = math.ceil((right - first) / turn - EPS)
        for k in range(low, max(high, low + 1)):
            moved = _shifted(part, -k * turn)
            found.append(moved if high - low <= 1 else shapely.intersection(moved, window))
    return _polygons(found)


def _shifted(shape: Any, by: float) -> Any:
    return shapely.transform(shape, lambda xy: xy + np.array([by, 0.0])) if by else shape


def polygon_parts(shapes: Any) -> np.ndarray:
    """Return the polygons of some shapes, collections of multipolygons included; no empty ones."""
    parts = shapely.get_parts(shapely.get_parts(shapes))
    found: np.ndarray = parts[(shapely.get_type_id(parts) == 3) & ~shapely.is_empty(parts)]
    return found


def _polygons(shapes: list[Any], snap: float | None = None) -> Any:
    """Return the union of the polygons among some shapes, vertices on multiples of ``snap``."""
    parts = polygon_parts(shapes)
    return parts[0] if parts.size == 1 else shapely.union_all(parts, grid_size=snap)


def _to_plane(shapes: np.ndarray, size: float, crs: CRS, to: CRS) -> np.ndarray:
    """Project polygons in degrees; those across a torn meridian are split there."""
    turn = full_turn(crs) or 360.0
    first = _centre_meridian(to) * turn / 360.0 - 0.5 * turn
    left, bottom, right, top = shapely.bounds(shapes).T
    with np.errstate(invalid="ignore"):
        across = np.floor((left - first) / turn + EPS) < np.ceil((right - first) / turn - EPS) - 1
        pole = (bottom <= -0.25 * turn * (1 - EPS)) | (top >= 0.25 * turn * (1 - EPS))
        ends = (np.abs(left - first) < EPS * turn) | (np.abs(right - first - turn) < EPS * turn)
        wide = right - left > 0.5 * turn
    special = np.flatnonzero(across | pole | ends | wide)
    dense = shapely.segmentize(shapes, size)
    moved = _moved(dense, crs, to)
    if special.size == 0:
        return moved
    there = Transformer.from_crs(crs, to, always_xy=True)
    # Rounding leaves holes without area between pieces; exactextract would count around them.
    snap = SNAP / to.axis_info[0].unit_conversion_factor
    for number in special:
        latitude = np.clip(0.5 * (bottom[number] + top[number]), -0.24 * turn, 0.24 * turn)
        x, y = there.transform(first + turn * np.array([EPS, 1 - EPS]), [latitude, latitude])
        shape = shapes[number]
        if not np.hypot(np.diff(x), np.diff(y))[0] < TORN:
            # The meridian itself belongs to one side; both lie within a tenth of a millimetre.
            shape = _split(shape, first, turn)
            inner = first + turn * EPS, first + turn * (1 - EPS)
            shape = shapely.transform(
                shape, lambda xy, i=inner: np.column_stack([np.clip(xy[:, 0], *i), xy[:, 1]])
            )
        # A polygon around a pole would have a slit, there and back along the same meridian.
        quarters = _quarters(shape, turn) if wide[number] else shapely.get_parts(shape)
        parts = _moved(shapely.segmentize(quarters, size), crs, to)
        if np.isfinite(shapely.bounds(parts)).all():
            # At a pole an edge has no length, and vertices repeat.
            sound = [p if p.is_valid else shapely.make_valid(p) for p in parts]
            moved[number] = _polygons(sound, snap)
        else:
            moved[number] = shapely.multipolygons(parts)
    return moved


def _quarters(shape: Any, turn: float) -> np.ndarray:
    """Cut a polygon in degrees into pieces of at most a quarter of a turn."""
    left, bottom, right, top = shape.bounds
    first, last = math.floor(4 * left / turn), math.ceil(4 * right / turn)
    cut = [
        shapely.intersection(
            shape, shapely.box(0.25 * k * turn, bottom - 1, 0.25 * (k + 1) * turn, top + 1)
        )
        for k in range(first, last)
    ]
    return polygon_parts(cut)


def _from_plane(shapes: np.ndarray, size: float, crs: CRS, to: CRS) -> np.ndarray:
    """Convert projected polygons to degrees, or by way of them where the projection is torn."""
    dense = shapely.segmentize(shapes, size)
    degrees = to if to.is_geographic else (to.geodetic_crs or CRS.from_epsg(4326))
    turn = full_turn(degrees) or 360.0
    moved = _moved(dense, crs, degrees)
    points, ring = _rings(moved)
    with np.errstate(invalid="ignore"):
        jump = (np.abs(np.diff(points[:, 0])) > 0.5 * turn) & (np.diff(ring) == 0)
    owner = np.repeat(np.arange(len(shapes)), shapely.get_num_coordinates(moved))
    torn = np.unique(owner[:-1][jump])
    whole = moved.copy()
    for number in torn:
        whole[number] = _untorn(dense[number], crs, degrees, turn)
    if to.is_geographic:
        return whole
    plane = _moved(dense, crs, to)
    if not np.isfinite(shapely.bounds(whole)).all():
        return plane
    first = _centre_meridian(to) * turn / 360.0 - 0.5 * turn
    left, _, right, _ = shapely.bounds(whole).T
    across = np.floor((left - first) / turn + EPS) < np.ceil((right - first) / turn - EPS) - 1
    across[torn] = True
    if across.any():
        plane[across] = _to_plane(whole[across], np.inf, degrees, to)
    return plane


def _rings(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices of all rings, in the order of the shapes, and the ring of each."""
    rings = shapely.get_rings(shapely.get_parts(shapes))
    size = shapely.get_num_coordinates(rings)
    return shapely.get_coordinates(rings), np.repeat(np.arange(len(rings)), size)


def _untorn(shape: Any, crs: CRS, degrees: CRS, turn: float) -> Any:
    """Convert a projected polygon that the 180th meridian or a pole touches."""
    there = Transformer.from_crs(crs, degrees, always_xy=True)
    back = Transformer.from_crs(degrees, crs, always_xy=True)
    poles = [
        (sign, shapely.Point(*back.transform(0.0, 0.25 * sign * turn))) for sign in (1.0, -1.0)
    ]
    found = []
    for part in shapely.get_parts(shape):
        exterior, *holes = (
            _ring_in_degrees(ring, there, poles, turn) for ring in shapely.get_rings(part)
        )
        for hole in holes:
            exterior = shapely.difference(exterior, hole)
        found.append(exterior)
    return _polygons(found)


def _ring_in_degrees(
    ring: Any, there: Transformer, poles: list[tuple[float, Any]], turn: float
) -> Any:
    """Return the inside of a projected ring between longitudes -180 and 180."""
    lon, lat = there.transform(*shapely.get_coordinates(ring).T)
    lon = np.unwrap(lon, period=turn)
    around = round((lon[-1] - lon[0]) / turn)
    if around:
        inside = shapely.Polygon(ring)
        held = [sign for sign, point in poles if shapely.contains(inside, point)]
        sign = held[0] if held else float(np.sign(np.mean(lat)))
        lon = np.concatenate([lon, [lon[-1], lon[0]]])
        lat = np.concatenate([lat, [0.25 * sign * turn] * 2])
    polygon = shapely.Polygon(np.column_stack([lon, lat]))
    if not polygon.is_valid:
        polygon = _polygons([shapely.make_valid(polygon)])
    return _split(polygon, -0.5 * turn, turn)


def _centre_meridian(crs: CRS) -> float:
    """Return the longitude that a projection is centred on, degrees."""
    operation = crs.coordinate_operation
    for parameter in operation.params if operation is not None else ():
        name = parameter.name.lower()
        if name.startswith("longitude of") and not name.endswith("standard parallel"):
            return math.degrees(float(parameter.value) * parameter.unit_conversion_factor)
    return 0.0
