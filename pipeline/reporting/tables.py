"""Tables of the page: the areas, the balance, and whatever other tables a run has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.text_safety import one_line_text
from pipeline.reporting.words import number

N_ROW, N_COLUMN = 400, 16  # of a table that the page does not know
N_KEY = 60  # rows of the comparison
TARGETING, COMPARISON, LEVELS = "targeting.csv", "compare.json", "levels_*.csv"


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the value that it is sorted by."""

    text: str
    value: float | str


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes
    ----------
    name, title, note : str
        Of the table; ``name`` is a file's or a part's.
    columns : list of str
    numeric : list of bool
        Whether a column has numbers.
    rows : list of list of Cell
    """

    name: str
    title: str
    note: str
    columns: list[str]
    numeric: list[bool]
    rows: list[list[Cell]]


def cell(value: Any) -> Cell:
    """Return a cell of a number, a truth or a text."""
    if value is None or value is pd.NA:
        return Cell("", "")
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no", float(value))
    if isinstance(value, int | float | np.number):
        if not np.isfinite(value):
            return Cell("", "")
        return Cell(number(float(value)), float(value))
    text = one_line_text(str(value))
    return Cell(text, text)


def sheet(frame: pd.DataFrame, name: str, title: str, note: str = "") -> Sheet:
    """Return a data frame as a table of the page; what does not fit is left out, and told."""
    shown = frame.iloc[:N_ROW, :N_COLUMN]
    if shown.shape != frame.shape:
        more = f"The first {len(shown):,} of {len(frame):,} rows and {shown.shape[1]} of "
        note = f"{note} {more}{frame.shape[1]} columns; {name} has all.".strip()
    numeric = [pd.api.types.is_numeric_dtype(shown[each]) for each in shown.columns]
    rows = [[cell(value) for value in row] for row in shown.itertuples(index=False, name=None)]
    columns = [str(each).replace("_", " ") for each in shown.columns]
    return Sheet(name, title, note, columns, numeric, rows)


def other_tables(out: Path) -> dict[str, list[Sheet]]:
    """Return the tables of the run that other stages may have left.

    Returns
    -------
    dict
        ``targeting``, ``levels`` and ``comparison``: lists, empty where there is none.
    """
    levels = [
        sheet(pd.read_csv(path), path.name, _title(path)) for path in sorted(out.glob(LEVELS))
    ]
    targeting = out / TARGETING
    found = [sheet(pd.read_csv(targeting), TARGETING, "Targeting")] if targeting.is_file() else []
    return {"targeting": found, "levels": levels, "comparison": _comparison(out / COMPARISON)}


def _title(path: Path) -> str:
    level = path.stem.removeprefix("levels_").replace("_", " ")
    return f"Level: {level}"


def _comparison(path: Path) -> list[Sheet]:
    """Return a comparison as tables: lists of records, and one of all other values."""
    if not path.is_file():
        return []
    given = json.loads(path.read_text(encoding="utf-8"))
    sheets, flat = [], []
    for key, value in _leaves(given):
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            words = key.replace("_", " ").replace(".", ": ")
            sheets.append(sheet(pd.DataFrame(value), f"{path.name}, {key}", words.capitalize()))
        elif not isinstance(value, list):
            flat.append((key.replace("_", " ").replace(".", ": "), value))
    rows = [[cell(key), cell(value)] for key, value in flat[:N_KEY]]
    if rows:
        whole = Sheet(path.name, "Summary", "", ["", "value"], [False, True], rows)
        sheets.insert(0, whole)
    return sheets


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [
            leaf
            for name, inner in value.items()
            for leaf in _leaves(inner, f"{key}.{name}" if key else str(name))
        ]
    return [(key, value)]


def name_column(areas: pd.DataFrame, key: str) -> str:
    """Return the column that names areas for readers: a text that differs for all, else the id."""
    for column in areas.columns:
        if column in (key, "geometry") or not _is_text(areas[column]):
            continue
        known = areas[column].dropna()
        if len(known) == len(areas) and known.is_unique:
            return str(column)
    return key


def _is_text(column: pd.Series) -> bool:
    return bool(pd.api.types.is_string_dtype(column) and not pd.api.types.is_numeric_dtype(column))


def balance_sheet(balance: Mapping[str, Any], rows: list[tuple[str, Any, Any]]) -> Sheet:
    """Return the balance of people and cases as a table."""
    columns = ["", str(balance["unit"]), str(balance["cases"].get("unit", "cases"))]
    cells = [[cell(words), cell(people), cell(cases)] for words, people, cases in rows]
    return Sheet("balance", "Balance", "", columns, [False, True, True], cells)
