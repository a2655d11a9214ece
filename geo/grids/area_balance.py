"""Check that the pixels of each area add up to the area of its polygon on the ellipsoid.

The two are computed apart. Pixels: the fractions of :mod:`geo.grids.membership` times the true
area of each pixel. Polygon: its geodesic area, by GeographicLib, in the CRS that it was given in.
They
differ where the plane of the grid tears a polygon, as longitudes do at 180 degrees and most
projections do at a pole or far from their centre.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import numpy as np
import shapely
from affine import Affine
from pyproj import CRS, Geod, Transformer
from scipy.ndimage import map_coordinates

from geo.grids.grid import Grid, Tile
from geo.grids.membership import Membership, runs_of_bags

#: Relative difference that is allowed; datums and curved edges stay far below it.
TOLERANCE = 0.01
#: Longest piece of an edge: the geodesic between its ends bends by less than 15 m up to 80 degrees.
LONGEST_PIECE_KM = 10.0
KM_PER_DEGREE = 111.3
#: Blocks of pixels along the longer side of a window, for which areas are computed.
N_BLOCK = 256


@dataclass(frozen=True)
class AreaBalance:
    """Areas of polygons and of their pixels, km2.

    Attributes
    ----------
    polygon : (n_bag,) float64 array
        Geodesic area of each polygon.
    pixels : (n_bag,) float64 array
        Sum of fraction times area of its pixels.
    outside : (n_bag,) float64 array
        Area of its part outside the grid.
    slack : (n_bag,) float64 array
        How far the shares of border pixels can be off: a share of a pixel in the plane of the grid
        is not exactly its share on the ellipsoid.
    """

    polygon: np.ndarray
    pixels: np.ndarray
    outside: np.ndarray
    slack: np.ndarray

    @property
    def torn(self) -> np.ndarray:
        """Whether an area does not add up, (n_bag,) bool; never one without a pixel."""
        with np.errstate(invalid="ignore"):
            off = np.abs(self.pixels + self.outside - self.polygon)
            sound = off <= TOLERANCE * self.polygon + self.slack
        return (self.pixels > 0) & ~sound | np.isnan(self.pixels)


def area_balance(
    original: gpd.GeoSeries, moved: gpd.GeoSeries, members: Membership, grid: Grid
) -> AreaBalance:
    """Compute the areas of polygons and of their pixels.

    Parameters
    ----------
    original : geopandas.GeoSeries
        Valid polygons, in any CRS.
    moved : geopandas.GeoSeries
        The same in the grid's CRS (:func:`geo.grids.reproject.reproject`).
    members : Membership
        Their pixels.
    grid : Grid

    Returns
    -------
    AreaBalance
    """
    pixels, slack = _pixels_km2(members, grid)
    shapes = np.asarray(moved.array)
    left, bottom, right, top = grid.bounds
    bounds = shapely.bounds(shapes)
    # By a millionth of a pixel: edges on the border of the grid are rounded.
    edge = 1e-6 * min(grid.res)
    past = (bounds[:, :2] < [left - edge, bottom - edge]).any(axis=1)
    past |= (bounds[:, 2:] > [right + edge, top + edge]).any(axis=1)
    past &= np.diff(members.offsets) > 0  # an area wholly outside is another problem
    outside = np.zeros(len(shapes))
    if past.any():
        rest = shapely.difference(shapes[past], shapely.box(*grid.bounds))
        outside[past] = geodesic_km2(rest, grid.crs, wrap=False)
    return AreaBalance(geodesic_km2(original, original.crs), pixels, outside, slack)


def geodesic_km2(geometry: Any, crs: Any, *, wrap: bool = True) -> np.ndarray:
    """Return the area of each polygon on the ellipsoid, by GeographicLib.

    Edges are straight in ``crs``: they are cut into pieces of at most :data:`LONGEST_PIECE_KM`,
    and a geodesic replaces each piece.

    Parameters
    ----------
    geometry : GeoSeries or (n,) array of polygons
    crs : pyproj.CRS
    wrap : bool, optional
        Whether an edge of more than 180 degrees of longitude goes the short way, across 180
        degrees; else the long way, as it is drawn in the plane.

    Returns
    -------
    (n,) float64 array, km2
        NaN where the polygon cannot be transformed to longitude and latitude.

    References
    ----------
    C. F. F. Karney (2013), Algorithms for geodesics, Journal of Geodesy 87, section 6.
    """
    crs = CRS.from_user_input(crs)
    geod = crs.get_geod() or Geod(ellps="WGS84")
    parts, whose = shapely.get_parts(np.asarray(geometry), return_index=True)
    rings, part = shapely.get_rings(parts, return_index=True)
    is_hole = np.zeros(len(rings), bool)
    is_hole[1:] = part[1:] == part[:-1]  # the outer ring of each part comes first
    unit = crs.axis_info[0].unit_conversion_factor  # radians, or metres
    longest = LONGEST_PIECE_KM
    if crs.is_geographic:
        longest /= KM_PER_DEGREE * np.degrees(unit)
        turn = 2 * np.pi / unit
        to_degrees = np.degrees(unit)
    else:
        longest *= 1000.0 / unit
        turn = np.inf
        geographic = crs.geodetic_crs or CRS.from_epsg(4326)
        transformer = Transformer.from_crs(crs, geographic, always_xy=True)
    corners, ring = shapely.get_coordinates(rings, return_index=True)
    if ring.size == 0:
        return np.zeros(len(np.asarray(geometry)))
    corners, ring = _pieces(corners, ring, longest, turn if wrap else np.inf)
    if crs.is_geographic:
        lon, lat = corners.T * to_degrees
    else:
        lon, lat = transformer.transform(*corners.T)
    cuts = np.searchsorted(ring, np.arange(len(rings) + 1))
    each = np.array(
        [
            abs(geod.polygon_area_perimeter(lon[a:b], lat[a:b])[0])
            for a, b in itertools.pairwise(cuts.tolist())
        ]
    )
    whole = np.where(is_hole, -each, each)
    return np.bincount(whose[part], whole, len(np.asarray(geometry))) / 1e6


def _pieces(
    corners: np.ndarray, ring: np.ndarray, longest: float, turn: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cut edges into pieces; an edge of more than half a ``turn`` in x goes the short way."""
    step = np.diff(corners, axis=0, append=corners[-1:])
    step[:-1][ring[1:] != ring[:-1]] = 0.0  # from one ring to the next
    size = np.abs(step[:, 0])
    # An edge of a whole turn is a parallel: the border of a polygon around a pole.
    short = (size > 0.5 * turn) & (size < turn * (1 - 1e-9))
    step[:, 0] -= np.where(short, np.copysign(turn, step[:, 0]), 0.0)
    n = np.maximum(np.ceil(np.hypot(step[:, 0], step[:, 1]) / longest), 1).astype(np.int64)
    at = np.repeat(np.arange(n.size), n)
    along = (np.arange(at.size) - np.repeat(np.cumsum(n) - n, n)) / n[at]
    return corners[at] + along[:, None] * step[at], ring[at]


def _pixels_km2(members: Membership, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of fraction times area of each area's pixels, and its slack; km2."""
    total, slack = np.zeros(members.n_bag), np.zeros(members.n_bag)
    for first, last in runs_of_bags(members.offsets):
        start, stop = int(members.offsets[first]), int(members.offsets[last])
        filled = first + np.flatnonzero(np.diff(members.offsets[first : last + 1]))
        begin = members.offsets[filled] - start
        row, col = grid.row_col(members.pixel[start:stop])
        share = members.fraction[start:stop].astype(np.float64)
        km2, change = _pixel_km2(grid, row, col)
        total[filled] = np.add.reduceat(share * km2, begin)
        slack[filled] = np.add.reduceat(np.where(share < 1, share * change, 0.0), begin)
        # A fraction is single precision, and a thousandth of a thousandth of a pixel may be lost.
        slack[filled] += 1e-6 * np.maximum.reduceat(km2, begin)
    return total, slack


def _pixel_km2(grid: Grid, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the area of pixels, and by how much it changes to the next pixel; km2."""
    low_row, n_row = int(row.min()), int(np.ptp(row)) + 1
    if grid.crs.is_geographic:  # along a row of pixels, areas are equal
        areas = grid.area_km2(Tile(low_row, 0, n_row, 1))[:, 0]
        change = np.abs(np.gradient(areas)) if n_row > 1 else np.zeros(1)
        return areas[row - low_row], change[row - low_row]
    low_col, n_col = int(col.min()), int(np.ptp(col)) + 1
    # Areas change slowly: those of blocks of pixels are interpolated between their centres. A
    # frame of blocks around them spares an extrapolation.
    step = -(-max(n_row, n_col) // N_BLOCK)
    shape = -(-n_row // step) + 2, -(-n_col // step) + 2
    corner = grid.transform @ Affine.translation(low_col - step, low_row - step)
    areas = Grid(grid.crs, corner @ Affine.scale(step), shape).area_km2() / step**2
    areas = _filled_frame(areas)
    change = sum(np.abs(np.gradient(areas, step, axis=axis)) for axis in (0, 1))
    at = [(each + 0.5) / step + 0.5 for each in (row - low_row, col - low_col)]
    found = [map_coordinates(field, at, order=1, mode="nearest") for field in (areas, change)]
    return found[0], found[1]


def _filled_frame(areas: np.ndarray) -> np.ndarray:
    """Replace what is not finite in the outer rows and columns, past the CRS, by its neighbour."""
    for axis in (0, 1):
        lines = np.moveaxis(areas, axis, 0)  # a view
        for outer, inner in ((0, 1), (-1, -2)):
            lost = ~np.isfinite(lines[outer])
            lines[outer][lost] = lines[inner][lost]
    return areas
