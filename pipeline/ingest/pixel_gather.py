"""Gather the pixels of every bag from the aligned grid; decode each tile once.

The store's bags are in random order, and each overlaps a few chunks of the grid. If bags were read
one by one, a chunk would be decoded once for each of its bags: about ten times for bags of a
thousand pixels. Instead, the pixels of one tile after another are written to an unnamed scratch
file in the order of the bags (``F`` float32 and a float64 each), and bags are read from that file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import zarr

from geo.grids.grid import Grid, Tile
from pipeline.core.threads import run_tasks
from pipeline.storage.location import Place
from pipeline.storage.object_commit import zarr_at
from pipeline.store.aligned_grid import TILE, positions_of
from pipeline.store.bag_writer import PixelRows
from pipeline.store.tile_index import AreaPixels, TileIndex


class BagPixels(AreaPixels, Protocol):
    """Pixels of bags and the share of each that is inside."""

    @property
    def fraction(self) -> np.ndarray:
        """Share of each pixel inside its bag."""


class PixelGatherer:
    """Reads the pixels of bags from an aligned grid through an unnamed scratch file.

    Parameters
    ----------
    bags : BagPixels
    grid : Grid
    grid_path : Path or Location
    scratch : Path
        Directory with space for ``4 n_feat + 8`` bytes a pixel. The system deletes the scratch
        file even if the process is killed.
    """

    def __init__(self, bags: BagPixels, grid: Grid, grid_path: Place, scratch: Path) -> None:
        self._bags, self._grid = bags, grid
        self._group: Any = zarr.open_group(zarr_at(grid_path), mode="r")
        #: Positions of the grid's pixels.
        self.positions = positions_of(self._group, grid)
        covariates: Any = self._group["covariates"]
        n_feat = covariates.shape[0]
        self._row = np.dtype([("x", "<f4", (n_feat,)), ("exposure", "<f8")])
        self._file = tempfile.TemporaryFile(dir=scratch, prefix=".gather-")  # noqa: SIM115
        self._index = TileIndex.of(bags, grid, TILE)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the scratch file."""
        self._file.close()

    def spread(
        self, workers: int | None = None, advance: Callable[[int], object] | None = None
    ) -> None:
        """Write the pixels of all tiles to the scratch file.

        Parameters
        ----------
        workers : int, optional
            Threads.
        advance : callable, optional
            Called with the number of pixels after each tile.
        """

        def write(tile: Tile) -> None:
            n = self._spread(tile)
            if advance is not None:
                advance(n)

        run_tasks(write, [(tile,) for tile in self._grid.tiles(TILE)], workers)

    def rows(self, bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        """Return pixels ``start[k]:stop[k]`` of bag ``bag[k]``, one after the other."""
        first = self._bags.offsets[bag] + start
        size = stop - start
        ends = np.cumsum(size)
        found = np.empty(int(ends[-1]), self._row)
        pixel = np.empty(found.size, np.int64)
        fraction = np.empty(found.size)
        for begin, end, at in zip(ends - size, ends, first.tolist(), strict=True):
            self._read(found[begin:end], at)
            span = slice(at, at + int(end - begin))
            pixel[begin:end] = self._bags.pixel[span]
            fraction[begin:end] = self._bags.fraction[span]
        row, col = np.divmod(pixel, self._grid.shape[1])
        weight = fraction * found["exposure"]
        x = np.ascontiguousarray(found["x"])
        return PixelRows(x, weight, self.positions.km(row, col), pixel)

    def _spread(self, tile: Tile) -> int:
        at = self._index.inside(tile)
        if at.size == 0:
            return 0
        row, col = np.divmod(self._bags.pixel[at], self._grid.shape[1])
        inside = (row - tile.row) * tile.n_col + (col - tile.col)
        found = np.empty(at.size, self._row)
        covariates = np.asarray(self._group["covariates"][(slice(None), *tile.slices)])
        for number, layer in enumerate(covariates):
            found["x"][:, number] = layer.ravel().take(inside)
        found["exposure"] = np.asarray(self._group["population"][tile.slices]).ravel().take(inside)
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(at) != 1) + 1, [at.size]])
        for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            self._write(found[begin:end], int(at[begin]))
        return int(at.size)

    def _write(self, rows: np.ndarray, at: int) -> None:
        data = rows.view(np.uint8).data
        place = at * self._row.itemsize
        while data:
            n = os.pwrite(self._file.fileno(), data, place)
            data, place = data[n:], place + n

    def _read(self, rows: np.ndarray, at: int) -> None:
        data = rows.view(np.uint8).data
        place = at * self._row.itemsize
        while data:
            n = os.preadv(self._file.fileno(), [data], place)
            if n == 0:
                message = "the scratch file of ingest is truncated"
                raise OSError(message)
            data, place = data[n:], place + n
