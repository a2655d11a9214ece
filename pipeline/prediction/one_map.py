"""The map of one period: its rasters, its tables, its totals.

All are consumers of one pass over the tiles; the areas of the table are drawn from the same
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cluster.local import driver_device, n_thread
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.levels.levels import LevelProducts, grid_of, log_overlaps, open_levels
from pipeline.prediction.area_description import column_units, describe_areas
from pipeline.prediction.labels import LabelPredictor, tabulate_labels
from pipeline.prediction.points import summarise_points, tabulate_points
from pipeline.prediction.raster import device_of
from pipeline.prediction.support_shares import SupportShares
from pipeline.prediction.totals import MapTotals, explain_difference, fitted_total
from pipeline.prediction.without_counts import log_without_counts, sum_draws, sum_labels
from pipeline.products.area_factors import AreaFactors
from pipeline.products.area_rows import blank_unknown, with_uninhabited
from pipeline.products.areas import (
    AreaDraws,
    draw_areas,
    draw_areas_over_times,
    draw_functions,
    tabulate_areas,
    write_areas,
    write_draws,
)
from pipeline.products.csv_table import write_csv
from pipeline.products.exposures import Exposures
from pipeline.products.layer_files import open_layers
from pipeline.products.map_result import MapResult
from pipeline.products.moving_grids import NOWHERE, MovingPlaces
from pipeline.products.products import DATA_SUPPORT, POINTS_CSV, layers
from pipeline.products.tags import run_tags
from pipeline.products.tile_pass import Consumer, MapPass, Moments, run_passes
from pipeline.products.tile_pixels import TileReader
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import Balance, add_results, balance_of, render_balance
from pipeline.store.point_store import PointStore

#: Monte Carlo errors beyond which an area's mean is not that of its pixels, shared with others.
SHARED = 4.0


@dataclass(frozen=True)
class MapInputs:
    """What the map of one period is made from.

    Attributes
    ----------
    config : Config
        Settled for the size, and of that period.
    model : fitted model
        Of that period.
    areas : BagStore
        All areas.
    boundaries : GeoDataFrame
    limits : callable
        Returns the least and the largest of each covariate in the training, (2, n_feat).
    cube : Place
        The aligned grid.
    moving : MovingPlaces
        Aligned grids of what moves.
    also : sequence of Consumer
        Of the pass over the tiles, besides those of a map.
    points : PointStore or None
        Beside the areas.
    like : sequence of BagStore
        The areas as they may be where it is not known what moves, each as probable.
    """

    config: Config
    model: Any
    areas: BagStore
    boundaries: Any
    limits: Callable[[], np.ndarray]
    cube: Place
    moving: MovingPlaces = NOWHERE
    also: Sequence[Consumer] = ()
    points: PointStore | None = None
    like: Sequence[BagStore] = ()


@dataclass
class MadeMap:
    """What was made of a map.

    Attributes
    ----------
    n_pix : int
        Pixels mapped.
    table : DataFrame
        That of ``areas.csv``.
    uncounted : dict
        Totals of the areas without a count.
    balance : Balance or None
    support : dict or None
        Of :class:`pipeline.prediction.support_shares.SupportShares`.
    leveled : dict
        Number of areas of each level.
    points : dict
        Of :func:`pipeline.prediction.points.summarise_points`; empty without points.
    draws : AreaDraws or None
        Of all areas.
    """

    n_pix: int
    table: pd.DataFrame
    uncounted: dict[str, Any]
    balance: Balance | None
    support: dict[str, Any] | None = None
    leveled: dict[str, Any] = field(default_factory=dict)
    points: dict[str, Any] = field(default_factory=dict)
    draws: AreaDraws | None = None


@dataclass(frozen=True)
class MapRequest:
    """A map to make.

    Attributes
    ----------
    given : MapInputs
    directory : Path
        Of its rasters and tables.
    told : bool
        Whether its totals are logged.
    """

    given: MapInputs
    directory: Path
    told: bool = True


@dataclass(frozen=True)
class SharedPosterior:
    """What maps of several periods are evaluated with together.

    Attributes
    ----------
    drawn : PeriodDraws
        Functions of each period.
    moments : JointMoments
    """

    drawn: Any
    moments: Any


def make_map(given: MapInputs, staging: Path, progress: Progress) -> MadeMap:
    """Write the rasters and the tables of one period to a directory."""
    return make_maps([MapRequest(given, staging)], progress)[0]


def make_maps(
    wanted: Sequence[MapRequest], progress: Progress, shared: SharedPosterior | None = None
) -> list[MadeMap]:
    """Write the rasters and the tables of one or several periods, in one pass over the tiles.

    Parameters
    ----------
    wanted : sequence of MapRequest
        Of the same settings for sizes and models.
    progress : Progress
    shared : SharedPosterior, optional
        Of several periods; without it each is evaluated by its model.
    """
    tables = _all_tables([each.given for each in wanted], progress, shared)
    maps: list[_Maps | None] = [None] * len(wanted)
    if "pixels" in wanted[0].given.model.predicts:
        maps = [
            _Maps(each.given, own, each.directory, progress)
            for each, own in zip(wanted, tables, strict=True)
        ]
        _run(list(filter(None, maps)), progress, shared)
    return [
        _finish(each, own, of_map, progress)
        for each, own, of_map in zip(wanted, tables, maps, strict=True)
    ]


def _finish(each: MapRequest, tables: _Tables, maps: _Maps | None, progress: Progress) -> MadeMap:
    given, directory = each.given, each.directory
    config, areas = given.config, given.areas
    leveled = {} if maps is None else maps.write_levels()
    if each.told:
        log_without_counts(config, tables.uncounted, progress)
    write_areas(given.boundaries, tables.whole(), config.areas.id, directory)
    describe_areas(config, directory)
    if tables.draws is not None:
        known = areas.known_trials & areas.known_exposure
        ids = [each for each, keep in zip(areas.ids, known, strict=True) if keep]
        write_draws(tables.draws.select(known), ids, column_units(config), directory)
    points = {} if given.points is None else _points(given, given.points, tables, directory)
    mapped = None if maps is None else maps.totals.result
    balance = _balance(config, areas, given.model, mapped, tables, progress)
    support = None if maps is None or maps.support is None else maps.support.result
    n_pix = 0 if maps is None else maps.n_pix
    draws = tables.draws
    return MadeMap(n_pix, tables.table, tables.uncounted, balance, support, leveled, points, draws)


def _points(given: MapInputs, points: PointStore, tables: _Tables, staging: Path) -> dict[str, Any]:
    """Write the table of the points; return what is told of each source."""
    output, seed = given.config.output, given.config.fit.seed
    table = tabulate_points(given.model, points, tables.functions, output.interval, seed)
    write_csv(table, staging / POINTS_CSV.file)
    return summarise_points(table, given.model.hyperparameter_table())


class _Tables:
    """The areas of the store, drawn or labelled, and their table.

    Attributes
    ----------
    functions : draws of functions, or None
        None for labels.
    draws : AreaDraws or None
    factors : AreaFactors or None
        What the counts add to the surface.
    table : DataFrame
        That of ``areas.csv``.
    uncounted : dict
        Totals of the areas without a count.
    """

    def __init__(self, config: Config, areas: BagStore) -> None:
        self._config, self._areas = config, areas
        self.functions: Any = None
        self.draws: AreaDraws | None = None
        self.factors: AreaFactors | None = None

    def label(self, model: Any, progress: Progress) -> None:
        """Take the probabilities of labels."""
        areas, config = self._areas, self._config
        with progress.task("areas", areas.n_bag) as task:
            predictor = LabelPredictor(areas, config.output.interval, n_thread(config))
            found = predictor.predict(model, advance=task.advance)
        table = tabulate_labels(found, list(areas.ids))
        self.table = table.assign(in_training=areas.in_training)
        self.uncounted = sum_labels(self.table)

    def take(self, functions: Any, draws: AreaDraws, of_draws: np.ndarray) -> None:
        """Take the draws of the areas, and the factors that conditioned them."""
        self.functions = functions
        self.factors = AreaFactors.of(list(self._areas.ids), of_draws, draws.expected)
        self._tabulate(draws)

    def take_means(self, rate: pd.Series, within: float) -> None:
        """Take the mean rates of the rasters, by id: see :meth:`AreaDraws.with_rates`."""
        if self.draws is not None:
            self._tabulate(self.draws.with_rates(rate.reindex(list(self._areas.ids)), within))

    def whole(self) -> pd.DataFrame:
        """Return the table with the areas that the store lacks, and that have a count."""
        return with_uninhabited(self.table, self._areas)

    def _tabulate(self, draws: AreaDraws) -> None:
        self.draws, output, areas = draws, self._config.output, self._areas
        table = tabulate_areas(draws, list(areas.ids), output.interval, output.rate_per)
        self.table = blank_unknown(table, areas).assign(in_training=areas.in_training)
        self.uncounted = sum_draws(draws, areas, output.interval)


def _all_tables(
    every: Sequence[MapInputs], progress: Progress, shared: SharedPosterior | None
) -> list[_Tables]:
    """Draw or label the areas of each map."""
    config, n_bag = every[0].config, every[0].areas.n_bag
    tables = [_Tables(each.config, each.areas) for each in every]
    if not config.response_kind.drawn:
        for own, each in zip(tables, every, strict=True):
            own.label(each.model, progress)
        return tables
    n_draws, seed, threads = config.output.draws, config.fit.seed, n_thread(config)
    factors = [np.ones((n_draws, each.areas.n_bag)) for each in every]
    functions = [draw_functions(each.model, n_draws, seed) for each in every]
    with progress.task("areas", n_bag * (len(every) if shared is None else 1)) as task:
        if shared is not None:
            found = _drawn_together(every, shared, factors, task.advance)
        else:
            found = [
                draw_areas(
                    each.model,
                    each.areas,
                    n_draws,
                    seed,
                    advance=task.advance,
                    n_thread=threads,
                    functions=drawn,
                    observed=True,
                    factors=of_draws,
                )
                for each, drawn, of_draws in zip(every, functions, factors, strict=True)
            ]
    for own, drawn, draws, of_draws in zip(tables, functions, found, factors, strict=True):
        own.take(drawn, draws, of_draws)
    return tables


def _drawn_together(
    every: Sequence[MapInputs],
    shared: SharedPosterior,
    factors: Sequence[np.ndarray],
    advance: Callable[[int], None],
) -> list[AreaDraws]:
    """Draw the areas of several maps in one pass over their pixels.

    Where the covariates of one may be several, every so many draws have each.
    """
    n_draws, seed = every[0].config.output.draws, every[0].config.fit.seed
    each_of = [range(min(len(each.like) or 1, n_draws)) for each in every]
    parts = [(number, k) for number, own in enumerate(each_of) for k in own]
    models = [every[number].model for number, _ in parts]
    shares = [(k, len(each_of[number])) for number, k in parts]
    found = draw_areas_over_times(
        models,
        [(every[number].like or [every[number].areas])[k] for number, k in parts],
        shared.drawn.among([model.time for model in models], shares),
        [seed + n for n in range(len(parts))],  # of the counts' noise
        factors=[None if every[number].like else factors[number] for number, _ in parts],
        advance=advance,
        n_thread=n_thread(every[0].config),
    )
    places = np.cumsum([0, *map(len, each_of)]).tolist()
    return [AreaDraws.interleaved(found[a:b]) for a, b in pairwise(places)]


class _Maps:
    """The maps and what follows from them: consumers of one pass over the tiles.

    Attributes
    ----------
    totals : MapTotals
    support : SupportShares or None
    reader : TileReader
    n_thread : int or None
    n_pix : int
        Pixels mapped.
    """

    n_pix = 0

    def __init__(
        self, given: MapInputs, tables: _Tables, staging: Path, progress: Progress
    ) -> None:
        config, model, areas = given.config, given.model, given.areas
        self._config, self._model, self._tables = config, model, tables
        self._progress, self._staging, self._also = progress, staging, given.also
        self.n_thread = n_thread(config)
        store, output = areas.training, config.output
        self._wanted = layers(config, store)
        self._tags = run_tags(config, store, model)
        levels, numbers = [], None
        if tables.functions is not None:
            levels = open_levels(config, given.boundaries, grid_of(given.cube))
            log_overlaps(levels, config, progress)
            if model.numbers_areas:
                assert areas.numbers is not None
                at = dict(zip(areas.ids, areas.numbers, strict=True))
                numbers = np.array([at.get(name, -1) for name in levels[0].ids], dtype=np.int64)
        self.reader = TileReader.open(
            given.cube, levels, output.mask, moving=given.moving, numbers=numbers
        )
        self.totals, self.support = MapTotals(), None
        supported = any(layer.product is DATA_SUPPORT for layer in self._wanted)
        if supported or levels:
            limits = given.limits()
        if supported:
            self.support = SupportShares(limits, store.covariates, output.mask)
        self._levels: LevelProducts | None = None
        self._factor: np.ndarray | None = None
        factors = tables.factors
        if factors is not None:
            if any(layer.product.conditioned for layer in self._wanted):
                self._factor = factors.of_pixels(areas, self.reader.grid.shape, staging)
            self._levels = LevelProducts(
                MapResult(
                    config=config,
                    reader=self.reader,
                    functions=tables.functions,
                    limits=limits,
                    directory=staging,
                    tags=self._tags,
                    n_thread=n_thread(config),
                    factors=factors,
                    exposures=Exposures.of(areas, list(levels[0].ids)),
                )
            )

    def passing(
        self, stack: ExitStack, predict: Callable[[np.ndarray, np.ndarray], Any] | None
    ) -> MapPass:
        """Open the rasters; return what the pass over the tiles makes them of."""
        config, draws = self._config, None
        consumers: list[Consumer] = [self.totals, *self._also]
        if self.support is not None:
            consumers.append(self.support)
        if self._levels is not None:
            consumers += self._levels.consumers
            draws = self._levels.draws
        device = device_of(self._model, **driver_device(config))
        own = predict if device is None else None
        moments = Moments(self._model, self._wanted, device, self._factor, own)
        files = stack.enter_context(
            open_layers(self._wanted, self.reader.grid, self._staging, self._tags)
        )
        return MapPass(self.reader, [files, *consumers], moments, draws)

    def clean(self) -> None:
        """Remove what was kept on disk for the pass."""
        (self._staging / ".factor.npy").unlink(missing_ok=True)

    def write_levels(self) -> dict[str, Any]:
        """Write the tables of levels, whose means of the training areas the table takes."""
        if self._levels is None:
            return {}
        summary, rate = self._levels.write(self._tables.whole(), self._progress)
        # With effects of areas, pixels of borders have the mean of the areas that share them.
        self._tables.take_means(rate, SHARED if self._model.numbers_areas else np.inf)
        return summary


def _run(maps: Sequence[_Maps], progress: Progress, shared: SharedPosterior | None) -> None:
    """Write the rasters of all maps."""
    with ExitStack() as stack:
        passes = [
            own.passing(stack, None if shared is None else partial(shared.moments.at, number))
            for number, own in enumerate(maps)
        ]
        with progress.task("predict", len(passes[0].reader.tiles)) as task:
            found = run_passes(passes, advance=task.advance, n_thread=maps[0].n_thread)
    for own, n_pix in zip(maps, found, strict=True):
        own.n_pix = n_pix
        own.clean()


def _balance(
    config: Config,
    areas: BagStore,
    model: Any,
    mapped: dict[str, float | None] | None,
    tables: _Tables,
    progress: Progress,
) -> Balance | None:
    """Add the fitted and the mapped totals to the balance of ingest, and log it."""
    total, draws, factors = None, tables.draws, tables.factors
    if draws is not None:
        counted = areas.in_training[draws.bag]
        deviations = None
        if factors is not None and mapped is not None:  # by the rasters
            deviations = factors.deviations(draws)[:, counted]
        draws = draws.select(counted)
        clusters = None if tables.functions is None else tables.functions.clusters
        total = fitted_total(draws, config.output.interval, deviations, clusters)
        period = None if config.series is None else config.period
        why = explain_difference(total, draws, list(areas.ids), model, period)
        if why is not None:
            progress.log(f"predict: warning: {why}")
    balance = balance_of(areas)
    if balance is None:
        return None
    add_results(
        balance,
        total,
        mapped,
        tables.uncounted,
        everywhere=config.output.mask == "all",
        tested=config.response_kind.sampled,
    )
    progress.log(render_balance(balance, f"{config.name}: balance"))
    return balance
