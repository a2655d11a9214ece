"""The first band of a raster file, for tests that look at maps."""

from pathlib import Path
from typing import Any

import numpy as np
import rasterio


def read(path: Path) -> Any:
    """Return the values of the first band: (n_row, n_col) float64, as they are stored."""
    with rasterio.open(path) as file:
        return file.read(1).astype(np.float64)
