"""The area that each pixel is of: the one with most of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.grids.membership import Membership

NONE = -1


@dataclass(frozen=True)
class Owners:
    """Pixels of areas, each once, ascending.

    Attributes
    ----------
    pixel : (n,) int array
        ``row * n_col + col``.
    area : (n,) int32 array
        Number of the area with most of it, the first of equals.
    """

    pixel: np.ndarray
    area: np.ndarray

    @classmethod
    def of(cls, members: Membership) -> Owners:
        """Return the owner of each pixel of areas."""
        area = members.bag.astype(np.int32)
        order = np.lexsort([area, -members.fraction, members.pixel])
        pixel = members.pixel[order]
        first = np.ones(pixel.size, bool)
        first[1:] = pixel[1:] != pixel[:-1]
        return cls(pixel[first], area[order[first]])

    def inside(self, grid: Grid, tile: Tile) -> np.ndarray:
        """Return the areas of a tile's pixels: (n_row, n_col) int32, -1 outside all areas."""
        found = np.full(tile.shape, NONE, np.int32)
        begin = np.arange(tile.row, tile.row + tile.n_row, dtype=np.int64) * grid.shape[1]
        begin += tile.col
        start = np.searchsorted(self.pixel, begin)
        stop = np.searchsorted(self.pixel, begin + tile.n_col)
        for row in np.flatnonzero(stop > start).tolist():
            span = slice(start[row], stop[row])
            found[row, self.pixel[span] - begin[row]] = self.area[span]
        return found
