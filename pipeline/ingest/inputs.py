"""Open the input files of a run; check their tables and headers.

:mod:`pipeline.ingest.stage` checks the values of pixels. Each problem is reported once, without its
consequences, and hides no other: if the run's grid is unusable, a raster's grid replaces it for the
remaining checks.
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
N_PIX_MAX = 10**10  # of a grid; beyond it the resolution is probably not in units of the CRS
N_SOURCE_MAX = 10**11  # of a raster over the areas: more take days to read
N_PIX_PROBE = 10**8  # of a substitute grid if there are no areas to restrict it


@dataclass(frozen=True)
class Inputs:
    """The usable contents of the input files.

    Attributes
    ----------
    grid : Grid or None
        The run's grid; a substitute for checks if not ``is_run_grid``.
    is_run_grid : bool
    areas : GeoDataFrame or None
        If problems were reported, ids may be repeated and polygons invalid.
    located : bool
        Whether the location of the areas is known.
    counts : Series or None
        Cases or labels by area; NaN where a problem was reported.
    covariates : dict of Layer
    population : Layer or None
    tested : Series or None
        Numbers tested by area, if the configuration names their column.
    """

    grid: Grid | None
    is_run_grid: bool
    areas: gpd.GeoDataFrame | None
    located: bool
    counts: pd.Series | None
    covariates: dict[str, Layer]
    population: Layer | None
    tested: pd.Series | None = None


def open_inputs(config: Config, problems: list[Problem]) -> Inputs:
    """Open every input and collect the problems of each.

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
    extent = None
    if areas is not None and areas.crs is not None and np.isfinite(areas.total_bounds).all():
        extent = _Extent(areas)
    # A misplaced raster is reported here, and takes no part in further checks.
    for name, layer in list(covariates.items()):
        if _is_misplaced(layer.place, layer.source, extent, problems):
            del covariates[name]
    if population and _is_misplaced(population.place, population.source, extent, problems):
        population = None
    grid = _grid(config, extent, problems)
    is_run_grid = grid is not None
    if grid is None:
        layers = [*([population] if population else []), *covariates.values()]
        grid = _substitute_grid([layer.source for layer in layers], extent)
    return Inputs(
        grid, is_run_grid, areas, extent is not None, counts, covariates, population, tested
    )


class _Extent:
    """Bounds of the areas in any CRS, cached by CRS."""

    def __init__(self, areas: gpd.GeoDataFrame) -> None:
        self.areas = areas
        self._cache: dict[str, Bounds] = {}

    def bounds(self, crs: Any) -> Bounds:
        key = crs if isinstance(crs, str) else crs.to_wkt()
        if key not in self._cache:
            west, south, east, north = self.areas.to_crs(crs).total_bounds
            self._cache[key] = (float(west), float(south), float(east), float(north))
        return self._cache[key]

    def is_disjoint(self, source: RasterSource) -> bool:
        """Return whether a north-up raster lies wholly outside the bounds of the areas."""
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        return west >= right or east <= left or south >= top or north <= bottom

    def read_share(self, source: RasterSource) -> float:
        """Return the share of a north-up raster's pixels inside the bounds of the areas."""
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        width = max(min(east, right) - max(west, left), 0.0)
        height = max(min(north, top) - max(south, bottom), 0.0)
        return width * height / ((right - left) * (top - bottom))

    def covered_share(self, source: RasterSource) -> float:
        """Return the share of the areas' bounds inside those of a north-up raster."""
        west, south, east, north = self.bounds(source.crs)
        left, bottom, right, top = source.grid.bounds
        width = min(east, right) - max(west, left)
        height = min(north, top) - max(south, bottom)
        whole = (east - west) * (north - south)
        return max(width, 0.0) * max(height, 0.0) / whole if whole > 0 else 0.0


def _responses(config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]) -> Any:
    spec = config.response
    if isinstance(spec, Labels):
        id_column = spec.id or config.areas.id
        return read_labels(spec.path, areas, id_column, spec.value, problems, partial=True)
    signed = config.model.response.responses[0] < 0
    n_before = len(problems)
    counts = read_counts(
        spec.path, areas, spec.id or config.areas.id, spec.value, problems, partial=True,
        row_filter=_period_filter(config), signed=signed,
    )  # fmt: skip
    all_zero = counts is not None and not signed and not (counts > 0).any()
    if all_zero and len(problems) == n_before:
        place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
        found = f"column {spec.value!r} is 0 for every area"
        problems.append(Problem(place, found, "give the column of the cases"))
    return counts


def _period_filter(config: Config) -> tuple[str, str] | None:
    """Return column and text of the counts' rows of the run's period; None for all rows."""
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
        row_filter=_period_filter(config),
    )  # fmt: skip
    problems.extend(problem for problem in found if problem not in problems)
    if tested is None:
        return None
    over = (counts > tested).to_numpy()
    if over.any():
        place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
        each = [f"{i} ({counts[i]:g} of {tested[i]:g})" for i in counts.index[over]]
        more = f"more positives than tested in {name_first(each, N_NAMED)}"
        problems.append(Problem(place, more, "correct the counts or the numbers tested"))
    return tested


def _is_misplaced(
    place: str, source: RasterSource, extent: _Extent | None, problems: list[Problem]
) -> bool:
    """Return whether a raster misses the areas or the Earth; append a problem if so."""
    if not source.north_up:
        return False
    west, south, east, north = source.grid.bounds
    remedy = "assign the CRS that it really is in (crs: EPSG:xxxx, beside its path)"
    degrees = source.crs is not None and source.crs.is_geographic
    if degrees and (west < -361 or east > 361 or south < -91 or north > 91):
        found = (
            f"spans {_text(source.grid.bounds)} (west south east north), which are not degrees, "
            "but its CRS is geographic"
        )
        problems.append(Problem(place, found, remedy))
        return True
    if extent is not None and extent.is_disjoint(source):
        found = (
            f"does not overlap the areas: it spans {_text(source.grid.bounds)}, they span "
            f"{_text(extent.bounds(source.crs))} (west south east north)"
        )
        problems.append(Problem(place, found, f"give a raster of the same place, or {remedy}"))
        return True
    n_read = source.grid.n_pix
    if extent is not None:
        n_read = round(n_read * extent.read_share(source))
    if n_read > N_SOURCE_MAX:
        found = f"has {n_read:,} pixels over the areas"
        problems.append(Problem(place, found, "give a coarser raster (gdalwarp -r average)"))
        return True
    return False


def _text(bounds: Bounds) -> str:
    return " ".join(f"{value:.6g}" for value in bounds)


def _grid(config: Config, extent: _Extent | None, problems: list[Problem]) -> Grid | None:
    spec = config.grid
    if spec.like is None:
        return _grid_over_areas(str(spec.crs), float(spec.resolution or 0), extent, problems)
    place = f"grid.like ({spec.like})"
    # Mostly another key names this raster, too, and its problems are reported there.
    reported = {problem.found for problem in problems if problem.place.endswith(f" ({spec.like})")}
    found: list[Problem] = []
    source = open_raster(spec.like, "grid.like", found)
    if source is not None and not source.north_up:
        remedy = "give a north-up raster (gdalwarp), or grid: {crs: ..., resolution: ...}"
        found.append(Problem(place, "is rotated or south-up", remedy))
    elif source is not None and not _is_misplaced(place, source, extent, found):
        n_row, n_col = source.shape
        if n_row * n_col > N_PIX_MAX:
            what = f"makes {n_row:,} x {n_col:,} pixels"
            remedy = "give a raster cut to the areas, or grid: {crs: ..., resolution: ...}"
            found.append(Problem(place, what, remedy))
    problems.extend(problem for problem in found if problem.found not in reported)
    return None if source is None or found else source.grid


def _grid_over_areas(
    crs: str, resolution: float, extent: _Extent | None, problems: list[Problem]
) -> Grid | None:
    """Return the grid of a CRS and resolution that covers the areas."""
    if extent is None:
        return None
    try:
        grid = Grid.from_bounds(crs, extent.bounds(crs), resolution)
    except GridError:
        found = f"the areas lie outside {crs}"
        problems.append(Problem("grid.crs", found, "give a CRS that covers them"))
        return None
    unit = grid.crs.axis_info[0].unit_name
    remedy = f"give the size of a pixel in units of {crs} ({unit})"
    if grid.n_pix > N_PIX_MAX:
        found = f"{resolution:g} makes {grid.shape[0]:,} x {grid.shape[1]:,} pixels"
        problems.append(Problem("grid.resolution", found, remedy))
        return None
    if grid.n_pix == 1:
        found = f"{resolution:g} puts all areas into one pixel"
        problems.append(Problem("grid.resolution", found, remedy))
        return None
    return grid


def _substitute_grid(sources: list[RasterSource], extent: _Extent | None) -> Grid | None:
    """Return the grid of the raster that covers most of the areas, the first of equals."""
    usable = [source for source in sources if source.north_up]
    if extent is None:  # the whole raster will be read
        usable = [source for source in usable if source.grid.n_pix <= N_PIX_PROBE]
    return (
        max(usable, key=extent.covered_share if extent else lambda _: 0.0).grid if usable else None
    )


def describe_inputs(config: Config, inputs: Inputs) -> dict[str, str]:
    """Describe the result of `open_inputs`.

    Returns
    -------
    dict of str to str
        By configuration key; for a time series also the ``period`` that the run maps.
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
        total = f"{y.sum():,.0f} in all, " if config.model.response.counts else ""
        found["counts"] = f"{total}{y.min():g} to {y.max():g}"
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
