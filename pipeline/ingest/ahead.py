"""Covariates of forecasts: those of the following periods that are there, written like others.

What they are is no part of what a fit goes by (``work/series.json``, ``work/bags.zarr``): only
predict reads ``work/ahead``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from geo.core.errors import Problem
from pipeline.config.context import StageContext
from pipeline.config.schema import Config, path_key
from pipeline.ingest.cube_prints import CubePrints, moving_print
from pipeline.ingest.inputs import open_layers
from pipeline.ingest.layer_keys import head_of, layers_of
from pipeline.ingest.moving import Partly, write_moving
from pipeline.ingest.table_layers import AreaTables
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.store.pixel_store import PixelStore
from pipeline.store.series_store import SeriesStore
from pipeline.store.stand_ins import AHEAD, AHEAD_FILE

#: By forecast and name: the fingerprint of what is there, or why there is nothing.
Found = Mapping[str, Mapping[str, "list[Any] | str"]]


def ahead_of(context: StageContext, cubes: CubePrints, tables: AreaTables | None) -> Found:
    """Return which of what moves is there in each forecast.

    A file that is there is read, or its problems end the ingest. A cube or a table that does not
    reach so far, or not to the end of a period, has nothing of that period: so both grow.

    Parameters
    ----------
    context : StageContext
    cubes : CubePrints
        What is known of the values of cubes; more is added.
    tables : AreaTables or None

    Returns
    -------
    mapping of str to mapping
        By label and name: what its fingerprint is made of, or a text that says what is missing.
    """
    config = context.config
    series = config.known_series
    return {
        label: {name: _state(context, label, name, cubes, tables) for name in config.moving()}
        for label in series.following(config.output.forecast)
    }


def _state(
    context: StageContext, label: str, name: str, cubes: CubePrints, tables: AreaTables | None
) -> list[Any] | str:
    own, problems = context.config.at(label), list[Problem]()
    section = layers_of(own)[name]
    if path_key(f"{head_of(name)}.{label}", section) not in context.inputs:
        return "no file"
    found = moving_print(context, label, name, cubes, tables, problems)
    if section.aggregate is None and section.time != layers_of(context.config)[name].time:
        open_layers(own, [name], problems)  # a band of a file that may have more
    if problems:
        return problems[0].found.partition(" (")[0]
    return found if found[0] else "no values"


def write_ahead(
    context: StageContext,
    store: PixelStore,
    found: Found,
    prints: Sequence[Any],
    tables: AreaTables | None,
) -> None:
    """Write the forecasts that have something of their own, unless they are as before.

    Parameters
    ----------
    context : StageContext
    store : PixelStore
        With the periods of the series.
    found : mapping
        Of :func:`ahead_of`.
    prints : sequence
        Of what stands still, and of each period of the series.
    tables : AreaTables or None
    """
    config = context.config
    series = config.known_series
    if not found:
        remove_ahead(config)
        return
    seasons = SeriesStore(store.path, series.periods, series.times, series.season_length)
    standing, each = prints
    told = {}
    for label, states in found.items():
        like = seasons.like(label, series.time_of(label))
        known = tuple(name for name, state in states.items() if not isinstance(state, str))
        lacking = {name: state for name, state in states.items() if isinstance(state, str)}
        told[label] = {"known": known, "lacking": lacking, "like": like}
        place = context.place(f"{AHEAD}/{label}")
        if not known:
            _remove(config, label)
            continue
        own = {name: states[name] for name in known}
        others = seasons.rest(label, like, series.time_of(label))
        rest = {name: each[name] for name in (*like, *others)} if lacking else {}
        write_moving(
            context,
            store,
            label,
            fingerprint_value([standing, own, rest]),
            tables,
            Partly(place, known, like, others),
        )
    directory = config.output.dir / AHEAD
    directory.mkdir(parents=True, exist_ok=True)
    write_json(config.output.dir / AHEAD_FILE, told)
    for left in [path.name for path in directory.iterdir() if path.is_dir()]:
        if left not in found:
            _remove(config, left)


def remove_ahead(config: Config) -> None:
    """Remove what an earlier ingest knew of forecasts."""
    shutil.rmtree(config.output.dir / AHEAD, ignore_errors=True)


def _remove(config: Config, label: str) -> None:
    shutil.rmtree(config.output.dir / AHEAD / label, ignore_errors=True)
