"""The maps of a series: the latest period's, those asked for besides, and forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import models
from geo.core.columns import AREA_ID
from geo.core.errors import name_first
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.level_schema import fixed_total
from pipeline.config.schema import Config
from pipeline.config.size_defaults import SECTIONS
from pipeline.config.windows import Window, left_out, periods_to_map, windows_of
from pipeline.levels.levels import grid_of
from pipeline.prediction.ahead import told_ahead
from pipeline.prediction.cube import Cube
from pipeline.prediction.one_map import (
    MadeMap,
    MapInputs,
    MapRequest,
    SharedPosterior,
    make_maps,
)
from pipeline.prediction.period_table import draw_periods, shares, tabulate_periods
from pipeline.prediction.seasons import NAMES, SeasonMaps, Year, same_season
from pipeline.prediction.support_shares import covariate_range
from pipeline.prediction.windows import (
    WindowInputs,
    map_window,
    tabulate_window,
    with_means,
)
from pipeline.products.csv_table import write_csv
from pipeline.products.layer_files import open_layers
from pipeline.products.moving_grids import NOWHERE, MovingPlaces
from pipeline.products.periods import MOST_MAPPED, PERIODS, TOGETHER
from pipeline.products.product_types import Layer
from pipeline.products.products import PERIODS_CSV, PERIODS_PARQUET, layers
from pipeline.products.suppressed import ends_of
from pipeline.products.tags import run_tags
from pipeline.products.tile_pass import Consumer
from pipeline.store.bag_store import BagStore
from pipeline.store.series_store import SeriesStore
from pipeline.training.series import (
    as_asked,
    open_series,
    read_ahead,
    sized_series,
    spread,
    stand_in,
)

#: Columns of ``periods.csv``, and of the tables of maps.
OF_MAP = {
    "mean": "fitted",
    "lower": "fitted_lower",
    "upper": "fitted_upper",
    "rate": "fitted_rate",
    "rate_lower": "fitted_rate_lower",
    "rate_upper": "fitted_rate_upper",
    "count_lower": "count_lower",
    "count_upper": "count_upper",
}
IN_CUBE = ("rate_mean", "rate_sd", "rate_lower", "rate_upper", "cases_mean")


@dataclass(frozen=True)
class MappedSeries:
    """What was made of a series.

    Attributes
    ----------
    areas : BagStore
        Of the latest period.
    config : Config
        Settled for the size.
    made : MadeMap
        The latest map.
    revised : list of str
        Earlier periods that an update changed by more than was uncertain of them.
    """

    areas: BagStore
    config: Config
    made: MadeMap
    revised: list[str]


def predict_series(context: StageContext, boundaries: Any, staging: Path) -> MappedSeries:
    """Write the map of the latest period, and those of ``output.periods`` and of forecasts.

    Parameters
    ----------
    context : StageContext
    boundaries : GeoDataFrame
        The areas.
    staging : Path
        Directory of the files.
    """
    series = context.config.known_series
    store = open_series(context)
    config = sized_series(context.config, store)
    model: Any = models.load(Path(config.output.dir) / "work" / "model")
    ahead = series.following(config.output.forecast)
    taken = {label: store.candidates(label, series.time_of(label)) for label in ahead}
    if told := told_ahead(read_ahead(config), config.moving(), ahead, taken):
        context.progress.log(f"predict: forecasts: {told}")
    output = config.output
    for text in left_out(series, output.periods, output.windows, output.forecast):
        context.progress.log(f"predict: {text}")
    windows, _ = windows_of(series, output.windows, output.forecast)
    table, of_windows = _table(context, config, store, model, ahead, windows)
    fitted = context.record.get("fit", {}).get("summary", {})
    revised = _revised(context, config, table) if fitted.get("updated") else []
    latest = str(config.period)
    if revised:
        again = "" if revised == [latest] else f", and mapped again ({PERIODS}/)"
        context.progress.log(
            f"predict: {name_first(revised, 12)}: changed by more than was uncertain of it{again}"
        )
    asked, _ = periods_to_map(series, output.periods, latest)
    mapped = {*asked, *revised, *ahead, latest}
    labels = [label for label in (*series.periods, *ahead) if label in mapped]
    years = _years(config, table, labels)
    others = {each for own in years.values() for each in own}
    times = {label: series.time_of(label) for label in (*labels, *others)}
    rng = np.random.default_rng([config.fit.seed, 1])
    moving = moving_columns(config, store)
    drawn = model.sample_functions(config.output.draws, rng, sorted(times.values()), moving)
    seasonal = [each for each in layers(config, from_draws=True) if each.name in NAMES]
    cube = _cube(context, config, store, model, labels, seasonal if others else [], staging)
    made = _Maps(
        context, config, store, model, boundaries, staging, times, drawn, moving, cube, seasonal
    ).make(labels, years)
    del drawn  # windows have functions of their own, and memory for one of both
    for label, of_map in made.items():
        _take_map(table, label, of_map.table)
    at_windows = WindowInputs(
        config,
        model,
        store.at(latest),
        store.ids,
        boundaries,
        moving,
        lambda label: moving_grids(context, store, label, series.time_of(label)),
    )
    for window, own in zip(windows, of_windows, strict=True):
        areas = with_means(own, table, window.labels, alike=config.response_kind.sampled)
        map_window(context, at_windows, window, areas, staging)
    _write_table(table, list(boundaries[AREA_ID].astype(str)), staging)
    return MappedSeries(store.at(latest), config, made[latest], revised)


@dataclass(frozen=True)
class _Maps:
    """Who makes the maps of periods, some in one pass; see :func:`predict_series`."""

    context: StageContext
    config: Config
    store: SeriesStore
    model: Any
    boundaries: Any
    staging: Path
    times: Mapping[str, float]
    drawn: Any
    moving: Sequence[int]
    cube: Cube
    seasonal: Sequence[Layer]

    def make(self, labels: Sequence[str], years: Mapping[str, Sequence[str]]) -> dict[str, MadeMap]:
        """Make the maps of periods, with the season of each in other years."""
        made: dict[str, MadeMap] = {}
        for first in range(0, len(labels), TOGETHER):
            group = labels[first : first + TOGETHER]
            times = [self.times[label] for label in group]
            joint = self.model.posterior_.joint_moments(times, self.moving)
            shared = SharedPosterior(self.drawn.among(times), joint)
            with ExitStack() as stack:
                wanted = [self._request(label, years[label], stack) for label in group]
                found = make_maps(wanted, self.context.progress, shared)
            made.update(zip(group, found, strict=True))
        return made

    @cached_property
    def _limits(self) -> np.ndarray:
        return series_range(self.store, n_thread(self.config))

    def _request(self, label: str, years: Sequence[str], stack: ExitStack) -> MapRequest:
        time, latest = self.times[label], label == str(self.config.period)
        directory = self.staging if latest else self.staging / PERIODS / label
        directory.mkdir(parents=True, exist_ok=True)
        at = self.model.at(time, self.drawn)
        areas = as_asked(self.store.at(label, time), self.store.ids, at)
        may_be = () if label in self.store.periods else self.store.candidates(label, time)
        like = [self.store.at(label, time, (each,)) for each in spread(may_be, MOST_MAPPED)]
        config = self.config if latest else _mapped_to(self.config, label)
        also: list[Consumer] = [self.cube.at(label)]
        if years:
            tags = run_tags(config, areas.training, at)
            files = stack.enter_context(open_layers(self.seasonal, self.cube.grid, directory, tags))
            before = [
                Year(self.drawn.at(self.times[year]), self._moving_grids(year)) for year in years
            ]
            also.append(SeasonMaps(before, files, self.cube.at(label)))
        given = MapInputs(
            config,
            at,
            areas,
            self.boundaries,
            lambda: self._limits,
            self.context.place("work/grid.zarr"),
            self._moving_grids(label),
            also,
            like=[as_asked(each, self.store.ids, at) for each in like],
        )
        return MapRequest(given, directory, told=latest)

    def _moving_grids(self, label: str) -> MovingPlaces:
        return moving_grids(self.context, self.store, label, self.times[label])


def moving_columns(config: Config, store: SeriesStore) -> list[int]:
    """Return the columns of the covariates that differ by period."""
    names = config.moving()
    covariates = store.at(str(config.period)).covariates
    return [column for column, name in enumerate(covariates) if name in names]


def moving_grids(
    context: StageContext, store: SeriesStore, label: str, time: float
) -> MovingPlaces:
    """Return the aligned grids of what moves in a period; of a forecast, its own or others'."""
    if not store.pixels.periods:
        return NOWHERE
    own, like = store.ahead.get(label), store.like(label, time)
    rest = store.rest(label, like, time) if like else ()
    may_be = () if label in store.periods else spread(store.candidates(label, time), MOST_MAPPED)
    of_like, of_rest, each = (
        tuple(context.place(f"work/{PERIODS}/{name}/grid.zarr") for name in labels)
        for labels in (like or (label,), rest, may_be)
    )
    if own is not None:
        return MovingPlaces((own.grid,), each=each, own=own.known)
    return MovingPlaces(of_like, of_rest, each)


def series_range(store: SeriesStore, threads: int | None) -> np.ndarray:
    """Return the least and the largest of each covariate in the training of all periods."""
    each = [store.to_fit(label) for label in store.periods]
    found = np.stack([covariate_range(own, threads) for own in each if own.n_bag])
    return np.stack([np.nanmin(found[:, 0], axis=0), np.nanmax(found[:, 1], axis=0)])


def _mapped_to(config: Config, label: str) -> Config:
    """Return the settled configuration of another period; of a forecast, with today's files.

    Nobody knows the totals of a forecast: it is reconciled to none. Nor is another period to a
    column that has those of the latest.
    """
    series, document = config.series, config.document
    unscaled = {"output": config.output.model_copy(update={"reconcile": None})}
    if series is None or label not in series.periods:
        return config.model_copy(update={"period": label, **unscaled})
    own: dict[str, Any] = {name: getattr(config, name) for name in SECTIONS}
    if document is not None and fixed_total(document.values):
        own |= unscaled
    return config.at(label).model_copy(update=own)


def _years(config: Config, table: pd.DataFrame, labels: Sequence[str]) -> dict[str, list[str]]:
    """Return the periods of the season of each of some periods, in other years."""
    series = config.known_series
    counted = set(table.loc[ends_of(table)[0].notna(), "period"])
    every = list(dict.fromkeys((*series.periods, *labels)))
    times = np.array([series.time_of(label) for label in every])
    known = np.array([label in counted for label in every])
    found = dict(zip(every, same_season(times, known, series.season_length), strict=True))
    return {label: [every[place] for place in found[label]] for label in labels}


def _cube(
    context: StageContext,
    config: Config,
    store: SeriesStore,
    model: Any,
    labels: Sequence[str],
    more: Sequence[Layer],
    staging: Path,
) -> Cube:
    series, areas = config.known_series, store.at(str(config.period))
    return Cube(
        staging,
        grid_of(context.place("work/grid.zarr")),
        [*(each for each in layers(config, areas.training) if each.name in IN_CUBE), *more],
        labels,
        [series.calendar.first(int(series.time_of(label))) for label in labels],
        [label not in series.periods for label in labels],
        run_tags(config, areas.training, model),
    )


def _table(
    context: StageContext,
    config: Config,
    store: SeriesStore,
    model: Any,
    ahead: Sequence[str],
    windows: Sequence[Window],
) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Return the areas in every period and in the forecasts, and in each window."""
    series, output = config.known_series, config.output
    labels = [*series.periods, *ahead]
    times = [series.time_of(label) for label in labels]
    stores = [
        partial(stand_in, store, label, time, model=model)
        for label, time in zip(labels, times, strict=True)
    ]
    with context.progress.task("periods", len(labels) * len(shares(output.draws))) as task:
        draws = draw_periods(
            model,
            stores,
            times,
            output.draws,
            config.fit.seed,
            moving=moving_columns(config, store),
            n_thread=n_thread(config),
            advance=task.advance,
        )
    table = tabulate_periods(
        draws,
        store.ids,
        labels,
        {label: label in ahead for label in labels},
        output.interval,
        output.rate_per,
        series.season_length,
    )
    _tell_unions(table, store)
    place = {label: number for number, label in enumerate(labels)}
    per = output.interval, output.rate_per
    alike = config.response_kind.sampled
    found = []
    for window in windows:
        places = [place[each] for each in window.labels]
        found.append(tabulate_window(draws, places, store.ids, *per, alike=alike))
    return table, found


def _tell_unions(table: pd.DataFrame, store: SeriesStore) -> None:
    """Add the column ``counted_in``: areas of before whose count an area is a part of, if any."""
    found = {
        (name, label): union
        for label in store.periods
        if (own := store.to_fit(label)).responses.union is not None
        for name, union in zip(own.ids, own.responses.union, strict=True)
        if union
    }
    if found:
        keys = zip(table["id"], table["period"], strict=True)
        place = table.columns.get_loc("mean")
        table.insert(place, "counted_in", [found.get(key, "") for key in keys])


def _revised(context: StageContext, config: Config, table: pd.DataFrame) -> list[str]:
    """Return the earlier periods of which an area changed by more than was uncertain of it."""
    path = Path(config.output.dir) / PERIODS_PARQUET.file
    if not path.is_file():
        return []
    key = ["id", "period"]
    before = pd.read_parquet(path)
    both = before[~before["forecast"]].merge(table, on=key, suffixes=("_before", ""))
    half = (both["upper_before"] - both["lower_before"]) / 2
    far = (both["mean"] - both["mean_before"]).abs() > half
    series = context.config.known_series
    changed = set(both["period"][far])
    return [label for label in series.periods if label in changed]


def _take_map(table: pd.DataFrame, label: str, areas: pd.DataFrame) -> None:
    """Take means and intervals of a map's table of areas, so that both tables say the same.

    The means of a map have no Monte Carlo error.
    """
    if "fitted_rate" not in areas:
        return
    at = table["period"] == label
    own = areas.reindex(table.loc[at, "id"])
    for name, given in OF_MAP.items():
        values = own[given].to_numpy(np.float64)
        known = np.isfinite(values)
        table.loc[at, name] = np.where(known, values, table.loc[at, name]).astype(table[name].dtype)


def _write_table(table: pd.DataFrame, ids: Sequence[str], staging: Path) -> None:
    """Write the table, the areas of a period in the order of their file."""
    place = {name: number for number, name in enumerate(ids)}
    order = np.lexsort([table["id"].map(place).to_numpy(), pd.factorize(table["period"])[0]])
    ordered = table.iloc[order].reset_index(drop=True)
    write_csv(ordered, staging / PERIODS_CSV.file)
    ordered.to_parquet(staging / PERIODS_PARQUET.file, index=False)
