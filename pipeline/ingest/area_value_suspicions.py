"""Suspicions about covariates that are tables of areas: numbers that mark missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd

from geo.core.errors import name_first
from geo.tables.area_values import ID, ROW, VALUE, read_area_values
from geo.tables.registry import TABLES
from pipeline.config.schema import Config
from pipeline.ingest.raster_suspicions import HUGE, SENTINELS, Suspicion

N_NAMED = 5
N_OTHER = 5  # values beside which a number can stand apart


def area_value_suspicions(config: Config) -> list[Suspicion]:
    """Return a suspicion about each number of a covariate table that looks like no value.

    A table with a problem has none.

    Parameters
    ----------
    config : Config
    """
    found: list[Suspicion] = []
    seen = set()
    for name, spec in config.covariates.items():
        column = spec.value or name
        if spec.kind != "table" or (spec.path, column) in seen:
            continue
        seen.add((spec.path, column))  # its lags are covariates of their own
        table = read_area_values(
            spec.path, f"covariates.{name}", spec.id or "", column, spec.period, []
        )
        if table is None:
            continue
        for number, low, high in marks_of_missing(table[VALUE].to_numpy(np.float64)):
            text = f"column {column!r} has {number:.9g} in {_rows(table, number, spec.path)}, "
            text += f"far from all others ({low:.6g} to {high:.6g})"
            remedy = "if it marks a missing value, give the value, or leave the area out"
            place = f"covariates.{name} ({spec.path})"
            found.append(Suspicion("nodata", place, text, remedy))
    return found


def marks_of_missing(values: np.ndarray) -> list[tuple[float, float, float]]:
    """Return the numbers that stand for missing values, with the ends of all others.

    A known number of missing values is one if it is further from the others than these span, or
    negative while none of them is. So is any number that no measurement reaches.

    Parameters
    ----------
    values : (n,) float64 array
        NaN where empty.
    """
    known = values[np.isfinite(values)]
    suspects = [each for each in np.unique(known) if each in SENTINELS or abs(each) >= HUGE]
    others = known[~np.isin(known, suspects)]
    if others.size < N_OTHER:
        return []
    low, high = float(others.min()), float(others.max())
    found = []
    for number in map(float, suspects):
        gap = max(low - number, number - high)
        if gap > high - low or (number < 0 <= low) or abs(number) >= HUGE:
            found.append((number, low, high))
    return found


def _rows(table: pd.DataFrame, number: float, path: str) -> str:
    own = table[table[VALUE] == number]
    word = TABLES.of(path).row_word
    each = [f"{word} {row} (id {area})" for row, area in zip(own[ROW], own[ID], strict=True)]
    return name_first(each, N_NAMED)
