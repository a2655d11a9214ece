"""Predict the pixels of the grid tile by tile and write cloud-optimised GeoTIFFs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from models.training.device import Wanted, find_device
from pipeline.core.progress import Silent
from pipeline.products.layer_files import open_layers
from pipeline.products.product_types import Layer
from pipeline.products.tile_pass import Moments, run_pass
from pipeline.products.tile_pixels import TileReader
from pipeline.storage.location import Location


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
    reader = TileReader.open(cube_path, mask=mask)
    moments = Moments(model, wanted, device_of(model, device, device_memory), factor)
    with (
        open_layers(wanted, reader.grid, Path(directory), tags or {}) as files,
        (progress or Silent()).task("predict", len(reader.tiles)) as task,
    ):
        return run_pass(reader, [files], moments=moments, advance=task.advance, n_thread=n_thread)


def device_of(model: Any, device: Wanted, device_memory: int | None = None) -> Any:
    """Return the device that a model predicts on; None for the host."""
    return find_device(device, device_memory) if model.on_device else None
