"""The pixels of a raster as its file has them, in and around the areas.

A profile needs them unaligned: resampling mixes an undeclared -9999 with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import numpy as np
import rasterio.features
import shapely
from pyproj import CRS

from geo.core.errors import GridError
from geo.grids.grid import Tile, same_crs
from geo.grids.longitudes import full_turn
from geo.grids.reproject import reproject
from geo.sources.raster import bounded_cache
from geo.sources.source import Source

N_SAMPLED = 4_000_000  # pixels of a raster; of larger ones, blocks are drawn
BLOCK = 256  # side of a block in pixels
N_START = 2000  # blocks along a side that may be drawn
FAR = 1 << 52  # from the first pixel; no raster reaches so far


@dataclass(frozen=True)
class RasterSample:
    """Pixels of a raster within the bounds of the areas.

    Attributes
    ----------
    inside : (n,) float64 array
        Values of pixels whose centre is in an area, without missing ones.
    outside : (m,) float64 array
        The other values.
    n_inside : int
        Pixels in the areas, missing ones and those beyond the raster included.
    sampled : bool
        Whether the pixels are those of some blocks, drawn at random with a fixed seed.
    """

    inside: np.ndarray
    outside: np.ndarray
    n_inside: int
    sampled: bool

    @property
    def missing(self) -> float:
        """Share of the pixels in the areas that have no value; NaN if no pixel is in an area."""
        return 1 - self.inside.size / self.n_inside if self.n_inside else float("nan")


@dataclass(frozen=True)
class _Blocks:
    """Blocks of pixels around the areas, of all rasters with one grid.

    Attributes
    ----------
    blocks : list of (Tile, bool array)
        A block, and whether each pixel is in an area.
    sampled : bool
        Whether there are further blocks with areas.
    """

    blocks: list[tuple[Tile, np.ndarray]]
    sampled: bool


class RasterSampler:
    """Reads the pixels of rasters in and around the areas.

    Which pixels are in an area is found once for all rasters with the same grid: for a country's
    boundaries it takes far longer than to read the pixels.

    Parameters
    ----------
    shapes : GeoSeries
        Valid polygons with a CRS.
    limit : int, optional
        Pixels; of a larger raster, blocks with areas are drawn until they have as many.
    """

    def __init__(self, shapes: gpd.GeoSeries, limit: int = N_SAMPLED) -> None:
        self._shapes, self._limit = shapes, limit
        self._found: dict[tuple[Any, ...], _Blocks] = {}

    def sample(self, source: Source) -> RasterSample:
        """Read a raster.

        Raises
        ------
        InputError
            If the raster is damaged.
        GridError
            If it has no CRS.
        """
        if source.crs is None:
            message = f"{source.path}: has no CRS"
            raise GridError(message)
        key = source.crs.to_wkt(), tuple(source.transform), source.shape
        if key not in self._found:
            polygons = in_pixels(self._shapes, source, source.crs)
            whole = np.isfinite(shapely.bounds(polygons)).all(axis=1)
            self._found[key] = _blocks(polygons[whole], self._limit)
        found = self._found[key]
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        n_inside = 0
        with bounded_cache():
            for block, inside in found.blocks:
                values = _values(source, block)
                finite = np.isfinite(values)
                n_inside += int(inside.sum())
                parts.append((values[inside & finite], values[~inside & finite]))
        inner, outer = ([pair[k] for pair in parts] or [np.empty(0)] for k in (0, 1))
        return RasterSample(np.concatenate(inner), np.concatenate(outer), n_inside, found.sampled)


def in_pixels(shapes: gpd.GeoSeries, source: Source, crs: CRS) -> np.ndarray:
    """Return the polygons in pixels of a raster: x along its columns, y down its rows.

    Those that its CRS does not hold have bounds that are not finite.
    """
    if source.north_up and full_turn(crs) is not None:
        moved = reproject(shapes, source.grid)  # longitudes of the raster's turn
    else:
        moved = shapes if same_crs(shapes.crs, crs) else shapes.to_crs(crs)
    to_pixel = ~source.transform
    a, b, c, d, e, f = (getattr(to_pixel, name) for name in "abcdef")

    def moved_to(xy: np.ndarray) -> np.ndarray:
        x, y = xy[:, 0], xy[:, 1]
        return np.column_stack([a * x + b * y + c, d * x + e * y + f])

    polygons: np.ndarray = shapely.transform(np.asarray(moved.array), moved_to)
    return polygons


def _blocks(polygons: np.ndarray, limit: int) -> _Blocks:
    """Return blocks within the bounds of the polygons, and which of their pixels are inside."""
    if polygons.size == 0:
        return _Blocks([], sampled=False)
    left, top, right, bottom = shapely.total_bounds(polygons)
    first_row, first_col = int(np.floor(top)), int(np.floor(left))
    last_row, last_col = max(int(np.ceil(bottom)), first_row + 1), int(np.ceil(right))
    last_col = max(last_col, first_col + 1)
    n_row, n_col = last_row - first_row, last_col - first_col
    if n_row * n_col <= limit:
        whole = Tile(first_row, first_col, n_row, n_col)
        return _Blocks(_masked([whole], lambda _: polygons), sampled=False)
    rows, cols = _starts(first_row, last_row), _starts(first_col, last_col)
    row, col = (each.ravel() for each in np.meshgrid(rows, cols, indexing="ij"))
    tree = shapely.STRtree(polygons)
    hit = np.unique(tree.query(shapely.box(col, row, col + BLOCK, row + BLOCK))[0])
    n_block = max(1, limit // BLOCK**2)
    sampled = hit.size > n_block
    if sampled:
        hit = np.sort(np.random.default_rng(0).choice(hit, n_block, replace=False))
    tiles = [
        Tile(r, c, min(BLOCK, last_row - r), min(BLOCK, last_col - c))
        for r, c in zip(row[hit].tolist(), col[hit].tolist(), strict=True)
    ]
    return _Blocks(_masked(tiles, lambda t: polygons[tree.query(_box(t))]), sampled)


def _box(tile: Tile) -> Any:
    return shapely.box(tile.col, tile.row, tile.col + tile.n_col, tile.row + tile.n_row)


def _masked(tiles: list[Tile], near: Callable[[Tile], np.ndarray]) -> list[tuple[Tile, np.ndarray]]:
    """Return each tile with the pixels whose centre is inside the polygons ``near`` it.

    If every area is smaller than a pixel, those that any polygon touches.
    """
    for touched in (False, True):
        found = []
        for tile in tiles:
            inside, polygons = np.zeros(tile.shape, bool), near(tile)
            if polygons.size:
                inside = rasterio.features.rasterize(
                    polygons,
                    out_shape=tile.shape,
                    transform=rasterio.Affine.translation(tile.col, tile.row),
                    all_touched=touched,
                    dtype="uint8",
                ).astype(bool)
            found.append((tile, inside))
        if any(inside.any() for _, inside in found):
            break
    return found


def _starts(first: int, last: int) -> np.ndarray:
    """Return where blocks begin; of pixels that are absurdly small, only some blocks."""
    step = BLOCK * max(1, -(-(last - first) // (BLOCK * N_START)))
    return np.array([min(max(at, -FAR), FAR) for at in range(first, last, step)], np.int64)


def _values(source: Source, block: Tile) -> np.ndarray:
    """Return the values of a block, NaN beyond the raster."""
    n_row, n_col = source.shape
    values = np.full(block.shape, np.nan)
    top, left = max(block.row, 0), max(block.col, 0)
    bottom = min(block.row + block.n_row, n_row)
    right = min(block.col + block.n_col, n_col)
    if bottom > top and right > left:
        at = (slice(top - block.row, bottom - block.row),
              slice(left - block.col, right - block.col))  # fmt: skip
        values[at] = source.read(Tile(top, left, bottom - top, right - left))
    return values
