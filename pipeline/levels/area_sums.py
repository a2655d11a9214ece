"""Joint draws of the areas of all levels: sums over their pixels, in one pass over the tiles.

Memory has ``n_draws`` numbers for each area (and threshold), never for each pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from pipeline.products.area_factors import TileFactors
from pipeline.products.exposures import Exposures
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels, TileReader


@dataclass(frozen=True)
class LevelDraws:
    """Sums over the pixels of each area of all levels, in the order of the reader.

    Attributes
    ----------
    people : (n_area,) float64
        People in mapped pixels, or km2.
    exposure : (n_area,) float64
        What rates are per unit of: the people, or the exposure that was given.
    covered : (n_area,) float64
        That part of the exposure that could be inside the training areas.
    mapped : (n_area,) float64
        Surface in mapped pixels, in pixels.
    extrapolating : (n_area,) float64
        Exposure in pixels that extrapolate.
    cases : (n_area,) float64
        Mean total, of the raster.
    above : (n_threshold, n_area) float64
        Mean of the exposure in pixels whose rate is above each threshold.
    cases_drawn : (n_draws, n_area) float64
    above_drawn : (n_threshold, n_draws, n_area) float64
    """

    people: np.ndarray
    exposure: np.ndarray
    covered: np.ndarray
    mapped: np.ndarray
    extrapolating: np.ndarray
    cases: np.ndarray
    above: np.ndarray
    cases_drawn: np.ndarray
    above_drawn: np.ndarray

    @property
    def n_draws(self) -> int:
        """Number of functions drawn."""
        return int(self.cases_drawn.shape[0])


@dataclass
class _Tile:
    """What is found of a tile: sums over its pixels by local area."""

    plain: np.ndarray  # (6 + n_threshold, n_local)
    mass: csr_matrix  # exposure of each pixel in each area
    drawn: np.ndarray  # (1 + n_threshold, n_local, n_draws)
    of_counts: np.ndarray  # local areas that have a factor of their own
    plain_drawn: np.ndarray  # (n_of_counts, n_draws)


class AreaSums(Consumer):
    """Sums means and draws of the pixels over the areas of every level.

    Parameters
    ----------
    reader : TileReader
    n_draws : int
    rate_per : float
        People in the denominator of the layers' rates.
    thresholds : tuple of float
        Of the layers ``exceedance_*``, per ``rate_per`` people.
    limits : (2, n_feat) array, optional
        Least and largest value of each covariate in the training.
    counted : TileFactors, optional
        What the counts of the training areas add to drawn cases: an area has its own factor, a
        pixel of several areas the average of theirs.
    exposures : Exposures, optional
        Where the exposure is not the people.
    """

    def __init__(
        self,
        reader: TileReader,
        n_draws: int,
        rate_per: float = 1.0,
        thresholds: tuple[float, ...] = (),
        limits: np.ndarray | None = None,
        counted: TileFactors | None = None,
        exposures: Exposures | None = None,
    ) -> None:
        self._rate_per, self._limits, self._counted = rate_per, limits, counted
        self._exposures = exposures
        self.thresholds = thresholds
        n_thr = len(thresholds)
        self._plain = np.zeros((6 + n_thr, reader.n_area))
        self._drawn = np.zeros((1 + n_thr, reader.n_area, n_draws))

    def begin(self, pixels: TilePixels) -> _Tile:
        """Sum the means."""
        share = pixels.fraction
        people = share.multiply(pixels.people).tocsr()
        mass, exposure = people, pixels.people
        if self._exposures is not None:
            mass = self._exposures.of_areas(pixels)
            exposure = self._exposures.of_pixels(pixels)
        inside = np.minimum(share.data, pixels.covered[share.indices])
        inside = csr_matrix((inside, share.indices, share.indptr), shape=share.shape)
        exceed = [pixels.values[f"exceedance_{each:g}"] for each in self.thresholds]
        plain = np.stack(
            [
                people @ np.ones(pixels.n_pix),
                mass @ np.ones(pixels.n_pix),
                inside @ exposure,
                share @ np.ones(pixels.n_pix),
                mass @ self._extrapolates(pixels),
                self._cases(pixels, mass),
                *(mass @ each.astype(np.float64) for each in exceed),
            ]
        )
        n_draws = self._drawn.shape[2]
        of_counts = np.zeros(0, np.int64)
        if self._counted is not None:
            of_counts = np.flatnonzero(pixels.area < self._counted.drawn.shape[1])
        drawn = np.zeros((1 + len(self.thresholds), pixels.area.size, n_draws))
        return _Tile(plain, mass, drawn, of_counts, np.zeros((of_counts.size, n_draws)))

    def _extrapolates(self, pixels: TilePixels) -> np.ndarray:
        """Return whether a covariate is outside the range of the training, (n_pix,) float64."""
        if self._limits is None:
            return np.zeros(pixels.n_pix)
        return extrapolating(pixels.x, self._limits).astype(np.float64)

    def _cases(self, pixels: TilePixels, mass: csr_matrix) -> np.ndarray:
        """Return the mean total of the areas, (n_local,), of the layer where there is one."""
        if "cases_mean" in pixels.values:
            return np.asarray(pixels.fraction @ pixels.values["cases_mean"].astype(np.float64))
        if "rate_mean" not in pixels.values:
            return np.zeros(mass.shape[0])
        rate = pixels.values["rate_mean"].astype(np.float64) / self._rate_per
        if self._counted is None:
            return np.asarray(mass @ rate)
        found = np.asarray(mass @ (rate * self._counted.of_means(pixels)))
        own = np.flatnonzero(pixels.area < self._counted.mean.size)
        found[own] = (mass[own] @ rate) * self._counted.mean[pixels.area[own]]
        return found

    def draw(
        self, found: _Tile, pixels: TilePixels, part: slice, rate: np.ndarray, counted: np.ndarray
    ) -> None:
        """Sum the draws."""
        del pixels
        here = found.mass[:, part]
        found.drawn[0] += here @ counted
        found.plain_drawn += here[found.of_counts] @ rate
        for number, threshold in enumerate(self.thresholds):
            above = (rate > threshold / self._rate_per).astype(np.float64)
            found.drawn[1 + number] += here @ above

    def add(self, pixels: TilePixels, found: _Tile) -> None:
        """Add the sums of a tile."""
        if self._counted is not None:
            own = self._counted.drawn[:, pixels.area[found.of_counts]].T
            found.drawn[0, found.of_counts] = found.plain_drawn * own
        self._plain[:, pixels.area] += found.plain
        self._drawn[:, pixels.area] += found.drawn

    @property
    def result(self) -> LevelDraws:
        """The sums of the tiles so far."""
        plain, drawn = self._plain, self._drawn
        return LevelDraws(
            people=plain[0],
            exposure=plain[1],
            covered=plain[2],
            mapped=plain[3],
            extrapolating=plain[4],
            cases=plain[5],
            above=plain[6:],
            cases_drawn=drawn[0].T,
            above_drawn=drawn[1:].transpose(0, 2, 1),
        )


def extrapolating(x: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return whether a covariate is outside its range in the training, (n_pix,) bool.

    Parameters
    ----------
    x : (n_feat, n_pix) array
    limits : (2, n_feat) array
        Least and largest value of each covariate.
    """
    found: Any = ((x < limits[0][:, None]) | (x > limits[1][:, None])).any(axis=0)
    return np.asarray(found)
