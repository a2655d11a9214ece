"""Open the input files of a run; check their tables and headers.

:mod:`pipeline.ingest.stage` checks the values of pixels. Each problem is reported once, without its
consequences, and hides no other: if the run's grid is unusable, a raster's grid replaces it for the
remaining checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.errors import GridError, InputError, Problem, name_first
from geo.core.suppressed import interval_text
from geo.grids.grid import Grid
from geo.sources.between import BetweenSource
from geo.sources.distance import DistanceSource, read_features
from geo.sources.raster_header import AS_IT_IS, BandChoice, RasterHeader, crs_text
from geo.sources.registry import open_source
from geo.sources.repair import Repairs
from geo.sources.source import Source
from pipeline.config.covariate_schema import Covariate
from pipeline.config.layer_schema import Population
from pipeline.config.level_schema import COUNTRY, TRAINING
from pipeline.config.schema import Config
from pipeline.ingest.counted import area_changes, counted_at
from pipeline.ingest.extent import Extent
from pipeline.ingest.misplaced import elsewhere, is_misplaced
from pipeline.ingest.table_layers import AreaTables
from pipeline.ingest.without_counts import describe_missing
from pipeline.responses.table import Columns
from pipeline.store.aligned_grid import Layer
from pipeline.store.level_areas import (
    areas_of,
    bare_level,
    check_name,
    nested_order,
    read_level_frames,
    read_targets,
    target_column,
    titles_of,
)

N_NAMED = 5  # areas that a problem names
N_PIX_MAX = 10**10  # of a grid; beyond it the resolution is probably not in units of the CRS
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
    responses : Columns
        By area; NaN for an area without one, or where a problem was reported.
    covariates : dict of Layer
    population : Layer or None
    opened : tuple of Source
        All rasters that could be opened, misplaced ones included.
    repairs : Repairs
        What `areas.repair` did.
    levels : dict of GeoDataFrame
        Areas of each level of ``output.areas`` whose file has no problem.
    """

    grid: Grid | None
    is_run_grid: bool
    areas: gpd.GeoDataFrame | None
    located: bool
    responses: Columns
    covariates: dict[str, Layer]
    population: Layer | None
    opened: tuple[Source, ...] = ()
    repairs: Repairs = field(default_factory=Repairs)
    levels: dict[str, gpd.GeoDataFrame] = field(default_factory=dict)


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
    repairs = Repairs()
    areas = areas_of(config.areas, "areas", problems, repairs, partial=True)
    given = Columns()
    if areas is not None:
        changes = area_changes(config, areas, problems)
        given = counted_at(config, areas, repairs, changes, problems).columns
        _check_folds(config, len(areas), problems)
    own: list[Problem] = []
    covariates, population = open_layers(config, [*config.covariates, "population"], own)
    layers = [*([population] if population else []), *covariates.values()]
    opened = tuple(layer.source for layer in layers)
    extent = None if areas is None else _extent(areas)
    if areas is not None and extent is not None:
        rasters = {layer.place.partition(" (")[2]: layer.source for layer in layers}
        wrong = elsewhere(f"areas ({config.areas.path})", areas, extent, rasters)
        if wrong is not None:  # where they are is not known, and nothing else is to blame
            problems.append(wrong)
            areas, extent = areas.set_crs(None, allow_override=True), None
            covariates, population = {}, None
    levels = _check_levels(config, areas, problems)
    problems.extend(own)
    # A misplaced raster is reported here, and takes no part in further checks.
    for name, layer in list(covariates.items()):
        if is_misplaced(layer.place, layer.source, extent, problems):
            del covariates[name]
    if population and is_misplaced(population.place, population.source, extent, problems):
        population = None
    grid = _grid(config, extent, problems)
    is_run_grid = grid is not None
    if areas is not None and grid is not None and extent is not None:
        covariates = on_grid(config, [*config.covariates], grid, areas, covariates, problems)
    if grid is None:
        layers = [*([population] if population else []), *covariates.values()]
        grid = _substitute_grid([layer.source for layer in layers], extent)
    return Inputs(
        grid,
        is_run_grid,
        areas,
        extent is not None,
        given,
        covariates,
        population,
        opened,
        repairs,
        levels,
    )


def _extent(areas: gpd.GeoDataFrame) -> Extent | None:
    """Return where areas lie; None if that is not known."""
    known = areas.crs is not None and np.isfinite(areas.total_bounds).all()
    return Extent(areas) if known else None


def on_grid(
    config: Config,
    names: Sequence[str],
    grid: Grid,
    areas: gpd.GeoDataFrame | AreaTables | None,
    opened: Mapping[str, Layer],
    problems: list[Problem],
) -> dict[str, Layer]:
    """Return covariates with those that are made on the grid among them, in their order.

    Parameters
    ----------
    config : Config
    names : sequence of str
        The covariates wanted.
    grid : Grid
        Of the run.
    areas : GeoDataFrame, AreaTables or None
        Without them tables of areas are left out; distances are not.
    opened : mapping of str to Layer
        Those that are rasters.
    problems : list of Problem
        Appended to.
    """
    tables = areas
    if isinstance(areas, gpd.GeoDataFrame):
        tables = AreaTables(areas, area_changes(config, areas, []))
    found = dict(opened)
    for name, spec in config.covariates.items():
        layer = None
        if name in names and spec.kind == "table" and tables is not None:
            layer = tables.layer(config, name, grid, problems)
        elif name in names and spec.kind == "distance":
            layer = _distance(name, spec, grid, problems)
        if layer is not None:
            found[name] = layer
    return {name: found[name] for name in config.covariates if name in found}


def _distance(name: str, spec: Covariate, grid: Grid, problems: list[Problem]) -> Layer | None:
    place = f"covariates.{name} ({spec.path})"
    try:
        source = DistanceSource(spec.path, grid, read_features(spec.path, spec.layer, spec.where))
    except InputError as error:
        problems.extend(replace(each, place=place) for each in error.problems)
        return None
    return Layer(place, source, "nearest", spec.transform)


def open_layers(
    config: Config, names: Sequence[str], problems: list[Problem]
) -> tuple[dict[str, Layer], Layer | None]:
    """Open covariates by their names, and the population if it is named ``population``.

    Those that are made on the grid are left out: see :func:`on_grid`.

    Parameters
    ----------
    config : Config
    names : sequence of str
    problems : list of Problem
        Appended to.
    """
    covariates = {}
    for name, covariate in config.covariates.items():
        place = f"covariates.{name}"
        if name not in names or covariate.kind in ("table", "distance"):
            continue
        source = open_source(covariate.path, place, problems, covariate.choice, covariate.header)
        if source is not None:
            covariates[name] = Layer(
                f"{place} ({covariate.path})", source, covariate.resampling, covariate.transform
            )
    population, spec = None, config.population
    if spec is not None and "population" in names:
        source = _people(config, spec, problems)
        if source is not None:
            population = Layer(f"population ({spec.path})", source, "sum", density=spec.density)
    return covariates, population


def _people(config: Config, spec: Population, problems: list[Problem]) -> Source | None:
    """Open the people of the configuration's period: of one file, or between those of two years."""
    later = config.later_people()
    each = [spec] if later is None else [spec, later[0]]
    opened = [open_source(own.path, "population", problems, own.choice, own.header) for own in each]
    sources = [source for source in opened if source is not None]
    if len(sources) < len(each):
        return None
    if later is None:
        return sources[0]
    try:
        return BetweenSource(sources[0], sources[1], later[1])
    except InputError as error:
        problems.extend(
            replace(each, place=f"population ({each.place})") for each in error.problems
        )
        return None


def _check_folds(config: Config, n_area: int, problems: list[Problem]) -> None:
    """Append a problem if more folds are given than there are areas; a default is lowered."""
    folds, given = config.evaluate.folds, "folds" in config.evaluate.model_fields_set
    if given and isinstance(folds, int) and config.evaluate.schemes and folds > n_area:
        found = f"{folds} folds of {n_area} areas"
        remedy = f"give {n_area} folds at most, or schemes: [] for no cross-validation"
        problems.append(Problem("evaluate.folds", found, remedy))


def _check_levels(
    config: Config, areas: gpd.GeoDataFrame | None, problems: list[Problem]
) -> dict[str, gpd.GeoDataFrame]:
    """Return the areas of ``output.areas``; append their problems.

    They are found here, so that a run does not end before its tables.
    """
    column, where = target_column(config, TRAINING), f"areas ({config.areas.path})"
    if areas is not None:
        check_name(areas, config.areas.name, where, problems)
    if areas is not None and column is not None:
        read_targets(areas, column, where, problems)
    frames = read_level_frames(config, problems)
    if areas is None or areas.crs is None or not np.isfinite(areas.total_bounds).all():
        return frames
    for number, spec in enumerate(config.output.areas):
        if spec.level in frames and not _touches(frames[spec.level], areas):
            place = f"output.areas[{number}] ({spec.path})"
            found = "no area of this level is where the areas of the training are"
            remedy = "give areas of the same country, or assign the CRS that they really are in"
            problems.append(Problem(place, found, remedy))
            return frames
    _check_nesting(config, {TRAINING: areas, **frames}, problems)
    return frames


def _check_nesting(
    config: Config, frames: dict[str, gpd.GeoDataFrame], problems: list[Problem]
) -> None:
    """Append a problem if levels to reconcile do not nest."""
    spec = config.output.reconcile
    if spec is None or any(name not in frames for name in spec.levels if name != COUNTRY):
        return
    plane = frames[TRAINING].estimate_utm_crs()
    try:
        names = {TRAINING: config.areas.name} | {a.level: a.name for a in config.output.areas}
        levels = [name for name in spec.levels if name in frames]
        nested_order([bare_level(n, frames[n], plane, names[n]) for n in levels])
    except InputError as error:
        problems.extend(error.problems)


def _touches(frame: gpd.GeoDataFrame, areas: gpd.GeoDataFrame) -> bool:
    """Return whether the bounds of two sets of areas overlap, in degrees."""
    own, other = (each.geometry.to_crs("OGC:CRS84").total_bounds for each in (frame, areas))
    return bool(
        own[0] <= other[2] and other[0] <= own[2] and own[1] <= other[3] and other[1] <= own[3]
    )


def _grid(config: Config, extent: Extent | None, problems: list[Problem]) -> Grid | None:
    spec = config.grid
    if spec.like is None:
        return _grid_over_areas(str(spec.crs), float(spec.resolution or 0), extent, problems)
    place = f"grid.like ({spec.like})"
    # Mostly another key names this raster, too, and its problems are reported there.
    reported = {problem.found for problem in problems if problem.place.endswith(f" ({spec.like})")}
    found: list[Problem] = []
    source = open_source(spec.like, "grid.like", found, *_declared(config, spec.like))
    if source is not None and not source.north_up:
        remedy = "give a north-up raster (gdalwarp), or grid: {crs: ..., resolution: ...}"
        found.append(Problem(place, "is rotated or south-up", remedy))
    elif source is not None and not is_misplaced(place, source, extent, found):
        n_row, n_col = source.shape
        if n_row * n_col > N_PIX_MAX:
            what = f"makes {n_row:,} x {n_col:,} pixels"
            remedy = "give a raster cut to the areas, or grid: {crs: ..., resolution: ...}"
            found.append(Problem(place, what, remedy))
    problems.extend(problem for problem in found if problem.found not in reported)
    return None if source is None or found else source.grid


def _declared(config: Config, path: str) -> tuple[BandChoice, RasterHeader]:
    """Return what another key says of the raster that gives the grid: its band, and its header."""
    keys = [*([config.population] if config.population else []), *config.covariates.values()]
    series, document = config.series, config.document
    if series is not None and document is not None and "population" in config.moving():
        first = config.at(series.periods[0]).population
        if first is not None and document.values.get("grid") is None:
            keys, path = [first], first.path  # of any period, the grid is that of the first
    same = [key for key in keys if key.path == path]
    header = next((key.header for key in same if key.header.crs is not None), AS_IT_IS)
    # All bands of a file have its grid.
    choice = same[0].choice if same else BandChoice(1)
    return replace(choice, share=None, terrain=None), header


def _grid_over_areas(
    crs: str, resolution: float, extent: Extent | None, problems: list[Problem]
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


def _substitute_grid(sources: list[Source], extent: Extent | None) -> Grid | None:
    """Return the grid of the raster that covers most of the areas, the first of equals."""
    # Without areas, the whole raster will be read.
    limit = N_PIX_PROBE if extent is None else N_PIX_MAX
    usable = [each for each in sources if each.north_up and each.grid.n_pix <= limit]
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
    areas, given = inputs.areas, inputs.responses
    y = given.counts
    if areas is not None:
        crs = "no CRS" if areas.crs is None else areas.crs.to_string()
        found["areas"] = f"{len(areas):,} areas, {crs}"
        repaired = inputs.repairs.lines()
        if repaired:
            found["areas.repair"] = "; ".join(repaired)
    if config.period is not None:
        found["period"] = config.period
    response = config.response_kind
    if y is not None:
        known = given.known
        found[config.model.responses] = response.described(y if known is None else known)
        if given.margins is not None:
            found[config.model.responses] += f"; {suppressed_text(y, given.margins)}"
    if given.weights is not None:
        total = f"{given.weights.sum():,.6g} {response.weight_unit} in all"
        found[f"{config.model.responses}.weight"] = total
    if y is not None and areas is not None and y.isna().any():
        absent = list(titles_of(areas, config.areas.name)[y.isna().to_numpy()])
        found[config.model.responses] += f"; {describe_missing(absent, len(y), config)}"
    if inputs.population is not None:
        found["population"] = _describe_raster(inputs.population.source)
    for name, layer in inputs.covariates.items():
        found[f"covariates.{name}"] = _describe_raster(layer.source)
    return found


def suppressed_text(y: pd.Series, margins: pd.Series) -> str:
    """Say how many counts are suppressed, and between what they are.

    Parameters
    ----------
    y, margins : (n_area,) Series
        Of :class:`Columns`.
    """
    some = (margins > 0) & y.notna()
    ends = sorted(set(zip((y - margins)[some], (y + margins)[some], strict=True)))
    named = name_first([interval_text(*each) for each in ends], N_NAMED)
    return f"{int(some.sum()):,} of them suppressed ({named})"


def _describe_raster(source: Source) -> str:
    n_row, n_col = source.shape
    unit = f", {unit}" if (unit := source.describe().unit) else ""
    return f"{n_row} x {n_col} pixels, {crs_text(source.crs)}{unit}"
