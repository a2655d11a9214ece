"""Suspicions about single counts: far from what the areas around them tell."""

from __future__ import annotations

from dataclasses import dataclass

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from scipy.spatial import cKDTree

from geo.core.errors import name_first
from pipeline.config.schema import Config
from pipeline.ingest.extent import measurable
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.ingest.responses import column_of, place_of
from pipeline.ingest.without_counts import own_file
from pipeline.store.level_areas import titles_of

N_NAMED = 5
N_AREA = 10  # with a count, from which one can stand apart
N_AROUND = 8  # nearest areas whose median rate is expected of an area
NORMAL = 1.4826  # standard deviation of a normal distribution, in median absolute deviations
FAR = 100.0  # times more, or less, than expected
LARGE = 100.0  # cases: chance alone takes fewer far
SPREAD = 4.0  # standard deviations, by the median, of what is around
FRACTIONS = 0.5  # share of the counts; if more have decimals, they are modelled
FEW = 0.05  # share of the areas; more of them are how the counts are


@dataclass(frozen=True)
class Beside:
    """Areas beside what their neighbours tell.

    Attributes
    ----------
    known : (n,) int64 array
        Rows of the areas with a value and an exposure.
    value, expected : (n,) float64 arrays
        Of each: its total, and what the median rate of its nearest areas makes of its exposure.
    distance : (n,) float64 array
        Of the rate from that median: of its logarithm for counts.
    spread : float
        Standard deviation of the distances, by their median absolute deviation.
    """

    known: np.ndarray
    value: np.ndarray
    expected: np.ndarray
    distance: np.ndarray
    spread: float

    def odd(self) -> np.ndarray:
        """Return which rates are far from those around, (n,) bool: more than `SPREAD` spreads."""
        return np.abs(self.distance) > SPREAD * self.spread


def beside_neighbours(
    areas: gpd.GeoDataFrame, y: np.ndarray, exposure: np.ndarray, *, counts: bool = True
) -> Beside | None:
    """Compare the rate of each area with the median of the nearest; None of few areas.

    Parameters
    ----------
    areas : GeoDataFrame
    y : (n_area,) float64 array
        Totals, NaN where missing.
    exposure : (n_area,) float64 array
        What they are rates of; NaN or 0 where unknown.
    counts : bool, optional
        Rates of counts are compared by their logarithms.
    """
    known = np.isfinite(y) & (exposure > 0) & measurable(areas)
    if counts:
        known &= y >= 0  # those below zero are refused elsewhere
    at = np.flatnonzero(known)
    if at.size < N_AREA:
        return None
    value, below = y[at], exposure[at]
    # Half a case more: a count of 0 has a logarithm, and is as far off as it can tell.
    level = np.log((value + 0.5) / below) if counts else value / below
    around = _around(areas.iloc[at], level)
    expected = (np.exp(around) if counts else around) * below
    distance = level - around
    spread = NORMAL * float(np.median(np.abs(distance - np.median(distance))))
    return Beside(at, value, expected, distance, spread)


def odd_counts(
    config: Config, areas: gpd.GeoDataFrame, y: pd.Series, exposure: np.ndarray | None
) -> list[Suspicion]:
    """Return a suspicion about counts hundreds of times away from those around them.

    A count is expected to have the median rate of the nearest areas. It is suspicious if it is 100
    times more or less, the larger of both is at least 100 cases, and few areas are as far off.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    y : (n_area,) Series
        Counts by id, in the order of the areas; NaN where missing.
    exposure : (n_area,) float64 array or None
        What the counts are rates of; NaN or 0 where unknown.
    """
    if not config.response_kind.countable or exposure is None:
        return []
    found = beside_neighbours(areas, y.to_numpy(np.float64), exposure)
    if found is None:
        return []
    known, count, expected = found.known, found.value, found.expected
    far = np.abs(found.distance) > max(np.log(FAR), SPREAD * found.spread)
    far &= np.maximum(count, expected) >= LARGE
    if not 0 < far.sum() <= max(1.0, FEW * known.size):
        return []
    spec = config.response
    given = column_of(config, areas, spec.value)
    where = given.places() if given else {}
    titles = titles_of(areas, config.areas.name)[known[far]]
    each = [
        f"{where.get(area, 'row ?')} ({title}: {n:,.10g}, by the areas around it about "
        f"{_short(of)})"
        for area, title, n, of in zip(
            y.index[known[far]], titles, count[far], expected[far], strict=True
        )
    ]
    place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
    text = f"column {spec.value!r} is far from the counts around it in {name_first(each, N_NAMED)}"
    remedy = "correct the count, or leave the cell empty if it is unknown"
    return [Suspicion("count", place, text, remedy)]


def fractions(config: Config, areas: gpd.GeoDataFrame, y: pd.Series) -> list[Suspicion]:
    """Return a suspicion about counts that are no whole numbers while most are.

    Modelled counts have decimals everywhere. Positives among tested are checked elsewhere.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    y : (n_area,) Series
        Counts by id, NaN where missing.
    """
    spec, response, broken = config.response, config.response_kind, y % 1 > 0
    if not response.countable or response.most <= 1:
        return []
    if not 0 < broken.sum() < FRACTIONS * (y > 0).sum():
        return []
    own = "column of the areas" if own_file(config) else spec.path
    place = place_of(config, areas, f"counts ({own})", broken)
    text = f"column {spec.value!r} has a number that is not whole ({y[broken].iloc[0]:.10g})"
    return [Suspicion("fraction", place, text, "give cases; look for a point between thousands")]


def _around(areas: gpd.GeoDataFrame, level: np.ndarray) -> np.ndarray:
    """Return the median of the levels of the nearest areas, (n_area,), the area itself left out."""
    n_around = min(N_AROUND, level.size - 1)
    if areas.crs is None:
        return np.array([np.median(np.delete(level, k)) for k in range(level.size)])
    centres = shapely.centroid(np.asarray(areas.geometry.to_crs("OGC:CRS84").array))
    lon, lat = np.radians(shapely.get_x(centres)), np.radians(shapely.get_y(centres))
    # On the sphere: no seam at 180 degrees.
    at = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)
    _, near = cKDTree(at).query(at, k=n_around + 1)
    own = np.arange(level.size)[:, None]
    # Areas with one centre: the area itself need not come first.
    order = np.argsort(near == own, axis=1, kind="stable")[:, :n_around]
    return np.asarray(np.median(level[np.take_along_axis(near, order, axis=1)], axis=1))


def _short(value: float) -> str:
    """Return two digits: what the areas around tell is no more exact."""
    return f"{float(f'{value:.2g}'):,.10g}"
