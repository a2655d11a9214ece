"""Mean rates over windows of periods, of pixels in maps and of areas in tables.

The mean of a window is uncertain by what its periods share more than by what is apart in each, so
it is taken of every joint draw; quantiles of periods would not average to those of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from models.temporal.joint_moments import JointMoments
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.level_schema import TRAINING
from pipeline.config.schema import Config
from pipeline.config.windows import Window
from pipeline.levels.levels import grid_of
from pipeline.prediction.area_description import describe_areas
from pipeline.prediction.period_table import PeriodDraws
from pipeline.products.areas import write_areas
from pipeline.products.layer_files import LayerFiles, open_layers
from pipeline.products.moving_grids import MovingPlaces
from pipeline.products.periods import WINDOWS, window_layers
from pipeline.products.product_types import Layer
from pipeline.products.suppressed import interval_columns
from pipeline.products.tags import run_tags
from pipeline.products.tile_pass import Consumer, drawn_rates, run_pass
from pipeline.products.tile_pixels import TilePixels, TileReader
from pipeline.store.bag_store import BagStore
from pipeline.store.level_areas import make_level

#: Pixels evaluated at once in all periods: what holds still of them is in memory, for each draw of
#: the hyperparameters about 10 MB a thousand.
WINDOW_PIXELS = 1024
#: Of the generator of a window's functions: other maps stay as they are where a window is added.
SEED = 7


@dataclass(frozen=True)
class MeanRate:
    """What layers ask of the distribution of a rate, of the mean over periods.

    Attributes
    ----------
    mean : (n_pix,) float64
        The mean of the periods' means, which has no Monte Carlo error.
    draws : (n_draws, n_pix) float64
        Of the mean over the periods.
    """

    mean: np.ndarray
    draws: np.ndarray

    @cached_property
    def sd(self) -> np.ndarray:
        """Standard deviation, (n_pix,)."""
        return np.asarray(self.draws.std(axis=0))

    def quantile(self, q: float) -> np.ndarray:
        """Return a quantile, (n_pix,)."""
        return np.asarray(np.quantile(self.draws, q, axis=0))

    def exceed(self, threshold: float) -> np.ndarray:
        """Return the probability to be above a threshold, (n_pix,)."""
        return np.asarray((self.draws > threshold).mean(axis=0))


@dataclass(frozen=True)
class WindowPeriod:
    """A period of a window.

    Attributes
    ----------
    functions : RateDraws
        Drawn jointly with those of the window's other periods.
    moving : MovingPlaces
        Grids of what moves in it; empty if nothing does.
    """

    functions: Any
    moving: MovingPlaces


class WindowMaps(Consumer):
    """Writes the rasters of a window, where all of its periods have a rate.

    Parameters
    ----------
    periods : sequence of WindowPeriod
    moments : JointMoments
        Of the same periods.
    wanted : sequence of Layer
    files : LayerFiles
        Of these layers.
    """

    def __init__(
        self,
        periods: Sequence[WindowPeriod],
        moments: JointMoments,
        wanted: Sequence[Layer],
        files: LayerFiles,
    ) -> None:
        self._periods, self._moments = periods, moments
        self._wanted, self._files = wanted, files
        self._moving = [each.moving.open() for each in periods]

    def begin(self, pixels: TilePixels) -> TilePixels:
        """Return the pixels that have a mean, with the values of every layer."""
        there = [pixels.moved(moving) for moving in self._moving]
        known = np.all([np.isfinite(own.x).all(axis=0) for own in there], axis=0)
        pixels, there = pixels.select(known), [own.select(known) for own in there]
        values = {layer.name: np.empty(pixels.n_pix, np.float32) for layer in self._wanted}
        for start in range(0, pixels.n_pix, WINDOW_PIXELS):
            part = slice(start, start + WINDOW_PIXELS)
            found = self._mean(pixels, there, part)
            for layer in self._wanted:
                values[layer.name][part] = layer.values(found, pixels.people[part])
        return replace(pixels, values=values)

    def _mean(self, pixels: TilePixels, there: Sequence[TilePixels], part: slice) -> MeanRate:
        coords, n = pixels.coords[part], len(there)
        mean, draws = np.zeros(coords.shape[0]), np.zeros(())
        for number, (period, own) in enumerate(zip(self._periods, there, strict=True)):
            for x in (each := own.alternatives(part)):
                at = self._moments.at(number, x.astype(np.float64), coords)
                mean = mean + np.asarray(at.mean) / (n * len(each))
            draws = draws + drawn_rates(period.functions, own, part) / n
        return MeanRate(mean, draws)

    def add(self, pixels: TilePixels, found: TilePixels) -> None:
        """Write the values of a tile."""
        del pixels
        self._files.add(found, None)


def tabulate_window(
    draws: PeriodDraws,
    places: Sequence[int],
    ids: Sequence[str],
    interval: float,
    rate_per: float,
    *,
    alike: bool = False,
) -> pd.DataFrame:
    """Return the table of the areas of a window, as :func:`tabulate_areas` has it of a period.

    Parameters
    ----------
    draws : PeriodDraws
    places : sequence of int
        Of the window's periods among those drawn.
    ids : sequence of str
        Of the areas.
    interval : float
        Central probability of the intervals.
    rate_per : float
        People in the denominator of rates.
    alike : bool, optional
        Whether rates are means over the periods, each alike, as those of the maps: where the
        exposure says how much was looked at, and not who is at risk. Else they are expected counts
        over people and periods.

    Returns
    -------
    DataFrame
        Indexed by id: ``observed``, the sum of the counts, empty where one has not arrived, or is
        suppressed: ``observed_lower`` and ``observed_upper`` are then the ends of the sum;
        ``counted``, periods with a count; ``fitted`` with ``_sd``, ``_lower``, ``_upper``, the sum
        of the expected counts, empty where a number tested is not known;
        ``people``, the mean; ``observed_rate``; ``fitted_rate`` with ``_lower`` and ``_upper``.
    """
    own, n = list(places), len(places)
    known = np.where(draws.known[own].all(axis=0), 1.0, np.nan)
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    expected, exposure = draws.expected[:, own].sum(axis=1), draws.exposure[own].sum(axis=0)
    expected = expected * known
    lower, upper = np.quantile(expected, tails, axis=0)
    observed, counted = draws.observed[own].sum(axis=0), np.isfinite(draws.least[own])
    least, most = draws.least[own].sum(axis=0), draws.most[own].sum(axis=0)
    per_person = np.full(exposure.shape, np.nan)
    np.divide(rate_per, exposure, out=per_person, where=exposure > 0)
    fitted = expected.mean(axis=0)
    rate = rate_per * draws.rate[:, own].mean(axis=1) if alike else expected * per_person
    rate_lower, rate_upper = np.quantile(rate, tails, axis=0)
    return pd.DataFrame(
        {
            "observed": observed,
            **interval_columns(observed, least, most),
            "counted": counted.sum(axis=0),
            "fitted": fitted,
            "fitted_sd": expected.std(axis=0),
            "fitted_lower": lower,
            "fitted_upper": upper,
            "people": draws.people[own].sum(axis=0) / n,
            "observed_rate": observed * per_person,
            "fitted_rate": rate.mean(axis=0),
            "fitted_rate_lower": rate_lower,
            "fitted_rate_upper": rate_upper,
        },
        index=pd.Index(list(ids), name="id"),
    )


def with_means(
    table: pd.DataFrame, periods: pd.DataFrame, labels: Sequence[str], *, alike: bool = False
) -> pd.DataFrame:
    """Return the table of a window with the sums of the means of ``periods.csv``.

    So both say the same, without Monte Carlo error where a period is mapped; ``alike`` as of
    :func:`tabulate_window`.
    """
    rows = periods[periods["period"].isin(labels)]
    mean = rows.groupby("id")["mean"].sum(min_count=len(labels)).reindex(table.index)
    if alike:
        rate = rows.groupby("id")["rate"].mean().reindex(table.index)
        return table.assign(fitted=mean, fitted_rate=rate)
    factor = np.divide(mean, table["fitted"], out=np.ones(len(table)), where=table["fitted"] != 0)
    return table.assign(fitted=mean, fitted_rate=table["fitted_rate"] * factor)


@dataclass(frozen=True)
class WindowInputs:
    """What the maps of windows are made from.

    Attributes
    ----------
    config : Config
        Settled for the size.
    model : SpaceTime
        Of all periods.
    areas : BagStore
        Of the latest period.
    ids : sequence of str
        Areas in the order of their numbers.
    boundaries : GeoDataFrame
    columns : sequence of int
        Of the covariates that differ by period.
    moving : callable
        From the label of a period to the grids of what moves in it.
    """

    config: Config
    model: Any
    areas: BagStore
    ids: Sequence[str]
    boundaries: Any
    columns: Sequence[int]
    moving: Callable[[str], MovingPlaces]


def map_window(
    context: StageContext, given: WindowInputs, window: Window, table: pd.DataFrame, staging: Path
) -> None:
    """Write the rasters and the table of a window.

    Parameters
    ----------
    context : StageContext
    given : WindowInputs
    window : Window
    table : DataFrame
        Of :func:`tabulate_window`.
    staging : Path
        Directory of the run's files.
    """
    config, series = given.config, given.config.known_series
    directory = staging / WINDOWS / window.name
    directory.mkdir(parents=True)
    times = [series.time_of(label) for label in window.labels]
    rng = np.random.default_rng([config.fit.seed, SEED])
    drawn = given.model.sample_functions(config.output.draws, rng, times, given.columns)
    moving = [given.moving(label) for label in window.labels]
    periods = [WindowPeriod(drawn.at(time), own) for time, own in zip(times, moving, strict=True)]
    moments = given.model.posterior_.joint_moments(times, given.columns)
    first = given.model.at(times[0], drawn)
    reader = _reader(context, given, first, moving[0])
    own = config.model_copy(update={"period": window.title})
    wanted = window_layers(own, window, given.areas.training)
    tags = run_tags(own, given.areas.training, first)
    with (
        open_layers(wanted, reader.grid, directory, tags) as files,
        context.progress.task(f"window {window.text}", len(reader.tiles)) as task,
    ):
        maps = WindowMaps(periods, moments, wanted, files)
        run_pass(reader, [maps], advance=task.advance, n_thread=n_thread(config))
    write_areas(given.boundaries, table, config.areas.id, directory)
    describe_areas(own, directory)


def _reader(
    context: StageContext, given: WindowInputs, first: Any, moving: MovingPlaces
) -> TileReader:
    """Return who reads the pixels, with the numbers of their areas if the model asks for them."""
    config, place = given.config, context.place("work/grid.zarr")
    levels, numbers = [], None
    if first.numbers_areas:
        boundaries, where = given.boundaries, f"areas ({config.areas.path})"
        level = make_level(TRAINING, boundaries, grid_of(place), config.areas.name, where)
        of_id = {name: number for number, name in enumerate(given.ids)}
        levels = [level]
        numbers = np.array([of_id.get(name, -1) for name in level.ids], dtype=np.int64)
    mask = config.output.mask
    return TileReader.open(place, levels, mask, moving=moving, numbers=numbers)
