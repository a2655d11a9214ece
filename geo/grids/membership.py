"""The pixels of each area, and the exact fraction of each that the area covers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import exactextract
import geopandas as gpd
import numpy as np
import shapely
from exactextract.feature import Feature, FeatureSource
from exactextract.raster import RasterSource as ExactRasterSource

from geo.grids.grid import Grid, Tile
from geo.grids.reproject import polygon_parts, reproject

#: Polygons in one call of exactextract; bounds the memory of its tables.
N_POLYGON_AT_ONCE = 256
#: Pixels of the widest window in memory (one byte each).
N_CELL_IN_MEMORY = 16_000_000
#: Pixels of areas in one batch; all at once would double the memory.
N_PIXEL_AT_ONCE = 4_000_000
#: A fraction this close to 1 is 1: exactextract computes in float32.
EDGE = 1e-6


@dataclass(frozen=True)
class Membership:
    """Pixels of each area, one area after the other (CSR), ascending within an area.

    A country has a hundred million of them, so that the types are narrow: 8 bytes a pixel.

    Attributes
    ----------
    offsets : (n_bag + 1,) int64 array
        Pixels of area ``a``, in the order of the polygons, are ``offsets[a]:offsets[a + 1]``.
    pixel : (n,) int32 array, or int64 on a grid of more than 2^31 - 1 pixels
        Number of the pixel in the grid, ``row * n_col + col``.
    fraction : (n,) float32 array
        Share of the pixel that the area covers, in (0, 1].
    """

    offsets: np.ndarray
    pixel: np.ndarray
    fraction: np.ndarray

    @property
    def n_bag(self) -> int:
        """Number of areas, including those without a pixel."""
        return int(self.offsets.size - 1)

    @property
    def bag(self) -> np.ndarray:
        """Number of the area of each pixel, (n,) int64; not cached."""
        return np.repeat(np.arange(self.n_bag), np.diff(self.offsets))

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum values of the pixels by area, (n_bag,) float64; 0 for an area without pixels.

        Works in batches of whole areas to bound the memory.
        """
        result = np.zeros(self.n_bag)
        for first, last in runs_of_bags(self.offsets):
            start, stop = self.offsets[first], self.offsets[last]
            filled = first + np.flatnonzero(np.diff(self.offsets[first : last + 1]))
            part = values[start:stop].astype(np.float64)
            result[filled] = np.add.reduceat(part, self.offsets[filled] - start)
        return result

    def coverage(self, grid: Grid, tile: Tile | None = None) -> np.ndarray:
        """Return the share of each pixel of a tile that lies in any area; see :func:`coverage`."""
        return coverage(self.pixel, self.fraction, grid, tile or grid.whole)


def coverage(pixel: np.ndarray, fraction: np.ndarray, grid: Grid, tile: Tile) -> np.ndarray:
    """Return the share of each pixel of a tile that lies in any area.

    Parameters are those of :func:`summed_fractions`.

    Returns
    -------
    (n_row, n_col) float64 array
        In [0, 1]; where areas overlap, the sum is clipped to 1.
    """
    return np.minimum(summed_fractions(pixel, fraction, grid, tile), 1.0)


def summed_fractions(pixel: np.ndarray, fraction: np.ndarray, grid: Grid, tile: Tile) -> np.ndarray:
    """Return the sum over areas of the share of each pixel of a tile; above 1 where they overlap.

    Parameters
    ----------
    pixel, fraction : (n,) int, float arrays
        Of a :class:`Membership`; pixels outside the tile are ignored.
    grid : Grid
    tile : Tile

    Returns
    -------
    (n_row, n_col) float64 array
    """
    row, col = np.divmod(pixel, grid.shape[1])
    row, col = row - tile.row, col - tile.col
    inside = (row >= 0) & (row < tile.n_row) & (col >= 0) & (col < tile.n_col)
    flat = row[inside] * tile.n_col + col[inside]
    total = np.bincount(flat, fraction[inside], tile.n_row * tile.n_col)
    total[np.abs(total - 1.0) < EDGE] = 1.0
    return total.reshape(tile.shape)


def runs_of_bags(offsets: np.ndarray, n_at_once: int = N_PIXEL_AT_ONCE) -> list[tuple[int, int]]:
    """Split areas into batches of about ``n_at_once`` pixels; no area is split.

    Returns
    -------
    list of (int, int)
        First area and last + 1; batches without pixels are left out.
    """
    last = np.searchsorted(offsets, np.arange(0, offsets[-1], n_at_once), side="left")
    cuts = np.unique(np.concatenate([[0], last, [offsets.size - 1]]))
    pairs = itertools.pairwise(cuts.tolist())
    return [(a, b) for a, b in pairs if offsets[b] > offsets[a]]


def membership(geometry: gpd.GeoSeries, grid: Grid) -> Membership:
    """Return the pixels of each polygon and the share of each that it covers.

    Fractions are exact (exactextract intersects the polygon with the pixels), so that those of
    adjoining areas add up to 1, and an area smaller than a pixel has its share. Each polygon has a
    window of its own: neither time nor memory depends on the size of the grid.

    Parameters
    ----------
    geometry : geopandas.GeoSeries
        Valid polygons, in any CRS.
    grid : Grid
        The grid.

    Returns
    -------
    Membership
        Without the parts of polygons outside the grid.

    Raises
    ------
    GridError
        If the polygons have no CRS or cannot be reprojected.

    References
    ----------
    D. Baston, "exactextract", https://github.com/isciences/exactextract
    """
    polygons = np.asarray(reproject(geometry, grid).array)
    t = grid.transform
    origin, scale = np.array([t.c, t.f]), np.array([t.a, t.e])

    def to_pixels(xy: np.ndarray) -> np.ndarray:
        # In pixels, y upwards from the last row: large eastings lose digits.
        in_pixels = (xy - origin) / scale
        in_pixels[:, 1] = grid.shape[0] - in_pixels[:, 1]
        return in_pixels

    sizes = np.zeros(len(polygons), np.int64)
    narrow = grid.n_pix <= np.iinfo(np.int32).max
    pixels: list[np.ndarray] = []
    fractions: list[np.ndarray] = []
    for first in range(0, len(polygons), N_POLYGON_AT_ONCE):
        chunk = _sound(shapely.transform(polygons[first : first + N_POLYGON_AT_ONCE], to_pixels))
        for number, pixel, fraction in _measure(chunk, grid):
            sizes[first + number] = pixel.size
            pixels.append(pixel.astype(np.int32 if narrow else np.int64))
            fractions.append(fraction.astype(np.float32))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Membership(
        offsets,
        _joined(pixels, int(offsets[-1]), np.int32 if narrow else np.int64),
        _joined(fractions, int(offsets[-1]), np.float32),
    )


def _sound(polygons: np.ndarray) -> np.ndarray:
    """Repair rings that rounding lets touch themselves: exactextract may crash on them."""
    broken = ~(shapely.is_valid(polygons) | shapely.is_missing(polygons))
    for number in np.flatnonzero(broken):
        fixed = shapely.make_valid(polygons[number], method="structure")
        polygons[number] = shapely.multipolygons(polygon_parts(fixed))
    return polygons


def _joined(parts: list[np.ndarray], size: int, dtype: Any) -> np.ndarray:
    """Concatenate, freeing each part once it is copied: numpy.concatenate would need twice this."""
    result = np.empty(size, dtype)
    stop = size
    while parts:
        part = parts.pop()
        result[stop - part.size : stop] = part
        stop -= part.size
    return result


def _measure(polygons: np.ndarray, grid: Grid) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return number, pixels and fractions of each polygon that touches the grid; pixel units."""
    n_row, n_col = grid.shape
    left, bottom, right, top = shapely.bounds(polygons).T
    with np.errstate(invalid="ignore"):
        touches = (left < n_col) & (right > 0) & (bottom < n_row) & (top > 0)
    touches &= ~(shapely.is_missing(polygons) | shapely.is_empty(polygons))
    numbers = np.flatnonzero(touches)
    if numbers.size == 0:
        return []
    table = exactextract.exact_extract(
        _Cells(grid.shape),
        _Polygons(polygons[numbers]),
        ["cell_id", "coverage"],
        output="pandas",
        max_cells_in_memory=N_CELL_IN_MEMORY,
    )
    parts = []
    for number, cell, share in zip(numbers, table["cell_id"], table["coverage"], strict=True):
        # exactextract splits large windows: each cell is there once, but not in order.
        order = np.argsort(cell, kind="stable")
        pixel = np.asarray(cell, np.int64)[order]
        fraction = np.asarray(share, np.float64)[order]
        fraction[np.abs(fraction - 1.0) < EDGE] = 1.0
        keep = fraction > 0.0
        parts.append((int(number), pixel[keep], fraction[keep]))
    return parts


class _Cells(ExactRasterSource):
    """A raster of zeros with the grid's shape, for exactextract: only its geometry matters."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape = shape

    def res(self) -> tuple[float, float]:
        return 1.0, 1.0

    def extent(self) -> tuple[float, float, float, float]:
        return 0.0, 0.0, float(self.shape[1]), float(self.shape[0])

    def nodata_value(self) -> None:
        return None

    def srs_wkt(self) -> None:
        return None

    def read_window(self, x0: int, y0: int, nx: int, ny: int) -> np.ndarray:  # noqa: ARG002
        return np.zeros((ny, nx), np.uint8)


class _Polygons(FeatureSource):
    """Polygons for exactextract as WKB: of a table it makes GeoJSON, which takes far longer."""

    def __init__(self, polygons: np.ndarray) -> None:
        super().__init__()
        self._wkb = shapely.to_wkb(polygons)

    def count(self) -> int:
        return len(self._wkb)

    def __iter__(self) -> Iterator[Feature]:
        return (_Polygon(wkb) for wkb in self._wkb)

    def srs_wkt(self) -> None:
        return None


class _Polygon(Feature):
    """One polygon, without attributes."""

    def __init__(self, wkb: bytes) -> None:
        super().__init__()
        self._wkb = wkb

    def geometry(self) -> bytes:
        return self._wkb

    def fields(self) -> list[str]:
        return []
