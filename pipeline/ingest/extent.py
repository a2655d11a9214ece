"""Where the areas lie, in the CRS of any raster."""

from __future__ import annotations

from typing import Any

import geopandas as gpd
import numpy as np
import shapely
from affine import Affine
from pyproj import CRS

from geo.core.errors import GridError
from geo.grids.grid import Bounds, Grid
from geo.grids.longitudes import full_turn
from geo.grids.reproject import reproject
from geo.sources.source import Source

#: Metres between points of an edge: its middle bounds the areas, too.
SPACING = 10_000.0


def measurable(areas: gpd.GeoDataFrame) -> np.ndarray:
    """Return which polygons are valid, (n_area,) bool; the others are reported already."""
    shapes = areas.geometry
    usable = shapes.notna() & ~shapes.is_empty & shapes.is_valid
    return (usable & shapes.geom_type.isin(["Polygon", "MultiPolygon"])).to_numpy()


def box_in_degrees(source: Source) -> shapely.Geometry | None:
    """Return the box around a raster in degrees; None where it has none."""
    n_row, n_col = source.shape
    t = source.transform
    grid = np.meshgrid(np.linspace(0, n_col, 9), np.linspace(0, n_row, 9))
    col, row = (each.ravel() for each in grid)
    x, y = t.a * col + t.b * row + t.c, t.d * col + t.e * row + t.f
    bounds = gpd.GeoSeries(gpd.points_from_xy(x, y), crs=source.crs).to_crs("EPSG:4326")
    west, south, east, north = bounds.total_bounds
    known = np.isfinite([west, south, east, north]).all()
    return shapely.box(west, south, east, north) if known else None


class Extent:
    """Bounds of the areas in any CRS, cached by CRS.

    Longitudes are those of the shortest arc that holds all areas: areas on both sides of the 180th
    meridian reach from 177 to 183, say, not from -180 to 180.
    """

    def __init__(self, areas: gpd.GeoDataFrame) -> None:
        self.areas = areas
        self._cache: dict[str, Bounds] = {}

    def bounds(self, crs: Any) -> Bounds:
        """Return left, bottom, right, top; infinite where the CRS does not hold the areas."""
        key = crs if isinstance(crs, str) else crs.to_wkt()
        if key not in self._cache:
            self._cache[key] = self._bounds(CRS.from_user_input(crs))
        return self._cache[key]

    def is_disjoint(self, source: Source) -> bool:
        """Return whether a north-up raster lies wholly outside the bounds of the areas."""
        return not self._common(source)

    def covered_share(self, source: Source) -> float:
        """Return the share of the areas' bounds inside those of a north-up raster."""
        west, south, east, north = self.bounds(source.crs)
        whole = (east - west) * (north - south)
        common = sum(width * height for width, height in self._common(source))
        return min(common / whole, 1.0) if whole > 0 else 0.0

    def read_share(self, source: Source) -> float:
        """Return the share of a north-up raster's pixels inside the bounds of the areas."""
        left, bottom, right, top = source.grid.bounds
        common = sum(width * height for width, height in self._common(source))
        return min(common / ((right - left) * (top - bottom)), 1.0)

    def _common(self, source: Source) -> list[tuple[float, float]]:
        """Return width and height of what the raster has in common with the bounds, each turn."""
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        turn = None if source.crs is None else full_turn(source.crs)
        height = min(north, top) - max(south, bottom)
        found = []
        for k in (0,) if turn is None else range(-2, 3):
            shift = k * (turn or 0.0)
            width = min(east, right + shift) - max(west, left + shift)
            if width > 0 and height > 0:
                found.append((width, height))
        return found

    def _bounds(self, crs: CRS) -> Bounds:
        shapes = self.areas.geometry
        usable = (shapes.notna() & ~shapes.is_empty & shapes.is_valid).to_numpy()
        turn = full_turn(crs)
        size = SPACING / crs.axis_info[0].unit_conversion_factor if turn is None else turn / 360
        half = 0.0 if turn is None else 0.5 * turn
        n_col = 1 if turn is None else 360
        world = Grid(crs, Affine(size, 0, -half, 0, -size, 0.5 * half), (1, n_col))
        try:
            moved = reproject(shapes[usable] if usable.any() else shapes, world)
        except GridError:
            return np.inf, np.inf, np.inf, np.inf
        west, south, east, north = (float(v) for v in moved.total_bounds)
        if turn is None:
            return west, south, east, north
        first, last = _arc(np.asarray(moved.array), turn)
        if CRS(self.areas.crs).is_geographic:
            west, _, east, _ = (float(v) for v in shapes.to_crs(crs).total_bounds)
        # Their own longitudes, if these are no detour.
        if last - first < east - west - 1e-6 * turn:
            west, east = first, last
        return west, south, east, north


def _arc(shapes: np.ndarray, turn: float) -> tuple[float, float]:
    """Return the shortest arc that holds polygons between -180 and 180 degrees."""
    left, _, right, _ = shapely.bounds(shapely.get_parts(shapes)).T
    order = np.argsort(left)
    left, reach = left[order], np.maximum.accumulate(right[order])
    gaps = np.append(left[1:] - reach[:-1], left[0] + turn - reach[-1])
    widest = int(np.argmax(gaps))
    if widest == gaps.size - 1:
        return float(left[0]), float(reach[-1])
    return float(left[widest + 1]), float(reach[widest] + turn)
