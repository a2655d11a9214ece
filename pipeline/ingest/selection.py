"""The usable pixels of each area, and the problems of areas and rasters that leave none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import geopandas as gpd
import numpy as np
import zarr

from geo.core.columns import AREA_ID
from geo.core.errors import Problem, name_first
from geo.grids.membership import Membership
from pipeline.config.schema import Config
from pipeline.ingest.extent import measurable
from pipeline.ingest.inputs import Inputs
from pipeline.storage.object_commit import zarr_at
from pipeline.store import aligned_grid
from pipeline.store.aligned_grid import (
    NO_COVARIATE,
    NO_POPULATION,
    NOBODY,
    GridSummary,
    Range,
)
from pipeline.store.level_areas import titles_of

N_NAMED = 5  # areas named in one message


@dataclass(frozen=True)
class Bags:
    """Usable pixels of each area, in CSR order.

    Attributes
    ----------
    area : (n_bag,) int64 array
        Row of each bag in the areas.
    offsets : (n_bag + 1,) int64 array
    pixel, fraction : (n,) int, float32 arrays
        As in :class:`geo.grids.membership.Membership`.
    left_out, balance : dict
        The store's attributes of these names (``docs/bag-store.md``).
    points : Placed or None
        Points beside the areas, with their pixels.
    """

    area: np.ndarray
    offsets: np.ndarray
    pixel: np.ndarray
    fraction: np.ndarray
    left_out: dict[str, Any]
    balance: dict[str, Any] = field(default_factory=dict)
    points: Any = None


@dataclass(frozen=True)
class SoundRasters:
    """Whether population and covariates are valid, so that areas can be checked against them."""

    people: bool
    covariates: bool


def check_ranges(
    config: Config, inputs: Inputs, written: GridSummary, in_areas: bool, problems: list[Problem]
) -> SoundRasters:
    """Append a problem for each raster without values or with a single value."""
    reported = {problem.place for problem in problems}
    where = "inside the areas" if in_areas else "on the grid"
    covariates, moving = True, config.moving()
    for name, layer in inputs.covariates.items():
        found = written.ranges[name]
        covariates &= found.n_value > 0 and layer.place not in reported
        wrong = _covariate_problem(found, where, layer.transform)
        if found.n_value and name in moving:  # the rain of a dry month is the same everywhere
            wrong = None
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


def select_pixels(
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
    ids = areas[AREA_ID]
    given = inputs.responses
    least = given.least  # a suppressed count may be none
    y = None if least is None else least.to_numpy(np.float64)
    # An area without people and cases is left out; it is no problem.
    on_grid = np.diff(members.offsets) > 0
    inhabited = members.total(state & (NO_POPULATION | NOBODY) == 0) > 0
    skipped = on_grid & ~inhabited & (y == 0) if y is not None else np.zeros(n_area, bool)
    if given.weights is not None:
        skipped |= on_grid & (given.weights.to_numpy(np.float64) == 0)
    # An area without a count and a usable pixel cannot be predicted; it is no problem either.
    uncounted = np.zeros(n_area, bool) if y is None else np.isnan(y)
    nobody = on_grid & ~inhabited
    # Of a period alone: counts of a series are added up here.
    zero = np.zeros(n_area, bool)
    if config.series is None and given.weights is None and given.known is not None:
        zero = nobody & (given.known.to_numpy(np.float64) == 0)
    # Areas with an invalid polygon are reported already.
    empty = (size == 0) & ~skipped & ~uncounted & measurable(areas)
    counted = np.zeros(n_area, bool) if y is None else (y != 0) & ~uncounted
    total = config.response_kind.total
    exposure = "population" if inputs.population is not None else "pixel area"
    labels = [f"area {i}" for i in titles_of(areas, config.areas.name)]
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
            empty & on_grid & ~inhabited & counted & sound.people,
            f"{total}, but no people ({exposure} missing or 0 on all its pixels)",
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
    if (skipped & (size > 0)).any():  # of exposure 0, with usable pixels: these go with them
        kept = keep & np.repeat(~skipped, np.diff(members.offsets))
    else:
        kept = keep
    if not problems and used.size and uncounted[used].all():
        found = "no area with a count has a usable pixel"
        remedy = "give counts of areas that the rasters cover"
        problems.append(Problem(f"areas ({config.areas.path})", found, remedy))
    left_out = {
        "no_covariate": int((state & NO_COVARIATE > 0).sum()),
        "no_population": int((state & NO_POPULATION > 0).sum()),
        "nobody": int(((state & NOBODY > 0) & (state & NO_POPULATION == 0)).sum()),
        "by_covariate": {n: written.ranges[n].n_missing for n in inputs.covariates},
        "pixels": int((~keep).sum()),
        "of_pixels": int(keep.size),
        "weight": written.lost,
        "areas": [str(i) for i in ids[skipped]],
        "uninhabited": [str(i) for i in ids[nobody & (skipped | uncounted)]],
        "zero": [str(i) for i in ids[zero]],
        "unpredicted": [str(i) for i in ids[uncounted & (size == 0)]],
    }
    return Bags(
        used,
        np.concatenate([[0], np.cumsum(size[used])]).astype(np.int64),
        # Mostly every pixel is usable: then no second copy is needed.
        members.pixel if kept.all() else members.pixel[kept],
        members.fraction if kept.all() else members.fraction[kept],
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
