"""Interpolate a raster at points (nearest, bilinear, cubic) without its missing pixels."""

from __future__ import annotations

import numpy as np

from geo.grids.grid import Tile


class Sampler:
    """Interpolates one window of a raster at fractional (row, column) points.

    A point is missing if its pixel is missing: values do not spread across a coast. Else the valid
    neighbours share the weight of the missing ones.

    Parameters
    ----------
    values : (n, m) float64 array
        NaN where missing.
    window : Tile
        Position of the values in the raster.
    row, col : (...) float64 array
        Points; the first pixel's centre is at 0.5.
    period : int, optional
        Columns of a full turn, after which the raster begins again.
    """

    def __init__(
        self,
        values: np.ndarray,
        window: Tile,
        row: np.ndarray,
        col: np.ndarray,
        period: int | None = None,
    ) -> None:
        self.values, self.first, self.period = values, window.col, period
        finite = np.isfinite(row) & np.isfinite(col)
        self.row = np.where(finite, row - window.row, -1e9)
        self.col = np.where(finite, col, -1e9)

    def _take(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        n, m = self.values.shape
        j = j - self.first
        if self.period is not None:
            j = np.where(j > -1e8, j % self.period, -1)
        inside = (i >= 0) & (i < n) & (j >= 0) & (j < m)
        taken = self.values[np.clip(i, 0, n - 1), np.clip(j, 0, m - 1)]
        return np.where(inside, taken, np.nan)

    def nearest(self) -> np.ndarray:
        """Return the value of the pixel that each point lies in."""
        return self._take(np.floor(self.row).astype(np.int64), np.floor(self.col).astype(np.int64))

    def bilinear(self) -> np.ndarray:
        """Return the mean of the four nearest centres, weighted by nearness."""
        i, a = _split(self.row - 0.5)
        j, b = _split(self.col - 0.5)
        total, weight = np.zeros(i.shape), np.zeros(i.shape)
        for di, share_i in ((0, 1.0 - a), (1, a)):
            for dj, share_j in ((0, 1.0 - b), (1, b)):
                value = self._take(i + di, j + dj)
                share = np.where(np.isnan(value), 0.0, share_i * share_j)
                total += share * np.where(np.isnan(value), 0.0, value)
                weight += share
        result = np.full(i.shape, np.nan)
        np.divide(total, weight, out=result, where=weight > 0)
        return np.where(np.isnan(self.nearest()), np.nan, result)

    def cubic(self) -> np.ndarray:
        """Return cubic convolution (Keys 1981, a = -1/2), bilinear next to missing pixels."""
        i, a = _split(self.row - 0.5)
        j, b = _split(self.col - 0.5)
        total = np.zeros(i.shape)
        for di in range(-1, 3):
            line = np.zeros(i.shape)
            for dj in range(-1, 3):
                line += _keys(b - dj) * self._take(i + di, j + dj)
            total += _keys(a - di) * line
        return np.where(np.isnan(total), self.bilinear(), total)


def _split(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    whole = np.floor(position)
    return whole.astype(np.int64), position - whole


def _keys(distance: np.ndarray) -> np.ndarray:
    """Return the cubic convolution kernel, Keys (1981), eq. 15."""
    d = np.abs(distance)
    near = (1.5 * d - 2.5) * d * d + 1.0
    far = ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0
    return np.where(d <= 1.0, near, np.where(d < 2.0, far, 0.0))
