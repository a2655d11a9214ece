"""Reconciled pixels whose zonal sums are the totals.

A pixel on a border has one value and several areas: no average of their factors gives each of them
its total. The means are therefore fitted to the totals, from the averages on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from geo.grids.grid import Grid, Tile
from pipeline.levels.level_tables import Summary
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels

ENDS = ("mean", "lower", "upper")  # values of a pixel
CLOSE, N_STEP = 1e-9, 5000  # relative miss of the totals, and steps, at most


def match_sums(shares: csr_matrix, mass: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return factors of non-negative masses with which their shares add up to totals.

    Each step gives a pixel the average of what its areas lack, by its shares in them: expectation
    maximisation of Poisson sums [1]_, which keeps masses positive and those without an area.

    Parameters
    ----------
    shares : (n_area, n_pix) sparse array
        Share of each pixel in each area.
    mass : (n_pix,) array
    totals : (n_area,) array
        An area without mass keeps none.

    Returns
    -------
    (n_pix,) float64 array

    References
    ----------
    .. [1] Shepp & Vardi, Maximum likelihood reconstruction for emission tomography, IEEE
       Transactions on Medical Imaging 1 (1982), equation 2.13.
    """
    factor = np.ones(mass.shape)
    whole = np.asarray(shares.sum(axis=0)).ravel()
    owned = whole > 0
    back = csr_matrix(shares.T)
    for _ in range(N_STEP):
        sums = shares @ (mass * factor)
        lack = np.ones_like(sums)
        np.divide(totals, sums, out=lack, where=sums > 0)
        if (np.abs(lack - 1.0) <= CLOSE).all():
            break
        factor[owned] *= (back @ lack)[owned] / whole[owned]
    return factor


def grid_on_disk(directory: Path, kind: type, *shape: int) -> np.ndarray:
    """Return an array of zeros in a file without a name, which ends with the array."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return np.memmap(file, kind, "w+", shape=shape)


class KeptRates(Consumer):
    """The mean rate of each pixel on disk, for what can be made only when all tiles are known.

    Parameters
    ----------
    grid : Grid
    directory : Path
        Of a file without a name.
    """

    def __init__(self, grid: Grid, directory: Path) -> None:
        self._rate = grid_on_disk(directory, np.float32, *grid.shape)
        self._tiles: list[Tile] = []

    def add(self, pixels: TilePixels, found: Any) -> None:
        """Keep the rates of a tile."""
        del found
        self._rate[pixels.tile.slices] = pixels.band(pixels.values["rate_mean"])
        self._tiles.append(pixels.tile)

    def bands(self) -> Iterator[tuple[Tile, np.ndarray]]:
        """Yield each tile that has pixels with its rates, NaN where there is none."""
        return ((tile, np.asarray(self._rate[tile.slices])) for tile in self._tiles)

    def known(self, tile: Tile) -> np.ndarray:
        """Return which pixels of a tile are mapped, (n_row, n_col) bool."""
        if tile not in self._tiles:
            return np.zeros(tile.shape, bool)
        return np.isfinite(self._rate[tile.slices])


class ScaledPixels(Consumer):
    """Mean and ends of the scaled rate of each pixel, on disk until all tiles are known.

    Parameters
    ----------
    grid : Grid
    directory : Path
        Of files without a name, which end with the object.
    aimed : (n_area,) bool array
        Areas whose totals the means are fitted to.
    summary : Summary
        Says which interval.
    """

    def __init__(self, grid: Grid, directory: Path, aimed: np.ndarray, summary: Summary) -> None:
        self._values = grid_on_disk(directory, np.float32, len(ENDS), *grid.shape)
        self._column = grid_on_disk(directory, np.int32, *grid.shape)  # of the matrix of shares
        self._aimed, self._summary = aimed, summary
        self._area: list[np.ndarray] = []
        self._at: list[np.ndarray] = []
        self._share: list[np.ndarray] = []
        self._mass: list[np.ndarray] = []
        self._n_column = 0
        self._factor = np.ones(0)

    def begin(self, pixels: TilePixels) -> np.ndarray:
        """Make room for the values of a tile."""
        return np.empty((len(ENDS), pixels.n_pix))

    def draw(
        self,
        found: np.ndarray,
        pixels: TilePixels,
        part: slice,
        rate: np.ndarray,
        counted: np.ndarray,
    ) -> None:
        """Summarise the draws of some pixels."""
        del pixels, counted
        found[:, part] = np.stack([rate.mean(axis=1), *self._summary.ends(rate.T)])

    def add(self, pixels: TilePixels, found: np.ndarray) -> None:
        """Keep the values, (n_value, n_pix), of a tile."""
        values = found
        at = pixels.tile.row + pixels.row, pixels.tile.col + pixels.col
        self._values[:, at[0], at[1]] = values
        area = np.flatnonzero(self._aimed[pixels.area])
        share = csc_matrix(pixels.fraction[area])
        share.eliminate_zeros()
        share.sort_indices()
        mass, column = pixels.people * values[0], np.full(pixels.people.shape, -1)
        count = np.diff(share.indptr)
        some = np.flatnonzero(count)
        first = np.zeros(count.shape)
        first[some] = share.data[share.indptr[some]]
        same = np.ones(count.shape, bool)
        same[some] = (
            np.logical_and.reduceat(share.data == np.repeat(first, count), share.indptr[some])
            if some.size
            else True
        )
        for n in np.unique(count[some]):
            here = np.flatnonzero((count == n) & same)
            row = share.indices[share.indptr[here][:, None] + np.arange(n)]
            # Pixels with equal shares in the same areas change alike: one column for all.
            sets, of = np.unique(row, axis=0, return_inverse=True)
            column[here] = self._n_column + of.ravel()
            self._columns(
                pixels.area[area[sets.ravel()]],
                np.repeat(np.arange(len(sets)), n),
                np.ones(sets.size),
                np.bincount(of.ravel(), (mass * first)[here], len(sets)),
            )
        mixed = np.flatnonzero(~same)
        column[mixed] = self._n_column + np.arange(mixed.size)
        rest = share[:, mixed].tocoo()
        self._columns(pixels.area[area[rest.row]], rest.col, rest.data, mass[mixed])
        self._column[at] = column

    def _columns(
        self, area: np.ndarray, column: np.ndarray, share: np.ndarray, mass: np.ndarray
    ) -> None:
        self._area.append(area)
        self._at.append(self._n_column + column)
        self._share.append(share)
        self._mass.append(mass)
        self._n_column += mass.size

    def fit(self, totals: np.ndarray) -> np.ndarray:
        """Fit the means to totals, (n_area,).

        Returns
        -------
        (n_area,) array
            Sums of the areas that were aimed at after it; 0 for others.
        """
        parts = (np.concatenate(each) for each in (self._share, self._area, self._at, self._mass))
        share, area, at, mass = parts
        shape = (self._aimed.size, self._n_column)
        shares = csr_matrix((share, (area, at)), shape=shape)
        self._factor = match_sums(shares, mass, np.where(self._aimed, totals, 0.0))
        return np.asarray(shares @ (mass * self._factor))

    def read(self, pixels: TilePixels) -> np.ndarray:
        """Return the fitted values, (n_value, n_pix) float64, of a tile."""
        at = pixels.tile.row + pixels.row, pixels.tile.col + pixels.col
        column = self._column[at]
        factor = np.where(column >= 0, self._factor[np.maximum(column, 0)], 1.0)
        return np.asarray(self._values[:, at[0], at[1]] * factor)
