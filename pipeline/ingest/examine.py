"""Examine the inputs of a run: their profile, and suspicions that it raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import geopandas as gpd
import numpy as np
import zarr

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem
from geo.grids.grid import Tile
from geo.grids.membership import Membership
from geo.grids.overlaps import People
from geo.sources.distance import DistanceSource
from geo.sources.source import Source
from geo.sources.zonal import exact_people
from pipeline.config.no_spread import spread_caution
from pipeline.config.schema import Config
from pipeline.config.windows import left_out
from pipeline.ingest.area_value_suspicions import area_value_suspicions
from pipeline.ingest.change_suspicions import change_suspicions
from pipeline.ingest.class_profile import ClassesProfile, profile_classes
from pipeline.ingest.coarse_grid import coarse_suspicions
from pipeline.ingest.extent import measurable
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.odd_counts import fractions, odd_counts
from pipeline.ingest.past_counts import past_suspicions
from pipeline.ingest.period_layers import layer_suspicions
from pipeline.ingest.period_suspicions import period_suspicions
from pipeline.ingest.point_suspicions import point_suspicions
from pipeline.ingest.profile import (
    CountProfile,
    GridExposure,
    Profile,
    RasterProfile,
    counts_of_periods,
    exposure_of,
    profile_areas,
    profile_counts,
    profile_people,
    profile_periods,
    profile_raster,
    surface_km2,
)
from pipeline.ingest.raster_sample import RasterSampler
from pipeline.ingest.raster_suspicions import (
    Suspicion,
    population_suspicions,
    raster_suspicions,
)
from pipeline.ingest.suspicions import (
    count_suspicions,
    coverage_suspicions,
    lacking_areas,
    level_suspicions,
    overlap_suspicions,
    swapped_suspicions,
)
from pipeline.ingest.table_suspicions import (
    encoding_suspicions,
    table_suspicions,
    tested_suspicions,
)
from pipeline.ingest.written_counts import words_suspicions, written_suspicions
from pipeline.responses.table import Columns
from pipeline.storage.object_commit import zarr_at
from pipeline.store.aligned_grid import NO_COVARIATE, GridSummary, read_pixels
from pipeline.store.level_areas import titles_of

N_MADE = 100_000  # pixels of a distance, which takes a hundred times as long as to read it


@dataclass(frozen=True)
class Examined:
    """The profile of the inputs, and what the user has not accepted.

    Attributes
    ----------
    profile : Profile
    suspicions : tuple of Suspicion
    problems : tuple of Problem
        The grave ones.
    people, exposure : (n_area,) float64 array or None
        Of each area: people, and what its count is a rate of.
    """

    profile: Profile
    suspicions: tuple[Suspicion, ...]
    problems: tuple[Problem, ...] = ()
    people: np.ndarray | None = None
    exposure: np.ndarray | None = None

    def with_paths(self, paths: Mapping[str, str]) -> Examined:
        """Copy; replace the paths that suspicions name."""
        renamed = []
        for each in self.suspicions:
            key, _, path = each.place.partition(" (")
            known = paths.get(path.removesuffix(")"))
            renamed.append(replace(each, place=f"{key} ({known})") if known else each)
        return replace(self, suspicions=tuple(renamed))


def examine(
    config: Config,
    inputs: Inputs,
    members: Membership | None,
    written: GridSummary | None,
    *,
    whole_run: bool = False,
) -> Examined:
    """Profile the inputs and collect suspicions; also of inputs that have problems.

    Parameters
    ----------
    config : Config
    inputs : Inputs
    members : Membership or None
        Pixels of all areas; None if areas or grid are unusable.
    written : GridSummary or None
        The aligned grid; None if none could be written.
    whole_run : bool, optional
        Look at what later stages read, too: the counts of all periods, and the areas of all levels
        (of which the predict stage warns by itself).
    """
    areas, ids, titles = inputs.areas, np.empty(0, object), np.empty(0, object)
    found: list[Suspicion] = []
    shapes = size = None
    if areas is not None:
        ids, titles = areas[AREA_ID].to_numpy(), titles_of(areas, config.areas.name)
        found += swapped_suspicions(config, areas, list(inputs.opened))
        found += table_suspicions(config, areas)
        found += words_suspicions(config, areas)
        found += area_value_suspicions(config)
        found += period_suspicions(config)
        found += encoding_suspicions("areas", config.areas, areas)
        for n, spec in enumerate(config.output.areas):
            if spec.level in inputs.levels:
                key = f"output.areas[{n}]"
                found += encoding_suspicions(key, spec, inputs.levels[spec.level])
        if inputs.located:
            usable = areas[measurable(areas)]
            shapes = usable.geometry
            size = np.full(len(areas), np.nan)
            size[usable.index] = surface_km2(usable)
    exposure = None
    if members is not None and written is not None and inputs.grid is not None:
        exposure = exposure_of(members, written.state, inputs.grid, written.path)
        names = _lacks(members, exposure, written)
        found += coverage_suspicions(config, titles, exposure.total, exposure.lacking, names)
    has_people = inputs.population is not None and written is not None and written.people.low >= 0
    total = None if exposure is None else exposure.total
    people = total if has_people else None
    if areas is not None and inputs.located:
        found += overlap_suspicions(config, areas[measurable(areas)], *_twice(inputs, people))
    surface = float("nan") if size is None else float(np.nansum(size))
    rasters, more = _rasters(
        config, inputs, shapes, float("nan") if people is None else float(people.sum()), surface
    )
    classes: tuple[ClassesProfile, ...] = ()
    if shapes is not None and not shapes.empty:
        classes, of_classes = profile_classes(config, RasterSampler(shapes))
        more += of_classes
    more += _coarse(config, inputs, members, people)
    below, name = _exposure(config, inputs, people, total)
    given = inputs.responses
    counts, known = _counts(config, given, below), given.known
    if counts is not None and known is not None:
        more += count_suspicions(config, known.set_axis(titles), people, counts)
        if people is not None and given.tested is not None and areas is not None:
            more += tested_suspicions(config, areas, given.tested, people)
        if people is not None and areas is not None and config.points:
            more += point_suspicions(config, areas, people)
        if areas is not None:
            if not any(each.code == "shares" for each in more):
                more += fractions(config, areas, known)
            more += odd_counts(config, areas, known, below)
    positive = None
    if config.response_kind.classes and given.counts is not None:
        positive = int(given.counts.sum()), int(given.counts.count())
    periods: tuple[CountProfile, ...] = ()
    if whole_run and areas is not None:
        found += level_suspicions(config, areas, inputs.levels)
        of_periods = counts_of_periods(config, ids, below)
        periods = profile_periods(config, of_periods, below)
        more += past_suspicions(config, titles, of_periods)
        if shapes is not None:
            more += layer_suspicions(config, shapes)
        more += change_suspicions(config, areas, of_periods)
    if counts is not None and areas is not None:
        more += written_suspicions(config, areas, [each.code for each in more])
    described = None if size is None or areas is None else profile_areas(areas, size)
    kind = config.response_kind
    profile = Profile(
        areas=described,
        people=None if people is None or size is None else profile_people(ids, people, size),
        counts=counts,
        exposure=name,
        rate_per=config.output.rate_per,
        responses="counts" if kind.countable else kind.name,
        total="" if kind.countable else kind.area_total,
        rate=kind.per_exposure(config.output.rate_per) + kind.each_period
        if kind.countable
        else kind.rate_unit,
        countable=kind.countable,
        positive=positive,
        periods=periods,
        rasters=rasters,
        classes=classes,
        left_out=_left_out(config),
    )
    kept = [each for each in found + more if not config.check.accepts(each.code, each.place)]
    if any(each.grave and each.code == "rate" for each in kept):  # it names the unit of people, too
        kept = [each for each in kept if each.code != "thousands"]
    lighter = tuple(each for each in kept if not each.grave)
    grave = tuple(each.problem() for each in kept if each.grave)
    return Examined(profile, lighter, grave, people, below)


def _left_out(config: Config) -> tuple[str, ...]:
    """Say what of the output of a series a run cannot map, and what is worth nothing."""
    series, output = config.series, config.output
    unsure = [each for each in [spread_caution(config)] if each]
    if series is None:
        return tuple(unsure)
    return (*unsure, *left_out(series, output.periods, output.windows, output.forecast))


def _lacks(members: Membership, exposure: GridExposure, written: GridSummary) -> list[str]:
    """Name the covariate that most pixels without a value lack, of each area that is short."""
    which = lacking_areas(exposure.total, exposure.lacking)
    if which.size == 0:
        return []
    group: Any = zarr.open_group(zarr_at(written.path), mode="r")
    names = []
    for area in which.tolist():
        span = slice(int(members.offsets[area]), int(members.offsets[area + 1]))
        lost = written.state[span] & NO_COVARIATE > 0
        x, _ = read_pixels(group, members.pixel[span][lost], group["population"].shape[1])
        names.append(written.names[int(np.argmax((~np.isfinite(x)).sum(axis=0)))])
    return names


def _twice(inputs: Inputs, people: np.ndarray | None) -> tuple[People | None, np.ndarray | None]:
    """Return how to count the people of polygons, and those of each area that can be measured.

    The grid cannot tell: areas may share a part of a pixel that others leave free.
    """
    layer, areas = inputs.population, inputs.areas
    if people is None or layer is None or areas is None or not layer.source.north_up:
        return None, None

    def counted(polygons: gpd.GeoSeries) -> np.ndarray:
        return exact_people(layer.source, polygons, density=layer.density)

    return counted, people[measurable(areas)]


def _coarse(
    config: Config, inputs: Inputs, members: Membership | None, people: np.ndarray | None
) -> list[Suspicion]:
    areas, grid, layer, spec = inputs.areas, inputs.grid, inputs.population, config.population
    if people is None or members is None or not (areas is not None and grid and layer and spec):
        return []
    usable = np.flatnonzero(measurable(areas))
    return coarse_suspicions(
        grid, layer.source, spec.path, density=spec.density, shapes=areas.geometry.iloc[usable],
        titles=titles_of(areas, config.areas.name)[usable], sizes=np.diff(members.offsets)[usable],
        people=people[usable],
    )  # fmt: skip


def _rasters(
    config: Config, inputs: Inputs, shapes: gpd.GeoSeries | None, total: float, surface: float
) -> tuple[tuple[RasterProfile, ...], list[Suspicion]]:
    profiles: list[RasterProfile] = []
    found: list[Suspicion] = []
    if shapes is None or shapes.empty:
        return (), found
    stored, made = RasterSampler(shapes), RasterSampler(shapes, N_MADE)
    for key, path, source in _sources(config, inputs):
        try:
            sample = (made if isinstance(source, DistanceSource) else stored).sample(source)
        except InputError:  # damaged: the aligned grid reports it
            continue
        profiles.append(profile_raster(key, source, sample))
        found += raster_suspicions(key, path, source, sample)
        if key == "population" and config.population is not None:
            density = config.population.density
            top = float(sample.inside.max()) if sample.inside.size else float("nan")
            pixel = _pixel_km2(source, shapes)
            found += population_suspicions(
                path, source, density=density, total=total, km2=surface,
                densest=top if density else top / pixel, pixel=pixel,
            )  # fmt: skip
    return tuple(profiles), found


def _sources(config: Config, inputs: Inputs) -> Iterable[tuple[str, str, Source]]:
    if inputs.population is not None and config.population is not None:
        yield "population", config.population.path, inputs.population.source
    for name, layer in inputs.covariates.items():
        if config.covariates[name].kind != "table":
            yield f"covariates.{name}", config.covariates[name].path, layer.source


def _pixel_km2(source: Source, shapes: gpd.GeoSeries) -> float:
    """Return the surface of a pixel in the middle of the areas; NaN for a rotated raster."""
    if not source.north_up:
        return float("nan")
    _, south, _, north = shapes.to_crs(source.crs).total_bounds
    t, middle = source.transform, 0.5 * (south + north)
    row = min(max(int((middle - t.f) / t.e), 0), source.shape[0] - 1) if np.isfinite(middle) else 0
    return float(source.grid.area_km2(Tile(row, 0, 1, 1))[0, 0])


def _exposure(
    config: Config, inputs: Inputs, people: np.ndarray | None, total: np.ndarray | None
) -> tuple[np.ndarray | None, str]:
    """Return what the counts are rates of, by area, and its name."""
    given = config.response_kind.exposure_of(inputs.responses)
    if given is not None:
        return None if given[0] is None else given[0].to_numpy(np.float64), given[1]
    return (total, "km2") if config.population is None else (people, "people")


def _counts(config: Config, given: Columns, below: np.ndarray | None) -> CountProfile | None:
    response = config.response_kind
    if given.counts is None or response.classes:
        return None
    usable = below if below is not None and np.nansum(below) > 0 else None
    y, margins = given.known, given.margins
    hidden = 0 if margins is None else int(((margins > 0) & given.counts.notna()).sum())
    if not response.adds_up and usable is not None:
        y = y * usable  # averages add up by their exposure
    return profile_counts(y, usable, config.output.rate_per, config.period, given.tested, hidden)
