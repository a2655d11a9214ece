"""A suspicion about people that a coarse grid moves across borders.

A pixel of the grid that several areas share gives each its share of the surface, and so of the
people. Where the population's raster is finer, it knows better on which side they live.
"""

from __future__ import annotations

import geopandas as gpd
import numpy as np

from geo.core.errors import GridError, InputError, name_first
from geo.grids.grid import Grid, Tile
from geo.sources.source import Source
from geo.sources.zonal import exact_people
from pipeline.ingest.raster_suspicions import Suspicion

COARSER = 1.5  # surface of a pixel of the grid in pixels of the population, from which it is asked
FEW = 100  # pixels of an area; in one with more, borders matter less
N_WINDOW = 4_000_000  # pixels of the population in an area that is looked at
N_AREA = 200  # areas that are looked at: those with the fewest pixels
MOVED = 0.1  # share of an area's people from which it is named
N_NAMED = 5


def coarse_suspicions(
    grid: Grid,
    source: Source,
    path: str,
    *,
    density: bool,
    shapes: gpd.GeoSeries,
    titles: np.ndarray,
    sizes: np.ndarray,
    people: np.ndarray,
) -> list[Suspicion]:
    """Return a suspicion about areas whose people on the grid are not those of the raster.

    Parameters
    ----------
    grid : Grid
        Of the run.
    source : Source
        The population.
    path : str
        Its path, for the place.
    density : bool
        Whether it has people per km2.
    shapes : (n_area,) GeoSeries
        Valid polygons with a CRS.
    titles : (n_area,) array
        Names of the areas in the message.
    sizes : (n_area,) int array
        Pixels of the grid in each area.
    people : (n_area,) float64 array
        People of each area on the grid.
    """
    if not source.north_up:
        return []
    finer = _pixel_km2(grid) / _pixel_km2(source.grid)
    if finer < COARSER:
        return []
    most = min(FEW, N_WINDOW / finer)
    few = np.flatnonzero((sizes > 0) & (sizes <= most) & (people > 0))
    few = few[np.argsort(sizes[few], kind="stable")][:N_AREA]
    try:
        exact = exact_people(source, shapes.iloc[few], density=density)
    except (InputError, GridError):  # told elsewhere
        return []
    moved = np.divide(people[few], exact, out=np.ones(few.size), where=exact > 0) - 1
    which = np.argsort(-np.abs(moved), kind="stable")
    which = which[np.abs(moved[which]) > MOVED]
    if which.size == 0:
        return []
    each = [f"{titles[few[k]]} {100 * moved[k]:+.0f} %" for k in which.tolist()]
    text = (
        "is finer than the grid, which shares the people of pixels at borders by surface; against "
        f"the raster itself people are gained or lost by {name_first(each, N_NAMED)}"
    )
    remedy = "give a finer grid, at best that of the population (grid.like)"
    return [Suspicion("resolution", f"population ({path})", text, remedy)]


def _pixel_km2(grid: Grid) -> float:
    """Return the surface of a pixel in the middle of a grid."""
    return float(grid.area_km2(Tile(grid.shape[0] // 2, 0, 1, 1))[0, 0])
