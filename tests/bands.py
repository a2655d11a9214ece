"""Rasters of one band, for tests that write inputs and look at maps."""

from pathlib import Path
from typing import Any

import numpy as np
import rasterio


def read(path: Path) -> Any:
    """Return the values of the first band: (n_row, n_col) float64, as they are stored."""
    with rasterio.open(path) as file:
        return file.read(1).astype(np.float64)


def write(path: Path, values: np.ndarray, **profile: Any) -> Path:
    """Write a raster, a GeoTIFF of the type of its values unless the profile says otherwise."""
    n_row, n_col = values.shape
    own = {"driver": "GTiff", "height": n_row, "width": n_col, "count": 1, "dtype": values.dtype}
    with rasterio.open(path, "w", **{**own, **profile}) as file:
        file.write(values, 1)
    return path
