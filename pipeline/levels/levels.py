"""The tables of all levels: training areas, ``output.areas`` and the country, from joint draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geo.core.errors import InputError, Problem, name_first
from geo.grids.grid import Grid
from geo.sources.registry import open_source
from geo.sources.zonal import exact_people
from pipeline.config.level_schema import PIXELS, TRAINING
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.levels.area_sums import AreaSums, LevelDraws
from pipeline.levels.level_files import write_levels
from pipeline.levels.level_tables import Observed, Summary, add_columns, tabulate_level
from pipeline.levels.reconciled import reconcile
from pipeline.levels.scaled_pixels import KeptRates
from pipeline.levels.targeting import Targeting, area_curve, target_columns, targeting_table
from pipeline.products.csv_table import write_csv
from pipeline.products.layer_files import open_layers
from pipeline.products.level_products import TARGETING_CSV, TARGETING_RANK
from pipeline.products.map_result import MapResult
from pipeline.products.products import layers
from pipeline.products.tile_pass import Consumer, Draws
from pipeline.products.tile_pixels import TileReader
from pipeline.store.aligned_grid import open_aligned_grid
from pipeline.store.level_areas import (
    Level,
    Overlaps,
    check_name,
    country_of,
    level_overlap,
    make_level,
    read_level_frames,
    read_targets,
    target_column,
    titled,
)

UNMAPPED = 0.05  # share of an area's surface without a rate above which a line says so
FEW = 0.1  # of the people of a usual area of the level; fewer do not tell who is missing


class LevelProducts:
    """The consumers of a pass from which the tables of every level are made.

    Parameters
    ----------
    made : MapResult

    Attributes
    ----------
    consumers : list of Consumer
    draws : Draws
    """

    def __init__(self, made: MapResult) -> None:
        config, reader, n_draws = made.config, made.reader, made.functions.n_draws
        self._made = made
        thresholds = tuple(dict.fromkeys(config.output.exceedance))
        self._summary = Summary(
            config.output.interval,
            config.output.rate_per,
            thresholds,
            config.response_kind.maps_totals,
        )
        self._sums = AreaSums(
            reader, n_draws, config.output.rate_per, thresholds, made.limits, made.tile_factors,
            made.exposures,
        )  # fmt: skip
        self._kept = KeptRates(reader.grid, made.directory)
        self._targeting = Targeting(n_draws) if config.response_kind.maps_totals else None
        self.consumers: list[Consumer] = [self._sums, self._kept]
        if self._targeting is not None:
            self.consumers.append(self._targeting)
        self.draws = Draws(made.functions, counted=made.tile_factors)

    def write(self, table: pd.DataFrame, progress: Progress) -> tuple[dict[str, Any], pd.Series]:
        """Write the tables, once the pass has ended.

        Parameters
        ----------
        table : DataFrame
            That of ``areas.csv``.
        progress : Progress

        Returns
        -------
        summary : dict
            Number of areas of each level.
        rate : Series
            Mean rate of each training area, per unit of exposure, from the rasters; by id.
        """
        made, reader, draws = self._made, self._made.reader, self._sums.result
        config, levels = made.config, list(reader.levels)
        observed = observe(table, levels, draws, reader)
        living = people_living(config, reader.grid)
        tables = tabulate(draws, reader, observed, self._summary, living)
        if made.exposures is not None:
            tables[TRAINING] = _known_exposure(tables[TRAINING], made.exposures.known)
        log_unmapped(tables, config, progress)
        if self._targeting is not None:
            tables = self._target(self._targeting, draws, tables)
        added, report = reconcile(made, self._kept, draws, observed, self._summary, progress)
        for name, columns in added.items():
            tables[name] = pd.concat([tables[name], columns], axis=1)
        write_levels({level.name: (level, tables[level.name]) for level in levels}, made.directory)
        numbers = {
            "levels": {level.name: len(level) for level in levels},
            **({"reconciled": report} if report else {}),
        }
        at = reader.numbered()[0][1]
        exposure, cases = draws.exposure[at], draws.cases[at]
        rate = np.divide(cases, exposure, out=np.full(exposure.shape, np.nan), where=exposure > 0)
        return numbers, pd.Series(rate, index=list(levels[0].ids))

    def _target(
        self, targeting: Targeting, draws: LevelDraws, tables: dict[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Write the curves and the raster of targeting; return the tables with its columns."""
        made, summary = self._made, self._summary
        curves, result = [], dict(tables)
        of_pixels = targeting.curve()
        if of_pixels is not None:
            curves.append((PIXELS, of_pixels))
        for level, at in made.reader.numbered():
            own = tables[level.name]
            rate = own["rate"].where(own["rank"].notna()) if "rank" in own else own["rate"]
            order, curve = area_curve(rate.to_numpy(), draws.people[at], draws.cases_drawn[:, at])
            if len(level) > 1 and curve is not None:
                curves.append((level.name, curve))
                columns = target_columns(order, curve, summary)
                result[level.name] = add_columns(tables[level.name], order, columns)
        if curves:
            write_csv(targeting_table(curves, summary), made.directory / TARGETING_CSV.file)
        wanted = [
            each for each in layers(made.config, from_draws=True) if each.product is TARGETING_RANK
        ]
        with open_layers(wanted, made.reader.grid, made.directory, made.tags) as files:
            for tile, rates in self._kept.bands():
                files.write_band(tile, np.where(np.isfinite(rates), targeting.above(rates), np.nan))
        return result


def _known_exposure(table: pd.DataFrame, known: np.ndarray) -> pd.DataFrame:
    """Return a table of areas without amounts of an exposure that no one gave; rates remain."""
    amounts = [name for name in table if name == "people" or name.startswith("people_above")]
    return table.assign(**{name: table[name].where(known) for name in amounts})


def grid_of(cube: Any) -> Grid:
    """Return the grid of an aligned grid."""
    described: Any = open_aligned_grid(cube).attrs["grid"]
    return Grid.from_dict(described)


def open_levels(config: Config, areas: Any, grid: Grid) -> list[Level]:
    """Return the training areas, the levels of ``output.areas`` and the country, in this order.

    Raises
    ------
    InputError
        With all problems of their files.
    """
    problems: list[Problem] = []
    frames = read_level_frames(config, problems)
    where = f"areas ({config.areas.path})"
    check_name(areas, config.areas.name, where, problems)
    if problems:
        raise InputError(problems)
    training = make_level(TRAINING, areas, grid, config.areas.name, where)
    found = {TRAINING: (training, areas)}
    for number, spec in enumerate(config.output.areas):
        if spec.level in frames:
            place = f"output.areas[{number}] ({spec.path})"
            frame = frames[spec.level]
            found[spec.level] = make_level(spec.level, frame, grid, spec.name, place), frame
    levels = []
    for name, (level, frame) in found.items():
        column = target_column(config, name)
        if column is not None:
            # Those of other levels were checked as they were read.
            level = replace(level, targets=read_targets(frame, column, where, problems))
        levels.append(level)
    if problems:
        raise InputError(problems)
    return [*levels, country_of(training, config.name)]


def observe(
    table: pd.DataFrame, levels: list[Level], draws: LevelDraws, reader: TileReader
) -> dict[str, Observed]:
    """Return what was reported of the areas of each level."""
    training = levels[0]
    own = Observed.of(table, training)
    found = {TRAINING: own}
    for level, at in reader.numbered():
        if level.name != TRAINING:
            exposure = draws.exposure[at]
            covered = np.ones(len(level))
            np.divide(draws.covered[at], exposure, out=covered, where=exposure > 0)
            pairs = Overlaps.of(training, level)
            found[level.name] = own.totals(level, pairs, covered, training.titles)
    return found


def tabulate(
    draws: LevelDraws,
    reader: TileReader,
    observed: dict[str, Observed],
    summary: Summary,
    living: Living | None = None,
) -> dict[str, pd.DataFrame]:
    """Return the table of each level."""
    pixel, home = reader.grid.res[0] * reader.grid.res[1], reader.levels[0]
    return {
        level.name: tabulate_level(
            level, draws, at, observed[level.name], summary, pixel,
            share_on_map(level, home, draws.mapped[at] * pixel, draws.people[at], living),
        )
        for level, at in reader.numbered()
    }  # fmt: skip


def log_overlaps(levels: Sequence[Level], config: Config, progress: Progress) -> None:
    """Say which levels have areas that overlap, unless the user accepts them."""
    by_name = {level.name: level for level in levels}
    for number, spec in enumerate(config.output.areas):
        level = by_name[spec.level]
        found = level_overlap(config, number, level.geometry, level.titles)
        if found is not None and not config.check.accepts("overlap", found.place):
            progress.log(f"predict: suspicion: {found} [overlap]")


def log_unmapped(tables: dict[str, pd.DataFrame], config: Config, progress: Progress) -> None:
    """Say which areas have no rate, or none in a part of their surface."""
    for number, spec in enumerate(config.output.areas):
        name, table = spec.level, tables[spec.level]
        title = dict(zip(table["id"], titled(table["id"], table.get("name")), strict=True))
        outside = table[~(table["mapped"] > 0)]
        if len(outside):
            progress.log(
                f"predict: warning: output.areas[{number}] ({spec.path}): {len(outside):,} of "
                f"{len(table):,} areas lie outside the map and have no numbers: "
                f"{name_first([title[i] for i in outside['id']])}; check their coordinates and the "
                "CRS of the file, or leave them out"
            )
        short = table[(table["mapped"] > 0) & (table["mapped"] < 1 - UNMAPPED)]
        if len(short):
            each = zip(short["id"], short["mapped"], strict=True)
            named = name_first([f"{title[i]} {100 * share:.0f} %" for i, share in each])
            unranked = short["id"][short["rank"].isna()] if "rank" in short else []
            unranked = [title[i] for i in unranked]
            if unranked:
                few = "; without a rank, as too few of their people are on the map: "
                named += few + name_first(unranked)
                if config.output.mask != "all":
                    named += "; output.mask: all maps more of them, as far as the grid reaches"
            progress.log(
                f"predict: {len(short):,} of {len(table):,} areas of the level {name} have a rate "
                f"in a part of their surface only: {named}"
            )


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
