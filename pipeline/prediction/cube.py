"""The maps of several periods as one cube: ``rates.zarr``, which xarray opens lazily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from geo.grids.conventions import GRID_MAPPING
from geo.grids.grid import Grid
from pipeline.products.product_types import Layer
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels
from pipeline.store.labels import Coordinate, grid_coordinates, label_group

CUBE = "rates.zarr"
CHUNK = 512  # side of a chunk, pixels: that of a tile of the pass
EPOCH = date(1970, 1, 1)


class Cube:
    """Layers by time, row and column.

    Parameters
    ----------
    directory : Path
        Where ``rates.zarr`` is made.
    grid : Grid
    layers : sequence of Layer
        Of each period.
    labels : sequence of str
        Of the periods, by rising time.
    days : sequence of date
        First day of each.
    ahead : sequence of bool
        Whether each is a forecast.
    attrs : dict
        Of the dataset.
    """

    def __init__(
        self,
        directory: Path,
        grid: Grid,
        layers: Sequence[Layer],
        labels: Sequence[str],
        days: Sequence[date],
        ahead: Sequence[bool],
        attrs: dict[str, Any],
    ) -> None:
        self.grid, self._labels = grid, list(labels)
        group = zarr.create_group(directory / CUBE, zarr_format=3)
        self._arrays = {layer.name: _create(group, layer, len(days), grid) for layer in layers}
        group.attrs.update(attrs)
        about = {"standard_name": "time", "axis": "T", "long_name": "first day of the period"}
        unit = {"units": f"days since {EPOCH}", "calendar": "proleptic_gregorian"}
        since = np.array([(day - EPOCH).days for day in days], dtype=np.int64)
        text = np.dtypes.StringDType()
        coordinates = grid_coordinates(grid, ())
        coordinates = {name: coordinates[name] for name in ("x", "y", GRID_MAPPING)}
        coordinates["time"] = Coordinate(("time",), since, {**about, **unit})
        coordinates["period"] = Coordinate(("time",), np.array(list(labels), dtype=text))
        coordinates["forecast"] = Coordinate(("time",), np.array(list(ahead), dtype=bool))
        label_group(group, coordinates, grid)

    def at(self, label: str) -> CubeSlice:
        """Return who takes the tiles of one period."""
        return CubeSlice(self._arrays, self._labels.index(label))


class CubeSlice(Consumer):
    """Writes the layers of one period, tile by tile."""

    def __init__(self, arrays: dict[str, Any], place: int) -> None:
        self._arrays, self._place = arrays, place

    def add(self, pixels: TilePixels, found: Any) -> None:
        """Write the values that the pass has predicted."""
        del found
        self.write(pixels, pixels.values)

    def write(self, pixels: TilePixels, values: Mapping[str, np.ndarray]) -> None:
        """Write layers of a tile, of values (n_pix,) by name; names that it lacks are left out."""
        for name, array in self._arrays.items():
            if name in values:
                array[(self._place, *pixels.tile.slices)] = pixels.band(values[name])


def _create(group: zarr.Group, layer: Layer, n_time: int, grid: Grid) -> Any:
    return group.create_array(
        layer.name,
        shape=(n_time, *grid.shape),
        dtype="float32",
        chunks=(1, CHUNK, CHUNK),
        serializer=BytesCodec(endian="little"),
        compressors=[ZstdCodec(level=3), Crc32cCodec()],
        fill_value=np.nan,
        dimension_names=("time", "y", "x"),
        attributes={
            "long_name": layer.description,
            "units": layer.unit,
            "grid_mapping": GRID_MAPPING,
        },
    )
