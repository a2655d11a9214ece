"""Write rasters that follow from the draws of all pixels, tile by tile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from geo.geotiff import TiledWriter
from geo.grid import Tile
from pipeline.core.threads import map_in_order
from pipeline.prediction.colours import write_styles
from pipeline.prediction.level_pixels import PixelReader, TilePixels
from pipeline.prediction.products import Layer

#: From the pixels of a tile to what the values of the layers are taken from, (n_pix,) by name.
Found = Mapping[str, np.ndarray]


def write_layers(
    wanted: Sequence[Layer],
    reader: PixelReader,
    compute: Callable[[TilePixels], Found],
    directory: Path,
    tags: Mapping[str, str],
    *,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
) -> None:
    """Write rasters and their styles.

    Parameters
    ----------
    wanted : sequence of Layer
        Their products take their values from what ``compute`` returns.
    reader : PixelReader
    compute : callable
        Called from several threads.
    directory : Path
    tags : mapping of str to str
        Of every file.
    advance : callable, optional
        Called with 1 after each tile.
    n_thread : int, optional
    """

    def of(tile: Tile) -> np.ndarray:
        result = np.full((len(wanted), *tile.shape), np.nan, np.float32)
        pixels = reader.read(tile)
        if pixels is not None:
            found = compute(pixels)
            people = pixels.people * np.where(pixels.covered > 0, pixels.covered, np.nan)
            for number, layer in enumerate(wanted):
                result[number, pixels.row, pixels.col] = layer.values(found, people)
        return result

    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                TiledWriter(
                    directory / f"{layer.name}.tif",
                    reader.grid,
                    description=layer.description,
                    unit=layer.unit,
                    tags=tags,
                )
            )
            for layer in wanted
        ]
        results = map_in_order(of, reader.tiles, n_thread)
        for tile, values in zip(reader.tiles, results, strict=True):
            for writer, band in zip(writers, values, strict=True):
                writer.write(tile, band)
            if advance is not None:
                advance(1)
    write_styles(directory, wanted)
