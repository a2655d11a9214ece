"""Ingest of several periods: what stands still once, what moves and what is counted by period.

A period is written again only where something of its own has changed, and touches no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import zarr

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem, name_first
from geo.grids.grid import Grid
from geo.sources.boundary import read_areas
from geo.sources.repair import Repairs
from geo.tables.registry import tables_kept
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config, later_key, path_key
from pipeline.config.years import told_people
from pipeline.core.progress import Progress
from pipeline.ingest.checked import suspicions_logged
from pipeline.ingest.cube_prints import CUBES_FILE, CubePrints
from pipeline.ingest.inputs import Inputs, open_layers, with_tables
from pipeline.ingest.prepare import prepare, summary_of, write_store
from pipeline.ingest.responses import read_responses
from pipeline.ingest.table_layers import AreaTables, own_values, put_own
from pipeline.responses.table import Columns
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.storage.local_commit import is_current, staged
from pipeline.storage.location import Place
from pipeline.storage.object_commit import zarr_at
from pipeline.store import aligned_grid, bag_writer
from pipeline.store.aligned_grid import InputLayers, open_aligned_grid, read_pixels
from pipeline.store.aligned_grid import write_aligned_grid as align
from pipeline.store.bag_store import BagStore
from pipeline.store.period_store import write_period
from pipeline.store.pixel_store import PixelStore
from pipeline.store.responses import Responses, write_responses

#: What the stage leaves for others to know what has changed, in the output directory: see
#: :func:`pipeline.training.series.read_series`.
SERIES_FILE = "work/series.json"
N_NAMED = 5  # areas named in one message


def ingest_series(context: StageContext) -> dict[str, Any]:
    """Write the pixels once, what moves in each period, and the responses of all.

    Parameters
    ----------
    context : StageContext

    Returns
    -------
    dict
        As of :func:`pipeline.ingest.stage.ingest`, of the last period with counts; ``periods``, all
        of them.

    Raises
    ------
    InputError
        With all problems of the inputs.
    """
    config, progress = context.config, context.progress
    series = config.series
    assert series is not None
    standing, moving = standing_print(context), config.moving()
    if people := told_people(series):
        progress.log(f"ingest: population: {people}")
    prints: dict[str, str] = {}
    with tables_kept():
        _write_standing(context, standing)
        store = PixelStore(context.place("work/bags.zarr"))
        if moving:
            tables = AreaTables(_areas(config)) if _has_tables(config) else None
            prints = moving_prints(context, store.grid, standing, tables)
            with progress.task("periods", len(prints)) as task:
                for label, fingerprint in prints.items():
                    write_moving(context, store, label, fingerprint, tables)
                    task.advance(1)
        frame = read_all(config, store, moving, progress)
    averages = not config.response_kind.adds_up
    write_responses(store.data, frame, averages=averages, periods=series.periods)
    known = {
        str(label): fingerprint_value(rows.sort_values("area").to_csv(index=False))
        for label, rows in frame.groupby("period")
        if rows["training"].any()
    }
    write_json(
        config.output.dir / SERIES_FILE,
        {"standing": standing, "moving": prints, "responses": known},
    )
    seen = set(frame.loc[frame["training"], "period"])
    counted = [label for label in series.periods if label in seen]
    last = BagStore.open(context.place("work/bags.zarr"), period=counted[-1])
    lacking = [label for label in series.periods if label not in counted]
    if lacking:
        progress.log(f"ingest: no counts of {name_first(lacking, 12)}")
    progress.log(f"ingest: {len(series.periods)} periods, {len(frame):,} responses")
    return {**summary_of(last, config, progress), "periods": list(series.periods)}


def standing_print(context: StageContext) -> str:
    """Return the fingerprint of what stands still, by those of the stage's inputs."""
    config, given = context.config, context.inputs
    moving = config.moving()
    files, heads = _files(given), tuple(f"{_head(name)}." for name in moving)
    of_moving = {key for key in files if key.startswith(heads)}
    sections = {"areas", "grid", "fit.seed", "output.mask"}
    still = {
        key: value
        for key, value in given.items()
        if key in sections
        or key.partition(".")[0] in ("code", "library")
        or (key in files - of_moving and not key.startswith(("counts.", "labels.")))
    }
    still["layers"] = fingerprint_value(
        {name: _described(layer) for name, layer in _layers(config).items() if name not in moving}
    )
    return fingerprint_value(still)


def moving_prints(
    context: StageContext, grid: Grid | None, standing: str, tables: AreaTables | None = None
) -> dict[str, str]:
    """Return the fingerprint of what moves in each period, by label.

    Parameters
    ----------
    context : StageContext
    grid : Grid or None
        Of the run.
    standing : str
        Fingerprint of what stands still.
    tables : AreaTables, optional
        Of covariates that are tables.

    Raises
    ------
    InputError
        If a cube does not have all steps of a period, or a table not all areas.
    """
    config, given = context.config, context.inputs
    series = config.series
    if series is None or grid is None:
        message = "a series has a grid once its pixels are written"
        raise RuntimeError(message)
    cubes = CubePrints(config.output.dir / CUBES_FILE, grid)
    each = {}
    for label in series.periods:
        own = config.at(label)
        parts: dict[str, list[Any]] = {}
        for name in config.moving():
            section, at = _layers(own)[name], "" if label == config.period else f".{label}"
            file, described = (
                given.get(path_key(_head(name) + at, section), ""),
                _described(section),
            )
            if tables is not None and name != "population" and section.table is not None:
                values = tables.values(own, name, cubes.problems)
                file = "" if values is None else fingerprint_value(values.tolist())
            elif section.aggregate is not None:
                file = cubes.of(own, name, file, described)
            parts[name] = [file, described]
            if name == "population" and (later := own.later_people()) is not None:
                parts[name] += [given.get(later_key(name + at), ""), later[1]]
        each[label] = fingerprint_value([standing, parts])
    cubes.write()
    return each


def _head(name: str) -> str:
    return name if name == "population" else f"covariates.{name}"


def _files(given: Mapping[str, str]) -> set[str]:
    return {key for key in given if key.endswith((".path", ".table")) or key == "grid.like"}


def _has_tables(config: Config) -> bool:
    return any(each.table is not None for each in config.covariates.values())


def _layers(config: Config) -> dict[str, Any]:
    people = {} if config.population is None else {"population": config.population}
    return {**config.covariates, **people}


def _described(section: Any) -> dict[str, Any]:
    found: dict[str, Any] = section.model_dump(mode="json", exclude={"path", "table"})
    return found


def _write_standing(context: StageContext, fingerprint: str) -> None:
    """Write the grid and the pixels of what stands still, unless they are as before."""
    config, progress = context.config, context.progress
    grid, bags = context.place("work/grid.zarr"), context.place("work/bags.zarr")
    if is_current(grid, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) and is_current(
        bags, bag_writer.FORMAT, bag_writer.VERSION, fingerprint
    ):
        return
    look = suspicions_logged(config, progress)
    with staged(grid, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) as staging:
        reference = _counted(config)
        inputs, chosen = prepare(reference, staging, progress, look, partial(_standing, reference))
        write_store(config, inputs, chosen, staging, bags, fingerprint, progress)


def _counted(config: Config) -> Config:
    """Return the configuration of the last period with counts."""
    series = config.series
    assert series is not None
    known = [label for label in series.periods if label in series.spelled]
    return config.at(known[-1]) if known else config


def _standing(config: Config, inputs: Inputs, problems: list[Problem]) -> Inputs:
    """Return what stands still of the inputs, with the counts of all periods."""
    moving = config.moving()
    counts = inputs.counts
    if counts is not None and inputs.areas is not None:
        each = _each_period(config, inputs.areas, problems)
        found = [own.counts for own in each.values() if own.counts is not None]
        if found:
            table = pd.concat(found, axis=1)
            counts = table.sum(axis=1, min_count=1)
    covariates = {name: each for name, each in inputs.covariates.items() if name not in moving}
    return replace(inputs, covariates=covariates, counts=counts, tested=None, weights=None)


def _each_period(
    config: Config, areas: gpd.GeoDataFrame, problems: list[Problem]
) -> dict[str, Columns]:
    """Return the columns of the responses of every period that has some."""
    series = config.series
    assert series is not None
    found = {}
    for label in series.periods:
        if series.spelled and label not in series.spelled:
            continue
        own: list[Problem] = []
        found[label] = read_responses(config.at(label), areas, Repairs(), own)
        problems.extend(each for each in own if each not in problems)
    return found


def write_moving(
    context: StageContext,
    store: PixelStore,
    label: str,
    fingerprint: str,
    tables: AreaTables | None = None,
) -> None:
    """Write the grid and the pixels of what moves in a period, unless they are as before.

    Parameters
    ----------
    context : StageContext
    store : PixelStore
        What stands still.
    label : str
    fingerprint : str
    tables : AreaTables, optional
        Of covariates that are tables.

    Raises
    ------
    InputError
        If a layer cannot be read, or has no value in any area.
    """
    place = context.place(f"work/periods/{label}/grid.zarr")
    kind, version = aligned_grid.FORMAT, aligned_grid.VERSION
    if label in store.periods and is_current(place, kind, version, fingerprint):
        return
    config = context.config
    own, moving, problems = config.at(label), config.moving(), list[Problem]()
    covariates, population = open_layers(own, moving, problems)
    grid = store.grid
    own_of: dict[int, np.ndarray] = {}
    if tables is not None and grid is not None:
        covariates = with_tables(own, moving, grid, tables, covariates, problems)
        own_of = own_values(covariates, pd.Index(tables.ids).get_indexer(list(store.ids)))
    if problems or grid is None:
        raise InputError(problems)
    names = tuple(covariates)
    with staged(place, kind, version, fingerprint) as staging:
        layers = InputLayers(covariates, population)
        written = align(staging, grid, layers, None, everywhere=True, workers=n_thread(config))
        problems = [replace(each, place=f"{each.place}, {label}") for each in written.problems]
        problems += [
            Problem(f"{layer.place}, {label}", "has no value on the grid", "check the file")
            for name, layer in covariates.items()
            if written.ranges[name].n_value == 0 and not written.problems
        ]
        if problems:
            raise InputError(problems)
        group = zarr.open_group(zarr_at(staging), mode="r+")
        group.attrs["has_population"] = population is not None
        standing, people = context.place("work/grid.zarr"), population is not None
        rows = MovingPixels(store, group, standing, people, own_of)
        units = [layer.source.describe().unit for layer in covariates.values()]
        write_period(
            store,
            label,
            names,
            units,
            rows,
            has_weight=True,
            workers=n_thread(config),
            fingerprint=fingerprint,
        )
    _log_gaps(rows, label, context.progress)


class MovingPixels:
    """Reads what moves at the pixels of areas, from a period's aligned grid.

    Parameters
    ----------
    store : PixelStore
    moving : zarr group
        Of the period.
    standing : Place
        The grid of what stands still.
    has_population : bool
        Whether people move.
    own : mapping of int to (n_bag,) array, optional
        Values of the store's areas, by number of the covariate: see
        :func:`pipeline.ingest.table_layers.own_values`.

    Attributes
    ----------
    n_gap : int
        Pixels that lack a covariate in the period: they have no weight there.
    """

    def __init__(
        self,
        store: PixelStore,
        moving: Any,
        standing: Place,
        has_population: bool,
        own: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        self._own = own or {}
        self._store, self._moving, self._people = store, moving, has_population
        self._standing = open_aligned_grid(standing)
        self._n_col = int(self._standing["population"].shape[1])
        self.n_gap = 0

    def __call__(
        self, bag: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See :data:`pipeline.store.period_store.MovingRows`."""
        first = self._store.offsets[bag]
        pieces = [
            self._store.rows(int(a), int(b))
            for a, b in zip(first + start, first + stop, strict=True)
        ]
        pixel = np.concatenate([each.pixel for each in pieces])
        weight = np.concatenate([each.weight for each in pieces]).astype(np.float64)
        x, people = read_pixels(self._moving, pixel, self._n_col)
        x = put_own(x, self._own, bag, stop - start)
        if self._people:
            _, before = read_pixels(self._standing, pixel, self._n_col)
            people = np.where(people > 0, people, 0.0)
            weight = np.divide(weight * people, before, out=np.zeros_like(weight), where=before > 0)
        known = np.isfinite(x).all(axis=1)
        self.n_gap += int((~known).sum())
        if not known.all():
            weight[~known] = 0.0
            # The mean of its area: a value that moves no scaling of the covariates.
            cuts = np.cumsum([0, *(stop - start)])
            for a, b in pairwise(cuts.tolist()):
                x[a:b] = _filled(x[a:b])
        return x, weight


def _filled(x: np.ndarray) -> np.ndarray:
    known = np.isfinite(x)
    total, n = np.where(known, x, 0.0).sum(axis=0), known.sum(axis=0)
    mean = np.divide(total, n, out=np.zeros(x.shape[1]), where=n > 0)
    found: np.ndarray = np.where(known, x, mean.astype(x.dtype))
    return found


def _log_gaps(rows: MovingPixels, label: str, progress: Progress) -> None:
    if rows.n_gap:
        progress.log(
            f"ingest: {label}: {rows.n_gap:,} pixels of areas lack a covariate that moves, and "
            "count nobody in this period"
        )


def _areas(config: Config) -> gpd.GeoDataFrame:
    """Return the areas; InputError with their problems."""
    problems, spec = list[Problem](), config.areas
    areas = read_areas(
        spec.path,
        spec.layer,
        spec.id,
        "areas",
        problems,
        repairs=Repairs() if spec.repair else None,
        encoding=spec.encoding,
    )
    if areas is None:
        raise InputError(problems)
    return areas


def read_all(
    config: Config, store: PixelStore, moving: Sequence[str], progress: Progress
) -> pd.DataFrame:
    """Return the responses of all periods, as :func:`write_responses` takes them.

    Raises
    ------
    InputError
        With all problems of the table.
    """
    problems: list[Problem] = []
    areas = _areas(config)
    each = _each_period(config, areas, problems)
    if problems:
        raise InputError(problems)
    order = pd.Index(areas[AREA_ID].astype(str)).get_indexer(list(store.ids))
    weights = _held_weights(config, each, order)
    frames = []
    for label in config.series.periods if config.series is not None else each:
        columns, weight = each.get(label, Columns()), weights.get(label)
        known = columns.counts is not None and not columns.counts.isna().all()
        if not known and weight is None:
            continue
        own = PixelStore(store.path, period=label) if moving else store
        value = np.full(len(store.ids), np.nan)
        if columns.counts is not None:
            value = columns.counts.to_numpy(np.float64)[order]
        exposed = own.bag_weight > 0
        lost = ~exposed & np.isfinite(value)
        if lost.any():
            named = name_first([store.ids[k] for k in np.flatnonzero(lost)], N_NAMED)
            progress.log(f"ingest: {label}: left out areas that nobody counts in: {named}")
        value = np.where(exposed, value, np.nan)
        tested = None if columns.tested is None else columns.tested.to_numpy(np.float64)[order]
        found = Responses(value, np.isfinite(value), tested, weight)
        frames.append(found.frame(store.ids, label))
    if not any(frame["training"].any() for frame in frames):
        where = f"counts ({config.response.path})"
        raise InputError(Problem(where, "no area has a count in any period", "check the table"))
    return pd.concat(frames, ignore_index=True)


def _held_weights(
    config: Config, each: Mapping[str, Columns], order: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the exposures of each period by area; one that is not given is that before it.

    Before the first that is known, it is the first: an area whose count has not arrived has people
    all the same.
    """
    series = config.series
    known = {label: own.weights for label, own in each.items() if own.weights is not None}
    if series is None or not known:
        return {}
    none = np.full(order.size, np.nan)
    table = pd.DataFrame(
        [
            known[label].to_numpy(np.float64)[order] if label in known else none
            for label in series.periods
        ],
        index=list(series.periods),
    )
    held = table.ffill().bfill()
    return {label: held.loc[label].to_numpy(np.float64) for label in series.periods}
