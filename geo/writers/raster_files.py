"""Raster files that several pictures and tables are made of: opened once, and kept open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rasterio

from geo.grids.grid import Grid
from geo.writers.colours import Scale

#: Files open at once. A process may open 1024 on most systems, and needs others.
N_OPEN = 200


class RasterFiles:
    """Rasters that are opened once, until the context ends.

    No pixels are held here: each look reads as many as it needs. GDAL keeps the blocks of a file
    that is open, within its cache, so that the next look reads few bytes from the disk. Scales of
    colours are kept, which are small. No other process may read the open files: do not look at
    them from a fork.

    Parameters
    ----------
    n_open : int
        Files open at once; of more, that whose last look is the longest ago is closed.
    """

    def __init__(self, n_open: int = N_OPEN) -> None:
        self._n_open = n_open
        self._open: OrderedDict[Path, Any] = OrderedDict()
        self._scales: dict[tuple[Any, ...], Scale] = {}

    def __enter__(self) -> Self:
        """Begin with no file open."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    @contextmanager
    def open(self, path: Path) -> Iterator[Any]:
        """Give the dataset of a file, as ``rasterio.open`` does; it stays open."""
        if path not in self._open:
            while len(self._open) >= self._n_open:
                self._open.popitem(last=False)[1].close()
            self._open[path] = rasterio.open(path)
        self._open.move_to_end(path)
        yield self._open[path]

    def grid(self, path: Path) -> Grid:
        """Return the grid of a raster."""
        with self.open(path) as source:
            return Grid(source.crs, source.transform, source.shape)

    def scale(
        self,
        paths: Sequence[Path],
        *,
        low: float | None = None,
        high: float | None = None,
        ramp: str = "level",
    ) -> Scale:
        """Return the scale that some rasters share: see :meth:`Scale.of_rasters`."""
        key = (tuple(paths), low, high, ramp)
        if key not in self._scales:
            self._scales[key] = Scale.of_rasters(
                paths, low=low, high=high, ramp=ramp, opened=self.open
            )
        return self._scales[key]
