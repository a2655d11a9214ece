"""Second routes to the shares of pixels in areas, for the tests of ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exactextract
import geopandas as gpd
import numpy as np
import shapely


def extracted(raster: Path, areas: Path, **options: Any) -> np.ndarray:
    """Return exactextract's own sum of a raster over each polygon of a file, both as given."""
    frame = gpd.read_file(areas, **options)
    table = exactextract.exact_extract(str(raster), frame, ["sum"], output="pandas")
    return np.nan_to_num(table["sum"].to_numpy())


def overlaps(polygon: Any, shape: tuple[int, int], side: float = 1) -> np.ndarray:
    """Return the share of each pixel of ``side`` km in a polygon, by GEOS."""
    row, col = np.mgrid[: shape[0], : shape[1]]
    left, top = 5e5 + 1000 * side * col, 8e6 - 1000 * side * row
    pixels = shapely.box(left, top - 1000 * side, left + 1000 * side, top)
    share: np.ndarray = shapely.area(shapely.intersection(pixels, polygon)) / (1000 * side) ** 2
    return share


def shares(files: Any) -> np.ndarray:
    """Share of each pixel inside each area: (n_area, n_row, n_col)."""
    return np.stack([overlaps(polygon, files.shape) for polygon in files.polygons])
