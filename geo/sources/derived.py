"""Sources that are made of another one, on its grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from geo.grids.grid import Tile
from geo.sources.source import ANY_VALUE, Source


class DerivedSource(Source):
    """What is computed from the values of another source, on its grid.

    Parameters
    ----------
    source : Source
    unit : str or None
        Of the computed values; None for that of the source.
    """

    def __init__(self, source: Source, unit: str | None) -> None:
        self.path, self._source = source.path, source
        about = source.describe()
        # Values are no longer as stored.
        self._about = replace(
            about, dtype="float64", nodata=(), valid=ANY_VALUE, scale=1.0, offset=0.0,
            unit=about.unit if unit is None else unit,
        )  # fmt: skip

    def damage(self) -> str:
        """See :meth:`geo.sources.source.Source.damage`."""
        return self._source.damage()

    def squeezed(self) -> float | None:
        """See :meth:`geo.sources.source.Source.squeezed`."""
        return self._source.squeezed()

    def close(self) -> None:
        """Close this thread's handles."""
        self._source.close()


class ClassShare(DerivedSource):
    """1 where a source has one of some values, 0 where it has another, NaN where it has none.

    The average over larger pixels is the share of the class among what is known.

    Parameters
    ----------
    source : Source
        Of classes, such as land cover.
    values : sequence of float
        Of the class.
    """

    def __init__(self, source: Source, values: Sequence[float]) -> None:
        super().__init__(source, "share")
        self._values = np.asarray(values, np.float64)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        return self._share(self._source.read(window, time))

    def unwritten(self, window: Tile) -> float | None:
        """See :meth:`geo.sources.source.Source.unwritten`."""
        value = self._source.unwritten(window)
        return None if value is None else float(self._share(np.array(value)))

    def _share(self, values: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(values), np.nan, np.isin(values, self._values))
