"""Borders of the areas in the CRS of the rasters, for pictures: each form of them made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np

from geo.grids.grid import Grid
from geo.grids.reproject import reproject
from geo.writers.raster_files import RasterFiles

Extent = tuple[float, float, float, float]


class Borders:
    """The table of areas, and their borders on the grids of rasters.

    Parameters
    ----------
    areas : GeoDataFrame
        Layer of ``areas.gpkg``, (n_area,).
    files : RasterFiles
        Open files.
    """

    def __init__(self, areas: gpd.GeoDataFrame, files: RasterFiles) -> None:
        self.areas, self._files = areas, files
        self._moved: dict[Grid, gpd.GeoSeries] = {}
        self._rings: dict[tuple[Grid, Extent], list[list[np.ndarray]]] = {}

    def on(self, raster: Path) -> gpd.GeoSeries:
        """Return the areas in the CRS of a raster, (n_area,)."""
        grid = self._files.grid(raster)
        if grid not in self._moved:
            self._moved[grid] = reproject(self.areas.geometry, grid)
        return self._moved[grid]

    def rings(self, raster: Path, extent: Extent, chosen: Any = None) -> list[np.ndarray]:
        """Return the outlines of the areas on a raster: see :func:`outlines`.

        Parameters
        ----------
        raster : Path
        extent : tuple of float
            Of the picture.
        chosen : (n_area,) bool array, optional
            Areas whose outlines are wanted; all by default.
        """
        key = (self._files.grid(raster), extent)
        if key not in self._rings:
            self._rings[key] = [outlines([shape], extent) for shape in self.on(raster)]
        wanted = np.ones(len(self.areas), bool) if chosen is None else np.asarray(chosen)
        own = zip(self._rings[key], wanted, strict=True)
        return [ring for rings, ok in own if ok for ring in rings]


def outlines(areas: Any, extent: Extent) -> list[np.ndarray]:
    """Return the rings of the areas, simplified to the resolution of the picture."""
    thin = max(extent[1] - extent[0], extent[3] - extent[2]) / 3000
    rings = []
    for shape in areas:
        for part in getattr(shape, "geoms", [shape]):
            if part is None or part.is_empty:
                continue
            for ring in (part.exterior, *part.interiors):
                rings.append(np.asarray(ring.simplify(thin).coords)[:, :2])
    return rings
