"""Sums of a raster's own pixels over polygons."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import shapely
from affine import Affine

from geo.grids.grid import Grid, Tile
from geo.grids.membership import membership
from geo.grids.reproject import reproject
from geo.sources.raster import bounded_cache
from geo.sources.source import Source

N_PIX = 4_000_000  # pixels that are read at once


def exact_people(source: Source, shapes: gpd.GeoSeries, *, density: bool) -> np.ndarray:
    """Return the people of areas by the raster's own pixels, (n_area,) float64.

    A pixel at a border gives its share of the surface. Missing and negative numbers are nobody.

    Parameters
    ----------
    source : Source
        North up.
    shapes : (n_area,) GeoSeries
        Valid polygons with a CRS.
    density : bool
        Whether the raster has people per km2.

    Raises
    ------
    InputError
        If the raster is damaged.
    GridError
        If the areas cannot be reprojected to it.
    """
    grid, found = source.grid, np.zeros(len(shapes))
    moved = reproject(shapes, grid)
    with bounded_cache():
        for area, bounds in enumerate(shapely.bounds(np.asarray(moved.array))):
            for tile in _tiles(grid, bounds):
                if source.unwritten(tile) is not None:  # nobody lives where nothing is stored
                    continue
                corner = grid.transform @ Affine.translation(tile.col, tile.row)
                members = membership(
                    moved.iloc[[area]], Grid(grid.crs, corner, (tile.n_row, tile.n_col))
                )
                if members.pixel.size:
                    values = source.read(tile)
                    if density:
                        values = values * grid.area_km2(tile)
                    people = np.where(values > 0, values, 0.0).ravel()[members.pixel]
                    found[area] += people @ members.fraction.astype(np.float64)
    return found


def _tiles(grid: Grid, bounds: np.ndarray) -> list[Tile]:
    """Return the window of some bounds on a grid, in parts of at most `N_PIX` pixels."""
    if not np.isfinite(bounds).all():
        return []
    left, top = ~grid.transform @ (bounds[0], bounds[3])
    right, bottom = ~grid.transform @ (bounds[2], bounds[1])
    row, col = max(int(np.floor(top)), 0), max(int(np.floor(left)), 0)
    last_row = min(int(np.ceil(bottom)), grid.shape[0])
    n_col = min(int(np.ceil(right)), grid.shape[1]) - col
    if n_col <= 0:
        return []
    step = max(1, N_PIX // n_col)
    return [Tile(at, col, min(step, last_row - at), n_col) for at in range(row, last_row, step)]
