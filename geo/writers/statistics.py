"""Statistics of a raster's valid pixels, added up tile by tile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Number, extremes, mean and sum of squared deviations of some values.

    Attributes
    ----------
    n : int
    low, high, mean, squares : float
        In the unit of the values; NaN if there are none, and ``squares`` in its square.
    """

    n: int = 0
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    squares: float = math.nan

    @classmethod
    def of(cls, values: np.ndarray, nodata: float = math.nan) -> Moments:
        """Return the moments of values that are neither NaN nor ``nodata``, in float64."""
        known = values[~np.isnan(values)] if math.isnan(nodata) else values[values != nodata]
        if known.size == 0:
            return cls()
        exact = known.astype(np.float64)
        mean = float(exact.mean())
        squares = float(((exact - mean) ** 2).sum())
        return cls(exact.size, float(exact.min()), float(exact.max()), mean, squares)

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of disjoint parts (Chan, Golub & LeVeque 1983, eq. 2.1)."""
        known = [part for part in parts if part.n]
        if not known:
            return cls()
        n = sum(part.n for part in known)
        shift = known[0].mean
        mean = shift + sum(part.n * (part.mean - shift) for part in known) / n
        squares = sum(part.squares + part.n * (part.mean - mean) ** 2 for part in known)
        low, high = min(part.low for part in known), max(part.high for part in known)
        return cls(n, low, high, mean, squares)

    def tags(self, n_pix: int) -> dict[str, str]:
        """Return them as GDAL names them, for a raster of ``n_pix`` pixels; none without values."""
        if not self.n:
            return {}
        found = {
            "MINIMUM": self.low,
            "MAXIMUM": self.high,
            "MEAN": self.mean,
            "STDDEV": math.sqrt(self.squares / self.n),
            "VALID_PERCENT": 100 * self.n / n_pix,
        }
        return {f"STATISTICS_{name}": f"{value:.17g}" for name, value in found.items()}
