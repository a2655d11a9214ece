"""A column of numbers by area, or by area and period, that no response is part of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from geo.core.columns import column_periods, id_text, is_missing
from geo.core.errors import Problem, name_first
from geo.core.spelling import USUAL
from geo.tables.registry import TABLES, read_columns

#: Columns of what :func:`read_area_values` returns.
ID, PERIOD, VALUE, ROW = "id", "period", "value", "row"


def read_area_values(
    path: str | Path,
    place: str,
    id_column: str,
    value_column: str,
    period_column: str | None,
    problems: list[Problem],
) -> pd.DataFrame | None:
    """Read the numbers of areas, of all periods.

    Parameters
    ----------
    path : str or Path
        Table, see :data:`geo.tables.registry.TABLES`.
    place : str
        Configuration key, for messages.
    id_column, value_column : str
    period_column : str or None
        None for a table without periods.
    problems : list of Problem
        Problems are appended: no such file or column, cells that are not numbers or periods.

    Returns
    -------
    DataFrame or None
        ``id`` and ``period``, text, ``value``, float64, NaN where empty, and ``row``, as the file
        numbers it; None where a problem was found.
    """
    name, n_before = f"{place} ({path})", len(problems)
    columns = [(id_column, f"{place}.id"), (value_column, f"{place}.value")]
    if period_column is not None:
        columns.append((period_column, f"{place}.period"))
    read = read_columns(path, name, columns, problems)
    if read is None:
        return None
    table, rows = read
    word = TABLES.of(path).row_word
    periods = pd.Series([""] * len(table))
    if period_column is not None:
        periods = column_periods(table[period_column], rows, name, word, None, problems)
    values, wrong = np.full(len(table), np.nan), []
    cells = table[value_column]
    texts = [each.strip() for each in cells if isinstance(each, str) and not is_missing(each)]
    spelling = USUAL.detected(texts)
    for k, value in enumerate(cells):
        if is_missing(value):
            continue
        try:
            values[k] = spelling.number(value)
        except (ValueError, TypeError):
            values[k] = np.inf
        if not np.isfinite(values[k]):
            wrong.append(f"{word} {rows[k]} ({str(value).strip()!r})")
    if wrong:
        found_text = f"column {value_column!r} is no number in {name_first(wrong)}"
        remedy = "write plain numbers such as 1234.5"
        if spelling.ask(texts, ""):
            found_text += ": a separator of thousands, or of decimals?"
            remedy += ", with a point before decimals and nothing between thousands"
        problems.append(Problem(name, found_text, remedy))
    if len(problems) > n_before:
        return None
    return pd.DataFrame(
        {
            ID: id_text(table[id_column]).to_numpy(),
            PERIOD: periods.to_numpy(),
            VALUE: values,
            ROW: rows,
        }
    )
