"""Values of areas as a source: the pixels of an area share its value."""

from __future__ import annotations

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.grids.owners import Owners
from geo.sources.source import Description, Source


class AreaSource(Source):
    """Values of areas, on a grid.

    A pixel at a border has the value of the area with most of it.

    Parameters
    ----------
    path : str
        Table of the values, for messages.
    grid : Grid
    owners : Owners
        The area of each pixel of the grid.
    values : (n_area,) float64 array
    variable : str
        Name of the column.
    unit : str, optional
    """

    def __init__(
        self,
        path: str,
        grid: Grid,
        owners: Owners,
        values: np.ndarray,
        variable: str,
        unit: str = "",
    ) -> None:
        self.path, self.values = path, np.asarray(values, np.float64)
        self._grid, self._owners = grid, owners
        self._about = Description.on(grid, variable, unit)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        self.band_of(time)
        area = self._owners.inside(self._grid, window or self._grid.whole)
        return np.append(self.values, np.nan)[area]
