"""Compare two maps pixel by pixel, tile by tile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.warp
from rasterio.windows import Window

from geo.core.errors import InputError, Problem
from geo.grids.grid import Grid, Tile
from geo.sources.align import aligned
from geo.sources.registry import source_of
from geo.writers.geotiff import TiledWriter
from pipeline.comparison.probability import larger_by_moments, larger_paired
from pipeline.comparison.sides import GRID, Side
from pipeline.core.progress import Progress
from pipeline.core.threads import map_in_order
from pipeline.store.aligned_grid import open_aligned_grid, positions_of, read_part

DIFFERENCE, RATIO, PROBABILITY = "difference_mean.tif", "ratio.tif", "change_probability.tif"
TILE = 256  # so that small maps have several, one a thread
ROWS = 1024  # pixels drawn at once: memory does not depend on the size of the map


@dataclass(frozen=True)
class PixelChange:
    """What changed over all pixels.

    Attributes
    ----------
    n_pix : int
        Pixels that both maps have.
    n_only_a, n_only_b : int
        Pixels that one of them has.
    n_rose, n_fell : int
        Pixels that rose, or fell, with at least the probability asked for.
    mean_difference, mean_absolute_difference : float
        Over the pixels of both.
    """

    n_pix: int
    n_only_a: int
    n_only_b: int
    n_rose: int
    n_fell: int
    mean_difference: float
    mean_absolute_difference: float


def grid_of(path: Path) -> Grid:
    """Return the grid of a raster."""
    with rasterio.open(path) as file:
        return Grid(file.crs.to_wkt(), file.transform, file.shape)


def check_overlap(a: Side, b: Side) -> bool:
    """Return whether two maps have one grid.

    Raises
    ------
    InputError
        If a map is missing, or they do not overlap.
    """
    for side in (a, b):
        if not side.level.is_file():
            found = f"has no {side.level.name}"
            raise InputError(Problem(side.label, found, "compare maps of pixels"))
    one, other = grid_of(a.level), grid_of(b.level)
    if one == other:
        return True
    try:
        left, low, right, high = rasterio.warp.transform_bounds(
            one.crs.to_wkt(), other.crs.to_wkt(), *one.bounds
        )
        x0, y0, x1, y1 = other.bounds
        apart = left >= x1 or right <= x0 or low >= y1 or high <= y0
    except rasterio.errors.CRSError:
        apart = True
    if apart:
        raise _no_overlap(a, b)
    return False


def _no_overlap(a: Side, b: Side) -> InputError:
    found = f"its map does not overlap that of {a.label}"
    return InputError(Problem(b.label, found, "compare two maps of one country"))


def compare_pixels(
    a: Side,
    b: Side,
    draws: tuple[Any, Any] | None,
    directory: Path,
    *,
    scale: float,
    sure: float,
    described: dict[str, tuple[str, str]],
    tags: dict[str, str],
    progress: Progress,
    n_thread: int | None = None,
) -> PixelChange:
    """Write the rasters of the change from A to B, on the grid of B.

    Parameters
    ----------
    a, b : Side
    draws : (RateDraws, RateDraws) or None
        Surfaces of the two models, row by row; None to approximate by the rasters' moments.
    directory : Path
        Directory of the rasters.
    scale : float
        Factor from the unit of A's rates to that of B's.
    sure : float
        Probability from which a change counts.
    described : dict
        Description and unit of each raster, by its name.
    tags : dict
        Metadata of every raster.
    progress : Progress
    n_thread : int, optional
        Threads over tiles; results do not depend on it.

    Raises
    ------
    InputError
        If the maps have no pixel in common.
    """
    grid = grid_of(b.level)
    same = grid == grid_of(a.level)
    reader = _Reader(a, b, grid, same, scale)
    cubes = None if draws is None else (_Cube(a, draws[0]), _Cube(b, draws[1]))
    kind = None if b.response.countable else "real"

    def compute(tile: Tile) -> tuple[np.ndarray, ...]:
        mean_a, mean_b = reader.level(tile)
        both = np.isfinite(mean_a) & np.isfinite(mean_b)
        out = np.full((3, *tile.shape), np.nan)
        out[0] = mean_b - mean_a
        up = both & (mean_a > 0) & (mean_b > 0)
        np.divide(mean_b, mean_a, out=out[1], where=up)
        if cubes is None:
            sd_a, sd_b = reader.spread(tile)
            out[2] = larger_by_moments((mean_a, sd_a), (mean_b, sd_b), kind or "positive")
        elif both.any():
            out[2][both] = _drawn(cubes, tile, both)
        only = np.isfinite(mean_a).sum() - both.sum(), np.isfinite(mean_b).sum() - both.sum()
        return out, np.array([both.sum(), *only])

    tiles = list(grid.tiles(TILE))
    n = np.zeros(3, np.int64)
    n_rose = n_fell = 0
    total = absolute = 0.0
    with contextlib.ExitStack() as stack:
        task = stack.enter_context(progress.task("compare", len(tiles)))
        writers = [
            stack.enter_context(
                TiledWriter(
                    directory / name,
                    grid,
                    description=described[name][0],
                    unit=described[name][1],
                    tags=tags,
                )
            )
            for name in (DIFFERENCE, RATIO, PROBABILITY)
        ]
        for tile, (bands, counted) in zip(
            tiles, map_in_order(compute, tiles, n_thread), strict=True
        ):
            for writer, band in zip(writers, bands, strict=True):
                writer.write(tile, band)
            n += counted
            known = bands[0][np.isfinite(bands[0])]
            total, absolute = total + float(known.sum()), absolute + float(np.abs(known).sum())
            n_rose += int((bands[2] >= sure).sum())
            n_fell += int((bands[2] <= 1 - sure).sum())
            task.advance(1)
        if n[0] == 0:
            raise _no_overlap(a, b)
    n_pix = int(n[0])
    return PixelChange(n_pix, int(n[1]), int(n[2]), n_rose, n_fell, total / n_pix, absolute / n_pix)


class _Reader:
    """Reads means and standard deviations of both maps on the grid of B, in the unit of B."""

    def __init__(self, a: Side, b: Side, grid: Grid, same: bool, scale: float) -> None:
        self._a, self._b, self._grid, self._same, self._scale = a, b, grid, same, scale
        self._sources = {} if same else {p: source_of(p) for p in (a.level, a.spread)}

    def level(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        return self._read(self._a.level, self._b.level, tile)

    def spread(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        # Averaged over resampled pixels as if their errors were one: no less than the truth.
        return self._read(self._a.spread, self._b.spread, tile)

    def _read(self, of_a: Path, of_b: Path, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        one = _window(of_a, tile) if self._same else aligned(self._sources[of_a], self._grid, tile)
        return self._scale * one, _window(of_b, tile)


def _window(path: Path, tile: Tile) -> np.ndarray:
    with rasterio.open(path) as file:
        window = Window(tile.col, tile.row, tile.n_col, tile.n_row)
        return np.asarray(file.read(1, window=window), np.float64)


class _Cube:
    """Draws of a model at the pixels of its own aligned grid, per person."""

    def __init__(self, side: Side, draws: Any) -> None:
        self._group = open_aligned_grid(side.place(GRID))
        described: Any = self._group.attrs["grid"]
        self._positions = positions_of(self._group, Grid.from_dict(described))
        self._draws = draws

    def covariates(self, tile: Tile) -> np.ndarray:
        return np.asarray(read_part(self._group, "covariates", slice(None), *tile.slices))

    def rates(self, x: np.ndarray, tile: Tile, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Draw rates of some pixels of a tile: (n_draws, n_pix)."""
        coords = self._positions.km(tile.row + row, tile.col + col)
        return np.asarray(self._draws.rate(x[:, row, col].T, coords))


def _drawn(cubes: tuple[_Cube, _Cube], tile: Tile, both: np.ndarray) -> np.ndarray:
    """Return ``P(b > a)`` of the pixels of a tile that both maps have."""
    a, b = cubes
    x_a, x_b = a.covariates(tile), b.covariates(tile)
    row, col = np.nonzero(both)
    found = np.empty(row.size)
    for start in range(0, row.size, ROWS):
        at = row[start : start + ROWS], col[start : start + ROWS]
        one, other = a.rates(x_a, tile, *at), b.rates(x_b, tile, *at)
        found[start : start + ROWS] = larger_paired(one, other)
    return found
