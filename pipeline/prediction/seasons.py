"""A rate against those of its season in other years: of areas in a table, of pixels in maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.prediction.cube import CubeSlice
from pipeline.products.layer_files import LayerFiles
from pipeline.products.moving_grids import MovingPlaces
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels
from pipeline.store.series_store import NEAR

#: Quantile of the same season's rates that an outbreak exceeds.
UPPER = 0.75
NAMES = ("outbreak", "anomaly")


def same_season(times: np.ndarray, known: np.ndarray, season: float | None) -> list[np.ndarray]:
    """Return the periods of the season of each in other years, a month earlier to a month later.

    Parameters
    ----------
    times : (n_period,) float64
        In steps.
    known : (n_period,) bool
        Periods with counts: others tell nothing of their year.
    season : float or None
        Steps of a season; None where there is none.

    Returns
    -------
    list of int64 arrays
        Places of the periods; empty where no other year is known.
    """
    if season is None:
        return [np.zeros(0, np.int64)] * times.size
    years = (times[:, None] - times[None]) / season
    same = (np.abs(years) > 0.5) & (np.abs(years - np.round(years)) < NEAR)
    return [np.flatnonzero(each) for each in same & known]


def against_season(
    rate: np.ndarray, others: np.ndarray, upper: float = UPPER
) -> tuple[np.ndarray, np.ndarray]:
    """Compare rates with those of their season, joint draws with joint draws.

    Parameters
    ----------
    rate : (n_draws, n) float64
    others : (n_draws, n_other, n) float64
        Of other years; NaN where one is not known.
    upper : float
        Probability of the quantile.

    Returns
    -------
    (n,) float64 array
        The probability that the rate is above the upper quantile of the years, in the same draw:
        of draws and years together the quantile would be that of a wider distribution, and too
        seldom exceeded.
    (n,) float64 array
        The median of the rate as a multiple of the mean of the years. NaN where none is known.
    """
    outbreak, anomaly = np.full((2, rate.shape[1]), np.nan)
    known = np.isfinite(others).all(axis=0) & np.isfinite(rate).all(axis=0)
    patterns, of_each = np.unique(known.T, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if not pattern.any():
            continue
        at = np.flatnonzero(of_each.ravel() == number)
        own, there = rate[:, at], others[:, pattern][:, :, at]
        limit = np.quantile(there, upper, axis=1)
        outbreak[at] = (own > limit).mean(axis=0)
        mean = there.mean(axis=1)
        ratio = np.divide(own, mean, out=np.full_like(own, np.nan), where=mean > 0)
        anomaly[at] = np.median(ratio, axis=0)
    return outbreak, anomaly


@dataclass(frozen=True)
class Year:
    """The season of a map in another year.

    Attributes
    ----------
    functions : RateDraws
        Drawn jointly with those of the map.
    moving : MovingPlaces
        Grid of what moves in that period; empty if nothing does.
    """

    functions: Any
    moving: MovingPlaces


class SeasonMaps(Consumer):
    """Writes what is unusual of the season at each pixel, of the rates that the pass draws.

    Parameters
    ----------
    years : sequence of Year
    files : LayerFiles
        Of ``outbreak`` and ``anomaly``.
    cube : CubeSlice
    """

    def __init__(self, years: Sequence[Year], files: LayerFiles, cube: CubeSlice) -> None:
        self._functions = [each.functions for each in years]
        self._moving = [each.moving.open() for each in years]
        self._files, self._cube = files, cube

    def begin(self, pixels: TilePixels) -> tuple[list[TilePixels], np.ndarray]:
        """Read the covariates of the other years."""
        there = [pixels.moved(moving) for moving in self._moving]
        return there, np.full((2, pixels.n_pix), np.nan)

    def draw(
        self,
        found: tuple[list[TilePixels], np.ndarray],
        pixels: TilePixels,
        part: slice,
        rate: np.ndarray,
        counted: np.ndarray,
    ) -> None:
        """Compare the draws of some pixels."""
        del counted
        there, values = found
        others = np.full((rate.shape[1], len(there), len(rate)), np.nan)
        for number, (functions, own) in enumerate(zip(self._functions, there, strict=True)):
            x = own.inputs(part).astype(np.float64)
            known = np.isfinite(x).all(axis=1)
            if known.any():
                others[:, number, known] = functions.rate(x[known], pixels.coords[part][known])
        values[:, part] = against_season(rate.T, others)

    def add(self, pixels: TilePixels, found: tuple[list[TilePixels], np.ndarray]) -> None:
        """Write the values of a tile."""
        values = dict(zip(NAMES, found[1], strict=True))
        self._files.write(pixels, values)
        self._cube.write(pixels, values)
