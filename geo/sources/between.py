"""People between two years that are given."""

from __future__ import annotations

import numpy as np

from geo.core.errors import InputError, Problem
from geo.grids.grid import Tile
from geo.sources.derived import DerivedSource
from geo.sources.source import Source

SAME = 1e-3  # of a pixel: transforms are often rounded


class BetweenSource(DerivedSource):
    """The values of two sources, interpolated: a pixel grows by the same share each year.

    Parameters
    ----------
    before, after : Source
        Of one band each, on the same grid.
    share : float
        Of the way from the first to the second, 0 to 1.

    Raises
    ------
    InputError
        If their grids differ.
    """

    def __init__(self, before: Source, after: Source, share: float) -> None:
        super().__init__(before, None)
        self._after, self._share = after, share
        a, b = before.describe(), after.describe()
        shift = np.abs(np.subtract(a.transform[:6], b.transform[:6])).max()
        near = shift <= SAME * abs(a.transform.a)
        if a.shape != b.shape or a.crs != b.crs or not near:
            found = f"has another grid than {after.path}, so that nothing lies between them"
            remedy = "bring one to the grid of the other (gdalwarp), or give a file of each year"
            raise InputError(Problem(before.path, found, remedy))

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        return between(self._source.read(window, time), self._after.read(window), self._share)

    def damage(self) -> str:
        """See :meth:`geo.sources.source.Source.damage`."""
        return super().damage() or self._after.damage()

    def close(self) -> None:
        """Close this thread's handles."""
        super().close()
        self._after.close()


def between(before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
    """Interpolate amounts geometrically, linearly where one of them is not above 0.

    Parameters
    ----------
    before, after : (...) float64 arrays
    share : float
        Of the way from the first to the second, 0 to 1.

    Returns
    -------
    (...) float64 array
        NaN where one is missing.
    """
    found: np.ndarray = (1.0 - share) * before + share * after
    grows = (before > 0) & (after > 0)
    logs = (1.0 - share) * np.log(before, where=grows, out=np.zeros_like(before))
    logs += share * np.log(after, where=grows, out=np.zeros_like(after))
    return np.where(grows, np.exp(logs), found)
