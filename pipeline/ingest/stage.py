"""The ingest stage: reads boundaries, counts and rasters; writes the aligned grid and bag store.

The stage reports all problems of the inputs at once. It imputes nothing: it leaves pixels that lack
a covariate or population out of their bags, and counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import numpy as np
import shapely
import zarr

from geo.errors import GridError, InputError, Problem, name_first
from geo.grid import Grid, plane_km
from geo.membership import Membership, membership, reproject
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config, work_dir
from pipeline.core.progress import Progress
from pipeline.ingest.checked import Checked, Look, checked, suspicions_logged
from pipeline.ingest.inputs import Inputs, open_inputs
from pipeline.ingest.pixel_gather import PixelGatherer
from pipeline.storage.local_commit import is_current, staged
from pipeline.storage.location import Place
from pipeline.storage.object_commit import zarr_at
from pipeline.store import aligned_grid
from pipeline.store.aligned_grid import (
    NO_COVARIATE,
    NO_POPULATION,
    NOBODY,
    GridSummary,
    InputLayers,
    Range,
    write_aligned_grid,
)
from pipeline.store.bag_store import BagStore, NewBags, write_bags
from pipeline.store.bag_writer import FORMAT as BAGS_FORMAT
from pipeline.store.bag_writer import VERSION as BAGS_VERSION

N_NAMED = 5  # areas named in one message
CUT_REPORTED = 0.01  # share of an area outside the grid to report; finer coastlines stay below it


@dataclass(frozen=True)
class Bags:
    """Usable pixels of each area, in CSR order.

    Attributes
    ----------
    area : (n_bag,) int64 array
        Row of each bag in the areas.
    offsets : (n_bag + 1,) int64 array
    pixel, fraction : (n,) int, float32 arrays
        As in :class:`geo.membership.Membership`.
    left_out : dict
        The store's attribute of that name (``docs/bag-store.md``).
    """

    area: np.ndarray
    offsets: np.ndarray
    pixel: np.ndarray
    fraction: np.ndarray
    left_out: dict[str, Any]


def ingest(context: StageContext) -> dict[str, Any]:
    """Write ``work/grid.zarr`` and ``work/bags.zarr``, unless they are up to date.

    Parameters
    ----------
    context : StageContext
        Finished stores of the same fingerprint are reused; without a fingerprint, none is.

    Returns
    -------
    dict
        Numbers of areas, pixels and blocks, total people and cases, and what was left out.

    Raises
    ------
    InputError
        With all problems of the inputs; nothing is written then.
    """
    config, progress, fingerprint = context.config, context.progress, context.fingerprint
    grid_path, bags_path = context.place("work/grid.zarr"), context.place("work/bags.zarr")
    if not (
        fingerprint
        and is_current(grid_path, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint)
        and is_current(bags_path, BAGS_FORMAT, BAGS_VERSION, fingerprint)
    ):
        with staged(grid_path, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) as staging:
            inputs, bags = _prepare(config, staging, progress, suspicions_logged(config, progress))
            _write_store(config, inputs, bags, staging, bags_path, fingerprint, progress)
    return _summary(BagStore.open(bags_path), progress)


def check(config: Config) -> list[Problem]:
    """Return all problems of the inputs; empty if ingest would succeed."""
    return check_inputs(config).problems


def check_inputs(config: Config) -> Checked:
    """Check and profile the inputs: runs the first part of ingest in a temporary directory."""
    return checked(config, _prepare)


def _prepare(
    config: Config, grid_path: Place, progress: Progress, look: Look
) -> tuple[Inputs, Bags]:
    """Check all inputs and write the aligned grid; raise InputError with all problems."""
    problems: list[Problem] = []
    inputs = open_inputs(config, problems)
    members = _members(inputs, config, problems, progress)
    bags = written = None
    if inputs.grid is not None and (inputs.covariates or inputs.population):
        with progress.task("align", sum(1 for _ in inputs.grid.tiles(aligned_grid.TILE))) as task:
            written = write_aligned_grid(
                grid_path,
                inputs.grid,
                InputLayers(inputs.covariates, inputs.population),
                members,
                everywhere=config.output.mask == "all",
                workers=n_thread(config),
                advance=task.advance,
            )
        problems.extend(written.problems)
        sound = _check_ranges(config, inputs, written, members is not None, problems)
        if members is not None and inputs.areas is not None:
            bags = _select(config, inputs, inputs.areas, members, written, problems, sound)
            _log_overlap(members, written, progress)
    look(inputs, members, written)
    if problems or bags is None:
        raise InputError(problems)
    return inputs, bags


def _members(
    inputs: Inputs, config: Config, problems: list[Problem], progress: Progress
) -> Membership | None:
    grid, areas = inputs.grid, inputs.areas
    if grid is None or areas is None or not inputs.located:
        return None
    usable = _measurable(areas)
    if not usable.any():
        return None
    place = f"areas ({config.areas.path})"
    try:
        geometry = reproject(areas.geometry[usable], grid)
        measured = membership(geometry, grid)
    except GridError:
        found = f"lie outside the CRS of the grid ({grid.crs.name})"
        remedy = "give a grid in a CRS that covers them, or correct their CRS"
        problems.append(Problem(place, found, remedy))
        return None
    rows = np.flatnonzero(usable)
    sizes = np.zeros(len(areas), np.int64)
    sizes[rows] = np.diff(measured.offsets)
    members = Membership(np.concatenate([[0], np.cumsum(sizes)]), measured.pixel, measured.fraction)
    if members.pixel.size == 0:
        # The bounds overlap, yet no polygon has a pixel.
        grid_place = f"grid.like ({config.grid.like})" if config.grid.like else "grid"
        remedy = "give the grid of a raster that covers them"
        problems.append(Problem(grid_place, "does not overlap the areas", remedy))
        return None
    _log_cut(members, areas["id"].to_numpy(), rows, geometry, grid, progress)
    return members


def _log_cut(
    members: Membership,
    ids: np.ndarray,
    rows: np.ndarray,
    geometry: gpd.GeoSeries,
    grid: Grid,
    progress: Progress,
) -> None:
    """Log the areas that reach past the grid: no bag has their people outside it."""
    covered = members.total(members.fraction)[rows]
    share = 1 - covered * grid.res[0] * grid.res[1] / shapely.area(np.asarray(geometry.array))
    cut = np.flatnonzero((share > CUT_REPORTED) & (covered > 0))
    if cut.size:
        named = name_first([f"{ids[rows[k]]} {100 * share[k]:.0f} %" for k in cut], N_NAMED)
        progress.log(
            f"ingest: {cut.size} areas reach past the grid; all their cases count, but not their "
            f"people outside it: {named}"
        )


def _measurable(areas: gpd.GeoDataFrame) -> np.ndarray:
    """Return which polygons are valid, (n_area,) bool; the others are reported already."""
    shapes = areas.geometry
    usable = shapes.notna() & ~shapes.is_empty & shapes.is_valid
    return (usable & shapes.geom_type.isin(["Polygon", "MultiPolygon"])).to_numpy()


def _log_overlap(members: Membership, written: GridSummary, progress: Progress) -> None:
    surface = float(members.fraction.sum(dtype=np.float64))
    over = surface - written.covered
    if over > 0.001 * surface:
        progress.log(
            f"ingest: areas overlap by {100 * over / surface:.2g} % of their surface; the people "
            "there count in each of them"
        )


@dataclass(frozen=True)
class SoundRasters:
    """Whether population and covariates are valid, so that areas can be checked against them."""

    people: bool
    covariates: bool


def _check_ranges(
    config: Config, inputs: Inputs, written: GridSummary, in_areas: bool, problems: list[Problem]
) -> SoundRasters:
    """Append a problem for each raster without values or with a single value."""
    reported = {problem.place for problem in problems}
    where = "inside the areas" if in_areas else "on the grid"
    covariates = True
    for name, layer in inputs.covariates.items():
        found = written.ranges[name]
        covariates &= found.n_value > 0 and layer.place not in reported
        wrong = _covariate_problem(found, where, layer.transform)
        if wrong is not None and layer.place not in reported:
            problems.append(Problem(layer.place, *wrong))
    population = inputs.population
    if population is None:
        return SoundRasters(config.population is None, covariates)
    people = population.place not in reported
    wrong = _population_problem(written.people, where)
    if wrong is not None and people:
        problems.append(Problem(population.place, *wrong))
    return SoundRasters(people and wrong is None, covariates)


def _covariate_problem(found: Range, where: str, transform: str) -> tuple[str, str] | None:
    """Return the problem of a covariate and its remedy."""
    if found.n_value == 0 and transform != "none":
        return (
            f"has no value {where} after its transform ({transform})",
            "check the file and its nodata value, or give another transform: log needs values "
            "above 0, log1p above -1, sqrt from 0",
        )
    if found.n_value == 0:
        return f"has no value {where} (nodata everywhere)", "check the file and its nodata value"
    if found.low == found.high:
        return f"is {found.low:.6g} on every pixel {where}", "leave it out: it explains nothing"
    return None


def _population_problem(found: Range, where: str) -> tuple[str, str] | None:
    """Return the problem of the population and its remedy."""
    if found.n_value == 0:
        return f"has no value {where} (nodata everywhere)", "check the file and its nodata value"
    if found.low < 0:
        return (
            f"has negative numbers of people (down to {found.low:.6g}) {where}",
            "set its nodata value, or correct it",
        )
    if found.high <= 0:
        return f"has no people {where}", "check that the file is the population"
    return None


def _select(
    config: Config,
    inputs: Inputs,
    areas: gpd.GeoDataFrame,
    members: Membership,
    written: GridSummary,
    problems: list[Problem],
    sound: SoundRasters,
) -> Bags:
    """Select the usable pixels of each area; append problems for areas without any."""
    state = written.state
    keep = state == 0
    n_area = members.n_bag
    size = members.total(keep).astype(np.int64)
    ids = areas["id"]
    y = None if inputs.counts is None else inputs.counts.to_numpy(np.float64)
    # An area without people and cases is left out; it is no problem.
    on_grid = np.diff(members.offsets) > 0
    inhabited = members.total(state & (NO_POPULATION | NOBODY) == 0) > 0
    skipped = on_grid & ~inhabited & (y == 0) if y is not None else np.zeros(n_area, bool)
    # Areas with an invalid polygon are reported already.
    empty = (size == 0) & ~skipped & _measurable(areas)
    has_cases = np.zeros(n_area, bool) if y is None else y != 0
    exposure = "population" if inputs.population is not None else "pixel area"
    labels = [f"area {i}" for i in ids]
    # Without a population every pixel counts as inhabited.
    known = sound.people or inputs.population is None
    uncovered = empty & inhabited & known & sound.covariates
    for area in np.flatnonzero(uncovered)[:N_NAMED]:
        labels[area] += f" (lacks {_missing_covariates(members, state, int(area), written)})"
    for chosen, found, remedy in (
        (
            empty & ~on_grid & inputs.is_run_grid,
            "outside the grid",
            "give a grid that covers all areas, or remove the area",
        ),
        (
            empty & on_grid & ~inhabited & has_cases & sound.people,
            f"cases, but no people ({exposure} missing or 0 on all its pixels)",
            "correct the population raster, the boundary or the count",
        ),
        (
            uncovered,
            "no usable pixel: a covariate is missing wherever people live",
            "give covariates that cover it, or remove the area",
        ),
    ):
        if chosen.any():
            named = name_first([labels[a] for a in np.flatnonzero(chosen)], N_NAMED)
            problems.append(Problem(f"areas ({config.areas.path})", f"{named}: {found}", remedy))
    used = np.flatnonzero((size > 0) & ~skipped)
    left_out = {
        "no_covariate": int((state & NO_COVARIATE > 0).sum()),
        "no_population": int((state & NO_POPULATION > 0).sum()),
        "nobody": int(((state & NOBODY > 0) & (state & NO_POPULATION == 0)).sum()),
        "by_covariate": {n: written.ranges[n].n_missing for n in inputs.covariates},
        "pixels": int((~keep).sum()),
        "of_pixels": int(keep.size),
        "weight": written.lost,
        "areas": [str(i) for i in ids[skipped]],
    }
    return Bags(
        used,
        np.concatenate([[0], np.cumsum(size[used])]).astype(np.int64),
        # Mostly every pixel is usable: then no second copy is needed.
        members.pixel if keep.all() else members.pixel[keep],
        members.fraction if keep.all() else members.fraction[keep],
        left_out,
    )


def _missing_covariates(
    members: Membership, state: np.ndarray, area: int, written: GridSummary
) -> str:
    """Return the names of the covariates that are missing where the people of an area live."""
    span = slice(int(members.offsets[area]), int(members.offsets[area + 1]))
    inhabited = state[span] & (NO_POPULATION | NOBODY) == 0
    group: Any = zarr.open_group(zarr_at(written.path), mode="r")
    pixel = members.pixel[span][inhabited]
    x, _ = aligned_grid.read_pixels(group, pixel, group["population"].shape[1])
    missing = ~np.isfinite(x)
    # Mostly one covariate is missing on all pixels; else name all that have a gap.
    which = missing.all(axis=0) if missing.all(axis=0).any() else missing.any(axis=0)
    return " and ".join(name for name, m in zip(written.names, which, strict=True) if m)


def _write_store(
    config: Config,
    inputs: Inputs,
    bags: Bags,
    grid_path: Place,
    bags_path: Place,
    fingerprint: str,
    progress: Progress,
) -> None:
    """Copy the pixels of every bag from the aligned grid to the bag store."""
    grid, areas, counts = inputs.grid, inputs.areas, inputs.counts
    if grid is None or areas is None or counts is None:
        message = "grid, areas and counts are required once the inputs are checked"
        raise RuntimeError(message)
    covariates = tuple(inputs.covariates)
    n_pix = int(bags.offsets[-1])
    with (
        PixelGatherer(bags, grid, grid_path, work_dir(config)) as gatherer,
        progress.task("bags", 2 * n_pix) as task,
    ):
        gatherer.spread(n_thread(config), task.advance)
        write_bags(
            bags_path,
            NewBags(
                sizes=np.diff(bags.offsets),
                rows=gatherer.rows,
                y=counts.to_numpy(np.float64)[bags.area],
                trials=None
                if inputs.tested is None
                else inputs.tested.to_numpy(np.float64)[bags.area],
                ids=[str(i) for i in areas["id"].to_numpy()[bags.area]],
                covariates=covariates,
                units=[inputs.covariates[name].source.unit or "" for name in covariates],
                grid=grid.to_dict(),
                coords_crs=plane_km(grid).to_wkt(),
                attrs={
                    "left_out": bags.left_out,
                    "name": config.name,
                    "weight_unit": "people" if inputs.population is not None else "km2",
                },
            ),
            seed=config.fit.seed,
            fingerprint=fingerprint,
            workers=n_thread(config),
            advance=task.advance,
        )


def _summary(store: BagStore, progress: Progress) -> dict[str, Any]:
    left = store.attrs["left_out"]
    reasons = {
        "no_covariate": "lack a covariate",
        "no_population": "lack population",
        "nobody": "have no people",
    }
    reasons_text = ", ".join(f"{left[key]:,} {word}" for key, word in reasons.items() if left[key])
    progress.log(
        f"ingest: {store.n_bag:,} areas, {store.n_pix:,} pixels in them"
        + (
            f"; left out {left['pixels']:,} of {left['of_pixels']:,}: {reasons_text}"
            if reasons_text
            else ""
        )
    )
    if left["weight"] > 0:
        unit = store.attrs["weight_unit"]
        progress.log(f"ingest: {left['weight']:,.0f} {unit} in pixels that lack a covariate")
    gaps = {name: n for name, n in left["by_covariate"].items() if n}
    if gaps:
        progress.log("ingest: missing pixels: " + ", ".join(f"{k} {n:,}" for k, n in gaps.items()))
    if left["areas"]:
        named = name_first(left["areas"], N_NAMED)
        progress.log(f"ingest: left out areas without people or cases: {named}")
    return {
        "n_areas": store.n_bag,
        "n_pixels": store.n_pix,
        "n_blocks": store.n_block,
        "covariates": list(store.covariates),
        "exposure_total": float(store.bag_weight.sum()),
        "cases_total": float(store.y.sum()),
        "left_out": left,
    }
