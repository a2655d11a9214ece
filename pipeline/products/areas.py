"""Predict areas from joint draws: expected counts and their uncertainty.

The uncertainty of a sum over pixels depends on the correlation of the pixels. Functions are
therefore drawn once and evaluated block by block: memory has (n_draws, n_bag) numbers, never
n_draws for each pixel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from geo.core.columns import AREA_ID, attribute_columns
from geo.writers.write_errors import explained_write_errors, write_error
from pipeline.core.threads import map_in_order
from pipeline.products.arrays import AreaArrays
from pipeline.products.csv_table import write_csv
from pipeline.products.products import AREAS_CSV, AREAS_DRAWS, AREAS_GPKG
from pipeline.products.suppressed import interval_columns
from pipeline.products.together import Together, with_counted_in
from pipeline.storage.files import atomic_write

UNITS = "units"  # key of the metadata of the draws' file


@dataclass(frozen=True)
class AreaDraws(AreaArrays):
    """Joint posterior and predictive draws of areas.

    Attributes
    ----------
    bag : (n_bag,) int64 array
        Number of each area in the bag store.
    y : (n_bag,) float64 array
        Observed counts; NaN for areas without one, and where it is suppressed.
    people : (n_bag,) float64 array
        People at risk, or km2 without a population.
    mean : (n_bag,) float64 array
        Expected count.
    expected : (n_draws, n_bag) float64 array
        Draws of the expected count.
    counts : (n_draws, n_bag) float64 array
        Draws of the count, with one draw of the observation noise for each expected count.
    log_density : (n_bag,) float64 array
        Log predictive density of the observed count, of a suppressed one the log probability of
        its interval; NaN without one.
    tested : (n_bag,) float64 array
        Number tested; NaN, the default, under a likelihood without trials.
    least, most : (n_bag,) float64 array
        Ends of the interval of a suppressed count; the observed count, the default, of others.
    together : Together, optional
        Counts of several areas together, of all areas of a store; a choice of them has none.
    """

    bag: np.ndarray
    y: np.ndarray
    people: np.ndarray
    mean: np.ndarray
    expected: np.ndarray
    counts: np.ndarray
    log_density: np.ndarray
    tested: Any = None
    least: Any = None
    most: Any = None
    together: Any = None

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.y)
        if self.tested is None:
            object.__setattr__(self, "tested", np.full(self.people.shape, np.nan))

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in super()._names() if name != "together"]

    def save(self, path: Path) -> None:
        """Write the arrays: see :class:`AreaArrays`."""
        with atomic_write(path) as file:
            np.savez(file, **{name: getattr(self, name) for name in self._names()})

    @property
    def suppressed(self) -> np.ndarray:
        """Whether each count is known as an interval alone: (n_bag,) bool."""
        return np.isnan(self.y) & np.isfinite(self.least)

    @property
    def exposure(self) -> np.ndarray:
        """What a rate is per unit of: the numbers tested if there are any, else the people."""
        return np.where(np.isfinite(self.tested), self.tested, self.people)

    @classmethod
    def interleaved(cls, parts: Sequence[AreaDraws]) -> AreaDraws:
        """Return the draws of parts in turn, the first of each, then the second of each.

        Parameters
        ----------
        parts : sequence of AreaDraws
            Of the same areas and people.
        """
        if len(parts) == 1:
            return parts[0]
        n_draws, each = [len(part.expected) for part in parts], {}
        for name in ("expected", "counts"):
            each[name] = np.empty((sum(n_draws), len(parts[0])))
            for k, part in enumerate(parts):
                each[name][k :: len(parts)] = getattr(part, name)
        mean = np.average([part.mean for part in parts], 0, n_draws)
        return replace(parts[0], mean=mean, **each)

    def with_rates(self, rate: pd.Series, within: float = np.inf) -> AreaDraws:
        """Take the mean of each area from the rasters, which have no Monte Carlo error.

        Parameters
        ----------
        rate : (n_bag,) Series
            Mean rate per person; areas without one keep the mean of their draws.
        within : float
            Monte Carlo errors; those that are farther off keep theirs as well.

        Returns
        -------
        AreaDraws
        """
        mean = rate.to_numpy(np.float64) * self.exposure
        error = self.expected.std(axis=0) / np.sqrt(len(self.expected))
        off = np.abs(mean - self.expected.mean(axis=0)) > within * np.maximum(error, 1e-300)
        return replace(self, mean=np.where(np.isfinite(mean) & ~off, mean, self.mean))


def draw_functions(model: Any, n_draws: int, seed: int) -> Any:
    """Draw the functions that all tables of a run are computed from: the same for one seed."""
    return model.sample_functions(n_draws, np.random.default_rng([seed, 1]))


def draw_areas(
    model: Any,
    store: Any,
    n_draws: int,
    seed: int,
    keep: np.ndarray | None = None,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
    functions: Any = None,
    *,
    observed: bool = False,
    factors: np.ndarray | None = None,
) -> AreaDraws:
    """Draw expected and observed counts of areas from one set of joint function draws.

    Parameters
    ----------
    model : fitted model
        With ``sample_functions`` and ``predict_bags``.
    store : BagStore
        The areas.
    n_draws : int
        Number of functions drawn.
    seed : int
        Seed of the functions and the noise.
    keep : (n_bag,) bool array, optional
        Areas to predict, all if not given; blocks without any are not read.
    advance : callable, optional
        Called with the number of areas done after each block.
    n_thread : int, optional
        Blocks drawn at the same time, one a core if not given; results do not depend on it.
    functions : RateDraws, optional
        Those of :func:`draw_functions`, if they are drawn already.
    observed : bool
        Whether the model was fitted to the counts of these areas: see :func:`predict_areas`.
    factors : (n_draws, n_bag) array, optional
        Filled with what ``observed`` makes of each drawn total, as a factor.

    Returns
    -------
    AreaDraws
        In the order of the store.
    """
    if functions is None:
        functions = draw_functions(model, n_draws, seed)

    def draw(number: int, part: Any) -> AreaDraws:
        return draw_block(
            model, part, functions, (seed, number), observed=observed, factors=factors
        )

    found = AreaDraws.of_blocks(store, draw, keep, advance, n_thread)
    return found if keep is not None else replace(found, together=Together.of_store(store))


def draw_areas_over_times(
    models: Sequence[Any],
    stores: Sequence[Any],
    drawn: Any,
    seeds: Sequence[int],
    *,
    factors: Sequence[np.ndarray | None] | None = None,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
) -> list[AreaDraws]:
    """Draw the areas of several periods, as :func:`draw_areas` does those of one it was fitted to.

    Parameters
    ----------
    models, stores : sequence of fitted model, of BagStore
        Of each period; the same areas in the same blocks.
    drawn : PeriodDraws
        Functions of these periods.
    seeds : sequence of int
        Of each period's noise.
    factors : sequence of (n_draws, n_bag) array, optional
        Filled for each period.
    advance, n_thread
        As of :func:`draw_areas`.
    """
    given = [None] * len(models) if factors is None else factors

    def of_block(number: int) -> list[AreaDraws]:
        blocks = [store.read_block(number) for store in stores]
        each = zip(models, blocks, drawn.counted(blocks), seeds, given, strict=True)
        return [
            draw_block(model, part, own, (seed, number), observed=True, factors=of_draws)
            for model, part, own, seed, of_draws in each
        ]

    made: list[list[AreaDraws]] = []
    for of_each in map_in_order(of_block, range(stores[0].n_block), n_thread):
        made.append(of_each)
        if advance:
            advance(len(of_each[0]))
    every = zip(stores, zip(*made, strict=True), strict=True)
    return [
        replace(AreaDraws.concatenate(list(own)), together=Together.of_store(store))
        for store, own in every
    ]


def draw_block(
    model: Any,
    part: Any,
    functions: Any,
    seed: tuple[int, int],
    *,
    observed: bool,
    factors: np.ndarray | None = None,
) -> AreaDraws:
    """Draw the areas of a block; see :func:`draw_areas` and :func:`block_draws`."""
    prediction = predict_areas(model, part, functions, observed=observed, factors=factors)
    y = np.asarray(part.y, dtype=np.float64)
    seen = np.isfinite(y)  # areas without a count have no density
    log_density = np.asarray(prediction.log_density(np.where(seen, y, 0.0)), dtype=np.float64)
    return block_draws(part, prediction, np.where(seen, log_density, np.nan), seed)


def block_draws(
    part: Any, prediction: Any, log_density: np.ndarray, seed: tuple[int, int]
) -> AreaDraws:
    """Return the draws of a block's areas, with their noise.

    Parameters
    ----------
    part : BagBlock
    prediction : BagPrediction
        From :func:`predict_areas`.
    log_density : (n_bag,) float64 array
    seed : tuple of int
        Of the run, and the number of the block: the noise depends neither on threads nor on other
        blocks.
    """
    counts = prediction.observed(np.random.default_rng([seed[0], 2, seed[1]])).draws
    # With trials the aggregate is a probability: its rate is per person tested.
    tested = part.trials if prediction.likelihood.needs_trials else None
    return AreaDraws(
        bag=np.asarray(part.bag, dtype=np.int64),
        **observed_of(part.y, part.margin),
        people=np.add.reduceat(part.weight.astype(np.float64), part.offsets[:-1]),
        mean=prediction.mean * (1.0 if tested is None else tested),
        expected=prediction.draws * (1.0 if tested is None else tested),
        counts=np.asarray(counts, dtype=np.float64),
        log_density=log_density,
        tested=tested,
    )


def observed_of(y: np.ndarray, margin: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return ``y``, ``least`` and ``most`` of :class:`AreaDraws` from those of a block."""
    y = np.asarray(y, dtype=np.float64)
    half = np.zeros(y.shape) if margin is None else margin
    return {"y": np.where(half > 0, np.nan, y), "least": y - half, "most": y + half}


def predict_areas(
    model: Any, part: Any, functions: Any, *, observed: bool, factors: np.ndarray | None = None
) -> Any:
    """Predict the areas of a block from functions drawn before.

    Parameters
    ----------
    model : fitted model
    part : BagBlock
    functions : draws of functions
    observed : bool
        Whether the model was fitted to the counts of these areas. Models that can then condition
        the draws on what the posterior of the surface cannot hold of each count do so.
    factors : (n_draws, n_bag) array, optional
        Filled with what that makes of each drawn total, at the numbers of the block's areas.

    Returns
    -------
    BagPrediction
    """
    if not observed:
        return model.predict_bags(part, draws=functions)
    functions = functions.counted(part)
    prediction = model.predict_bags(part, draws=functions)
    of_areas = functions.observed_factors(part, prediction.draws)
    if factors is not None:
        factors[:, part.bag] = of_areas
    return replace(prediction, draws=prediction.draws * of_areas)


def count_ends(counts: np.ndarray, interval: float) -> tuple[Any, Any]:
    """Return the ends of the central interval of drawn counts (n_draws, ...), over the draws.

    Each is one of the draws: a quantile of whole numbers is a whole number.
    """
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(counts, tails, axis=0, method="inverted_cdf")
    return lower, upper


def tabulate_areas(
    draws: AreaDraws, ids: list[str], interval: float, rate_per: float
) -> pd.DataFrame:
    """Return the table of ``areas.csv``, one row an area, indexed by id.

    Parameters
    ----------
    draws : AreaDraws
        Of every area of the store.
    ids : list of str
        Id of each area, in the order of the store.
    interval : float
        Central probability of the intervals, such as 0.9.
    rate_per : float
        People in the denominator of rates, such as 1000.

    Returns
    -------
    DataFrame
        ``observed``, and where some are suppressed the ends of their intervals as
        ``observed_lower`` and ``observed_upper``; ``fitted``, ``fitted_sd``, ``fitted_lower``,
        ``fitted_upper`` of the expected count; ``people`` at risk; ``tested``, under a
        likelihood with trials; ``observed_rate``
        and ``fitted_rate`` with ``_lower`` and ``_upper``, per ``rate_per`` people, or people
        tested; ``count_lower``, ``count_upper``: predictive interval of the observed count;
        ``residual``: observed less fitted, over the predictive standard deviation. Counts of
        several areas together are among its attributes: see :class:`Together`.
    """
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(draws.expected, tails, axis=0)
    count_lower, count_upper = count_ends(draws.counts, interval)
    per_person = np.full(draws.people.shape, np.nan)
    np.divide(rate_per, draws.exposure, out=per_person, where=draws.exposure > 0)
    spread = draws.counts.std(axis=0)
    residual = np.full(spread.shape, np.nan)
    np.divide(draws.y - draws.mean, spread, out=residual, where=spread > 0)
    table = pd.DataFrame(
        {
            "observed": draws.y,
            **interval_columns(draws.y, draws.least, draws.most),
            "fitted": draws.mean,
            "fitted_sd": draws.expected.std(axis=0),
            "fitted_lower": lower,
            "fitted_upper": upper,
            "people": draws.people,
            **({"tested": draws.tested} if np.isfinite(draws.tested).any() else {}),
            "observed_rate": draws.y * per_person,
            "fitted_rate": draws.mean * per_person,
            "fitted_rate_lower": lower * per_person,
            "fitted_rate_upper": upper * per_person,
            "count_lower": count_lower,
            "count_upper": count_upper,
            "residual": residual,
        },
        index=pd.Index([ids[bag] for bag in draws.bag], name="id"),
    )
    if draws.together is not None:
        draws.together.keep(table)
    return table


def write_areas(areas: Any, table: pd.DataFrame, id_column: str, directory: Path) -> None:
    """Write ``areas.gpkg`` and ``areas.csv``: the attributes of the areas, then the table's.

    Parameters
    ----------
    areas : GeoDataFrame
        From :func:`geo.sources.boundary.read_areas`. Areas that the table lacks have no usable
        pixel; their numbers stay empty. An attribute with the name of a column of the table has
        ``_given`` behind it.
    table : DataFrame
        From :func:`tabulate_areas`. Where some areas are counted with others alone, the column
        ``counted_in`` says in which count each is.
    id_column : str
        Name of the users' id column, so that they can join the tables on it.
    directory : Path
        Directory of the two files.
    """
    table = with_counted_in(table)
    # GeoPackage reserves the column "fid"; names that resemble the geometry's clash as well, and
    # capitals make no difference.
    taken = {"fid", "geometry", "geom", *(column.lower() for column in table.columns)}
    name = "area_id" if id_column.lower() in taken else id_column
    taken.add(name.lower())
    names = {}
    for column in attribute_columns(areas):
        if column != id_column:
            names[column] = free_name(str(column), taken)
            taken.add(names[column].lower())
    ids = areas[AREA_ID].astype(str)
    result = areas[[*names, areas.geometry.name]].rename(columns=names)
    result.insert(0, name, ids)
    for column in table.columns:
        # An area that the table lacks is not in the training: true and false suffice.
        rest = {"fill_value": False} if table[column].dtype == bool else {}
        result[column] = table[column].reindex(ids, **rest).to_numpy()
    geometry = result.geometry.name
    result = result[[c for c in result.columns if c != geometry] + [geometry]]
    package = directory / AREAS_GPKG.file
    with explained_write_errors(package, [package]):
        result.to_file(package, layer="areas", driver="GPKG")
        # GDAL does not always raise SQLite's error of a full disk: read the file back.
        whole = gpd.read_file(package, layer="areas").drop(columns=geometry, errors="ignore")
    if len(whole) != len(result) or not _same_numbers(whole, result, list(table.columns)):
        raise write_error(package, [package])
    write_csv(result.drop(columns=geometry), directory / AREAS_CSV.file)


def free_name(name: str, taken: set[str]) -> str:
    """Return a name, or with ``_given`` behind it, that is not taken (in small letters)."""
    while name.lower() in taken:
        name += "_given"
    return name


def _same_numbers(one: pd.DataFrame, other: pd.DataFrame, columns: list[str]) -> bool:
    return all(
        column in one and np.array_equal(one[column], other[column], equal_nan=True)
        for column in columns
        if pd.api.types.is_numeric_dtype(other[column])
    )


def write_draws(
    draws: AreaDraws, ids: Sequence[str], units: Mapping[str, str], directory: Path
) -> None:
    """Write ``areas_draws.parquet``: a row of each area and draw, areas one after the other.

    Parameters
    ----------
    draws : AreaDraws
        Of areas whose exposure is known.
    ids : sequence of str
        Id of each of them.
    units : mapping of str to str
        Of columns of ``areas.csv``; kept in the file, for :func:`pipeline.open_results`.
    directory : Path
        Directory of the file.
    """
    n_draw, n_area = draws.expected.shape
    names = pa.DictionaryArray.from_arrays(
        np.repeat(np.arange(n_area, dtype=np.int32), n_draw), pa.array(list(ids), pa.string())
    )
    columns = {
        "id": names,
        "draw": np.tile(np.arange(n_draw, dtype=np.int32), n_area),
        "expected": draws.expected.T.ravel().astype(np.float32),
        "count": draws.counts.T.ravel().astype(np.float32),
    }
    table = pa.table(columns).replace_schema_metadata({UNITS: json.dumps(dict(units))})
    path = directory / AREAS_DRAWS.file
    with explained_write_errors(path):
        pq.write_table(table, path, compression="zstd")
