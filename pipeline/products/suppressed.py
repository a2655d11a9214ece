"""Suppressed counts in tables of areas: two columns for the ends of their intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from geo.core.suppressed import interval_text

LOWER, UPPER = "observed_lower", "observed_upper"


def interval_columns(y: np.ndarray, least: np.ndarray, most: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of the intervals, empty but for suppressed counts.

    Nothing where none is suppressed.

    Parameters
    ----------
    y, least, most : (..., n_area) float64 arrays
        As of :class:`pipeline.products.areas.AreaDraws`.
    """
    hidden = np.isnan(y) & np.isfinite(least)
    if not hidden.any():
        return {}
    return {name: np.where(hidden, end, np.nan) for name, end in ((LOWER, least), (UPPER, most))}


def ends_of(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the least and the most that the counts of a table may be, NaN without a count."""
    y = table["observed"]
    if LOWER not in table:
        return y, y
    return y.fillna(table[LOWER]), y.fillna(table[UPPER])


def is_suppressed(table: pd.DataFrame) -> pd.Series:
    """Return which counts of a table are suppressed, (n_row,) bool."""
    return table["observed"].isna() & ends_of(table)[0].notna()


def count_texts(table: pd.DataFrame) -> list[str | None]:
    """Return the suppressed counts of a table as it was given them, ``<5``; None for others."""
    low, high = ends_of(table)
    return [
        interval_text(a, b) if hidden else None
        for hidden, a, b in zip(is_suppressed(table), low, high, strict=True)
    ]
