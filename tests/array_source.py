"""A source of values from outside the packages: arrays by month, in an .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from affine import Affine
from pyproj import CRS

from geo.grids.grid import Tile
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.source import Band, Description, Source


class ArraySource(Source):
    """Arrays of one shape by name, their time; ``crs`` and ``transform`` lie beside them."""

    def __init__(self, path: str, choice: BandChoice, header: RasterHeader) -> None:
        self.path = path
        with np.load(path) as file:
            arrays = dict(file)
        crs, transform = str(arrays.pop("crs")), Affine(*arrays.pop("transform")[:6])
        self._arrays = {
            name: values for name, values in arrays.items() if name.startswith(choice.time or "")
        }
        first = next(iter(self._arrays.values()))
        bands = tuple(Band(k, "", name) for k, name in enumerate(self._arrays, 1))
        self._about = Description(
            CRS(crs), transform, first.shape, str(first.dtype), bands, nodata=(-1.0,)
        ).declared(header)

    def describe(self) -> Description:
        return self._about

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        values = self._arrays[self.band_of(time).time]
        return self._about.values(values[window.slices] if window else values)


def write_arrays(path: Path, crs: str, transform: Affine, **months: np.ndarray) -> Path:
    """Write a file that `ArraySource` reads."""
    np.savez(path, crs=np.array(crs), transform=np.array(tuple(transform)), **months)
    return path
