"""Distance to the features of a vector layer, on the Earth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import geopandas as gpd
import numpy as np
import shapely
from pyproj import CRS, Geod, Transformer
from scipy.spatial import cKDTree

from geo.core.columns import suggest
from geo.core.errors import InputError, Problem, name_first
from geo.grids.grid import Grid, Tile
from geo.grids.longitudes import full_turn
from geo.sources.boundary_formats import BOUNDARIES
from geo.sources.source import Description, Source

WGS84 = Geod(ellps="WGS84")
RADIUS_KM = 6371.0088  # by which a chord becomes an arc: the Earth's mean
DEGREE_KM = 111.2
MOST_KM = 5.0  # length of a piece of a line: its chord lies half a metre below the ground
N_PIECE = 1_000_000  # about as many as long layers are cut into
N_AT_ONCE = 1_000_000  # pairs of a pixel and a piece
#: A nearest piece is sure once every other is at most by this share, and this length, nearer.
SHARE, KM = 1e-3, 1e-3

Values = Sequence[str]


def read_features(
    path: str, layer: str | None, where: Mapping[str, Values] | None = None
) -> gpd.GeoSeries:
    """Read the geometry of a vector layer, of all features or of some.

    Parameters
    ----------
    path : str
        File or address; see :data:`geo.sources.boundary_formats.BOUNDARIES`.
    layer : str or None
        None for the only one.
    where : mapping of str to sequence of str, optional
        Columns, and the values that are wanted of each, compared as text.

    Raises
    ------
    InputError
        If the file cannot be read, has no CRS or no such column, or no feature is left.
    """
    frame = BOUNDARIES.of(path)(Path(path) if "://" not in path else path, layer)
    if frame.crs is None:
        found = "has no coordinate reference system (CRS)"
        raise InputError(Problem(path, found, "assign the one it is in (QGIS: Set layer CRS)"))
    for column, wanted in (where or {}).items():
        if column not in frame:
            found = f"has no column {column!r}"
            raise InputError(Problem(path, found, suggest(column, list(frame.columns), "column")))
        texts = frame[column].astype(str)
        kept = texts.isin([str(each) for each in wanted])
        if not kept.any():
            found = f"has no feature whose {column} is {' or '.join(map(str, wanted))}"
            known = name_first(sorted(set(texts)), 12)
            raise InputError(Problem(path, found, f"give values that it has: {known}"))
        frame = frame[kept]
    shapes = frame.geometry[~(frame.geometry.isna() | frame.geometry.is_empty)]
    if shapes.empty:
        raise InputError(Problem(path, "has no feature with a geometry", "give another layer"))
    if not np.isfinite(shapes.total_bounds).all():
        found = "has coordinates that are not finite"
        raise InputError(Problem(path, found, "copy or download the file again"))
    return shapes


class DistanceSource(Source):
    """Kilometres from the centres of a grid's pixels to the nearest feature; 0 inside polygons.

    Lines are straight in the CRS of the layer, an edge of more than half a turn is one across the
    180th meridian. They are cut into pieces of about a pixel, of which a tree of their middles in
    three dimensions finds the nearest: poles and meridians are places like others. The distance is
    the arc over the chord, within 0.2 % of that on the ellipsoid.

    Parameters
    ----------
    path : str
        The layer, for messages.
    grid : Grid
    shapes : GeoSeries
        Points, lines or polygons with a CRS: :func:`read_features`.
    """

    def __init__(self, path: str, grid: Grid, shapes: gpd.GeoSeries) -> None:
        self.path, self._grid = path, grid
        self._about = Description.on(grid, "distance", "km")
        crs = CRS(shapes.crs)
        parts = shapely.get_parts(shapely.get_parts(np.asarray(shapes.array)))
        kind = shapely.get_type_id(parts)
        polygons = parts[kind == 3]
        self._crs, self._inside = crs, shapely.STRtree(polygons)
        lines = np.concatenate([parts[(kind == 1) | (kind == 2)], shapely.get_rings(polygons)])
        start, stop = _pieces(lines, crs, self._pixel_km())
        points = _on_earth(shapely.get_coordinates(parts[kind == 0]), crs)
        self._start = np.concatenate([start, points])
        self._along = np.concatenate([stop - start, np.zeros_like(points)])
        if not (self._start.size and np.isfinite(self._along).all()):
            found = "has coordinates that do not fit its CRS"
            remedy = "assign the CRS that it really is in (QGIS: Set layer CRS)"
            raise InputError(Problem(path, found, remedy))
        self._reach = 0.5 * float(np.sqrt((self._along**2).sum(axis=1).max()))
        self._tree = cKDTree(self._start + 0.5 * self._along)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        self.band_of(time)
        tile = window or self._grid.whole
        x, y = (each.ravel() for each in self._grid.centres(tile))
        chord = self._nearest(_on_earth(np.column_stack([x, y]), self._grid.crs))
        km = 2.0 * RADIUS_KM * np.arcsin(np.minimum(0.5 * chord / RADIUS_KM, 1.0))
        if len(self._inside):
            km[self._in_polygons(x, y)] = 0.0
        km[np.isinf(chord)] = np.nan
        return km.reshape(tile.shape)

    def _nearest(self, points: np.ndarray) -> np.ndarray:
        """Return the distance to the nearest piece: (n,) float64, km; inf where a point is none."""
        found, left = np.full(len(points), np.inf), np.isfinite(points).all(axis=1).nonzero()[0]
        n, k = len(self._start), min(4, len(self._start))
        while left.size:
            unsure = []
            for part in np.array_split(left, -(-left.size * k // N_AT_ONCE)):
                middle, which = self._tree.query(points[part], k=[*range(1, k + 1)])
                own = _to_pieces(points[part, None], self._start[which], self._along[which])
                found[part] = own.min(axis=1)
                # What is not among the nearest middles is at least so far.
                least = middle[:, -1] - self._reach
                unsure.append(part[least < found[part] * (1.0 - SHARE) - KM])
            left = np.concatenate(unsure) if k < n else left[:0]
            k = min(4 * k, n)
        return found

    def _in_polygons(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return which points of the grid's CRS lie in a polygon: (n,) bool."""
        there = Transformer.from_crs(self._grid.crs, self._crs, always_xy=True)
        x, y = there.transform(x, y)
        turn, inside = full_turn(self._crs), np.zeros(x.size, bool)
        for shift in (0.0,) if turn is None else (-turn, 0.0, turn):
            points = shapely.points(np.asarray(x) + shift, y)
            inside[self._inside.query(points, predicate="intersects")[0]] = True
        return inside

    def _pixel_km(self) -> float:
        n_row, n_col = self._grid.shape
        middle = Tile(n_row // 2, n_col // 2, 1, 1)
        return float(np.sqrt(self._grid.area_km2(middle)[0, 0]))


def _on_earth(xy: np.ndarray, crs: CRS) -> np.ndarray:
    """Return points of a CRS, (n, 2), on the ellipsoid: (n, 3), km from the Earth's centre."""
    lon, lat = Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform(*xy.T)
    beyond = np.abs(lat) > 90.0 + 1e-9  # a grid may go on past a pole
    lon, lat = np.radians(lon), np.where(beyond, np.nan, np.radians(lat))
    across = 1e-3 * WGS84.a / np.sqrt(1.0 - WGS84.es * np.sin(lat) ** 2)
    with np.errstate(invalid="ignore"):
        flat = across * np.cos(lat)
        return np.column_stack(
            [flat * np.cos(lon), flat * np.sin(lon), across * (1.0 - WGS84.es) * np.sin(lat)]
        )


def _pieces(lines: np.ndarray, crs: CRS, pixel_km: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut lines into pieces: (n, 3) float64 each, km, where they start and stop."""
    turn = full_turn(crs)
    lines = lines if turn is None else _unwrapped(lines, turn)
    unit = crs.axis_info[0].unit_conversion_factor
    in_km = 1e-3 * unit if turn is None else DEGREE_KM * 360.0 / turn
    length = float(shapely.length(lines).sum()) * in_km
    size = min(max(pixel_km, length / N_PIECE), MOST_KM)
    xy, line = shapely.get_coordinates(shapely.segmentize(lines, size / in_km), return_index=True)
    points, joined = _on_earth(xy, crs), np.diff(line) == 0
    return points[:-1][joined], points[1:][joined]


def _unwrapped(lines: np.ndarray, turn: float) -> np.ndarray:
    """Return lines in degrees with edges that go the short way around."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    if not xy.size:
        return lines
    jump = np.append(0.0, np.diff(xy[:, 0]))
    jump[np.append(True, np.diff(line) != 0)] = 0.0
    turns = np.cumsum(np.round(jump / turn))
    first = np.searchsorted(line, line, side="left")
    xy[:, 0] -= turn * (turns - turns[first])
    return shapely.set_coordinates(lines.copy(), xy)


def _to_pieces(points: np.ndarray, start: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return distances of points to straight pieces in space: (n, k) float64."""
    off = points - start
    square = (along**2).sum(axis=-1)
    share = np.divide(
        (off * along).sum(axis=-1), square, out=np.zeros_like(square), where=square > 0
    )
    off = off - np.clip(share, 0.0, 1.0)[..., None] * along
    return np.sqrt((off**2).sum(axis=-1))
