"""The plane of the page's maps: the run's own projection, scaled to a width of 2,000 units.

The page shows rasters in the projection of their grid (Leaflet's simple CRS), not in Web Mercator:
no value is resampled, a pixel is a rectangle at its exact place, and maps at a pole or across 180
degrees need no care. There is no base map that would have to be met.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely

from geo.writers.raster_files import RasterFiles
from pipeline.reporting.borders import Borders

WIDTH = 2000.0
#: Tolerance of simplified borders, units: half a unit is a quarter of a pixel of a wide screen.
TOLERANCE = 0.5
#: Kilometres of a degree of the equator.
KM_DEGREE = 111.32


def aspect_of(crs: Any, bottom: float, top: float) -> float:
    """Return the height of a unit of a CRS over its width: true in the middle of a map.

    Parameters
    ----------
    crs : CRS of rasterio or pyproj, or None
    bottom, top : float
        Bounds of the map, in the units of the CRS.
    """
    if crs is None or not crs.is_geographic:
        return 1.0
    return 1 / max(float(np.cos(np.deg2rad((bottom + top) / 2))), 0.1)


@dataclass(frozen=True)
class Plane:
    """From the coordinates of a map to those of the page: x to the right, y upwards, from 0.

    Attributes
    ----------
    left, bottom, right, top : float
        Bounds in the units of the CRS.
    aspect : float
        Height of a unit of the CRS over its width, as drawn.
    metres : float
        Metres of a unit of the page along x, in the middle; NaN if not known.
    """

    left: float
    bottom: float
    right: float
    top: float
    aspect: float
    metres: float

    @classmethod
    def of(cls, bounds: tuple[float, float, float, float], crs: Any) -> Plane:
        """Return the plane of bounds (left, bottom, right, top) in a CRS of rasterio or pyproj."""
        left, bottom, right, top = bounds
        known = None if crs is None else rasterio.crs.CRS.from_user_input(crs)
        metres = float("nan")
        if known is not None and known.is_geographic:
            middle = float(np.cos(np.deg2rad((bottom + top) / 2)))
            metres = (right - left) * KM_DEGREE * 1000 * middle / WIDTH
        elif known is not None and known.is_projected:
            metres = (right - left) * known.linear_units_factor[1] / WIDTH
        return cls(left, bottom, right, top, aspect_of(known, bottom, top), metres)

    @property
    def scale(self) -> tuple[float, float]:
        """Units of the page for one of the CRS, along x and y."""
        along = WIDTH / (self.right - self.left)
        return along, along * self.aspect

    @property
    def height(self) -> float:
        """Height of the map, units of the page."""
        return self.scale[1] * (self.top - self.bottom)

    def place(self, points: np.ndarray) -> np.ndarray:
        """Move points (n, 2) from the CRS to the page."""
        return (points - [self.left, self.bottom]) * self.scale


def areas_on_plane(
    borders: Borders, raster: Path | None, files: RasterFiles
) -> tuple[Plane, np.ndarray]:
    """Return the plane of a run, and the shapes of its areas on it, simplified.

    Parameters
    ----------
    borders : Borders
        Of the areas.
    raster : Path or None
        A raster of the run; without one, the areas' own CRS and bounds are the plane's.
    files : RasterFiles
        Open files.

    Returns
    -------
    plane : Plane
    shapes : (n_area,) object array
        Polygons; neighbours share their simplified borders.
    """
    if raster is None:
        moved = borders.areas.geometry
        plane = Plane.of(tuple(moved.total_bounds), moved.crs)
    else:
        moved = borders.on(raster)
        with files.open(raster) as source:
            plane = Plane.of(tuple(source.bounds), source.crs)
    placed = shapely.transform(shapely.force_2d(np.asarray(moved.array)), plane.place)
    return plane, shapely.coverage_simplify(placed, TOLERANCE)


def rings(shape: Any) -> list[list[list[list[float]]]]:
    """Return the polygons of a shape: each a list of rings of [x, y], one decimal."""
    found = []
    for part in shapely.get_parts(shape):
        if part.is_empty or part.geom_type != "Polygon":
            continue
        lines = [
            np.round(shapely.get_coordinates(ring), 1) for ring in (part.exterior, *part.interiors)
        ]
        found.append([line[:-1].tolist() for line in lines])
    return found
