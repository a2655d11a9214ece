"""Ingest of several periods: what stands still once, what moves and what is counted by period.

A period is written again only where something of its own has changed, and touches no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem, name_first
from geo.tables.registry import tables_kept
from pipeline.config.context import StageContext
from pipeline.config.covariate_schema import INPUT_KEYS
from pipeline.config.schema import Config
from pipeline.config.years import told_people
from pipeline.core.progress import Progress
from pipeline.ingest.ahead import ahead_of, remove_ahead, write_ahead
from pipeline.ingest.checked import suspicions_logged
from pipeline.ingest.counted import area_changes, areas_together, each_period, told_unions
from pipeline.ingest.cube_prints import CUBES_FILE, CubePrints, joined, moving_print
from pipeline.ingest.extent import measurable
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.layer_keys import described_of, head_of, layers_of
from pipeline.ingest.moving import write_moving
from pipeline.ingest.period_layers import layer_suspicions
from pipeline.ingest.prepare import prepare, summary_of, write_store
from pipeline.ingest.suspicions import LACKING
from pipeline.ingest.table_layers import AreaTables
from pipeline.ingest.zone_months import ZoneTotals
from pipeline.responses.table import Columns
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.storage.local_commit import is_current, staged
from pipeline.store import aligned_grid, bag_writer
from pipeline.store.bag_store import BagStore
from pipeline.store.level_areas import titles_of, training_areas
from pipeline.store.pixel_store import PixelStore
from pipeline.store.responses import Responses, rows_text, write_responses
from pipeline.store.series_store import SERIES_FILE

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
    series = config.known_series
    still, moving = standing_inputs(context), config.moving()
    standing = fingerprint_value(still)
    if people := told_people(series, config.output.forecast):
        progress.log(f"ingest: population: {people}")
    prints: dict[str, str] = {}
    with tables_kept():
        _write_standing(context, standing)
        store = PixelStore(context.place("work/bags.zarr"))
        if moving:
            tables = _tables(config) if _has_tables(config) else None
            if store.grid is None:
                message = "a series has a grid once its pixels are written"
                raise RuntimeError(message)
            cubes = CubePrints(config.output.dir / CUBES_FILE, store.grid)
            prints = moving_prints(context, cubes, standing, tables)
            found = ahead_of(context, cubes, tables)
            cubes.write()
            if prints != _moving_before(config):
                _log_suspicions(config, progress)
            lost = {}
            with progress.task("periods", len(prints)) as task:
                for label, fingerprint in prints.items():
                    lost[label] = write_moving(context, store, label, fingerprint, tables)
                    task.advance(1)
            if told := told_lost(config, store.ids, lost):
                progress.log(f"ingest: warning: {told}")
            write_ahead(context, store, found, [standing, prints], tables)
        else:
            remove_ahead(config)
        frame = read_all(config, store, moving, progress)
    averages = not config.response_kind.adds_up
    write_responses(store.data, frame, averages=averages, periods=series.periods)
    known = {
        str(label): fingerprint_value(rows_text(rows))
        for label, rows in frame.groupby("period")
        if rows["training"].any()
    }
    counts = {str(k): int(n) for k, n in frame.groupby("period")["training"].sum().items()}
    write_json(
        config.output.dir / SERIES_FILE,
        {
            "standing": standing,
            "standing_data": fingerprint_value(_data_alone(still)),
            "moving": prints,
            "responses": known,
            "counts": counts,
        },
    )
    seen = set(frame.loc[frame["training"], "period"])
    counted = [label for label in series.periods if label in seen]
    last = BagStore.open(context.place("work/bags.zarr"), period=counted[-1])
    lacking = [label for label in series.periods if label not in counted]
    if lacking:
        progress.log(f"ingest: no counts of {name_first(lacking, 12)}")
    n_hidden = int((frame["training"] & frame["lower"].notna()).sum())
    hidden = f", {n_hidden:,} of them suppressed" if n_hidden else ""
    progress.log(f"ingest: {len(series.periods)} periods, {len(frame):,} responses{hidden}")
    return {**summary_of(last, config, progress), "periods": list(series.periods)}


def _moving_before(config: Config) -> dict[str, str] | None:
    """Return the fingerprints of what moved when these periods were written last."""
    path = config.output.dir / SERIES_FILE
    if not path.is_file():
        return None
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["moving"]
    return found


def _log_suspicions(config: Config, progress: Progress) -> None:
    """Log what is suspicious of the files of any period."""
    areas = training_areas(config)
    for each in layer_suspicions(config, areas.geometry[measurable(areas)]):
        if not config.check.accepts(each.code, each.place):
            progress.log(f"ingest: suspicion: {each}")


def told_lost(config: Config, ids: Sequence[str], lost: Mapping[str, np.ndarray | None]) -> str:
    """Return what is said of areas that lose over half of their people in some period.

    Parameters
    ----------
    config : Config
    ids : (n_bag,) sequence of str
        Of the store's areas.
    lost : mapping of str to (n_bag,) float64 array or None
        Share of each area's people, by period: of :func:`pipeline.ingest.moving.write_moving`.

    Returns
    -------
    str
        "" if there are none.
    """
    written = {label: share for label, share in lost.items() if share is not None}
    if not written:
        return ""
    share, labels = np.stack([*written.values()]), [*written]
    which = np.flatnonzero((share > LACKING).any(axis=0))
    if which.size == 0:
        return ""
    areas = training_areas(config)
    names = dict(zip(areas[AREA_ID].astype(str), titles_of(areas, config.areas.name), strict=True))
    which = which[np.argsort(-(share[:, which] > LACKING).sum(axis=0), kind="stable")]
    each = []
    for k in which.tolist():
        own = np.flatnonzero(share[:, k] > LACKING).tolist()
        worst = max(own, key=lambda t: share[t, k])
        where = labels[worst] if len(own) == 1 else f"{len(own)} periods, {labels[worst]}"
        each.append(f"{names[str(ids[k])]} ({where}: {100 * share[worst, k]:.0f} %)")
    what = "people" if config.population is not None else "surface"
    return (
        f"{which.size:,} of {len(ids):,} areas lose over half of their {what} in some period, "
        f"where pixels lack a covariate: {name_first(each, N_NAMED)}; look at the layers of it"
    )


def standing_inputs(context: StageContext) -> dict[str, str]:
    """Return the fingerprints of what stands still, of those of the stage's inputs, by name."""
    config, given = context.config, context.inputs
    moving = config.moving()
    files, heads = _files(given), tuple(f"{head_of(name)}." for name in moving)
    of_moving = {key for key in files if key.startswith(heads)}
    sections = {"areas", "grid", "fit.seed", "output.mask"}
    still = {
        key: value
        for key, value in given.items()
        if key in sections
        or _is_code(key)
        or (key in files - of_moving and not key.startswith(("counts.", "labels.", "points.")))
    }
    if config.points:  # areas of a zone are neighbours; totals come with each month
        still["zones"] = fingerprint_value([spec.zone for spec in config.points])
    still["layers"] = fingerprint_value(
        {
            name: described_of(layer)
            for name, layer in layers_of(config).items()
            if name not in moving
        }
    )
    return still


def _is_code(key: str) -> bool:
    return key.partition(".")[0] in ("code", "library")


def _data_alone(still: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in still.items() if not _is_code(key)}


def moving_prints(
    context: StageContext, cubes: CubePrints, standing: str, tables: AreaTables | None = None
) -> dict[str, str]:
    """Return the fingerprint of what moves in each period, by label.

    Parameters
    ----------
    context : StageContext
    cubes : CubePrints
        What is known of the values of cubes; more is added.
    standing : str
        Fingerprint of what stands still.
    tables : AreaTables, optional
        Of covariates that are tables.

    Raises
    ------
    InputError
        If a cube does not have all steps of a period, or a table not all areas.
    """
    config, problems = context.config, list[Problem]()
    series = config.known_series
    each = {}
    for label in series.periods:
        parts = {
            name: moving_print(context, label, name, cubes, tables, problems)
            for name in config.moving()
        }
        each[label] = fingerprint_value([standing, parts])
    if problems:
        raise InputError(joined(problems))
    return each


def _files(given: Mapping[str, str]) -> set[str]:
    kinds = tuple(f".{kind}" for kind in INPUT_KEYS)
    return {key for key in given if key.endswith(kinds)}


def _has_tables(config: Config) -> bool:
    return any(each.table is not None for each in config.covariates.values())


def _tables(config: Config) -> AreaTables:
    areas = training_areas(config)
    return AreaTables(areas, area_changes(config, areas, []))


def _write_standing(context: StageContext, fingerprint: str) -> None:
    """Write the grid and the pixels of what stands still, unless they are as before."""
    config, progress = context.config, context.progress
    grid, bags = context.place("work/grid.zarr"), context.place("work/bags.zarr")
    if is_current(grid, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) and is_current(
        bags, bag_writer.FORMAT, bag_writer.VERSION, fingerprint
    ):
        return
    logged, mapped = suspicions_logged(config, progress), list[Columns]()

    def adapt(inputs: Inputs, problems: list[Problem]) -> Inputs:
        mapped.append(inputs.responses)
        return _standing(reference, inputs, problems)

    def look(inputs: Inputs, *pixels: Any) -> Sequence[Problem]:
        # Rates are those of one period, as `disagg check` looks at them: all have more cases.
        return logged(replace(inputs, responses=mapped[0]), *pixels)

    with staged(grid, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) as staging:
        reference = _counted(config)
        inputs, chosen = prepare(reference, staging, progress, look, adapt)
        together = None if inputs.areas is None else areas_together(config, inputs.areas)
        write_store(config, inputs, chosen, staging, bags, fingerprint, progress, together=together)


def _counted(config: Config) -> Config:
    """Return the configuration of the last period with counts."""
    series = config.known_series
    known = [label for label in series.periods if label in series.spelled]
    return config.at(known[-1]) if known else config


def _standing(config: Config, inputs: Inputs, problems: list[Problem]) -> Inputs:
    """Return what stands still of the inputs, with the counts of all periods."""
    moving = config.moving()
    counts = inputs.responses.counts
    if counts is not None and inputs.areas is not None:
        each = each_period(config, inputs.areas, problems)
        found = [own.least for own in each.values() if own.least is not None]
        if found:
            table = pd.concat(found, axis=1)
            counts = table.sum(axis=1, min_count=1)
    covariates = {name: each for name, each in inputs.covariates.items() if name not in moving}
    return replace(inputs, covariates=covariates, responses=Columns(counts))


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
    areas = training_areas(config)
    counted = each_period(config, areas, problems)
    if problems:
        raise InputError(problems)
    if config.points:
        for key, text in ZoneTotals(config, areas, []).told().items():
            progress.log(f"ingest: {key}: {text}")
    if told := told_unions(counted):
        progress.log(f"ingest: {told}")
    ids = pd.Index(areas[AREA_ID].astype(str))
    order = ids.get_indexer(list(store.ids))
    each, unions = dict[str, Columns](), dict[str, np.ndarray]()
    for label, found in counted.items():
        people = pd.Series(0.0, index=ids)
        if found.unions:
            own = PixelStore(store.path, period=label) if moving else store
            people.iloc[order] = own.bag_weight
        each[label], names, lost = found.shared(people)
        unions[label] = names.to_numpy(object)[order]
        for empty in lost:
            progress.log(f"ingest: {label}: left out {empty.name}: nobody counts there")
    weights = _held_weights(config, each, order)
    frames = []
    for label in config.known_series.periods:
        columns, weight = each.get(label, Columns()), weights.get(label)
        known = columns.counts is not None and not columns.counts.isna().all()
        if not known and weight is None:
            continue
        own = PixelStore(store.path, period=label) if moving else store
        given = columns.arrays(order)
        value = given.get("counts", np.full(len(store.ids), np.nan))
        exposed = own.bag_weight > 0
        lost = ~exposed & np.isfinite(value)
        if lost.any():
            named = name_first([store.ids[k] for k in np.flatnonzero(lost)], N_NAMED)
            progress.log(
                f"ingest: warning: {label}: the counts of {lost.sum():,} areas are left out, since "
                f"nobody counts there: {named}; look at the layers of that period"
            )
        value = np.where(exposed, value, np.nan)
        none = given.get("weights", np.full(value.shape, np.nan)) == 0
        if none.any():
            named = name_first([store.ids[k] for k in np.flatnonzero(none)], N_NAMED)
            progress.log(
                f"ingest: {label}: {none.sum():,} areas have a weight of 0, and so no value in "
                f"that period; tables have the weight of the last period with one: {named}"
            )
        value = np.where(none, np.nan, value)
        tested, margin, union = given.get("tested"), given.get("margins"), unions.get(label)
        responses = Responses(value, np.isfinite(value), tested, weight, margin, union=union)
        frames.append(responses.frame(store.ids, label))
    where = f"counts ({config.response.path})"
    if not any(frame["training"].any() for frame in frames):
        raise InputError(Problem(where, "no area has a count in any period", "check the table"))
    if not any((frame["training"] & frame["union"].isna()).any() for frame in frames):
        wrong = "no area of today has a count of its own: all are of several areas together"
        remedy = "map with the areas of before until counts of the new ones arrive"
        raise InputError(Problem(where, wrong, remedy))
    return pd.concat(frames, ignore_index=True)


def _held_weights(
    config: Config, each: Mapping[str, Columns], order: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the exposures of each period by area; one not given, or 0, is that before it.

    Before the first that is known, it is the first: an area whose count has not arrived has people
    all the same.
    """
    series = config.known_series
    known = {label: own.weights for label, own in each.items() if own.weights is not None}
    if not known:
        return {}
    none = np.full(order.size, np.nan)
    table = pd.DataFrame(
        [
            known[label].to_numpy(np.float64)[order] if label in known else none
            for label in series.periods
        ],
        index=list(series.periods),
    )
    held = table.where(table != 0).ffill().bfill()
    return {label: held.loc[label].to_numpy(np.float64) for label in series.periods}
