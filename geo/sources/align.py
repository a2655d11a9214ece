"""Resample any raster to tiles of a run's grid.

The value of a pixel does not depend on the tile that it is computed in, so that the tiles mosaic
to the whole map.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

import numpy as np
from affine import Affine
from pyproj import CRS, Transformer

from geo.core.errors import GridError, ResamplingError
from geo.grids.conserve import (
    Scatter,
    edges_in_source,
    overlap_sum,
    points_per_side,
    scatter_mode,
    scatter_sum,
)
from geo.grids.grid import Grid, Tile, pixel_area_km2, same_crs
from geo.grids.interpolate import Sampler
from geo.grids.longitudes import arc, copies, full_turn, near, period, wrapped
from geo.sources.source import Source, crs_remedy

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

#: From a transformed value back to the covariate's own unit.
INVERSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda values: values,
    "log1p": np.expm1,
    "log": np.exp,
    "sqrt": np.square,
}


def aligned(
    source: Source,
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
    Longitudes are periodic: rasters and grids may run from -180 to 180, from 0 to 360 or past 180.

    Parameters
    ----------
    source : Source
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


def alignment_method(source: Source, grid: Grid, resampling: str = "auto") -> str:
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


def source_windows(source: Source, grid: Grid, tile: Tile, resampling: str = "auto") -> list[Tile]:
    """Return the windows of a raster that a tile of a grid is made from; reads no pixel."""
    (first, last), spans = _Alignment(source, grid, resampling, density=False)._needed(tile)
    return [
        Tile(first, left, last - first, right - left) for _, left, right in spans if last > first
    ]


class _Alignment:
    """Coordinate conversion and resampling from one raster to one grid."""

    def __init__(self, source: Source, grid: Grid, resampling: str, density: bool) -> None:
        if source.crs is None:
            msg = f"{source.path}: has no CRS; {crs_remedy(source.describe())}"
            raise GridError(msg)
        self.source, self.grid, self.density = source, grid, density
        self.crs = source.crs
        self.to_pixel: Affine = ~source.transform
        self.same_crs = same_crs(source.crs, grid.crs)
        self._to_source = self._to_grid = None
        if not self.same_crs:
            self._to_source = Transformer.from_crs(grid.crs, source.crs, always_xy=True)
            self._to_grid = Transformer.from_crs(source.crs, grid.crs, always_xy=True)
        self.period = period(source.crs, source.transform, source.shape[1])
        self.grid_period = period(grid.crs, grid.transform, grid.shape[1])
        self._pole, self._grid_pole = _pole(source.crs), _pole(grid.crs)
        # Columns that go on at the raster's other side.
        n_col = source.shape[1]
        self.around = self.period is not None and n_col >= self.period and self.period % 1 == 0
        self.poles = self._poles()
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
            if self._pole is not None and not self.same_crs:
                y = np.clip(y, -self._pole, self._pole)
            return p.d * x + p.e * y + p.f, p.a * x + p.b * y + p.c

    def in_grid(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fractional grid rows and columns of fractional source rows and columns."""
        s, t = self.source.transform, self.grid.transform
        x, y = s.a * col + s.b * row + s.c, s.d * col + s.e * row + s.f
        if self._to_grid is not None:
            x, y = self._to_grid.transform(x, y)
        with np.errstate(invalid="ignore"):
            if self._grid_pole is not None and not self.same_crs:
                y = np.clip(y, -self._grid_pole, self._grid_pole)
            return (np.asarray(y) - t.f) / t.e, (np.asarray(x) - t.c) / t.a

    def values(self, tile: Tile) -> np.ndarray:
        """Return the values of a tile; split it if it needs too many source pixels."""
        rows, spans = self._needed(tile)
        n_col = sum(last - first for _, first, last in spans)
        if rows[1] <= rows[0] or n_col == 0:
            return np.full(tile.shape, np.nan)
        n_pix = (rows[1] - rows[0]) * n_col
        if n_pix > N_SOURCE_AT_ONCE:
            value = self._unwritten(tile, rows, spans)
            if value is not None:
                return np.full(tile.shape, value)
        if n_pix > N_SOURCE_AT_ONCE and tile.n_row * tile.n_col > 1:
            axis = 0 if tile.n_row >= tile.n_col else 1
            return np.concatenate([self.values(half) for half in tile.halves(axis)], axis=axis)
        if self.shift is not None:
            return self._copy(rows, spans, tile)
        if self.resampling in ("sum", "average"):
            return self._by_area(rows, spans, tile)
        if self.resampling == "mode":
            # One piece: which class covers most cannot be told from pieces.
            pieces = [self._read(rows, first, last) for _, first, last in spans]
            return scatter_mode(pieces, self._scatter(), tile)
        row, col = self.in_source(*self.grid.centres(tile))
        read, window = self._joined(rows, spans)
        around = int(self.period) if self.around and self.period is not None else None
        sampler = Sampler(read, window, row, wrapped(col, self.period), around)
        result: np.ndarray = getattr(sampler, self.resampling)()
        return result

    def _unwritten(
        self, tile: Tile, rows: tuple[int, int], spans: list[tuple[int, int, int]]
    ) -> float | None:
        """Return the value of a tile of which the file stores nothing; None where it does."""
        windows = [
            Tile(rows[0], first, rows[1] - rows[0], last - first) for _, first, last in spans
        ]
        values = [self.source.unwritten(each) for each in windows]
        if all(value is not None and math.isnan(value) for value in values):
            return math.nan
        if any(value != 0.0 for value in values):
            return None
        n_row, n_col = self.source.shape
        low, high = (rows[0], spans[0][1]), (rows[1], spans[-1][2])
        if self.same_crs and self.source.north_up and self.resampling in ("sum", "average"):
            left, bottom, right, top = self.grid.tile_bounds(tile)
            row, col = self.in_source(np.array([left, right]), np.array([top, bottom]))
            low, high = (row[0] + SAME, col[0] + SAME), (row[1] - SAME, col[1] - SAME)
        # At an edge of the raster some pixels are missing, and not 0.
        inside = min(low) > 0 and high[0] < n_row and high[1] < n_col
        return 0.0 if inside else None

    def _needed(self, tile: Tile) -> tuple[tuple[int, int], list[tuple[int, int, int]]]:
        """Return the source rows that a tile needs, first and last + 1, and :func:`copies`."""
        n_row, n_col = self.source.shape
        if self.shift is not None:
            # A copy needs no neighbours: with a margin, each block would be read nine times.
            low = tile.row + self.shift[0], tile.col + self.shift[1]
            high = low[0] + tile.n_row, low[1] + tile.n_col
            spans = copies(low[1], high[1], n_col, self.copy_period)
            return (max(low[0], 0), min(high[0], n_row)), spans
        left, bottom, right, top = self.grid.tile_bounds(tile)
        # Corners alone would not do: an edge that is straight in one CRS is curved in another.
        x, y = np.meshgrid(np.linspace(left, right, 33), np.linspace(bottom, top, 33))
        row, col = self.in_source(x, y)
        finite = np.isfinite(row) & np.isfinite(col)
        if not finite.any():
            return (0, 0), []
        row, col = row[finite], col[finite]
        poles = [pole_row for pole_row, *at in self.poles if near(at[0], at[1], tile)]
        row = np.append(row, poles)
        by_edges = self.same_crs and self.resampling in ("sum", "average")
        if self.period is None or (by_edges and self.source.north_up):
            begin, end = col.min(), col.max()
        else:
            begin, end = (0.0, self.period) if poles else arc(col, self.period)
        margins = [
            MARGIN + 0.01 * (high - low) * (not self.same_crs)
            for low, high in ((row.min(), row.max()), (begin, end))
        ]
        rows = (
            max(math.floor(row.min() - margins[0]), 0),
            min(math.ceil(row.max() + margins[0]), n_row),
        )
        if self.around and not by_edges and self.period is not None:
            n_col = int(self.period)  # columns beyond a full turn repeat the first ones
        begin, end = begin - margins[1], end + margins[1]
        if self.period is not None and not by_edges and end - begin >= self.period:
            begin, end = 0.0, self.period
        return rows, copies(begin, end, n_col, self.period)

    def _read(self, rows: tuple[int, int], first: int, last: int) -> tuple[np.ndarray, Tile]:
        window = Tile(rows[0], first, rows[1] - rows[0], last - first)
        read = self.source.read(window)
        if self.density:
            read = read * pixel_area_km2(self.crs, self.source.transform, window)
        return read, window

    def _joined(
        self, rows: tuple[int, int], spans: list[tuple[int, int, int]]
    ) -> tuple[np.ndarray, Tile]:
        """Read all spans as one window; around the Earth its columns go on at the other side."""
        if not self.around:
            first, last = min(s[1] for s in spans), max(s[2] for s in spans)
            return self._read(rows, first, last)
        parts = [self._read(rows, first, last)[0] for _, first, last in spans]
        read = np.concatenate(parts, axis=1)
        return read, Tile(rows[0], spans[0][1], read.shape[0], read.shape[1])

    def _copy(
        self, rows: tuple[int, int], spans: list[tuple[int, int, int]], tile: Tile
    ) -> np.ndarray:
        """Copy pixels that coincide with the grid's."""
        shift_row, shift_col = self.shift or (0, 0)
        result = np.full(tile.shape, np.nan)
        top = rows[0] - shift_row - tile.row
        for turn, first, last in spans:
            read, _ = self._read(rows, first, last)
            left = first + round(turn * (self.copy_period or 0.0)) - shift_col - tile.col
            into = result[top : top + read.shape[0], left : left + read.shape[1]]
            # Of a raster that repeats columns, the first that has a value.
            into[...] = np.where(np.isnan(into), read, into)
        return result

    def _by_area(
        self, rows: tuple[int, int], spans: list[tuple[int, int, int]], tile: Tile
    ) -> np.ndarray:
        total, valid = np.zeros(tile.shape), np.zeros(tile.shape)
        exact = self.same_crs and self.source.north_up
        for turn, first, last in spans:
            read, window = self._read(rows, first, last)
            if exact:
                row_edges, col_edges = edges_in_source(self.grid, tile, self.source.grid)
                if self.resampling == "sum":
                    col_edges = self._one_turn(col_edges)
                col_edges = col_edges - turn * (self.period or 0.0)
                found = overlap_sum(read, window, row_edges, col_edges)
            else:
                found = scatter_sum([(read, window)], self._scatter(), tile)
            total += found[0]
            valid += found[1]
        result = np.full(tile.shape, np.nan)
        known = valid > 0
        if self.resampling == "average":
            np.divide(total, valid, out=result, where=known)
        else:
            result[known] = total[known]
        return result

    def _one_turn(self, col_edges: np.ndarray) -> np.ndarray:
        """Cut edges to the middle turn of a wider grid: it must not have people twice."""
        n_col = self.grid.shape[1]
        if self.period is None or self.grid_period is None or n_col <= self.grid_period:
            return col_edges
        s, t = self.source.transform, self.grid.transform
        first = (t.c + 0.5 * n_col * t.a - s.c) / s.a - 0.5 * self.period
        return np.clip(col_edges, first, first + self.period)

    def _scatter(self) -> Scatter:
        # Of a source pixel whose corners lie farther apart, some lie across a seam of the grid's
        # CRS (or its scale varies tenfold there).
        limit = 8.0 * self.ratio + 8.0
        first = 0.0
        if self.grid_period is not None:
            limit = min(limit, 0.4 * self.grid_period)
            first = max(0.5 * (self.grid.shape[1] - self.grid_period), 0.0)
        return Scatter(self.in_grid, points_per_side(self.ratio), limit, self.grid_period, first)

    def _poles(self) -> list[tuple[float, float, float]]:
        """Return each pole that the grid's CRS shows: source row, grid row and column."""
        if self._pole is None or self._to_grid is None or self.grid.crs.is_geographic:
            return []
        t, found = self.grid.transform, []
        for latitude in (self._pole, -self._pole):
            x, y = self._to_grid.transform(0.0, latitude)
            if math.isfinite(x) and math.isfinite(y):
                row = self.to_pixel.e * latitude + self.to_pixel.f
                found.append((row, (y - t.f) / t.e, (x - t.c) / t.a))
        return found

    def _whole_shift(self) -> tuple[int, int] | None:
        """Return the grid's offset in the source, rows and columns, if their pixels coincide."""
        self.copy_period = self.period
        if not (self.same_crs and self.source.north_up):
            return None
        s, t = self.source.transform, self.grid.transform
        n_col = self.grid.shape[1], self.source.shape[1]
        drift = max(
            abs(t.a - s.a) / s.a * max(n_col),
            abs(t.e - s.e) / -s.e * max(self.grid.shape[0], self.source.shape[0]),
        )
        row, col = (t.f - s.f) / s.e, (t.c - s.c) / s.a
        if self.period is not None and self.period % 1 != 0:
            # Turns are no whole columns: at most one copy of the source can coincide.
            turns = [k for k, *_ in copies(col, col + n_col[0], n_col[1], self.period)]
            if len(turns) > 1:
                return None
            col -= sum(turns) * self.period
            self.copy_period = None
        if drift > SAME or abs(row - round(row)) > SAME or abs(col - round(col)) > SAME:
            return None
        return round(row), round(col)

    def _ratio(self) -> float:
        """Return the size of a source pixel over that of a grid pixel, at the grid's centre.

        Near a pole, where a turn is no distance, or off the source, at another point.
        """
        left, bottom, right, top = self.grid.bounds
        n_row, n_col = self.source.shape
        row, col = np.array(0.5 * n_row), np.array(0.5 * n_col)
        for a, b in ((0.5, 0.5), (0.25, 0.25), (0.75, 0.75), (0.25, 0.75), (0.75, 0.25)):
            x, y = left + a * (right - left), bottom + b * (top - bottom)
            i, j = self.in_source(np.array(x), np.array(y))
            j = wrapped(j, self.period)
            if not (0 <= i <= n_row and 0 <= j <= n_col):
                continue
            latitude, pole = y, self._grid_pole
            if pole is None:
                s, pole = self.source.transform, self._pole
                latitude = s.f + s.e * float(i)
            if self.same_crs or pole is None or abs(latitude) < 0.95 * pole:
                row, col = i, j
                break
        r, c = self.in_grid(row + np.array([0.0, 1.0, 0.0]), col + np.array([0.0, 0.0, 1.0]))
        r, c = r - r[0], c - c[0]
        if self.grid_period is not None:
            c = c - self.grid_period * np.round(c / self.grid_period)
        area = abs(r[1] * c[2] - r[2] * c[1])
        return float(np.sqrt(area)) if np.isfinite(area) and area > 0 else 1.0


def _pole(crs: CRS | None) -> float | None:
    """Return the latitude of the pole in units of a geographic CRS; None for other CRSs.

    By 1e-12 less, so that the pole itself lies in a pixel, and not on the edge after the last.
    """
    turn = None if crs is None else full_turn(crs)
    return None if turn is None else 0.25 * turn * (1.0 - 1e-12)
