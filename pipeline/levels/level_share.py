"""The share of an area of a level that the map covers: of its people, where they can be counted.

The sea has nobody: an area that reaches over it is as well known as one that does not.
"""

from __future__ import annotations

from collections.abc import Callable

import geopandas as gpd
import numpy as np
import shapely

from geo.core.errors import InputError, Problem
from geo.grids.grid import Grid
from geo.sources.registry import open_source
from geo.sources.zonal import exact_people
from pipeline.config.schema import Config
from pipeline.store.level_areas import Level

UNMAPPED = 0.05  # share of an area's surface without a rate above which a line says so
FEW = 0.1  # of the people of a usual area of the level; fewer do not tell who is missing

#: From polygons on the grid's plane to the people in each of them.
Living = Callable[[np.ndarray], np.ndarray | None]


def share_on_map(
    level: Level, training: Level, mapped: np.ndarray, people: np.ndarray, living: Living | None
) -> np.ndarray | None:
    """Return the share of each area that the map covers: of its people, if they can be counted.

    Where nearly all of the surface lies in mapped pixels or in training areas, it is that share:
    without people a pixel has no rate, and a lake or a desert may lie in a training area. So it is
    for areas with few people on the map, if it is less: a population that ends at the border knows
    nobody else of a neighbour. None for the training areas and the country.
    """
    if level is training or len(level) == 1:
        return None
    share = np.divide(mapped, level.surface, out=np.zeros(len(level)), where=level.surface > 0)
    short = np.flatnonzero(share < 1 - UNMAPPED)
    area, own = shapely.STRtree(training.shapes).query(level.shapes[short], predicate="intersects")
    common = shapely.area(shapely.intersection(level.shapes[short][area], training.shapes[own]))
    part = np.bincount(area, common, short.size)
    share[short] = np.maximum(share[short], part / np.maximum(level.surface[short], 1e-300))
    short = np.flatnonzero((share < 1 - UNMAPPED) & (people > 0))
    found = living(level.shapes[short]) if living is not None and short.size else None
    if found is not None:
        own = people[short]
        by_people = own / np.maximum(found, own)
        enough = own >= FEW * _usual(people)
        share[short] = np.where(enough, by_people, np.minimum(by_people, share[short]))
    return share


def _usual(people: np.ndarray) -> float:
    """Return how many people the area has that the middle person of a level lives in."""
    order = np.sort(people)
    total = np.cumsum(order)
    return float(order[np.searchsorted(total, total[-1] / 2)])


def people_living(config: Config, grid: Grid) -> Living | None:
    """Return the function that counts who lives in polygons, also beyond the grid.

    None without a population. The function returns None for a raster that is not north up.

    Raises
    ------
    InputError
        By the function, if the raster cannot be read.
    """
    spec = config.population
    if spec is None:
        return None

    def living(shapes: np.ndarray) -> np.ndarray | None:
        problems: list[Problem] = []
        source = open_source(spec.path, "population", problems, spec.choice, spec.header)
        if source is None:
            raise InputError(problems)
        polygons = gpd.GeoSeries(shapes, crs=grid.crs)
        return exact_people(source, polygons, density=spec.density) if source.north_up else None

    return living
