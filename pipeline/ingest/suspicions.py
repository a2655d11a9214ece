"""Suspicions about areas, ids and counts; those about rasters are in `raster_suspicions`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geo.core.errors import name_first
from geo.grids.overlaps import People, name_overlaps
from geo.sources.source import Source
from pipeline.config.schema import Config
from pipeline.ingest.extent import box_in_degrees, measurable
from pipeline.ingest.misplaced import SWAP
from pipeline.ingest.profile import CountProfile, Extremes
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.store.level_areas import level_overlap, titles_of

#: Codes of what is said of all counts together, not of single ones.
OF_ALL_COUNTS = ("zeros", "shares", "column", "rate")
N_NAMED = 5
N_MANY = 10  # areas from which a pattern of the counts says something
N_WHOLE, SPREAD, MIDDLE = 20, 5.0, 10.0  # areas, spread of their people, median: whole percentages
ALIKE = 0.01  # in which shares of the people rates differ that come of one table of people
WIDE = 10.0  # a threshold is suspicious this many times outside the rates of the areas
LACKING = 0.5  # share of an area's people without a covariate from which it is named

_SHARE = re.compile(
    r"%|(?<![a-z])(pct|percent(age)?|prev(alence)?|proportion|share|ratio|incidence|rate)(?![a-z])"
)


def count_suspicions(
    config: Config, y: pd.Series, people: np.ndarray | None, counts: CountProfile
) -> list[Suspicion]:
    """Return the suspicions about the counts of the run and its thresholds.

    Parameters
    ----------
    config : Config
    y : (n_area,) Series
        Counts by title of the area, NaN where missing.
    people : (n_area,) float64 array or None
        People of the areas; None without a population.
    counts : CountProfile
    """
    spec, response = config.response, config.response_kind
    if not response.countable:
        return []
    place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
    found = []
    if (y == 0).any() and not (y > 0).any():
        text = f"column {spec.value!r} is 0 for every area: the map tells how high rates may be"
        remedy = "give the column of the cases, if this is another"
        return [Suspicion("zeros", place, text, remedy)]
    wrong = _no_counts(spec.value, y.to_numpy(np.float64), people)
    if wrong:
        return [Suspicion("column", place, wrong, "give the column of the cases")]
    shares = _shares(spec.value, y.to_numpy(np.float64), people)
    if shares:
        remedy = "give numbers of cases; for positives among tested people, also counts.tested"
        found.append(Suspicion("shares", place, f"column {spec.value!r} {shares}", remedy))
    if people is not None and response.most > 1 and people.sum() > 0 and not shares:
        known = np.isfinite(y.to_numpy(np.float64))
        cases, total = float(y[known].sum()), float(people[known].sum())
        if cases > total > 0:
            text = f"{cases:,.0f} cases of {total:,.0f} people: {cases / total:.3g} for each person"
            remedy = (
                "check the unit of the population (in thousands: population.scale: 1000; per km2: "
                "population.density: true) and that the counts are of one period"
            )
            return [
                Suspicion("rate", place, text, remedy, grave=True)
            ]  # thresholds would follow from it
        found += _rates(y, people, place)
    return found + _thresholds(config, counts.rates)


def _no_counts(column: str, y: np.ndarray, people: np.ndarray | None) -> str:
    """Return what shows that a column has no counts of cases; empty if nothing does."""
    known = np.isfinite(y)
    given = y[known]
    if given.size < N_MANY:
        return ""
    # Ones may be single cases of a rare disease, and few known counts the same by chance.
    if given.min() == given.max() > 1 and known.mean() > 0.5:
        return f"column {column!r} is {given[0]:,.10g} for every area"
    if people is not None and (given > 0).all() and (people[known] > 0).all():
        ratio = people[known] / given
        if np.median(given) >= MIDDLE and np.abs(ratio / np.median(ratio) - 1).max() < ALIKE:
            rate = 1.0 / float(np.median(ratio))
            return f"column {column!r} is {rate:.3g} for each person in every area"
    return ""


def _rates(y: pd.Series, people: np.ndarray, place: str) -> list[Suspicion]:
    """Return a suspicion about areas with far more cases than people; NaN counts are none."""
    cases = y.to_numpy(np.float64)
    many = (cases > WIDE * people) & (people > 0) & np.isfinite(cases)
    if not many.any():
        return []
    each = [
        f"{area} ({count:g} of {number:.3g})"
        for area, count, number in zip(y.index[many], y[many], people[many], strict=True)
    ]
    text = f"far more cases than people in {name_first(each, N_NAMED)}"
    remedy = "check the boundary, the people and the count of the area"
    return [Suspicion("rate", place, text, remedy)]


def _shares(column: str, y: np.ndarray, people: np.ndarray | None) -> str:
    """Return what makes counts look like shares or percentages; empty if nothing does."""
    known = np.isfinite(y)
    given = y[known]
    positive = given[given > 0]
    if positive.size < 2:
        return ""
    fractions = float((positive != np.rint(positive)).mean())
    high = float(positive.max())
    if fractions < 0.5:
        if people is not None and _whole_percentages(given, people[known]):
            return "has whole numbers up to 100 that do not grow with the people: percentages?"
        return ""
    said = _SHARE.search(column.lower())
    if high <= 1:
        # Modelled counts of a rare disease may all be below 1, yet they grow with the people.
        if said or not _grows(given, None if people is None else people[known]):
            return "has fractions of 1 only: they look like shares"
        return ""
    if said:
        return f"has fractional numbers, and its name says {said[0]!r}"
    if high <= 100 and people is not None and not _grows(given, people[known]):
        return "has fractional numbers up to 100 that do not grow with the people: percentages?"
    return ""


def _whole_percentages(y: np.ndarray, people: np.ndarray) -> bool:
    """Return whether whole numbers look like percentages.

    Counts of ten and more grow with the people where these differ several times over; smaller ones
    may not.
    """
    if y.size < N_WHOLE or y.max() > 100 or np.median(y) < MIDDLE:
        return False
    low, high = np.quantile(people, [0.1, 0.9])
    return bool(high > SPREAD * low) and not _grows(y, people)


def _grows(y: np.ndarray, people: np.ndarray | None) -> bool:
    """Return whether counts grow with the people, or this cannot be told."""
    if people is None or y.size < N_MANY or np.ptp(people) == 0 or np.ptp(y) == 0:
        return True
    ranks = pd.DataFrame({"y": y, "people": people}).rank()
    return bool(ranks.corr().loc["y", "people"] > 0.2)  # Spearman's


def _thresholds(config: Config, rates: Extremes | None) -> list[Suspicion]:
    output = config.output
    if rates is None or rates.high <= 0:
        return []
    most = config.response_kind.most * output.rate_per
    found = []
    far = [
        t
        for t in output.exceedance
        if t > WIDE * rates.high or t >= most or 0 < t < rates.low / WIDE
    ]
    if far:
        named = ", ".join(f"{t:g}" for t in far)
        text = (
            f"{named} {'is' if len(far) == 1 else 'are'} far outside the rates of the areas, "
            f"{_short(rates.low)} to {_short(rates.high)} per {output.rate_per:,.15g}"
        )
        remedy = "give thresholds per output.rate_per near these rates, or another output.rate_per"
        found.append(Suspicion("threshold", "output.exceedance", text, remedy))
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def swapped_suspicions(
    config: Config, areas: gpd.GeoDataFrame, rasters: list[Source]
) -> list[Suspicion]:
    """Return a suspicion if the areas miss every raster, but would meet one with x and y swapped.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Without a CRS if their coordinates do not fit it.
    rasters : list of Source
        All that could be opened, those elsewhere included.
    """
    if areas.crs is not None and not areas.crs.is_geographic:
        return []
    west, south, east, north = areas.total_bounds
    if not np.isfinite([west, south, east, north]).all():
        return []
    given, swapped = shapely.box(west, south, east, north), shapely.box(south, west, north, east)
    degrees = [box for source in rasters if (box := box_in_degrees(source)) is not None]
    if not degrees or any(given.intersects(each) for each in degrees):
        return []
    if not all(each.intersects(swapped) for each in degrees):
        return []
    text = (
        f"span {west:.4g} to {east:.4g} in x and {south:.4g} to {north:.4g} in y, where no raster "
        "is; with x and y exchanged they lie on the rasters"
    )
    return [Suspicion("swapped", f"areas ({config.areas.path})", text, SWAP)]


def coverage_suspicions(
    config: Config, titles: np.ndarray, total: np.ndarray, lacking: np.ndarray, names: list[str]
) -> list[Suspicion]:
    """Return a suspicion about areas whose people mostly live where a covariate is missing.

    Parameters
    ----------
    config : Config
    titles : (n_area,) array
    total, lacking : (n_area,) float64 arrays
        Exposure of each area, and that without a value of a covariate.
    names : list of str
        What each such area lacks, in their order.
    """
    share = np.divide(lacking, total, out=np.zeros_like(total), where=total > 0)
    # An area without any usable pixel is a problem, not a suspicion.
    which = lacking_areas(total, lacking)
    if which.size == 0:
        return []
    each = [f"{titles[k]} ({100 * share[k]:.0f} %: {n})" for k, n in zip(which, names, strict=True)]
    what = "people live" if config.population is not None else "surface lies"
    text = f"most {what} where a covariate has no value in {name_first(each, N_NAMED)}"
    remedy = "give covariates that cover these areas; their other pixels get all of their cases"
    return [Suspicion("coverage", f"areas ({config.areas.path})", text, remedy)]


def lacking_areas(total: np.ndarray, lacking: np.ndarray) -> np.ndarray:
    """Return the areas most, but not all, of whose exposure lacks a covariate."""
    return np.flatnonzero((lacking > LACKING * total) & (lacking < total))


def overlap_suspicions(
    config: Config,
    areas: gpd.GeoDataFrame,
    people: People | None = None,
    total: np.ndarray | None = None,
) -> list[Suspicion]:
    """Return a suspicion about areas that overlap much or are there twice.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Valid polygons.
    people, total : optional
        See :func:`geo.grids.overlaps.name_overlaps`.
    """
    each = name_overlaps(areas.geometry, titles_of(areas, config.areas.name), people, total)
    if not each:
        return []
    text = f"areas overlap, by share of the smaller: {name_first(each, N_NAMED)}"
    remedy = "drop the feature that is there twice, or correct the boundaries"
    return [Suspicion("overlap", f"areas ({config.areas.path})", text, remedy)]


def _outside(level: gpd.GeoDataFrame, areas: gpd.GeoDataFrame) -> np.ndarray:
    """Return which areas of a level have bounds that miss those of the training areas."""
    if areas.crs is None or level.empty or not np.isfinite(areas.total_bounds).all():
        return np.zeros(len(level), bool)
    west, south, east, north = areas.geometry.to_crs("OGC:CRS84").total_bounds
    own = level.geometry.to_crs("OGC:CRS84").bounds.to_numpy()
    # NaN and infinity, of coordinates that no longitude has, are outside as well.
    meets = (own[:, 0] <= east) & (own[:, 2] >= west) & (own[:, 1] <= north) & (own[:, 3] >= south)
    return ~meets


def level_suspicions(
    config: Config, areas: gpd.GeoDataFrame, levels: Mapping[str, gpd.GeoDataFrame]
) -> list[Suspicion]:
    """Return suspicions about levels of ``output.areas``: areas far outside, or that overlap.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Of the training.
    levels : mapping of str to GeoDataFrame
        Areas of each level, those whose file has a problem left out; polygons may be invalid.
    """
    found = []
    for number, spec in enumerate(config.output.areas):
        frame = levels.get(spec.level)
        if frame is None:
            continue
        usable = frame[measurable(frame)]
        titles = titles_of(usable, spec.name)
        outside = titles[_outside(usable, areas)]
        if outside.size:
            text = (
                f"{outside.size:,} of {len(frame):,} areas of the level {spec.level} lie outside "
                f"the bounds of the areas with counts: {name_first(list(outside), N_NAMED)}"
            )
            remedy = "check their coordinates and the CRS of the file, or leave them out"
            place = f"output.areas[{number}] ({spec.path})"
            found.append(Suspicion("outside", place, text, remedy))
        each = level_overlap(config, number, usable.geometry, titles)
        if each is not None:
            found.append(Suspicion("overlap", each.place, each.found, each.remedy))
    return found
