"""Area-weighted resampling that conserves totals: each source pixel is split, and used once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from geo.grids.grid import Grid, Tile
from geo.grids.longitudes import wrapped

#: Edges this close, in source pixels, are the same edge: headers round resolutions.
SNAP = 1e-6
#: Points that at least fall into each target pixel, along one side (8 x 8 of them).
N_POINT_SIDE = 8
#: Points worked on at once.
N_POINT_AT_ONCE = 2_000_000

#: Corner rows and columns of source pixels -> fractional rows and columns of the grid.
ToGrid = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def overlap_sum(
    values: np.ndarray, window: Tile, row_edges: np.ndarray, col_edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sum a source over target pixels with parallel edges; source pixels are split by exact area.

    With both sets of edges parallel, the area that two pixels share is the product of the
    shares along rows and along columns, so that the sum is ``R V C'`` with sparse ``R``, ``C``.

    Parameters
    ----------
    values : (n, m) float64 array
        Source values in ``window``, NaN where missing.
    window : Tile
        Where they lie in the source.
    row_edges, col_edges : (n_row + 1,), (n_col + 1,) float64 array
        Edges of the target pixels in fractional source rows and columns, ascending.

    Returns
    -------
    total : (n_row, n_col) float64 array
        Sum of the valid values, each times the share of its pixel.
    valid : (n_row, n_col) float64 array
        The same sum of ones: valid area, in source pixels.
    """
    by_row = _shares(row_edges, window.row, window.n_row)
    by_col = _shares(col_edges, window.col, window.n_col)
    known = ~np.isnan(values)
    total = by_row @ np.where(known, values, 0.0) @ by_col.T
    valid = by_row @ known.astype(np.float64) @ by_col.T
    return total, valid


def _shares(edges: np.ndarray, first: int, n_source: int) -> scipy.sparse.csr_array:
    """Return the share of each source row in each target row, (n_target, n_source)."""
    whole = np.rint(edges)
    edges = np.where(np.abs(edges - whole) < SNAP, whole, edges)
    begin, end = edges[:-1], edges[1:]
    # A target row meets at most this many of the source rows: few, so a loop over them is short.
    reach = min(int(np.ceil((end - begin).max())) + 1, n_source)
    target = np.arange(begin.size)
    low = np.maximum(np.floor(begin), first).astype(np.int64)
    rows, cols, shares = [], [], []
    for step in range(reach):
        source = low + step
        share = np.minimum(end, source + 1) - np.maximum(begin, source)
        use = (share > 0) & (source >= first) & (source < first + n_source)
        rows.append(target[use])
        cols.append(source[use] - first)
        shares.append(share[use])
    return scipy.sparse.csr_array(
        (np.concatenate(shares), (np.concatenate(rows), np.concatenate(cols))),
        shape=(begin.size, n_source),
    )


@dataclass(frozen=True)
class Scatter:
    """How source pixels are split into points of a grid in another CRS.

    The corners of each source pixel are projected, and points between them are interpolated
    (bilinear: the error is centimetres over a kilometre). Where the grid's CRS has a seam or a pole
    between corners, or no image of one, each point is projected by itself.

    Attributes
    ----------
    to_grid : callable
        From fractional source (row, column) to fractional grid (row, column).
    n_side : int
        Points along one side of a source pixel.
    limit : float
        Distance of corners, in pixels of the grid, beyond which points are projected.
    period : float or None
        Columns of a full turn, where the grid's columns are longitudes.
    first : float
        Where that turn begins, in columns.
    """

    to_grid: ToGrid
    n_side: int
    limit: float = np.inf
    period: float | None = None
    first: float = 0.0


#: Values of source pixels, NaN where missing, and where they lie in the source.
Piece = tuple[np.ndarray, Tile]


def scatter_sum(pieces: list[Piece], scatter: Scatter, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """Sum a source over the pixels of a tile in another CRS, each split in equal parts.

    ``n_side`` x ``n_side`` points of a source pixel each carry an equal part. A point falls into
    one pixel of the grid, the same for every tile, so that the tiles add up to the source.

    Parameters
    ----------
    pieces : list of (array, Tile)
        Source pixels, each at most once.
    scatter : Scatter
    tile : Tile
        Pixels of the grid to sum for.

    Returns
    -------
    total, valid : (n_row, n_col) float64 array
        As of :func:`overlap_sum`.
    """
    total = np.zeros(tile.n_row * tile.n_col)
    valid = np.zeros(tile.n_row * tile.n_col)
    for flat, value in _points(pieces, scatter, tile):
        total += np.bincount(flat, value, total.size)
        valid += np.bincount(flat, minlength=valid.size)
    share = 1.0 / scatter.n_side**2
    return (total * share).reshape(tile.shape), (valid * share).reshape(tile.shape)


def scatter_mode(pieces: list[Piece], scatter: Scatter, tile: Tile) -> np.ndarray:
    """Return the value that covers most of each pixel of a tile, by the points of `scatter_sum`.

    Parameters are those of :func:`scatter_sum`. Of two values that cover as much, the smaller wins.

    Returns
    -------
    (n_row, n_col) float64 array
        NaN where no valid point falls.
    """
    classes = np.unique(np.concatenate([values[~np.isnan(values)] for values, _ in pieces]))
    keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for flat, value in _points(pieces, scatter, tile):
        key = flat * max(classes.size, 1) + np.searchsorted(classes, value)
        found = np.unique(key, return_counts=True)
        keys.append(found[0])
        counts.append(found[1])
    key, place = np.unique(np.concatenate(keys), return_inverse=True)
    count = np.bincount(place, np.concatenate(counts), key.size)
    flat, code = np.divmod(key, max(classes.size, 1))
    # Ascending by pixel, then count, then from large to small value: the last one wins.
    order = np.lexsort((-code, count, flat))
    result = np.full(tile.n_row * tile.n_col, np.nan)
    result[flat[order]] = classes[code[order]]
    return result.reshape(tile.shape)


def _points(
    pieces: list[Piece], scatter: Scatter, tile: Tile
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of the points in a tile: pixels of the tile (flat, int64) and values."""
    n_side = scatter.n_side
    along = (np.arange(n_side) + 0.5) / n_side
    for values, window in pieces:
        n_at_once = max(1, N_POINT_AT_ONCE // (max(window.n_col, 1) * n_side))
        for begin in range(0, window.n_row, n_at_once):
            part = values[begin : begin + n_at_once]
            known = ~np.isnan(part)
            if not known.any():
                continue
            rows = window.row + begin + np.arange(part.shape[0] + 1, dtype=np.float64)
            cols = window.col + np.arange(window.n_col + 1, dtype=np.float64)
            row, col = scatter.to_grid(*np.meshgrid(rows, cols, indexing="ij"))
            torn = known & ((_extent(row) > scatter.limit) | (_extent(col) > scatter.limit))
            known &= ~torn
            for down in along:
                i = _between(row, down, along[:, None, None])
                j = _between(col, down, along[:, None, None])
                yield from _inside(i, j, known, part, scatter, tile)
            # Few pixels: beside a seam or a pole.
            at_row, at_col = np.nonzero(torn)
            step = max(1, N_POINT_AT_ONCE // n_side**2)
            down_all, along_all = (v.ravel()[:, None] for v in np.meshgrid(along, along))
            for first in range(0, at_row.size, step):
                r, c = at_row[first : first + step], at_col[first : first + step]
                i, j = scatter.to_grid(rows[r] + down_all, cols[c] + along_all)
                yield from _inside(i, j, np.ones(r.size, bool), part[r, c], scatter, tile)


def _inside(
    row: np.ndarray,
    col: np.ndarray,
    known: np.ndarray,
    value: np.ndarray,
    scatter: Scatter,
    tile: Tile,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the pixel of the tile and the value of each point in it."""
    with np.errstate(invalid="ignore"):
        i = np.floor(row) - tile.row
        j = np.floor(wrapped(col - scatter.first, scatter.period) + scatter.first) - tile.col
        inside = (i >= 0) & (i < tile.n_row) & (j >= 0) & (j < tile.n_col) & known
    if inside.any():
        flat = i[inside].astype(np.int64) * tile.n_col + j[inside].astype(np.int64)
        yield flat, np.broadcast_to(value, inside.shape)[inside]


def _extent(corner: np.ndarray) -> np.ndarray:
    """Return the distance of the corners of each pixel along one axis; infinite without an image.

    (n + 1, m + 1) -> (n, m).
    """
    four = np.stack([corner[:-1, :-1], corner[1:, :-1], corner[:-1, 1:], corner[1:, 1:]])
    with np.errstate(invalid="ignore"):
        extent = four.max(axis=0) - four.min(axis=0)
    return np.where(np.isfinite(extent), extent, np.inf)


def _between(corner: np.ndarray, down: float, along: np.ndarray) -> np.ndarray:
    """Interpolate between four corners: (n + 1, m + 1) -> (n_side, n, m)."""
    with np.errstate(invalid="ignore"):
        side = corner[:-1] * (1.0 - down) + corner[1:] * down
        return side[:, :-1] * (1.0 - along) + side[:, 1:] * along


def points_per_side(ratio: float) -> int:
    """Return the points along a source pixel's side for a ratio of source to target size.

    At least 8 x 8 points fall into a target pixel; a source pixel has at least 2 x 2.
    """
    return max(2, int(np.ceil(N_POINT_SIDE * ratio)))


def edges_in_source(grid: Grid, tile: Tile, source: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of a tile's pixels in fractional rows and columns of the source.

    Both grids have the same CRS. Edges are computed from the whole grid's transform, so that
    adjoining tiles share theirs exactly.
    """
    t, s = grid.transform, source.transform
    rows = tile.row + np.arange(tile.n_row + 1)
    cols = tile.col + np.arange(tile.n_col + 1)
    return (t.f + rows * t.e - s.f) / s.e, (t.c + cols * t.a - s.c) / s.a
