"""Longitudes are periodic: a full turn of columns further on lies the same place."""

from __future__ import annotations

import math

import numpy as np
from affine import Affine
from pyproj import CRS

from geo.grids.grid import Tile

#: Difference from a whole number of columns that is rounding of the header's resolution.
WHOLE = 1e-3
#: Share of a turn between neighbouring sample points that is no gap.
GAP = 0.1


def full_turn(crs: CRS) -> float | None:
    """Return 360 degrees in units of a geographic CRS; None for other CRSs."""
    if not crs.is_geographic:
        return None
    turn: float = 2 * math.pi / crs.axis_info[0].unit_conversion_factor
    # The factor is rounded: 360.0000000000001 would not be a whole number of columns.
    return round(turn, 9)


def period(crs: CRS | None, transform: Affine, n_col: int) -> float | None:
    """Return the columns of a full turn, None where columns are no longitudes.

    A raster around the Earth has a whole number of them, however its header rounds.
    """
    turn = None if crs is None else full_turn(crs)
    if turn is None or transform.b != 0 or transform.d != 0 or transform.a <= 0:
        return None
    columns = turn / transform.a
    if abs(columns - n_col) <= 0.5:
        return float(n_col)
    return float(round(columns)) if abs(columns - round(columns)) < WHOLE else columns


def wrapped(col: np.ndarray, period: float | None) -> np.ndarray:
    """Return columns moved by whole turns into [0, period); as they are without a period."""
    if period is None:
        return col
    with np.errstate(invalid="ignore"):
        col = col - period * np.floor(col / period)
        return np.where(col >= period, 0.0, col)  # just below 0: the sum rounds to the period


def arc(col: np.ndarray, period: float) -> tuple[float, float]:
    """Return the shortest span of columns with all of some points, first in [0, period).

    The points are a dense sample of a tile: if they leave no gap of a tenth of a turn, the span is
    the full turn.
    """
    col = np.sort(wrapped(col, period).ravel())
    gaps = np.append(np.diff(col), col[0] + period - col[-1])
    widest = int(np.argmax(gaps))
    if gaps[widest] < GAP * period:
        return 0.0, period
    first = col[(widest + 1) % col.size]
    return float(first), float(first + period - gaps[widest])


def copies(low: float, high: float, n_col: int, period: float | None) -> list[tuple[int, int, int]]:
    """Return where columns ``low`` to ``high``, in any turn, lie in a raster of ``n_col`` columns.

    Returns
    -------
    list of (int, int, int)
        Turns ``k``, first column and last + 1: column ``c`` of the raster is column
        ``c + k * period`` of the span.
    """
    if period is None:
        turns = range(1)
    else:
        turns = range(math.floor((low - n_col) / period), math.ceil(high / period) + 1)
    found = []
    for k in turns:
        shift = k * (period or 0.0)
        first = max(math.floor(low - shift), 0)
        last = min(math.ceil(high - shift), n_col)
        if last > first:
            found.append((k, first, last))
    return found


def near(row: float, col: float, tile: Tile) -> bool:
    """Return whether a point of a grid lies in a tile, or by a sixteenth of its size beside it."""
    if not (math.isfinite(row) and math.isfinite(col)):
        return False
    slack_row, slack_col = 2 + tile.n_row / 16, 2 + tile.n_col / 16
    return (
        tile.row - slack_row <= row <= tile.row + tile.n_row + slack_row
        and tile.col - slack_col <= col <= tile.col + tile.n_col + slack_col
    )
