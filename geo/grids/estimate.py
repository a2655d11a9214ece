"""Estimate the number of pixels of polygons from their geometry alone."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import shapely

from geo.grids.grid import Grid
from geo.grids.reproject import reproject


def estimate_pixels(geometry: gpd.GeoSeries, grid: Grid) -> np.ndarray:
    """Estimate the number of pixels that each polygon covers at least in part.

    A ring covers, at least in part, its area in pixels, plus half the number of times that it
    crosses into another pixel, plus one. A hole removes the pixels wholly inside it: its area,
    less that half, plus one. Exact for rectangles. A border that returns into a pixel counts it
    again: the estimate for ragged borders is a few percent high.

    Parameters
    ----------
    geometry : geopandas.GeoSeries
        Valid polygons, in any CRS.
    grid : Grid

    Returns
    -------
    (n_area,) float64 array
        0 for a polygon outside the grid; parts outside the grid do not count.
    """
    shapes = np.asarray(reproject(geometry, grid).array)
    t = grid.transform
    origin, scale = np.array([t.c, t.f]), np.array([t.a, t.e])
    pixels = shapely.transform(shapes, lambda xy: (xy - origin) / scale)
    n_row, n_col = grid.shape
    bounds = shapely.bounds(pixels)
    with np.errstate(invalid="ignore"):
        cut = (bounds[:, :2] < 0).any(axis=1) | (bounds[:, 2] > n_col) | (bounds[:, 3] > n_row)
    if cut.any():
        pixels[cut] = shapely.intersection(pixels[cut], shapely.box(0, 0, n_col, n_row))
    parts, whose = shapely.get_parts(pixels, return_index=True)
    rings, part = shapely.get_rings(parts, return_index=True)
    corners, ring = shapely.get_coordinates(rings, return_index=True)
    passed = np.abs(np.diff(np.floor(corners), axis=0)).sum(axis=1)
    same = ring[1:] == ring[:-1]
    border = 0.5 * np.bincount(ring[1:][same], passed[same], len(rings))
    area = shapely.area(shapely.polygons(rings))
    hole = np.zeros(len(rings), bool)
    hole[1:] = part[1:] == part[:-1]  # the outer ring of each part comes first
    met = np.where(hole, -np.maximum(area - border + 1.0, 0.0), area + border + 1.0)
    return np.maximum(np.bincount(whose[part], met, len(shapes)), 0.0)
