"""Tables with a column for each period, read as tables with a row for each area and period."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from geo.core.errors import InputError, Problem, name_first
from geo.core.period_text import ACCEPTED, read_periods

# Any word may name a period in a column of periods; among names of columns, dates alone tell.
_DATE = re.compile(r"\d{4}(-?\d\d(-?\d\d)?|-?[Ww]\d\d?|-?[Qq]\d)?")


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
    read, _ = read_periods(heads, dayfirst)
    dated = [iso is not None and _DATE.fullmatch(iso) is not None for iso in read]
    others = [head for head, is_period in zip(heads, dated, strict=True) if not is_period]
    if not any(dated):
        found = f"`periods: columns`, but no column is named as a period: {name_first(heads, 12)}"
        raise InputError(Problem(name, found, f"name each as {ACCEPTED}"))
    taken = [column for column in columns if column in others]
    if taken:
        found = f"`periods: columns`, but there is a column {taken[0]!r} besides those of periods"
        key = "counts.value" if taken[0] == columns[1] else "counts.period"
        raise InputError(Problem(name, found, f"give {key} a name that the table does not have"))
    at = np.flatnonzero(dated)
    kept = table.iloc[:, np.flatnonzero(~np.array(dated))]
    pieces = [kept.assign(**{columns[0]: heads[k], columns[1]: table.iloc[:, k]}) for k in at]
    found_long = pd.concat(pieces, ignore_index=True)
    found_long.attrs.update(table.attrs)
    return found_long, np.tile(rows, len(at))
