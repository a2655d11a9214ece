"""The series of a configuration: its stores, its settings by size, its model at a period."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import models
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.store.bag_store import BagStore
from pipeline.store.series_store import SERIES_FILE, SeriesStore
from pipeline.store.stand_ins import AHEAD, AHEAD_FILE, Ahead

#: Parts of the draws that a period's areas are made in, at least: more past periods than these
#: cannot all stand for it.
MOST_PARTS = 12


def read_series(config: Config) -> dict[str, Any]:
    """Return the fingerprints of the periods, as ingest left them; empty for one period."""
    if config.series is None:
        return {}
    text = (config.output.dir / SERIES_FILE).read_text(encoding="utf-8")
    return dict(json.loads(text))


def read_ahead(config: Config) -> dict[str, Any]:
    """Return what ingest knows of the forecasts, by label; empty where nothing moves."""
    try:
        text = (config.output.dir / AHEAD_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return dict(json.loads(text))


def open_series(context: StageContext) -> SeriesStore:
    """Open the stores of the periods of a configuration with ``time``, and of its forecasts."""
    series = context.config.known_series
    place = context.place("work/bags.zarr")
    ahead = {
        label: Ahead(context.place(f"{AHEAD}/{label}"), tuple(found["known"]), not found["lacking"])
        for label, found in read_ahead(context.config).items()
        if found["known"] and label not in series.periods
    }
    return SeriesStore(place, series.periods, series.times, series.season_length, ahead)


def as_asked(store: BagStore, ids: Sequence[str], model: Any) -> BagStore:
    """Return a store with the numbers of its areas, in its inputs where a model asks for them.

    Parameters
    ----------
    store : BagStore
    ids : sequence of str
        Areas in the order of their numbers.
    model : fitted model
        Of one period, see ``numbers_areas``.
    """
    return store.numbered(ids, in_inputs=model.numbers_areas)


def spread(labels: Sequence[str], most: int) -> tuple[str, ...]:
    """Return some of the labels, in their order, from all of their length; all if they are few."""
    if len(labels) <= most:
        return tuple(labels)
    # By chance: every so many would be of one month of the season.
    chosen = np.random.default_rng(len(labels)).permutation(len(labels))[:most]
    return tuple(labels[k] for k in np.sort(chosen))


def stand_in(store: SeriesStore, label: str, time: float, part: int, model: Any) -> BagStore:
    """Return the areas of a period as one part of the draws sees them.

    Where it is not known what moves in the period, each part takes it from another past period: so
    intervals have in them what is not known of the covariates.

    Parameters
    ----------
    store : SeriesStore
    label : str
    time : float
    part : int
        Number of the part.
    model : fitted model
        Of that time.
    """
    found = spread(store.candidates(label, time), MOST_PARTS)
    like = None if not found else (found[part % len(found)],)
    return as_asked(store.at(label, time, like), store.ids, model)


def sized_series(config: Config, store: SeriesStore) -> Config:
    """Settle what follows the size: an area counts once for each period with a response.

    Parameters
    ----------
    config : Config
    store : SeriesStore

    Returns
    -------
    Config
        See :func:`pipeline.config.size_defaults.sized`.
    """
    evaluate = config.evaluate
    if evaluate.calibration == "auto":  # refits to simulated series take as long as the fit
        evaluate = evaluate.model_copy(update={"calibration": "none"})
    given = config.model_copy(update={"evaluate": evaluate})
    return sized(given, np.concatenate([store.to_fit(each).sizes for each in store.periods]))


@dataclass(frozen=True)
class MapOfPeriod:
    """What a run knows of the period that its top files map.

    Attributes
    ----------
    config : Config
        Settled for the size.
    areas : BagStore
        All areas; with their numbers where the model asks for them.
    model : fitted model
        Of a series, at the period.
    ids : tuple of str
        Areas in the order of their numbers.
    """

    config: Config
    areas: BagStore
    model: Any
    ids: tuple[str, ...]

    def numbered(self, store: BagStore) -> BagStore:
        """Return another store of the areas, as the model asks for it."""
        return as_asked(store, self.ids, self.model) if self.config.series else store


def open_map(context: StageContext, *, counted: bool = False) -> MapOfPeriod:
    """Open the areas and the model of a run; of a series, at the configuration's period.

    Parameters
    ----------
    context : StageContext
    counted : bool
        Whether counts are needed: of a series, the last period that has some is taken.
    """
    config = context.config
    model: Any = models.load(Path(config.output.dir) / "work" / "model")
    if config.series is None:
        areas = BagStore.open(context.place("work/bags.zarr"))
        return MapOfPeriod(sized(config, areas.training.sizes), areas, model, areas.ids)
    series = open_series(context)
    label = str(config.period)
    if counted:
        known = [each for each in series.periods if series.at(each).in_training.any()]
        label = label if label in known else known[-1]
    model = model.at(config.series.time_of(label))
    areas = as_asked(series.at(label), series.ids, model)
    return MapOfPeriod(sized_series(config, series), areas, model, series.ids)
