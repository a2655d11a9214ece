"""The balance of people and cases that ingest begins, and the check of the areas' pixels."""

from __future__ import annotations

import contextlib
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.errors import GeoError, Problem, name_first
from geo.grids.area_balance import area_balance
from geo.grids.grid import Grid, Tile
from geo.grids.membership import Membership
from geo.sources.raster import bounded_cache
from pipeline.core.threads import run_tasks
from pipeline.ingest.extent import Extent
from pipeline.store.aligned_grid import GridSummary, InputLayers, Layer

N_NAMED = 5  # areas named in one message
#: Pixels of a population raster, or of a grid, beyond which people outside all areas stay unknown:
#: a raster of the world is not read whole for one country.
N_PIX_COUNTED = 200_000_000
#: Likewise one of more pixels than `N_PIX_FEW` of which the areas' bounds are less than this share.
N_PIX_FEW, SHARE_COUNTED = 10_000_000, 1 / 8
ROWS = 512  # of a raster read at once


def check_area_balance(
    place: str,
    titles: np.ndarray,
    original: gpd.GeoSeries,
    moved: gpd.GeoSeries,
    members: Membership,
    grid: Grid,
    problems: list[Problem],
) -> None:
    """Append a problem if the pixels of areas do not add up to the area of their polygon.

    Parameters
    ----------
    place : str
        Key and file of the areas, for the message.
    titles : (n_area,) array
    original, moved : GeoSeries of n_area polygons
        As given, and in the grid's CRS.
    members : Membership
        Their pixels.
    grid : Grid
    problems : list of Problem
        Appended to.
    """
    found = area_balance(original, moved, members, grid)
    torn = np.flatnonzero(found.torn)
    if torn.size == 0:
        return
    each = [
        f"{titles[k]} (polygon {_km2(found.polygon[k])} km2, "
        f"pixels {_km2(found.pixels[k] + found.outside[k])} km2)"
        for k in torn
    ]
    problems.append(
        Problem(
            place,
            f"the pixels of {name_first(each, N_NAMED)} do not add up to the area of the polygon",
            f"cut polygons that cross 180 degrees or a pole in two there, or give a grid in a "
            f"projected CRS of their region (the grid is in {grid.crs.name})",
        )
    )


def _km2(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def counts_outside(population: Layer | None, grid: Grid, areas: gpd.GeoDataFrame | None) -> bool:
    """Return whether the people outside all areas are counted: every pixel is read for it."""
    if population is None:
        return False
    source = population.source
    n_pix = source.shape[0] * source.shape[1]
    if n_pix > N_PIX_FEW and source.north_up and areas is not None and areas.crs is not None:
        few = Extent(areas).read_share(source) < SHARE_COUNTED
    else:
        few = False
    return max(n_pix, grid.n_pix) <= N_PIX_COUNTED and not few


def begin_balance(
    grid: Grid,
    layers: InputLayers,
    written: GridSummary,
    responses: pd.Series,
    left_out: dict[str, Any],
    *,
    total: str,
    noun: str,
    workers: int | None = None,
) -> dict[str, Any]:
    """Return the attribute ``balance`` of the bag store (``docs/bag-store.md``).

    Parameters
    ----------
    grid : Grid
    layers : InputLayers
    written : GridSummary
    responses : Series
        Of all areas.
    left_out : dict
        The store's attribute of that name.
    total : str
        What responses are: cases, values, or positives (areas) for labels.
    noun : str
        What an area without a response lacks: a count, a value, a label.
    workers : int, optional
        Threads.
    """
    population = layers.population
    raster = outside_grid = outside_areas = None
    if population is not None and np.isfinite(written.on_grid):
        raster = raster_total(population, grid, written.on_grid, workers)
        outside_areas = _not_below_rounding(written.on_grid - written.inside, written.on_grid)
        outside_grid = (
            None if raster is None else _not_below_rounding(raster - written.on_grid, raster)
        )
    return {
        "unit": "people" if population is not None else "km2",
        "people": {
            "raster": raster,
            "outside_grid": outside_grid,
            "outside_areas": outside_areas,
            "inside_areas": written.inside,
            "counted_twice": written.twice,
            "no_covariate": written.lost,
        },
        "cases": {
            "unit": total,
            "noun": noun,
            "given": float(responses.sum()),
        },
        "areas": {"given": len(responses), "left_out": list(left_out["areas"])},
    }


def raster_total(
    population: Layer, grid: Grid, on_grid: float, workers: int | None = None
) -> float | None:
    """Return the people of the whole raster; None if it cannot be read everywhere.

    Negative numbers are left out: they are a nodata value that the file does not name.

    Parameters
    ----------
    population : Layer
    grid : Grid
    on_grid : float
        Its people on the grid; the total if the grid is that of the raster.
    workers : int, optional
        Threads.
    """
    source = population.source
    n_row, n_col = source.shape

    def strip(row: int) -> float:
        tile = Tile(row, 0, min(ROWS, n_row - row), n_col)
        values = source.read(tile)
        if population.density:
            values = values * source.grid.area_km2(tile)
        return float(values[values > 0].sum())

    with contextlib.suppress(GeoError), bounded_cache():
        if source.north_up and source.grid == grid:
            return on_grid
        return sum(run_tasks(strip, [(row,) for row in range(0, n_row, ROWS)], workers))
    return None


def _not_below_rounding(value: float, of: float) -> float:
    """Return 0 for a difference that rounding alone can make."""
    return value if abs(value) > 1e-9 * abs(of) else 0.0
