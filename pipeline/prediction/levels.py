"""The tables of all levels: training areas, ``output.areas`` and the country, from joint draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from geo.errors import InputError, Problem, name_first
from geo.grid import Grid
from pipeline.config.level_schema import PIXELS, TRAINING
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.core.threads import map_in_order
from pipeline.prediction.area_factors import draw_factors
from pipeline.prediction.csv_table import write_csv
from pipeline.prediction.level_draws import LevelDraws, draw_levels
from pipeline.prediction.level_files import write_levels
from pipeline.prediction.level_pixels import PixelReader
from pipeline.prediction.level_products import TARGETING_CSV, TARGETING_RANK
from pipeline.prediction.level_rasters import open_layers
from pipeline.prediction.level_share import UNMAPPED, Living, people_living, share_on_map
from pipeline.prediction.level_tables import Observed, Summary, add_columns, tabulate_level
from pipeline.prediction.map_result import MapResult
from pipeline.prediction.products import layers
from pipeline.prediction.reconciled import reconcile
from pipeline.prediction.targeting import (
    Curve,
    RateClasses,
    area_curve,
    class_of,
    classify,
    rate_keys,
    target_columns,
    targeting_table,
)
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


def predict_levels(made: MapResult, progress: Progress) -> tuple[dict[str, Any], pd.Series]:
    """Write the tables of every level.

    Parameters
    ----------
    made : MapResult
    progress : Progress

    Returns
    -------
    summary : dict
        Number of areas of each level.
    rate : Series
        Mean rate of each training area, per person, from the rasters; by id.

    Raises
    ------
    InputError
        If the files of ``output.areas`` cannot be used.
    """
    config = made.config
    levels = open_levels(config, made.areas, grid_of(made.cube))
    log_overlaps(levels, config, progress)
    reader = PixelReader(
        made.cube,
        made.directory,
        levels,
        config.output.rate_per,
        tuple(dict.fromkeys(config.output.exceedance)),
        made.limits,
    )
    summary = Summary(
        config.output.interval, config.output.rate_per, reader.thresholds, config.has_cases
    )
    classes = classify(reader, made.n_thread) if config.has_cases else None
    with progress.task("levels", len(reader.tiles)) as task:
        draws = draw_levels(
            made.functions,
            reader,
            classes=None if classes is None else class_of(classes),
            n_class=0 if classes is None else classes.n_class,
            count_factors=draw_factors(made.factors, reader),
            advance=task.advance,
            n_thread=made.n_thread,
        )
    observed = observe(made.table, levels, draws, reader)
    tables = tabulate(draws, reader, observed, summary, people_living(config, reader.grid))
    log_unmapped(tables, config, progress)
    if classes is not None:
        tables = _target(made, reader, draws, classes, tables, summary)
    added, report = reconcile(made, reader, draws, observed, summary, progress)
    for name, columns in added.items():
        tables[name] = pd.concat([tables[name], columns], axis=1)
    write_levels({level.name: (level, tables[level.name]) for level in levels}, made.directory)
    numbers = {
        "levels": {level.name: len(level) for level in levels},
        **({"reconciled": report} if report else {}),
    }
    at = reader.numbered()[0][1]
    people = draws.people[at]
    rate = np.divide(draws.cases[at], people, out=np.full(people.shape, np.nan), where=people > 0)
    return numbers, pd.Series(rate, index=list(levels[0].ids))


def _target(
    made: MapResult,
    reader: PixelReader,
    draws: LevelDraws,
    classes: RateClasses,
    tables: dict[str, pd.DataFrame],
    summary: Summary,
) -> dict[str, pd.DataFrame]:
    """Write the curves and the raster of targeting; return the tables with its columns."""
    curves, result = [], dict(tables)
    of_pixels = Curve.of(draws.class_people, draws.class_drawn)
    if of_pixels is not None:
        curves.append((PIXELS, of_pixels))
    for level, at in reader.numbered():
        own = tables[level.name]
        rate = own["rate"].where(own["rank"].notna()) if "rank" in own else own["rate"]
        order, curve = area_curve(rate.to_numpy(), draws.people[at], draws.cases_drawn[:, at])
        if len(level) > 1 and curve is not None:
            curves.append((level.name, curve))
            columns = target_columns(order, curve, summary)
            result[level.name] = add_columns(tables[level.name], order, columns)
    if curves:
        table = targeting_table(curves, summary)
        write_csv(table, made.directory / TARGETING_CSV.file)
    wanted = [
        layer for layer in layers(made.config, from_draws=True) if layer.product is TARGETING_RANK
    ]
    with open_layers(wanted, reader.grid, made.directory, made.tags) as writers:
        for pixels in map_in_order(reader.read, reader.tiles, made.n_thread):
            if pixels is not None:
                writers.write(pixels, {"rank": classes.above[rate_keys(pixels.rate)]})
    return result


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
    table: pd.DataFrame, levels: list[Level], draws: LevelDraws, reader: PixelReader
) -> dict[str, Observed]:
    """Return what was reported of the areas of each level."""
    training = levels[0]
    own = Observed.of(table, training)
    found = {TRAINING: own}
    for level, at in reader.numbered():
        if level.name != TRAINING:
            people = draws.people[at]
            covered = np.ones(len(level))
            np.divide(draws.covered_people[at], people, out=covered, where=people > 0)
            pairs = Overlaps.of(training, level)
            found[level.name] = own.totals(level, pairs, covered, training.titles)
    return found


def tabulate(
    draws: LevelDraws,
    reader: PixelReader,
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
