"""The input files of a run, opened and checked as far as their headers and tables tell.

:mod:`pipeline.ingest.stage` checks what depends on the values of pixels. Each problem is reported
once, without its consequences, and none hides another: where the run's grid is unusable, the rest
is checked on that of a raster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.boundary import read_areas
from geo.counts import read_counts, read_labels
from geo.errors import GridError, Problem, name_first
from geo.grid import Bounds, Grid
from geo.raster import RasterSource, open_raster
from pipeline.config.input_schema import Labels
from pipeline.config.schema import Config
from pipeline.store.aligned_grid import Layer

N_NAMED = 5  # areas that a problem names
N_PIX_MAX = 10**10  # of a grid; more is a resolution in other units than those of the CRS
N_PIX_PROBE = 10**8  # of a grid on which to check rasters where no area says where to look


@dataclass(frozen=True)
class Inputs:
    """What the input files hold, as far as it is usable.

    Attributes
    ----------
    grid : Grid or None
        The run's; or, if not ``own_grid``, another on which the rest can be checked.
    own_grid : bool
    areas : GeoDataFrame or None
        With problems told: ids may come twice, polygons be broken.
    located : bool
        Whether it is known where the areas are.
    counts : Series or None
        Cases or labels by area; NaN where a problem was told.
    covariates : dict of Layer
    population : Layer or None
    tested : Series or None
        Numbers tested by area, where the configuration names their column.
    """

    grid: Grid | None
    own_grid: bool
    areas: gpd.GeoDataFrame | None
    located: bool
    counts: pd.Series | None
    covariates: dict[str, Layer]
    population: Layer | None
    tested: pd.Series | None = None


def open_inputs(config: Config, problems: list[Problem]) -> Inputs:
    """Open every input, collecting what is wrong with each.

    Parameters
    ----------
    config : Config
    problems : list of Problem
        Appended to.

    Returns
    -------
    Inputs
    """
    areas = read_areas(
        config.areas.path, config.areas.layer, config.areas.id, "areas", problems, partial=True
    )
    counts = None if areas is None else _responses(config, areas, problems)
    tested = None if areas is None or counts is None else _tested(config, areas, counts, problems)
    covariates = {}
    for name, covariate in config.covariates.items():
        place = f"covariates.{name}"
        source = open_raster(covariate.path, place, problems, covariate.band)
        if source is not None:
            covariates[name] = Layer(
                f"{place} ({covariate.path})", source, covariate.resampling, covariate.transform
            )
    population = None
    if config.population is not None:
        spec = config.population
        source = open_raster(spec.path, "population", problems)
        if source is not None:
            population = Layer(f"population ({spec.path})", source, "sum", density=spec.density)
    where = None
    if areas is not None and areas.crs is not None and np.isfinite(areas.total_bounds).all():
        where = _Where(areas)
    # A raster that lies elsewhere is told, and keeps out of what is checked further.
    for name, layer in list(covariates.items()):
        if _elsewhere(layer.place, layer.source, where, problems):
            del covariates[name]
    if population and _elsewhere(population.place, population.source, where, problems):
        population = None
    grid = _grid(config, where, problems)
    own_grid = grid is not None
    if grid is None:
        layers = [*([population] if population else []), *covariates.values()]
        grid = _stand_in([layer.source for layer in layers], where)
    return Inputs(grid, own_grid, areas, where is not None, counts, covariates, population, tested)


class _Where:
    """Bounds of the areas in any CRS, each looked up once."""

    def __init__(self, areas: gpd.GeoDataFrame) -> None:
        self.areas = areas
        self._known: dict[str, Bounds] = {}

    def bounds(self, crs: Any) -> Bounds:
        key = crs if isinstance(crs, str) else crs.to_wkt()
        if key not in self._known:
            west, south, east, north = self.areas.to_crs(crs).total_bounds
            self._known[key] = (float(west), float(south), float(east), float(north))
        return self._known[key]

    def apart(self, source: RasterSource) -> bool:
        """Tell whether a raster lies wholly outside the bounds of the areas."""
        if not source.north_up:
            return False
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        return west >= right or east <= left or south >= top or north <= bottom

    def seen(self, source: RasterSource) -> float:
        """Share of the bounds of the areas inside those of a north-up raster."""
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        wide = min(east, right) - max(west, left)
        high = min(north, top) - max(south, bottom)
        whole = (east - west) * (north - south)
        return max(wide, 0.0) * max(high, 0.0) / whole if whole > 0 else 0.0


def _responses(config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]) -> Any:
    spec = config.response
    if isinstance(spec, Labels):
        id_column = spec.id or config.areas.id
        return read_labels(spec.path, areas, id_column, spec.value, problems, partial=True)
    n_before = len(problems)
    counts = read_counts(
        spec.path, areas, spec.id or config.areas.id, spec.value, problems, partial=True,
        only=_only(config), signed=_signed(config),
    )  # fmt: skip
    nothing = counts is not None and not _signed(config) and not (counts > 0).any()
    if nothing and len(problems) == n_before:
        place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
        found = f"column {spec.value!r} is 0 for every area"
        problems.append(Problem(place, found, "give the column of the cases"))
    return counts


def _signed(config: Config) -> bool:
    """Tell whether the areas' responses may be negative."""
    return config.model.response.responses[0] < 0


def _only(config: Config) -> tuple[str, str] | None:
    """Which rows of the counts are of the run's period; None for all."""
    column = None if config.counts is None else config.counts.period
    return None if column is None or config.period is None else (column, config.period)


def _tested(
    config: Config, areas: gpd.GeoDataFrame, counts: pd.Series, problems: list[Problem]
) -> pd.Series | None:
    spec = config.counts
    if spec is None or spec.tested is None:
        return None
    found: list[Problem] = []
    tested = read_counts(
        spec.path, areas, spec.id or config.areas.id, spec.tested, found, partial=True,
        only=_only(config),
    )  # fmt: skip
    told = set(problems)  # what is wrong with ids was told of the counts
    problems.extend(problem for problem in found if problem not in told)
    if tested is None:
        return None
    over = (counts > tested).to_numpy()
    if over.any():
        place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
        each = [f"{i} ({counts[i]:g} of {tested[i]:g})" for i in counts.index[over]]
        what = f"more positives than tested in {name_first(each, N_NAMED)}"
        problems.append(Problem(place, what, "correct the counts or the numbers tested"))
    return tested


def _elsewhere(
    place: str, source: RasterSource, where: _Where | None, problems: list[Problem]
) -> bool:
    """Find a raster that does not lie where the areas are, or nowhere on Earth."""
    if not source.north_up:
        return False
    west, south, east, north = source.grid.bounds
    remedy = "assign the CRS that it really is in (gdal_edit.py -a_srs)"
    degrees = source.crs is not None and source.crs.is_geographic
    if degrees and (west < -361 or east > 361 or south < -91 or north > 91):
        found = (
            f"spans {_text(source.grid.bounds)} (west south east north), which are no degrees, "
            "though its CRS is geographic"
        )
        problems.append(Problem(place, found, remedy))
        return True
    if where is not None and where.apart(source):
        found = (
            f"does not overlap the areas: it spans {_text(source.grid.bounds)}, they span "
            f"{_text(where.bounds(source.crs))} (west south east north)"
        )
        problems.append(Problem(place, found, f"give a raster of the same place, or {remedy}"))
        return True
    return False


def _text(bounds: Bounds) -> str:
    return " ".join(f"{value:.6g}" for value in bounds)


def _grid(config: Config, where: _Where | None, problems: list[Problem]) -> Grid | None:
    spec = config.grid
    if spec.like is None:
        return _grid_of(str(spec.crs), float(spec.resolution or 0), where, problems)
    place = f"grid.like ({spec.like})"
    # The raster mostly is one that another key names too, and was told there.
    told = {problem.found for problem in problems if problem.place.endswith(f" ({spec.like})")}
    found: list[Problem] = []
    source = open_raster(spec.like, "grid.like", found)
    if source is not None and not source.north_up:
        remedy = "give a north-up raster (gdalwarp), or grid: {crs: ..., resolution: ...}"
        found.append(Problem(place, "is rotated or south-up", remedy))
    elif source is not None:
        _elsewhere(place, source, where, found)
    problems.extend(problem for problem in found if problem.found not in told)
    return None if source is None or found else source.grid


def _grid_of(
    crs: str, resolution: float, where: _Where | None, problems: list[Problem]
) -> Grid | None:
    """Lay a grid of a CRS and resolution over the areas."""
    if where is None:
        return None
    try:
        grid = Grid.from_bounds(crs, where.bounds(crs), resolution)
    except GridError:
        found = f"the areas have no place in {crs}"
        problems.append(Problem("grid.crs", found, "give the CRS of a map that shows them"))
        return None
    unit = grid.crs.axis_info[0].unit_name
    remedy = f"give the size of a pixel in units of {crs} ({unit})"
    if grid.n_pix > N_PIX_MAX:
        found = f"{resolution:g} makes {grid.shape[0]:,} x {grid.shape[1]:,} pixels"
        problems.append(Problem("grid.resolution", found, remedy))
        return None
    if grid.n_pix == 1:
        found = f"{resolution:g} makes one pixel of all areas"
        problems.append(Problem("grid.resolution", found, remedy))
        return None
    return grid


def _stand_in(sources: list[RasterSource], where: _Where | None) -> Grid | None:
    """Return the grid of the raster that shows most of the areas, the first of equals."""
    usable = [source for source in sources if source.north_up]
    if where is None:  # rasters are read whole
        usable = [source for source in usable if source.grid.n_pix <= N_PIX_PROBE]
    return max(usable, key=where.seen if where else lambda _: 0.0).grid if usable else None


def describe_inputs(config: Config, inputs: Inputs) -> dict[str, str]:
    """Describe the inputs that `open_inputs` opened.

    Parameters
    ----------
    config : Config
    inputs : Inputs
        Its own.

    Returns
    -------
    dict of str to str
        By configuration key; of a time series also the ``period`` that the run maps.
    """
    found: dict[str, str] = {}
    areas, y = inputs.areas, inputs.counts
    if areas is not None:
        crs = "no CRS" if areas.crs is None else areas.crs.to_string()
        found["areas"] = f"{len(areas):,} areas, {crs}"
    if config.period is not None:
        found["period"] = config.period
    if y is not None and config.labels is not None:
        found["labels"] = f"{int(y.sum()):,} of {len(y):,} areas are positive"
    elif y is not None:
        found["counts"] = f"{y.sum():,.0f} in all, {y.min():g} to {y.max():g}"
    if inputs.population is not None:
        found["population"] = _describe_raster(inputs.population.source)
    for name, layer in inputs.covariates.items():
        found[f"covariates.{name}"] = _describe_raster(layer.source)
    return found


def _describe_raster(source: RasterSource) -> str:
    n_row, n_col = source.shape
    unit = f", {source.unit}" if source.unit else ""
    crs = "no CRS"
    if source.crs is not None:
        authority = source.crs.to_authority()
        crs = ":".join(authority) if authority else source.crs.name
    return f"{n_row} x {n_col} pixels, {crs}{unit}"
