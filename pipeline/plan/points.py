"""How many points stand beside the areas, and how many pixels each may be of."""

from __future__ import annotations

import numpy as np

from geo.core.errors import Problem
from geo.grids.displacement import RURAL
from geo.grids.grid import Grid
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config
from pipeline.ingest.point_tables import read_points

DEGREE_KM = 111.2


def count_points(config: Config, grid: Grid, n_pixels: float) -> tuple[int, int]:
    """Count the points of all sources, and their pixels.

    Parameters
    ----------
    config : Config
    grid : Grid
    n_pixels : float
        In all areas: those of the zones of a source.
    """
    problems: list[Problem] = []  # what is wrong with a table is told by the check
    n_points, total = 0, 0.0
    for spec, table in zip(config.point_sources, read_points(config, problems), strict=True):
        n_points += len(table)
        total += n_pixels if spec.zone is not None else len(table) * _each(spec, grid)
    return n_points, round(total)


def _each(spec: Points, grid: Grid) -> float:
    """Return the pixels of a circle of a source."""
    radius = spec.radius if spec.catchment is None else spec.catchment
    km = max(each for each, _ in RURAL) if radius == "dhs" else float(radius)
    wide, high = (abs(each) for each in grid.res)
    if grid.crs.is_geographic:
        middle = grid.transform.f + 0.5 * grid.shape[0] * grid.transform.e
        wide, high = wide * DEGREE_KM * np.cos(np.radians(middle)), high * DEGREE_KM
    else:
        wide, high = wide / 1000, high / 1000
    return float(max(1.0, np.pi * km**2 / (wide * high)))
