"""The mapped pixels of a tile, with the areas of every level that they belong to.

Means are read from the rasters of the run, so that areas add up to them; draws are evaluated on the
covariates that the rasters were predicted from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.windows import Window
from scipy.sparse import csr_matrix

from geo.grid import Grid, Tile
from pipeline.store.aligned_grid import known_people, open_aligned_grid, positions_of, read_part
from pipeline.store.level_areas import Level
from pipeline.store.tile_index import TileIndex


@dataclass(frozen=True)
class TilePixels:
    """The pixels of a tile that have a rate, in the order of rows and columns.

    Attributes
    ----------
    tile : Tile
    row, col : (n_pix,) int64 arrays
        Within the tile.
    x : (n_pix, n_feat) float32, covariates
    coords : (n_pix, n_axis) float64, km
    people : (n_pix,) float64
        Of the whole pixel, 0 where unknown; km2 without a population.
    covered : (n_pix,) float64
        Share of the pixel inside the training areas.
    rate : (n_pix,) float64
        Mean rate per ``rate_per`` people, as ``rate_mean.tif`` has it.
    cases : (n_pix,) float64
        Mean total of the whole pixel; per person where the map shows no cases.
    exceed : (n_threshold, n_pix) float64
        Probability that the rate is above each threshold.
    extrapolates : (n_pix,) bool
        Whether a covariate is outside the range of the training pixels with people.
    area : (n_local,) int64
        Areas with a pixel here: their numbers among those of all levels.
    fraction : (n_local, n_pix) sparse float64
        Share of each pixel that each of these areas covers.
    """

    tile: Tile
    row: np.ndarray
    col: np.ndarray
    x: np.ndarray
    coords: np.ndarray
    people: np.ndarray
    covered: np.ndarray
    rate: np.ndarray
    cases: np.ndarray
    exceed: np.ndarray
    extrapolates: np.ndarray
    area: np.ndarray
    fraction: csr_matrix


class PixelReader:
    """Reads the mapped pixels of a run tile by tile; safe on several threads.

    Parameters
    ----------
    cube_path : path-like or Location
        The aligned grid.
    directory : Path
        Directory of the run's rasters.
    levels : sequence of Level
        Areas are numbered through, level by level.
    rate_per : float
        People in the denominator of the rasters' rates.
    thresholds : sequence of float
        Of the rasters ``exceedance_*.tif`` to read.
    limits : (2, n_feat) array
        Least and largest value of each covariate in the training.
    tile_size : int, optional
        Side of a tile in pixels; the aligned grid's own if not given.
    """

    def __init__(
        self,
        cube_path: Any,
        directory: Path,
        levels: Sequence[Level],
        rate_per: float,
        thresholds: Sequence[float],
        limits: np.ndarray,
        tile_size: int | None = None,
    ) -> None:
        self._aligned = open_aligned_grid(cube_path)
        described: Any = self._aligned.attrs["grid"]
        self.grid = Grid.from_dict(described)
        self._positions = positions_of(self._aligned, self.grid)
        size = tile_size or int(self._aligned.attrs["tile"])
        self.tiles = list(self.grid.tiles(size))
        self._directory, self.rate_per, self._limits = directory, rate_per, limits
        self.thresholds = tuple(thresholds)
        self.levels = tuple(levels)
        self.starts = np.cumsum([0, *(len(level) for level in levels)])
        self._index = [
            None if level.members is None else TileIndex.of(level.members, self.grid, size)
            for level in levels
        ]

    @property
    def n_area(self) -> int:
        """Number of areas of all levels."""
        return int(self.starts[-1])

    @cached_property
    def has_cases(self) -> bool:
        """Whether there is a raster of expected cases."""
        return (self._directory / "cases_mean.tif").is_file()

    def numbered(self) -> list[tuple[Level, slice]]:
        """Return each level with the numbers of its areas."""
        ends = zip(self.starts, self.starts[1:], strict=False)
        of_levels = zip(self.levels, ends, strict=True)
        return [(level, slice(int(first), int(end))) for level, (first, end) in of_levels]

    def _band(self, name: str, tile: Tile) -> np.ndarray:
        with rasterio.open(self._directory / f"{name}.tif") as file:
            return file.read(1, window=Window(tile.col, tile.row, tile.n_col, tile.n_row))

    def rates(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """Return rates (float32, as in the raster) and people inside areas of the mapped pixels."""
        rate = self._band("rate_mean", tile)
        known = np.isfinite(rate)
        people = known_people(read_part(self._aligned, "population", *tile.slices)[known])
        covered = read_part(self._aligned, "coverage", *tile.slices)[known].astype(np.float64)
        return rate[known], people * covered

    def read(self, tile: Tile) -> TilePixels | None:
        """Read a tile; None where no pixel has a rate."""
        rate = self._band("rate_mean", tile)
        known = np.isfinite(rate)
        if not known.any():
            return None
        row, col = np.nonzero(known)
        people = known_people(read_part(self._aligned, "population", *tile.slices)[known])
        covered = read_part(self._aligned, "coverage", *tile.slices)[known].astype(np.float64)
        x = read_part(self._aligned, "covariates", slice(None), *tile.slices)[:, known].T
        mean = rate[known].astype(np.float64)
        area, fraction = self._areas(tile, known, covered)
        names = [f"exceedance_{threshold:g}" for threshold in self.thresholds]
        exceed = [self._band(name, tile)[known].astype(np.float64) for name in names]
        return TilePixels(
            tile=tile,
            row=row,
            col=col,
            x=np.ascontiguousarray(x),
            coords=self._positions.km(tile.row + row, tile.col + col),
            people=people,
            covered=covered,
            rate=mean,
            cases=self._cases(tile, known, mean, people),
            exceed=np.array(exceed).reshape(len(names), row.size),
            extrapolates=((x < self._limits[0]) | (x > self._limits[1])).any(axis=1),
            area=area,
            fraction=fraction,
        )

    def _cases(
        self, tile: Tile, known: np.ndarray, rate: np.ndarray, people: np.ndarray
    ) -> np.ndarray:
        """Return the mean total of whole pixels, from the raster where there is one."""
        if not self.has_cases:
            return rate / self.rate_per * people
        return self._band("cases_mean", tile)[known].astype(np.float64)

    def _areas(
        self, tile: Tile, known: np.ndarray, covered: np.ndarray
    ) -> tuple[np.ndarray, csr_matrix]:
        at = np.full(known.size, -1, np.int64)  # among the mapped pixels
        at[np.flatnonzero(known)] = np.arange(covered.size)
        areas, pixels, shares = [], [], []
        for level, index, start in zip(self.levels, self._index, self.starts, strict=False):
            if level.members is None or index is None:
                pixels.append(np.arange(covered.size))
                areas.append(np.full(covered.size, start))
                shares.append(covered)
                continue
            here = index.inside(tile)
            row, col = np.divmod(level.members.pixel[here].astype(np.int64), self.grid.shape[1])
            pixel = at[(row - tile.row) * tile.n_col + (col - tile.col)]
            bag = np.searchsorted(level.members.offsets, here, side="right") - 1
            kept = pixel >= 0
            pixels.append(pixel[kept])
            areas.append(start + bag[kept])
            shares.append(level.members.fraction[here][kept].astype(np.float64))
        area, local = np.unique(np.concatenate(areas), return_inverse=True)
        shape = (area.size, covered.size)
        return area, csr_matrix(
            (np.concatenate(shares), (local, np.concatenate(pixels))), shape=shape
        )
