"""An index from tiles to the pixels of areas in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.grids.membership import runs_of_bags


class AreaPixels(Protocol):
    """Pixels of areas, one area after the other, ascending within an area."""

    @property
    def offsets(self) -> np.ndarray:
        """Pixels of area ``a`` are ``offsets[a]:offsets[a + 1]``."""

    @property
    def pixel(self) -> np.ndarray:
        """``row * n_col + col`` of each."""


@dataclass(frozen=True)
class TileIndex:
    """Index of the pixels of areas by row of tiles; its memory depends on areas, not on pixels.

    Pixels ascend within an area, so that those in one row of tiles are a run of consecutive ones.

    Attributes
    ----------
    pixel : (n,) int array
    n_col, tile : int
        Columns of the grid, and the side of a tile in pixels.
    start, stop, low, high : (n_run,) int64 arrays
        Of each run, ordered by row of tiles: where it begins and ends, its first and last column.
    cuts : (n_row_of_tiles + 1,) int64 array
        Runs of each row of tiles.
    """

    pixel: np.ndarray
    n_col: int
    tile: int
    start: np.ndarray
    stop: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cuts: np.ndarray

    @classmethod
    def of(cls, areas: AreaPixels, grid: Grid, tile: int) -> TileIndex:
        """Index the pixels of areas on a grid; ``tile`` is the side of a tile in pixels."""
        n_col = grid.shape[1]
        parts = [np.empty((5, 0), np.int64)]
        for first, last in runs_of_bags(areas.offsets):
            base, end = int(areas.offsets[first]), int(areas.offsets[last])
            row, col = np.divmod(areas.pixel[base:end], n_col)
            band = row // tile
            begins = np.zeros(end - base, bool)
            begins[1:] = band[1:] != band[:-1]
            starts = areas.offsets[first:last]
            begins[starts[starts < areas.offsets[first + 1 : last + 1]] - base] = True
            at = np.flatnonzero(begins)
            stop = np.append(at[1:], end - base)
            low, high = np.minimum.reduceat(col, at), np.maximum.reduceat(col, at)
            parts.append(np.stack([base + at, base + stop, low, high, band[at]]))
        start, stop, low, high, band = np.concatenate(parts, axis=1)
        order = np.argsort(band, kind="stable")
        cuts = np.searchsorted(band, np.arange(-(-grid.shape[0] // tile) + 1), sorter=order)
        start, stop, low, high = (each[order] for each in (start, stop, low, high))
        return cls(areas.pixel, n_col, tile, start, stop, low, high, cuts)

    def inside(self, tile: Tile) -> np.ndarray:
        """Return the numbers of the pixels in a tile, (n,) int64 ascending.

        Parameters
        ----------
        tile : Tile
            One of ``grid.tiles(self.tile)``.
        """
        number = tile.row // self.tile
        runs = np.arange(self.cuts[number], self.cuts[number + 1])
        end = tile.col + tile.n_col
        runs = runs[(self.low[runs] < end) & (self.high[runs] >= tile.col)]
        size = self.stop[runs] - self.start[runs]
        shift = self.start[runs] - (np.cumsum(size) - size)
        at = np.repeat(shift, size) + np.arange(int(size.sum()))
        col = self.pixel[at] % self.n_col
        # The runs of a row of tiles are in the order of the areas, as the pixels are.
        return at[(col >= tile.col) & (col < end)]
