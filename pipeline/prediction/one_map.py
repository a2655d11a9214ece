"""The map of one period: its rasters, its tables, its totals.

All are consumers of one pass over the tiles; the areas of the table are drawn from the same
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from pipeline.products.area_factors import AreaFactors
from pipeline.products.areas import (
    AreaDraws,
    draw_areas,
    draw_functions,
    tabulate_areas,
    write_areas,
    write_draws,
)
from pipeline.products.csv_table import write_csv
from pipeline.products.layer_files import open_layers
from pipeline.products.map_result import MapResult
from pipeline.products.moving_grids import NOWHERE, MovingPlaces
from pipeline.products.products import DATA_SUPPORT, POINTS_CSV, layers
from pipeline.products.tags import run_tags
from pipeline.products.tile_pass import Consumer, Moments, run_pass
from pipeline.products.tile_pixels import TileReader
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import Balance, add_results, balance_of, render_balance
from pipeline.store.point_store import PointStore

#: Columns that still have a meaning if the exposure of an area's total is unknown.
_RATES = ("fitted_rate", "fitted_rate_lower", "fitted_rate_upper")
_SUMS = ("people", "expected", "lower", "upper", "count_lower", "count_upper")


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
    """

    n_pix: int
    table: pd.DataFrame
    uncounted: dict[str, Any]
    balance: Balance | None
    support: dict[str, Any] | None = None
    leveled: dict[str, Any] = field(default_factory=dict)
    points: dict[str, Any] = field(default_factory=dict)


def make_map(given: MapInputs, staging: Path, progress: Progress, *, told: bool = True) -> MadeMap:
    """Write the rasters and the tables of one period to a directory.

    Parameters
    ----------
    given : MapInputs
    staging : Path
    progress : Progress
    told : bool
        Whether its totals are logged.
    """
    config, model, areas = given.config, given.model, given.areas
    tables = _Tables(config, model, areas, progress)
    n_pix, mapped, support = 0, None, None
    leveled: dict[str, Any] = {}
    if "pixels" in model.predicts:
        maps = _Maps(given, tables, staging, progress)
        n_pix = maps.make()
        mapped, support = maps.totals.result, maps.support
        leveled = maps.write_levels()
    if told:
        log_without_counts(config, tables.uncounted, progress)
    write_areas(given.boundaries, tables.table, config.areas.id, staging)
    describe_areas(config, staging)
    if tables.draws is not None:
        known = areas.known_trials & areas.known_exposure
        ids = [each for each, keep in zip(areas.ids, known, strict=True) if keep]
        write_draws(tables.draws.select(known), ids, column_units(config), staging)
    points = {} if given.points is None else _points(given, given.points, tables, staging)
    balance = _balance(config, areas, model, mapped, tables, progress)
    found = None if support is None else support.result
    return MadeMap(n_pix, tables.table, tables.uncounted, balance, found, leveled, points)


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

    def __init__(self, config: Config, model: Any, areas: BagStore, progress: Progress) -> None:
        self._config, self._areas = config, areas
        self.functions: Any = None
        self.draws: AreaDraws | None = None
        self.factors: AreaFactors | None = None
        with progress.task("areas", areas.n_bag) as task:
            if not config.response_kind.drawn:
                predictor = LabelPredictor(areas, config.output.interval, n_thread(config))
                found = predictor.predict(model, advance=task.advance)
                table = tabulate_labels(found, list(areas.ids))
                self.table = table.assign(in_training=areas.in_training)
                self.uncounted = sum_labels(self.table)
                return
            n_draws, seed = config.output.draws, config.fit.seed
            self.functions = draw_functions(model, n_draws, seed)
            of_draws = np.ones((n_draws, areas.n_bag))
            draws = draw_areas(
                model,
                areas,
                n_draws,
                seed,
                advance=task.advance,
                n_thread=n_thread(config),
                functions=self.functions,
                observed=True,
                factors=of_draws,
            )
        self.factors = AreaFactors.of(list(areas.ids), of_draws, draws.expected)
        self._tabulate(draws)

    def take_means(self, rate: pd.Series) -> None:
        """Take the mean rates of the rasters, by id, which have no Monte Carlo error."""
        if self.draws is not None:
            self._tabulate(self.draws.with_rates(rate.reindex(list(self._areas.ids))))

    def _tabulate(self, draws: AreaDraws) -> None:
        self.draws, output, areas = draws, self._config.output, self._areas
        table = tabulate_areas(draws, list(areas.ids), output.interval, output.rate_per)
        self.table = blank_unknown(table, areas).assign(in_training=areas.in_training)
        self.uncounted = sum_draws(draws, areas, output.interval)


class _Maps:
    """The maps and what follows from them: consumers of one pass over the tiles.

    Attributes
    ----------
    totals : MapTotals
    support : SupportShares or None
    """

    def __init__(
        self, given: MapInputs, tables: _Tables, staging: Path, progress: Progress
    ) -> None:
        config, model, areas = given.config, given.model, given.areas
        self._config, self._model, self._tables = config, model, tables
        self._progress, self._staging, self._also = progress, staging, given.also
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
        self._reader = TileReader.open(
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
                self._factor = factors.of_pixels(areas, self._reader.grid.shape, staging)
            self._levels = LevelProducts(
                MapResult(
                    config=config,
                    reader=self._reader,
                    functions=tables.functions,
                    limits=limits,
                    directory=staging,
                    tags=self._tags,
                    n_thread=n_thread(config),
                    factors=factors,
                )
            )

    def make(self) -> int:
        """Write the rasters; return the number of pixels mapped."""
        config, reader, draws = self._config, self._reader, None
        consumers: list[Consumer] = [self.totals, *self._also]
        if self.support is not None:
            consumers.append(self.support)
        if self._levels is not None:
            consumers += self._levels.consumers
            draws = self._levels.draws
        device = device_of(self._model, **driver_device(config))
        moments = Moments(self._model, self._wanted, device, self._factor)
        with (
            open_layers(self._wanted, reader.grid, self._staging, self._tags) as files,
            self._progress.task("predict", len(reader.tiles)) as task,
        ):
            n_pix = run_pass(
                reader,
                [files, *consumers],
                moments=moments,
                draws=draws,
                advance=task.advance,
                n_thread=n_thread(config),
            )
        (self._staging / ".factor.npy").unlink(missing_ok=True)
        return n_pix

    def write_levels(self) -> dict[str, Any]:
        """Write the tables of levels, whose means of the training areas the table takes."""
        if self._levels is None:
            return {}
        summary, rate = self._levels.write(self._tables.table, self._progress)
        if self._config.response_kind.maps_totals:
            self._tables.take_means(rate)
        return summary


def _balance(
    config: Config,
    areas: BagStore,
    model: Any,
    mapped: dict[str, float | None] | None,
    tables: _Tables,
    progress: Progress,
) -> Balance | None:
    """Add the fitted and the mapped totals to the balance of ingest, and log it."""
    total, draws, factors, response = None, tables.draws, tables.factors, config.response_kind
    if draws is not None:
        counted = areas.in_training[draws.bag]
        deviations = None
        if factors is not None and mapped is not None and response.maps_totals:  # by the rasters
            deviations = factors.deviations(draws)[:, counted]
        draws = draws.select(counted)
        clusters = None if tables.functions is None else tables.functions.clusters
        total = fitted_total(draws, config.output.interval, deviations, clusters)
        why = explain_difference(total, draws, list(areas.ids), model)
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
        tested=response.exposure_column == "tested",
    )
    progress.log(render_balance(balance, f"{config.name}: balance"))
    return balance


def blank_unknown(table: pd.DataFrame, store: BagStore) -> pd.DataFrame:
    """Leave only the rates of areas whose number tested, or whose exposure, is unknown.

    Parameters
    ----------
    table : DataFrame
        From :func:`pipeline.products.areas.tabulate_areas`; computed for one person tested, or
        for the people of the pixels.
    store : BagStore
        The areas, in the same order.
    """
    known = store.known_trials & store.known_exposure
    blank = [column for column in table.columns if column not in (*_RATES, "people")]
    return table.assign(
        people=table["people"].where(store.known_exposure),
        **{column: table[column].where(known) for column in blank},
    )


def sum_draws(draws: AreaDraws, store: BagStore, interval: float) -> dict[str, Any]:
    """Sum the joint draws over the areas without a count.

    Returns
    -------
    dict
        ``n`` areas and their ``people``; ``expected`` cases with the ends ``lower`` and ``upper``
        of the central ``interval`` of the joint posterior; ``count_lower`` and ``count_upper``, the
        predictive interval of the count itself. Empty if every area has a count. The sums are None
        if the number tested is unknown in one.
    """
    chosen = ~store.in_training[draws.bag]
    if not chosen.any():
        return {}
    known_exposure = store.known_exposure[draws.bag[chosen]].all()
    if not (known_exposure and store.known_trials[draws.bag[chosen]].all()):
        people = float(draws.people[chosen].sum()) if known_exposure else None
        return {"n": int(chosen.sum()), **dict.fromkeys(_SUMS), "people": people}
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(draws.expected[:, chosen].sum(axis=1), tails)
    count_lower, count_upper = np.quantile(draws.counts[:, chosen].sum(axis=1), tails)
    return {
        "n": int(chosen.sum()),
        "people": float(draws.people[chosen].sum()),
        "expected": float(draws.mean[chosen].sum()),
        "lower": float(lower),
        "upper": float(upper),
        "count_lower": float(count_lower),
        "count_upper": float(count_upper),
    }


def sum_labels(table: pd.DataFrame) -> dict[str, Any]:
    """Return number ``n`` and ``expected`` positives of the areas without a label, if any."""
    rows = table[~table["in_training"]]
    return {"n": len(rows), "expected": float(rows["probability"].sum())} if len(rows) else {}


def log_without_counts(config: Config, found: dict[str, Any], progress: Progress) -> None:
    """Log the result of `sum_draws` or `sum_labels`."""
    if found:
        progress.log(f"predict: {config.response_kind.expected_elsewhere(found)}")
