"""Predict the pixels of the grid tile by tile and write cloud-optimised GeoTIFFs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from geo.geotiff import TiledWriter
from geo.grid import Grid, Tile
from geo.positions import Positions
from models.backend.arrays import Device, to_host
from models.training.device import DEVICE_PIXELS, Wanted, find_device, placed
from pipeline.core.progress import Silent
from pipeline.core.threads import map_in_order
from pipeline.prediction.colours import write_styles
from pipeline.prediction.products import Layer
from pipeline.storage.location import Location
from pipeline.store.aligned_grid import known_people, open_aligned_grid, positions_of, read_part

#: Pixels predicted at once: with 400 inducing points about 50 MB a thread.
CHUNK_PIXELS = 16384


def predict_tile(
    model: Any,
    aligned: Any,
    positions: Positions,
    tile: Tile,
    wanted: list[Layer],
    mask: str,
    device: Device | None = None,
    factor: np.ndarray | None = None,
) -> np.ndarray:
    """Predict one tile.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    aligned : zarr group
        ``covariates`` (n_feat, n_row, n_col), ``population`` and ``coverage`` (n_row, n_col).
    positions : Positions
        Of the grid's pixels.
    tile : Tile
    wanted : list of Layer
    mask : {"areas", "all"}
        Pixels in areas only, or every pixel with all covariates.
    device : Device, optional
        Device of the computation; the host if not given.
    factor : (n_row, n_col) array, optional
        Of the totals of the grid's pixels; see :mod:`pipeline.prediction.area_factors`.

    Returns
    -------
    (n_layer, n_row, n_col) float32 array
        NaN where there is no prediction.
    """
    result = np.full((len(wanted), tile.n_row, tile.n_col), np.nan, dtype=np.float32)
    rows, cols = tile.slices
    covered = read_part(aligned, "coverage", rows, cols).astype(np.float64)
    inside = covered > 0 if mask == "areas" else np.ones(tile.shape, dtype=bool)
    if not inside.any():
        return result
    x = read_part(aligned, "covariates", slice(None), rows, cols)
    valid = inside & np.isfinite(x).all(axis=0)
    row, col = np.nonzero(valid)
    population = known_people(read_part(aligned, "population", rows, cols))
    people = {"pixel": population, "outside": population * (1.0 - covered), "coverage": covered}
    kinds = {layer.product.exposure for layer in wanted}
    step = CHUNK_PIXELS if device is None else DEVICE_PIXELS
    for start in range(0, row.shape[0], step):
        at = row[start : start + step], col[start : start + step]
        with placed(device) as put:
            here = put(x[:, at[0], at[1]].T)
            coords = put(positions.km(tile.row + at[0], tile.col + at[1]))
            prediction = model.predict_pixels(here, coords)
            there = {kind: put(people[kind][at]) for kind in kinds}
            for number, layer in enumerate(wanted):
                people_of = there[layer.product.exposure]
                values = to_host(layer.values(prediction, people_of, (model, here, coords)))
                if factor is not None and layer.product.conditioned:
                    values = values * factor[tile.row + at[0], tile.col + at[1]]
                result[number, at[0], at[1]] = values
    return result


def predict_raster(
    model: Any,
    cube_path: str | os.PathLike[str] | Location,
    directory: str | os.PathLike[str],
    wanted: list[Layer],
    *,
    mask: str = "areas",
    tags: dict[str, str] | None = None,
    progress: Any = None,
    n_thread: int | None = None,
    device: Wanted = "cpu",
    device_memory: int | None = None,
    factor: np.ndarray | None = None,
) -> int:
    """Stream an aligned grid through a model into cloud-optimised GeoTIFFs, tile by tile.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    cube_path : path-like or Location
        The aligned grid, ``work/grid.zarr``.
    directory : path-like
        Directory of ``NAME.tif`` and ``NAME.qml`` of each layer.
    wanted : list of Layer
        The maps; :func:`layers` lists those of a configuration.
    mask : {"areas", "all"}
        Pixels in areas only, or every pixel with all covariates.
    tags : dict, optional
        Metadata of every file.
    progress : Progress, optional
    n_thread : int, optional
        Threads over tiles; one a core if not given. Results do not depend on it.
    device : {"cpu", "gpu", "auto"}
    device_memory : int, optional
        Bytes of the GPU's memory to use.
    factor : (n_row, n_col) array, optional
        Of the totals of the pixels, by what the counts of their areas add to the surface.

    Returns
    -------
    int
        Pixels predicted.
    """
    directory = Path(directory)
    progress = progress or Silent()
    aligned = open_aligned_grid(cube_path)
    described: Any = aligned.attrs["grid"]
    grid = Grid.from_dict(described)
    positions = positions_of(aligned, grid)
    tiles = list(grid.tiles(int(aligned.attrs["tile"])))
    n_pix = 0
    found = find_device(device, device_memory) if model.on_device else None

    def compute(tile: Tile) -> np.ndarray:
        return predict_tile(model, aligned, positions, tile, wanted, mask, found, factor)

    with contextlib.ExitStack() as stack:
        task = stack.enter_context(progress.task("predict", len(tiles)))
        writers = [
            stack.enter_context(
                TiledWriter(
                    directory / f"{layer.name}.tif",
                    grid,
                    description=layer.description,
                    unit=layer.unit,
                    tags=tags or {},
                )
            )
            for layer in wanted
        ]
        for tile, values in zip(tiles, map_in_order(compute, tiles, n_thread), strict=True):
            for writer, band in zip(writers, values, strict=True):
                writer.write(tile, band)
            n_pix += int(np.isfinite(values[0]).sum())
            task.advance(1)
    write_styles(directory, wanted)
    return n_pix
