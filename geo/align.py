"""Resample any raster to tiles of a run's grid.

The value of a pixel does not depend on the tile that it is computed in, so that the tiles mosaic
to the whole map.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

import numpy as np
from affine import Affine
from pyproj import Transformer

from geo.conserve import edges_in_source, overlap_sum, points_per_side, scatter_mode, scatter_sum
from geo.errors import GridError, ResamplingError
from geo.grid import Grid, Tile, pixel_area_km2, same_crs
from geo.interpolate import Sampler
from geo.raster import CRS_REMEDY, RasterSource

RESAMPLINGS = ("auto", "average", "bilinear", "nearest", "mode", "sum", "cubic")

#: Source pixels read at once; a tile that needs more is split.
N_SOURCE_AT_ONCE = 8_000_000
#: Drift over the whole grid, in pixels, below which two grids are the same.
SAME = 1e-3
#: Source pixels read on each side beyond what a tile covers (cubic needs two).
MARGIN = 3


def _on_domain(
    function: Callable[[np.ndarray], np.ndarray], lowest: float, *, strict: bool
) -> Callable[[np.ndarray], np.ndarray]:
    def transformed(values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, np.float64)
        usable = values > lowest if strict else values >= lowest
        result = np.full(values.shape, np.nan)
        result[usable] = function(values[usable])
        return result

    return transformed


#: Transforms of a covariate by name; a value outside the domain becomes missing.
TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda values: values,
    "log1p": _on_domain(np.log1p, -1.0, strict=True),
    "log": _on_domain(np.log, 0.0, strict=True),
    "sqrt": _on_domain(np.sqrt, 0.0, strict=False),
}


def aligned(
    source: RasterSource,
    grid: Grid,
    tile: Tile | None = None,
    resampling: str = "auto",
    *,
    density: bool = False,
) -> np.ndarray:
    """Return a raster's values on a tile of the grid.

    A raster whose pixels coincide with the grid's (up to a shift by whole pixels) is copied
    exactly, whatever the resampling. Else ``auto`` is ``average`` where the source is finer and
    ``bilinear`` where it is coarser. ``sum`` is for people: it splits each source pixel by area and
    conserves the total. ``mode`` is for classes. Missing source pixels are never filled.

    Parameters
    ----------
    source : RasterSource
        The raster, in any CRS and resolution.
    grid : Grid
        The grid.
    tile : Tile, optional
        Pixels wanted; the whole grid by default.
    resampling : str
        One of :data:`RESAMPLINGS`.
    density : bool
        Whether the source is per km2; its values are then multiplied by the true area of their
        pixels. Only with ``sum``.

    Returns
    -------
    (n_row, n_col) float64 array
        NaN where missing, or where the source does not reach.

    Raises
    ------
    ResamplingError
        If the resampling does not exist, or ``density`` is used without ``sum``.
    InputError
        If the raster cannot be read.
    GridError
        If the source has no CRS.
    """
    check_resampling(resampling)
    if density and resampling != "sum":
        msg = f"resampling {resampling!r} cannot be used for a density; use 'sum'"
        raise ResamplingError(msg)
    return _Alignment(source, grid, resampling, density).values(tile or grid.whole)


def check_resampling(name: str) -> None:
    """Raise ResamplingError, with the nearest valid name, if the resampling does not exist."""
    if name not in RESAMPLINGS:
        near = difflib.get_close_matches(name, RESAMPLINGS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        msg = f"no resampling {name!r}{hint}; choose one of {', '.join(RESAMPLINGS)}"
        raise ResamplingError(msg)


def alignment_method(source: RasterSource, grid: Grid, resampling: str = "auto") -> str:
    """Return how a raster will be resampled to a grid; reads no pixel.

    Returns
    -------
    str
        ``copy`` where pixels coincide; ``points`` where amounts or classes of another CRS are
        scattered; ``warp`` for interpolation in another CRS; else the resampling itself.
    """
    alignment = _Alignment(source, grid, resampling, density=False)
    if alignment.shift is not None:
        return "copy"
    method, one_crs = alignment.resampling, alignment.same_crs
    by_area = method in ("sum", "average")
    if method == "mode" or (by_area and not (one_crs and source.north_up)):
        return "points"
    return method if by_area or one_crs else "warp"


class _Alignment:
    """Coordinate conversion and resampling from one raster to one grid."""

    def __init__(self, source: RasterSource, grid: Grid, resampling: str, density: bool) -> None:
        if source.crs is None:
            msg = f"{source.path}: has no CRS; {CRS_REMEDY}"
            raise GridError(msg)
        self.source, self.grid, self.density = source, grid, density
        self.crs = source.crs
        self.to_pixel: Affine = ~source.transform
        self.same_crs = same_crs(source.crs, grid.crs)
        self._to_source = self._to_grid = None
        if not self.same_crs:
            self._to_source = Transformer.from_crs(grid.crs, source.crs, always_xy=True)
            self._to_grid = Transformer.from_crs(source.crs, grid.crs, always_xy=True)
        self.shift = self._whole_shift()
        self.ratio = self._ratio()
        if resampling == "auto":
            resampling = "average" if self.ratio < 1.0 - SAME else "bilinear"
        self.resampling = resampling

    def in_source(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fractional source rows and columns of points of the grid's CRS."""
        if self._to_source is not None:
            x, y = self._to_source.transform(x, y)
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        p = self.to_pixel
        with np.errstate(invalid="ignore"):
            return p.d * x + p.e * y + p.f, p.a * x + p.b * y + p.c

    def in_grid(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fractional grid rows and columns of fractional source rows and columns."""
        s, t = self.source.transform, self.grid.transform
        x, y = s.a * col + s.b * row + s.c, s.d * col + s.e * row + s.f
        if self._to_grid is not None:
            x, y = self._to_grid.transform(x, y)
        with np.errstate(invalid="ignore"):
            return (np.asarray(y) - t.f) / t.e, (np.asarray(x) - t.c) / t.a

    def values(self, tile: Tile) -> np.ndarray:
        """Return the values of a tile; split it if it needs too many source pixels."""
        window = self._window(tile)
        if window is None:
            return np.full(tile.shape, np.nan)
        if window.n_row * window.n_col > N_SOURCE_AT_ONCE and tile.n_row * tile.n_col > 1:
            axis = 0 if tile.n_row >= tile.n_col else 1
            return np.concatenate([self.values(half) for half in tile.halves(axis)], axis=axis)
        read = self.source.read(window)
        if self.density:
            read = read * pixel_area_km2(self.crs, self.source.transform, window)
        if self.shift is not None:
            return self._copy(read, window, tile)
        if self.resampling in ("sum", "average"):
            return self._by_area(read, window, tile)
        if self.resampling == "mode":
            n_side = points_per_side(self.ratio)
            return scatter_mode(read, window, self.in_grid, tile, n_side)
        sampler = Sampler(read, window, *self.in_source(*self.grid.centres(tile)))
        result: np.ndarray = getattr(sampler, self.resampling)()
        return result

    def _copy(self, read: np.ndarray, window: Tile, tile: Tile) -> np.ndarray:
        """Copy pixels that coincide with the grid's."""
        shift_row, shift_col = self.shift or (0, 0)
        result = np.full(tile.shape, np.nan)
        row, col = window.row - shift_row - tile.row, window.col - shift_col - tile.col
        # The window has a margin, which is cut off.
        top, left = max(row, 0), max(col, 0)
        bottom = min(row + window.n_row, tile.n_row)
        right = min(col + window.n_col, tile.n_col)
        if bottom > top and right > left:
            result[top:bottom, left:right] = read[
                top - row : bottom - row, left - col : right - col
            ]
        return result

    def _by_area(self, read: np.ndarray, window: Tile, tile: Tile) -> np.ndarray:
        if self.same_crs and self.source.north_up:
            edges = edges_in_source(self.grid, tile, self.source.grid)
            total, valid = overlap_sum(read, window, *edges)
        else:
            n_side = points_per_side(self.ratio)
            total, valid = scatter_sum(read, window, self.in_grid, tile, n_side)
        result = np.full(tile.shape, np.nan)
        known = valid > 0
        if self.resampling == "average":
            np.divide(total, valid, out=result, where=known)
        else:
            result[known] = total[known]
        return result

    def _window(self, tile: Tile) -> Tile | None:
        """Return the source pixels that a tile needs; None if there are none."""
        left, bottom, right, top = self.grid.tile_bounds(tile)
        # Corners alone would not do: an edge that is straight in one CRS is curved in another.
        x, y = np.meshgrid(np.linspace(left, right, 33), np.linspace(bottom, top, 33))
        row, col = self.in_source(x, y)
        finite = np.isfinite(row) & np.isfinite(col)
        if not finite.any():
            return None
        row, col = row[finite], col[finite]
        spans = []
        for values, n in ((row, self.source.shape[0]), (col, self.source.shape[1])):
            if self.shift is None:
                margin = MARGIN + 0.01 * (values.max() - values.min()) * (not self.same_crs)
                low, high = np.floor(values.min() - margin), np.ceil(values.max() + margin)
            else:  # a copy needs no neighbours: each block would be read nine times
                low, high = np.rint(values.min()), np.rint(values.max())
            low, high = max(int(low), 0), min(int(high), n)
            spans.append((low, high - low))
        if spans[0][1] <= 0 or spans[1][1] <= 0:
            return None
        return Tile(spans[0][0], spans[1][0], spans[0][1], spans[1][1])

    def _whole_shift(self) -> tuple[int, int] | None:
        """Return the grid's offset in the source, rows and columns, if their pixels coincide."""
        if not (self.same_crs and self.source.north_up):
            return None
        s, t = self.source.transform, self.grid.transform
        drift = max(
            abs(t.a - s.a) / s.a * max(self.grid.shape[1], self.source.shape[1]),
            abs(t.e - s.e) / -s.e * max(self.grid.shape[0], self.source.shape[0]),
        )
        row, col = (t.f - s.f) / s.e, (t.c - s.c) / s.a
        if drift > SAME or abs(row - round(row)) > SAME or abs(col - round(col)) > SAME:
            return None
        return round(row), round(col)

    def _ratio(self) -> float:
        """Return the size of a source pixel over that of a grid pixel, at the grid's centre."""
        left, bottom, right, top = self.grid.bounds
        row, col = self.in_source(np.array(0.5 * (left + right)), np.array(0.5 * (bottom + top)))
        if not (np.isfinite(row) and np.isfinite(col)):
            row, col = (np.array(0.5 * n) for n in self.source.shape)
        r, c = self.in_grid(row + np.array([0.0, 1.0, 0.0]), col + np.array([0.0, 0.0, 1.0]))
        area = abs((r[1] - r[0]) * (c[2] - c[0]) - (r[2] - r[0]) * (c[1] - c[0]))
        return float(np.sqrt(area)) if np.isfinite(area) and area > 0 else 1.0
