"""Write rasters that follow from the draws of all pixels, tile by tile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from geo.geotiff import TiledWriter
from geo.grid import Grid
from pipeline.prediction.colours import write_styles
from pipeline.prediction.level_pixels import TilePixels
from pipeline.prediction.product_types import Layer

#: What the values of the layers are taken from, (n_pix,) by name.
Found = Mapping[str, np.ndarray]


class LayerWriters:
    """Open rasters, to be written a tile at a time.

    Parameters
    ----------
    wanted : sequence of Layer
        Their products take their values from what :meth:`write` is given.
    writers : sequence of TiledWriter
    """

    def __init__(self, wanted: Sequence[Layer], writers: Sequence[TiledWriter]) -> None:
        self._pairs = list(zip(wanted, writers, strict=True))

    def write(self, pixels: TilePixels, found: Found) -> None:
        """Write the pixels of a tile."""
        for layer, writer in self._pairs:
            band = np.full(pixels.tile.shape, np.nan, np.float32)
            band[pixels.row, pixels.col] = layer.values(found, pixels.people)
            writer.write(pixels.tile, band)


@contextlib.contextmanager
def open_layers(
    wanted: Sequence[Layer], grid: Grid, directory: Path, tags: Mapping[str, str]
) -> Iterator[LayerWriters]:
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
        yield LayerWriters(wanted, writers)
    write_styles(directory, wanted)
