"""Rasters of a pass, written tile by tile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.writers.geotiff import TiledWriter
from pipeline.products.colours import write_styles
from pipeline.products.product_types import Layer
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels


class LayerFiles(Consumer):
    """Open rasters of layers, to be written a tile at a time.

    Parameters
    ----------
    wanted : sequence of Layer
    writers : sequence of TiledWriter
    """

    def __init__(self, wanted: Sequence[Layer], writers: Sequence[TiledWriter]) -> None:
        self._pairs = list(zip(wanted, writers, strict=True))

    def add(self, pixels: TilePixels, found: Any) -> None:
        """Write the values that the pass has predicted."""
        del found
        for layer, writer in self._pairs:
            writer.write(pixels.tile, pixels.band(pixels.values[layer.name]))

    def write_band(self, tile: Tile, band: np.ndarray) -> None:
        """Write a band (n_row, n_col) of a tile to every raster."""
        for _, writer in self._pairs:
            writer.write(tile, band.astype(np.float32))

    def write(self, pixels: TilePixels, found: Mapping[str, np.ndarray]) -> None:
        """Write layers that take their values from arrays (n_pix,) by name."""
        for layer, writer in self._pairs:
            writer.write(pixels.tile, pixels.band(layer.values(found, pixels.people)))


@contextlib.contextmanager
def open_layers(
    wanted: Sequence[Layer], grid: Grid, directory: Path, tags: Mapping[str, str]
) -> Iterator[LayerFiles]:
    """Open rasters for writing; they and their styles are complete after the block.

    Parameters
    ----------
    wanted : sequence of Layer
    grid : Grid
    directory : Path
    tags : mapping of str to str
        Of every file.
    """
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                TiledWriter(
                    directory / f"{layer.name}.tif",
                    grid,
                    description=layer.description,
                    unit=layer.unit,
                    tags=tags,
                )
            )
            for layer in wanted
        ]
        yield LayerFiles(wanted, writers)
    write_styles(directory, wanted)
