"""The numbers that expose a wrong unit: of areas, people, counts, periods and rasters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
import zarr

from geo.core.columns import AREA_ID, id_text, is_missing, paired
from geo.core.errors import InputError
from geo.core.period_text import natural_key, read_periods
from geo.grids.grid import Grid
from geo.grids.membership import Membership
from geo.sources.raster_header import crs_text
from geo.sources.source import Source
from geo.tables.area_changes import read_area_changes
from geo.tables.registry import read_table
from geo.tables.response_column import translated
from pipeline.config.input_schema import Counts
from pipeline.config.periods import MARK, period_files
from pipeline.config.schema import Config
from pipeline.ingest.class_profile import ClassesProfile
from pipeline.ingest.counted import in_today
from pipeline.ingest.raster_sample import RasterSample
from pipeline.responses.table import Columns
from pipeline.storage.location import Place, is_remote
from pipeline.storage.object_commit import zarr_at
from pipeline.store.aligned_grid import NO_COVARIATE, TILE
from pipeline.store.tile_index import TileIndex

EQUAL_AREA = "EPSG:6933"


@dataclass(frozen=True)
class Extremes:
    """Smallest and largest value of the areas, with the ids of these."""

    low: float
    low_id: str
    high: float
    high_id: str

    @classmethod
    def of(cls, values: np.ndarray, ids: np.ndarray) -> Extremes | None:
        """Return the extremes of the finite values; None if there are none."""
        at = np.flatnonzero(np.isfinite(values))
        if at.size == 0:
            return None
        low, high = at[np.argmin(values[at])], at[np.argmax(values[at])]
        return cls(float(values[low]), str(ids[low]), float(values[high]), str(ids[high]))


@dataclass(frozen=True)
class AreaProfile:
    """Number of areas, their CRS, their surface on the ellipsoid, km2."""

    n: int
    crs: str
    km2: float
    each_km2: Extremes | None


@dataclass(frozen=True)
class PeopleProfile:
    """People in all areas, per km2, and the areas with the fewest and the most."""

    total: float
    per_km2: float
    each: Extremes | None


@dataclass(frozen=True)
class CountProfile:
    """Counts of one period.

    Attributes
    ----------
    period : str or None
    n_area : int
        Areas with a count.
    total : float or None
        Of the counts that are not suppressed; None of averages whose exposures are not at hand.
    tested : float or None
        Numbers tested, in all.
    rate : float or None
        Of all areas, per ``rate_per`` of the exposure; None if the exposure is unknown.
    rates : Extremes or None
        Of single areas.
    suppressed : int
        Counts that are known as an interval alone, such as <5; they are in no sum.
    """

    period: str | None
    n_area: int
    total: float | None
    tested: float | None = None
    rate: float | None = None
    rates: Extremes | None = None
    suppressed: int = 0


class PeriodCounts(NamedTuple):
    """Counts of one period by area, (n_area,) each.

    Attributes
    ----------
    counts : Series
        NaN where missing, suppressed, or where nobody was tested.
    hidden : Series of bool
        Which are suppressed.
    tested : Series or None
        Numbers tested, of a table that has them.
    """

    counts: pd.Series
    hidden: pd.Series
    tested: pd.Series | None = None


@dataclass(frozen=True)
class RasterProfile:
    """Values of a raster inside the areas, as stored times scale plus offset, and its header."""

    key: str
    low: float | None
    median: float | None
    high: float | None
    missing: float | None
    n_pixel: int
    sampled: bool
    nodata: tuple[float, ...]
    crs: str
    resolution: tuple[float, float]
    resolution_unit: str
    unit: str
    dtype: str
    scale: float
    offset: float


@dataclass(frozen=True)
class Profile:
    """What `disagg check` shows of the inputs; None where an input is unusable.

    Attributes
    ----------
    areas, people, counts : AreaProfile, PeopleProfile, CountProfile or None
    exposure : str
        What rates refer to: ``people``, ``tested``, ``km2``, or the unit of ``counts.weight``.
    rate_per : float
    responses : str
        What the values of areas are: ``counts``, ``averages``.
    total, rate : str
        Units of their total, empty where a reader knows it, and of a rate.
    countable : bool
        Whether they are numbers of cases.
    positive : (int, int) or None
        Positive areas and areas with a label, for labels.
    periods : tuple of CountProfile
        Every period of a time series, the earliest first.
    rasters : tuple of RasterProfile
        Population and covariates.
    classes : tuple of ClassesProfile
        Of each raster of classes.
    left_out : tuple of str
        What of the output a run cannot map, or what of it says nothing.
    """

    areas: AreaProfile | None
    people: PeopleProfile | None
    counts: CountProfile | None
    exposure: str
    rate_per: float
    responses: str
    total: str
    rate: str
    countable: bool
    positive: tuple[int, int] | None
    periods: tuple[CountProfile, ...]
    rasters: tuple[RasterProfile, ...]
    classes: tuple[ClassesProfile, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class GridExposure:
    """People (or km2) of each area on the grid of the run.

    Attributes
    ----------
    total, lacking : (n_area,) float64 arrays
        All, and those in pixels without a value of a covariate.
    """

    total: np.ndarray
    lacking: np.ndarray


def surface_km2(areas: gpd.GeoDataFrame) -> np.ndarray:
    """Return the surface of each area on the ellipsoid, (n_area,) float64, NaN where unknown."""
    # Edges are split: a long straight one is curved in the other projection.
    width = areas.total_bounds[2] - areas.total_bounds[0]
    shapes = areas.geometry
    if np.isfinite(width) and width > 0:
        shapes = shapes.segmentize(width / 100)
    moved = np.asarray(shapes.to_crs(EQUAL_AREA).array)
    size = shapely.area(moved) / 1e6
    finite = np.isfinite(shapely.bounds(moved)).all(axis=1)
    return np.where(finite & (size > 0), size, np.nan)


def exposure_of(members: Membership, state: np.ndarray, grid: Grid, path: Place) -> GridExposure:
    """Sum the exposure of each area over the aligned grid.

    Parameters
    ----------
    members : Membership
        Pixels of all areas.
    state : (n,) uint8 array
        Why a pixel cannot be used, bits of :mod:`pipeline.store.aligned_grid`.
    grid : Grid
    path : Path or Location
        The aligned grid.
    """
    group: Any = zarr.open_group(zarr_at(path), mode="r")
    index = TileIndex.of(members, grid, TILE)
    total, lacking = np.zeros(members.n_bag), np.zeros(members.n_bag)
    for tile in grid.tiles(TILE):
        at = index.inside(tile)
        if at.size == 0:
            continue
        row, col = grid.row_col(members.pixel[at])
        people = np.asarray(group["population"][tile.slices])[row - tile.row, col - tile.col]
        people = np.where(np.isfinite(people), people, 0.0) * members.fraction[at]
        area = np.searchsorted(members.offsets, at, side="right") - 1
        total += np.bincount(area, people, members.n_bag)
        lost = state[at] & NO_COVARIATE > 0
        lacking += np.bincount(area[lost], people[lost], members.n_bag)
    return GridExposure(total, lacking)


def profile_areas(areas: gpd.GeoDataFrame, size: np.ndarray) -> AreaProfile:
    """Describe the areas; ``size`` is their surface, km2."""
    each = Extremes.of(size, areas[AREA_ID].to_numpy())
    return AreaProfile(len(areas), crs_text(areas.crs), float(np.nansum(size)), each)


def profile_people(ids: np.ndarray, people: np.ndarray, size: np.ndarray) -> PeopleProfile:
    """Describe the people of the areas; ``size`` is their surface, km2."""
    total, surface = float(people.sum()), float(np.nansum(size))
    per_km2 = total / surface if surface > 0 else float("nan")
    return PeopleProfile(total, per_km2, Extremes.of(people, ids))


def rates_of(y: np.ndarray, exposure: np.ndarray, rate_per: float) -> np.ndarray:
    """Return the rate of each area per ``rate_per``; NaN without exposure."""
    rates = np.full(y.shape, np.nan)
    np.divide(rate_per * y, exposure, out=rates, where=exposure > 0)
    return rates


def profile_counts(
    y: pd.Series,
    exposure: np.ndarray | None,
    rate_per: float,
    period: str | None,
    tested: pd.Series | None = None,
    suppressed: int = 0,
) -> CountProfile:
    """Describe the counts of a period.

    Parameters
    ----------
    y : (n_area,) Series
        Counts by id, NaN where missing.
    exposure : (n_area,) float64 array or None
        People, numbers tested, km2, or the weights of the areas.
    rate_per : float
    period : str or None
    tested : Series, optional
    suppressed : int
        Counts that are missing in ``y`` because an interval alone is known.
    """
    values = y.to_numpy(np.float64)
    known = np.isfinite(values)
    total = float(values[known].sum())
    rate = rates = None
    if exposure is not None:
        below = float(exposure[known].sum())
        rate = rate_per * total / below if below > 0 else None
        rates = Extremes.of(rates_of(values, exposure, rate_per), y.index.to_numpy())
    n_tested = None if tested is None else float(tested[known].sum())
    return CountProfile(period, int(known.sum()), total, n_tested, rate, rates, suppressed)


def profile_periods(
    config: Config,
    periods: Mapping[str, PeriodCounts],
    exposure: np.ndarray | None,
) -> tuple[CountProfile, ...]:
    """Describe the periods of :func:`counts_of_periods`, with the people of the run's period."""
    spec = config.counts
    if spec is not None and (spec.tested is not None or spec.weight is not None):
        exposure = None  # of each period its own
    found = tuple(
        profile_counts(
            each.counts,
            exposure if each.tested is None else each.tested.to_numpy(np.float64),
            config.output.rate_per,
            period if config.series is None else config.series.label(period),
            each.tested,
            int(each.hidden.sum()),
        )
        for period, each in periods.items()
    )
    if config.response_kind.adds_up or config.response_kind.classes:
        return found
    return tuple(replace(each, total=None) for each in found)


def counts_of_periods(
    config: Config, ids: np.ndarray, exposure: np.ndarray | None = None
) -> dict[str, PeriodCounts]:
    """Return the counts of each period by area, and which are suppressed; the earliest first.

    A count of several areas of today together is
    shared out by their exposures; without these it is missing.

    Empty for a map of one period, and for a table that cannot be read: the period of the run
    reports its own problems. Of a series, those that it has: rows from before ``time.from`` have
    no part in it.
    """
    spec, series = config.counts, config.series
    if spec is None or spec.path is None or config.period is None:
        return {}
    wanted = None if series is None else {series.text(label) for label in series.periods}
    found = {}
    for period, table in _period_tables(config).items():
        if spec.value not in table.columns or spec.id not in table.columns:
            continue
        if wanted is not None and period not in wanted:
            continue
        if spec.tested is not None and spec.tested not in table.columns:
            continue
        texts, _, _ = translated(
            id_text(table[spec.id]), table, spec.spelling, set(ids), "counts", "counts", []
        )
        texts = paired(texts, set(ids)) if spec.spelling.loose else texts
        names = texts.to_numpy()
        whole = config.response_kind.countable
        y = _numbers(spec, table[spec.value], names, whole=whole)
        once = y.index.notna() & ~y.index.duplicated()
        hidden = [spec.suppression.interval(value) is not None for value in table[spec.value]]
        marked = pd.Series(hidden, index=names, dtype=bool)
        tested = None
        if spec.tested is not None:
            tested = _numbers(spec, table[spec.tested], names, whole=whole)
            # Nobody tested tells nothing: such an area has no count.
            y, marked = y.where(tested > 0), marked & (tested > 0).to_numpy()
            tested = tested[once]
        given = PeriodCounts(y[once], marked[once], tested)
        found[period] = _in_today(config, period, given, ids, exposure)
    return {period: found[period] for period in sorted(found, key=natural_key)}


def _numbers(spec: Counts, column: pd.Series, names: np.ndarray, *, whole: bool) -> pd.Series:
    """Return the numbers of a column by area; NaN where missing, suppressed or ambiguous."""
    cells = [v for v in column if isinstance(v, str) and not is_missing(v)]
    cells = [v.strip() for v in cells if spec.suppression.interval(v) is None]
    spelling = spec.spelling.detected(cells)
    asked = set(spelling.may_be_thousands(cells, whole=whole))
    numbers = [
        np.nan if str(value).strip() in asked else spelling.number_or_nan(value) for value in column
    ]
    return pd.Series(numbers, index=names, dtype=np.float64)


def _in_today(
    config: Config,
    period: str,
    own: PeriodCounts,
    ids: np.ndarray,
    exposure: np.ndarray | None,
) -> PeriodCounts:
    """Return the counts of areas of a period by areas of today."""
    path, series = config.areas.changes, config.series
    changes = number = None
    if path is not None and series is not None:
        number = series.calendar.number(period)
        changes = read_area_changes(path, "areas.changes", list(ids), series.calendar, [])
    if changes is None or number is None:
        tested = None if own.tested is None else own.tested.reindex(ids)
        return PeriodCounts(
            own.counts.reindex(ids), own.hidden.reindex(ids, fill_value=False), tested
        )
    # What is suppressed goes with the counts as a number of its own.
    given = in_today(
        Columns(counts=own.counts, tested=own.tested, weights=own.hidden.astype(float)),
        changes.at(number),
        ids,
    )
    columns = given.columns
    if exposure is not None:
        columns, _, _ = given.shared(pd.Series(np.nan_to_num(exposure), index=ids))
    assert columns.counts is not None
    assert columns.weights is not None
    return PeriodCounts(columns.counts, columns.weights > 0, columns.tested)


def _period_tables(config: Config) -> Mapping[str, pd.DataFrame]:
    """Return the rows of each period, from a column or from a file for each."""
    spec, document = config.counts, config.document
    if spec is None or spec.path is None or is_remote(spec.path):
        return {}
    read: dict[str, Any] = {
        "sheet": spec.sheet, "layer": spec.layer, **spec.spelling.layout,
    }  # fmt: skip
    try:
        if spec.period is not None:
            table, _ = read_table(spec.path, "counts", **read)
            if spec.period not in table.columns:
                return {}
            texts = pd.Series(
                read_periods(id_text(table[spec.period]), spec.dayfirst)[0], dtype=object
            )
            return {str(p): table[(texts == p).to_numpy()] for p in texts.dropna().unique()}
        section = None if document is None else document.values.get("counts")
        path = section.get("path") if isinstance(section, dict) else None
        if document is None or not isinstance(path, str) or MARK not in path or is_remote(path):
            return {}
        files = period_files(path, document.directory)
        return {period: read_table(name, "counts", **read)[0] for period, name in files}
    except InputError:
        return {}


def profile_raster(key: str, source: Source, sample: RasterSample) -> RasterProfile:
    """Describe a raster by its pixels inside the areas."""
    values = sample.inside
    low = median = high = None
    if values.size:
        low, high = float(values.min()), float(values.max())
        median = float(np.median(values))
    about = source.describe()
    t = about.transform
    axes = about.crs.axis_info if about.crs is not None else []
    return RasterProfile(
        key=key,
        low=low,
        median=median,
        high=high,
        missing=sample.missing if sample.n_inside else None,
        n_pixel=sample.n_inside,
        sampled=sample.sampled,
        nodata=tuple(float(v) for v in about.nodata),
        crs=crs_text(about.crs),
        resolution=(float(np.hypot(t.a, t.d)), float(np.hypot(t.b, t.e))),
        resolution_unit=axes[0].unit_name if axes else "",
        unit=about.unit,
        dtype=about.dtype,
        scale=float(about.scale),
        offset=float(about.offset),
    )
