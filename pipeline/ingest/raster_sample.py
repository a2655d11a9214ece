"""The pixels of a raster as its file has them, in and around the areas.

A profile needs them unaligned: resampling mixes an undeclared -9999 with its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import geopandas as gpd
import numpy as np
import rasterio.features
import shapely

from geo.errors import GridError
from geo.grid import Tile, same_crs
from geo.raster import RasterSource, bounded_cache

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


def sample_raster(
    source: RasterSource, shapes: gpd.GeoSeries, limit: int = N_SAMPLED
) -> RasterSample:
    """Read the pixels of a raster in and around the areas.

    Parameters
    ----------
    source : RasterSource
    shapes : GeoSeries
        Valid polygons with a CRS.
    limit : int, optional
        Pixels; of a larger raster, blocks with areas are drawn until they have as many.

    Returns
    -------
    RasterSample

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
    moved = shapes if same_crs(shapes.crs, source.crs) else shapes.to_crs(source.crs)
    to_pixel = ~source.transform
    a, b, c, d, e, f = (getattr(to_pixel, name) for name in "abcdef")

    def in_pixels(xy: np.ndarray) -> np.ndarray:
        x, y = xy[:, 0], xy[:, 1]
        return np.column_stack([a * x + b * y + c, d * x + e * y + f])

    polygons = shapely.transform(np.asarray(moved.array), in_pixels)
    polygons = polygons[np.isfinite(shapely.bounds(polygons)).all(axis=1)]
    empty = np.empty(0)
    if polygons.size == 0:
        return RasterSample(empty, empty, 0, sampled=False)
    tree = shapely.STRtree(polygons)
    blocks, sampled = _blocks(polygons, tree, limit)
    with bounded_cache():
        found = _read(source, blocks, polygons, tree, touched=False)
        if not found[2]:  # every area is smaller than a pixel
            found = _read(source, blocks, polygons, tree, touched=True)
    return RasterSample(*found, sampled=sampled)


def _blocks(polygons: np.ndarray, tree: shapely.STRtree, limit: int) -> tuple[list[Tile], bool]:
    """Return blocks within the bounds of the polygons, and whether they are a sample."""
    left, top, right, bottom = shapely.total_bounds(polygons)
    first_row, first_col = int(np.floor(top)), int(np.floor(left))
    last_row, last_col = max(int(np.ceil(bottom)), first_row + 1), int(np.ceil(right))
    last_col = max(last_col, first_col + 1)
    rows, cols = _starts(first_row, last_row), _starts(first_col, last_col)
    row, col = (each.ravel() for each in np.meshgrid(rows, cols, indexing="ij"))
    n_pixel = (last_row - first_row) * (last_col - first_col)
    sampled = n_pixel > limit
    if sampled:
        boxes = shapely.box(col, row, col + BLOCK, row + BLOCK)
        hit = np.unique(tree.query(boxes)[0])
        n_block = max(1, limit // BLOCK**2)
        if hit.size > n_block:
            hit = np.sort(np.random.default_rng(0).choice(hit, n_block, replace=False))
        else:
            sampled = False
        row, col = row[hit], col[hit]
    return [
        Tile(r, c, min(BLOCK, last_row - r), min(BLOCK, last_col - c))
        for r, c in zip(row.tolist(), col.tolist(), strict=True)
    ], sampled


def _starts(first: int, last: int) -> np.ndarray:
    """Return where blocks begin; of pixels that are absurdly small, only some blocks."""
    step = BLOCK * max(1, -(-(last - first) // (BLOCK * N_START)))
    return np.array([min(max(at, -FAR), FAR) for at in range(first, last, step)], np.int64)


def _read(
    source: RasterSource,
    blocks: list[Tile],
    polygons: np.ndarray,
    tree: shapely.STRtree,
    *,
    touched: bool,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the values inside and outside, and the number of pixels inside."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    n_inside = 0
    for block, values in _values(source, blocks):
        near = tree.query(
            shapely.box(block.col, block.row, block.col + block.n_col, block.row + block.n_row)
        )
        inside = np.zeros(block.shape, bool)
        if near.size:
            inside = rasterio.features.rasterize(
                polygons[near],
                out_shape=block.shape,
                transform=rasterio.Affine.translation(block.col, block.row),
                all_touched=touched,
                dtype="uint8",
            ).astype(bool)
        finite = np.isfinite(values)
        n_inside += int(inside.sum())
        parts.append((values[inside & finite], values[~inside & finite]))
    inner, outer = ([pair[k] for pair in parts] or [np.empty(0)] for k in (0, 1))
    return np.concatenate(inner), np.concatenate(outer), n_inside


def _values(source: RasterSource, blocks: list[Tile]) -> Iterator[tuple[Tile, np.ndarray]]:
    """Yield each block with its values, NaN beyond the raster."""
    n_row, n_col = source.shape
    for block in blocks:
        values = np.full(block.shape, np.nan)
        top, left = max(block.row, 0), max(block.col, 0)
        bottom = min(block.row + block.n_row, n_row)
        right = min(block.col + block.n_col, n_col)
        if bottom > top and right > left:
            at = (slice(top - block.row, bottom - block.row),
                  slice(left - block.col, right - block.col))  # fmt: skip
            values[at] = source.read(Tile(top, left, bottom - top, right - left))
        yield block, values
