"""Tables with a column for each period, read as tables with a row for each area and period."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from geo.core.errors import InputError, Problem, name_first
from geo.core.period_text import ACCEPTED, read_periods

# Any word may name a period in a column of periods; among names of columns, dates alone tell.
_DAY = re.compile(r"\s*\d{1,2}([-/.])\d{1,2}\1\d{4}\s*")
_YEAR = re.compile(r"\d{4}")
_DATE = re.compile(r"\d{4}(-?\d\d(-?\d\d)?|-?[Ww]\d\d?|-?[Qq]\d)?")
# Likeness of a head and one of a period, from which it is one that was mistyped: of 2021-WO5, which
# begins with a year, and of others.
LIKE_DATED, LIKE = 0.75, 0.8


def long_form(
    table: pd.DataFrame,
    rows: np.ndarray,
    columns: tuple[str, str],
    name: str,
    dayfirst: bool | None = None,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table with a row for each area and period.

    Parameters
    ----------
    table : DataFrame
        A row for each area; columns whose names are dates (2024-03, 2024W13, Jan-24) have the
        values of that period, the others hold for all periods.
    rows : (n_row,) int array
        Number of each row in its file.
    columns : (str, str)
        Names of the two columns to make: of the period, and of the value.
    name : str
        Of the table, in messages.
    dayfirst : bool, optional
        See :func:`geo.core.period_text.read_periods`.

    Returns
    -------
    table : DataFrame
        ``n_row * n_period`` rows, period by period; the period as its column is named.
    rows : (n_row * n_period,) int array

    Raises
    ------
    InputError
        If no column is a period, or one of `columns` is there already.
    """
    heads = [str(head) for head in table.columns]
    read, refused = read_periods(heads, dayfirst)
    dated = [iso is not None and _DATE.fullmatch(iso) is not None for iso in read]
    others = [head for head, is_period in zip(heads, dated, strict=True) if not is_period]
    unclear = [
        head
        for head in heads
        if head in refused and (_DAY.fullmatch(head) or _DATE.fullmatch(head.strip()))
    ]
    if unclear:
        what, remedy = refused[unclear[0]]
        found = f"`periods: columns`, but the head {what}: {name_first(unclear)}"
        raise InputError(Problem(name, found, remedy))
    if not any(dated):
        found = f"`periods: columns`, but no column is named as a period: {name_first(heads, 12)}"
        raise InputError(Problem(name, found, f"name each as {ACCEPTED}"))
    _check_others(others, [head for head in heads if head not in others], name)
    taken = [column for column in columns if column in others]
    if taken:
        found = f"`periods: columns`, but there is a column {taken[0]!r} besides those of periods"
        key = "counts.value" if taken[0] == columns[1] else "counts.period"
        raise InputError(Problem(name, found, f"give {key} a name that the table does not have"))
    at = np.flatnonzero(dated)
    _check_periods([heads[k] for k in at], [str(read[k]) for k in at], name)
    kept = table.iloc[:, np.flatnonzero(~np.array(dated))]
    pieces = [kept.assign(**{columns[0]: heads[k], columns[1]: table.iloc[:, k]}) for k in at]
    found_long = pd.concat(pieces, ignore_index=True)
    found_long.attrs.update(table.attrs)
    return found_long, np.tile(rows, len(at))


def _check_others(others: Sequence[str], periods: Sequence[str], name: str) -> None:
    """Raise an InputError if a head is none of a period, and nearly one: 2021-WO5 by 2021-W04."""
    years = tuple({head[:4] for head in periods if _YEAR.match(head)})
    for head in others:
        least = LIKE_DATED if head.startswith(years) else LIKE
        if near := difflib.get_close_matches(head, periods, 1, least):
            found = f"`periods: columns`, but the head {head!r} is no period, and like {near[0]!r}"
            raise InputError(Problem(name, found, "correct it, or rename the column"))


def _check_periods(heads: list[str], periods: list[str], name: str) -> None:
    """Raise an InputError if two columns have one period, or one has the year of the others."""
    first: dict[str, str] = {}
    for head, period in zip(heads, periods, strict=True):
        # Readers of files call the second of two equal names 2024-03.1.
        before = head.rpartition(".")[0]
        own = first.get(period, before if before in first.values() else None)
        if own is not None:
            twice = (
                f"two columns {own!r}" if own in (before, head) else f"columns {own!r} and {head!r}"
            )
            found = f"`periods: columns`, but {twice} are of one period"
            raise InputError(Problem(name, found, "keep one of them, or add them up"))
        first[period] = head
    years = [h for h, p in zip(heads, periods, strict=True) if _YEAR.fullmatch(p)]
    if years and len(years) < len(heads):
        found = f"`periods: columns`, but {name_first(years)} is a year, and the others are shorter"
        raise InputError(Problem(name, found, "take the column of the year out, or rename it"))
