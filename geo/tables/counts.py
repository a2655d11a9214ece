"""Read the counts or labels of areas and report all of their problems at once.

An area may have none: it has no row, or a cell that is empty or one of
:data:`geo.core.columns.MISSING`.
"""

from __future__ import annotations

import re

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import LABELS, WHOLE, is_missing
from geo.core.errors import Problem
from geo.core.suppressed import Suppression
from geo.tables.response_column import ResponseColumn, ResponseTable

#: At the end of a finding, a cell that may be a withheld count: <5.5, *, ...
_MARK = re.compile(r"'(?:[<>≤].*|[^\w.,]+)'\)$")
LARGEST = 1e15  # of a count or value: above, numbers are no longer told apart by one


def read_counts(
    table: ResponseTable,
    value_column: str,
    problems: list[Problem],
    *,
    partial: bool = False,
    signed: bool = False,
    whole: bool = False,
    suppression: Suppression | None = None,
) -> pd.Series | None:
    """Read the count of each area, and check that each count has its area.

    Ids are compared as text: 7, "7", " 7 " and "7.0" are equal, "07" differs.

    Parameters
    ----------
    table : ResponseTable
    value_column : str
    problems : list of Problem
        Problems are appended: no such file or column; counts that are negative or not numbers
        (with their rows; the header of a CSV is row 1); repeated ids; counts without an area; no
        area with a count.
    partial : bool, optional
        Return the valid counts even if others are invalid (NaN), so that other inputs can still be
        checked against them; for checks alone.
    signed : bool, optional
        Allow negative numbers: values that are not counts.
    whole : bool, optional
        Numbers should be whole: 1.490 is asked about, whatever the others are.
    suppression : Suppression, optional
        Which cells are intervals: their value is the middle; without it they are no numbers.

    Returns
    -------
    Series or None
        Counts, float64, indexed by id in the order of the areas, NaN for an area without one; None
        where a problem was found.
    """
    n_before = len(problems)
    given = table.column("count", value_column, problems)
    if given is None:
        return None
    numbers = _numbers(given, problems, suppression, signed=signed, whole=whole)
    counts = given.by_area(numbers, table.areas)
    if len(problems) == n_before and counts.isna().all():
        problems.append(given.none_known())
    return counts if len(problems) == n_before or partial else None


def margins_of(
    given: ResponseColumn, areas: gpd.GeoDataFrame, suppression: Suppression
) -> pd.Series | None:
    """Return half of the width of each count's interval, 0 where it is known.

    None if no count is an interval. :func:`read_counts` reports the problems of the column.
    """
    found = [suppression.interval(value) for value in given.values]
    half = np.array([0.0 if each is None else 0.5 * (each[1] - each[0]) for each in found])
    margins = given.by_area(half, areas).fillna(0.0)
    return margins if (margins > 0).any() else None


def read_labels(
    table: ResponseTable, value_column: str, problems: list[Problem], *, partial: bool = False
) -> pd.Series | None:
    """Read the label of each area, 1 or 0 (or yes or no, true or false, positive or negative).

    Parameters, returns and problems are those of :func:`read_counts`. It is a problem, too, if all
    areas have the same label.
    """
    n_before = len(problems)
    given = table.column("label", value_column, problems)
    if given is None:
        return None
    labels = given.by_area(_labels(given, problems), table.areas)
    if len(problems) == n_before and labels.isna().all():
        problems.append(given.none_known())
    elif len(problems) == n_before and labels.nunique() == 1:
        found = f"column {value_column!r} is {labels.dropna().iloc[0]:g} for every area"
        problems.append(Problem(given.name, found, "give both labels, 1 and 0"))
    return labels if len(problems) == n_before or partial else None


def _numbers(
    given: ResponseColumn,
    problems: list[Problem],
    suppression: Suppression | None,
    *,
    signed: bool,
    whole: bool,
) -> np.ndarray:
    """Return a column as numbers, NaN where missing; append a problem for each invalid kind."""
    values = np.full(len(given.values), np.nan)
    text, infinite, huge, negative, ambiguous = [], [], [], [], []
    spelling, key = given.spelling, f"{given.noun}s"
    within = [None if suppression is None else suppression.interval(v) for v in given.values]
    texts = [
        v.strip()
        for v, interval in zip(given.values, within, strict=True)
        if isinstance(v, str) and not is_missing(v) and interval is None
    ]
    spelling = spelling.detected(texts)
    asked_about = set(spelling.may_be_thousands(texts, whole=whole))
    for place, (value, row, area) in enumerate(given.cells()):
        interval = within[place]
        if interval is not None:
            values[place] = 0.5 * (interval[0] + interval[1])
            continue
        if is_missing(value):
            continue
        if isinstance(value, str) and value.strip() in asked_about:
            ambiguous.append(f"{row} (id {area}: {value.strip()!r})")
            continue
        try:
            number = spelling.number(value)
        except (ValueError, TypeError):
            text.append(f"{row} (id {area}: {str(value).strip()!r})")
            continue
        if not np.isfinite(number):
            infinite.append(f"{row} (id {area}: {number})")
        elif abs(number) > LARGEST:
            huge.append(f"{row} (id {area}: {number:g})")
            continue
        elif number < 0 and not signed:
            negative.append(f"{row} (id {area}: {number:g})")
        values[place] = number
    plain = "write plain numbers such as 1234.5, without separators, or leave the cell empty"
    asked = spelling.ask(texts, key)
    if suppression is not None and any(map(_MARK.search, text)):
        plain += (
            f", or, if a small count is withheld, write <5 or explain the mark: {key}.suppressed"
        )
    for which, what, remedy in (
        (text, "is not a number", f"{asked}, or {plain}" if asked else plain),
        (
            ambiguous,
            f"has a {'comma' if spelling.thousands == '.' else 'point'} before three digits "
            "(of thousands, or decimals?)",
            spelling.ask_of_thousands(texts, key),
        ),
        (infinite, "is not finite", "give a finite number"),
        (huge, f"is above {LARGEST:g}", "correct it, or leave the cell empty"),
        (negative, "is negative", "give counts of 0 or more"),
    ):
        if which:
            problems.append(given.problem(which, what, remedy))
    return values


def _labels(given: ResponseColumn, problems: list[Problem]) -> np.ndarray:
    """Return a column as 1 and 0, NaN where missing; append a problem for other values."""
    values = np.full(len(given.values), np.nan)
    other = []
    for place, (value, row, area) in enumerate(given.cells()):
        text = "" if value is None or value is pd.NA else str(value).strip().lower()
        if WHOLE.match(text):
            text = text.split(".")[0]
        if text in LABELS:
            values[place] = LABELS[text]
        elif not is_missing(value):
            other.append(f"{row} (id {area}: {str(value).strip()!r})")
    if other:
        remedy = "write 1 or 0 (or yes or no, true or false), or leave the cell empty"
        problems.append(given.problem(other, "is not a label", remedy))
    return values
