"""Tables of the page: the areas, the balance, and whatever other tables a run has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.core.columns import name_column as called_name
from geo.core.text_safety import one_line_text
from pipeline.config.no_spread import NO_SPREAD
from pipeline.products.csv_table import read_csv
from pipeline.products.products import POINTS_CSV
from pipeline.reporting.rasters import COMPARISON
from pipeline.reporting.words import number
from pipeline.responses.response import Response

N_ROW, N_COLUMN = 400, 24  # of a table that the page does not know
N_KEY = 60  # rows of the comparison
_MACHINE = ("directory", "given", "format", "written")  # keys that say nothing of a map
_CURVE = ("level", "percent", "cases_reached", "cases_reached_lower", "cases_reached_upper")
_LEVEL_COLUMN = re.compile(
    r"id|name|people|tested|observed|observed_why|((reconciled_)?(cases|rate)|rank)(_lower|_upper)?|p_above_-?[\d.]+"
)
_PERCENT = (5, 10, 20, 30, 50, 80)
TARGETING, LEVELS = "targeting.csv", "levels_*.csv"


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


def other_tables(
    out: Path, compared: Path | None, words: Response, targeting: pd.DataFrame | None
) -> dict[str, list[Sheet]]:
    """Return the tables of the run that other stages may have left.

    Parameters
    ----------
    out : Path
        Output directory.
    compared : Path or None
        Folder of a comparison with another map.
    words : Response
        What rates are of.
    targeting : DataFrame or None
        Of :func:`read_targeting`.

    Returns
    -------
    dict
        ``points``, ``targeting``, ``levels`` and ``comparison``: lists, empty where there is none.
    """
    levels = [(path, read_csv(path)) for path in sorted(out.glob(LEVELS))]
    levels.sort(key=lambda each: len(each[1]))  # the country first
    return {
        "points": _points(out / POINTS_CSV.file),
        "targeting": _targeting(targeting, words),
        "levels": [_level(path, table, words) for path, table in levels],
        "comparison": [] if compared is None else _comparison(compared / COMPARISON),
    }


def _points(path: Path) -> list[Sheet]:
    """Return the table of the points beside the areas."""
    if not path.is_file():
        return []
    note = (
        "Clusters and facilities that the map was fitted to, beside the counts of the areas. "
        "Expected values are those of the fitted rate on the scale of their source, averaged over "
        "the pixels where a displaced cluster may be; _lower and _upper are the ends of intervals."
    )
    return [sheet(read_csv(path), path.name, "Points beside the areas", note)]


def read_targeting(out: Path) -> pd.DataFrame | None:
    """Read the table of targeting of an output directory; None if there is none."""
    path = out / TARGETING
    return read_csv(path) if path.is_file() else None


def targeting_curve(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return the curve of targeting; None if there is none, or a table of another form."""
    return table if table is not None and set(_CURVE) <= set(table.columns) else None


def _targeting(table: pd.DataFrame | None, words: Response) -> list[Sheet]:
    """Return the table of targeting; of a curve, the rows of some round shares."""
    if table is None:
        return []
    if targeting_curve(table) is None:
        return [sheet(table, TARGETING, "Targeting")]
    some = table[table["percent"].isin(_PERCENT)]
    note = (
        "Percent of people (or of cases), the cases that they hold, and the people needed for as "
        f"many cases, with intervals; {TARGETING} has every percent."
    )
    if not words.given.spread:
        note = note.replace("with intervals", f"without intervals ({NO_SPREAD})")
    return [sheet(some, TARGETING, "Targeting", note)]


def _level(path: Path, table: pd.DataFrame, words: Response) -> Sheet:
    """Return the table of a level, of the columns that readers look for; else of the first ones."""
    shown = [each for each in table.columns if _LEVEL_COLUMN.fullmatch(each)]
    chosen = table[shown] if "rate" in shown else table
    rates = words.rates[:1].upper() + words.rates[1:]
    note = f"{rates} are {words.rate_unit}; lower and upper are the ends of their intervals."
    if not words.given.spread:
        note = f"{rates} are {words.rate_unit}; lower and upper are the same: {NO_SPREAD}."
    note += "" if chosen is table else f" {path.name} has more columns."
    level = path.stem.removeprefix("levels_").replace("_", " ")
    named = {"people": words.weight_unit, "rate": words.quantity}
    heads = {
        each: re.sub(r"^(people|rate)(?=_|$)", lambda found: named[found[0]], each)
        for each in chosen.columns
    }
    return sheet(chosen.rename(columns=heads), path.name, f"Level: {level}", note)


def _comparison(path: Path) -> list[Sheet]:
    """Return a comparison as tables: lists of records, and one of all other values."""
    if not path.is_file():
        return []
    given = json.loads(path.read_text(encoding="utf-8"))
    sheets, flat = [], []
    for key, value in _leaves(given):
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            sheets.append(sheet(pd.DataFrame(value), f"{path.name}, {key}", _words(key)))
        elif isinstance(value, Mapping):
            rows = [{"": _words(name), **row} for name, row in value.items()]
            sheets.append(sheet(pd.DataFrame(rows), f"{path.name}, {key}", _words(key)))
        elif isinstance(value, list):
            flat.append((_words(key), ", ".join(map(str, value)) or "none"))
        else:
            flat.append((_words(key), value))
    cells = [[cell(key), cell(value)] for key, value in flat if value is not None][:N_KEY]
    if cells:
        sheets.append(Sheet(path.name, "Details", "", ["", "value"], [False, False], cells))
    return sheets


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Return dotted keys with their values; folders of the machine are left out."""
    if not isinstance(value, Mapping):
        return [(key, value)]
    alike = _alike(value)
    found: list[tuple[str, Any]] = [(key, alike)] if alike else []
    for name, inner in value.items():
        if name not in _MACHINE and name not in alike:
            found += _leaves(inner, f"{key}.{name}" if key else str(name))
    return found


def _alike(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a mapping that are rows of one table: numbers under the same keys."""
    rows = {
        name: row
        for name, row in value.items()
        if isinstance(row, Mapping)
        and len(row) > 1
        and all(isinstance(each, int | float) for each in row.values())
    }
    first = next(iter(rows.values()), {})
    same = {name: row for name, row in rows.items() if row.keys() == first.keys()}
    return same if len(same) > 1 else {}


def _words(key: str) -> str:
    text = key.replace("_", " ").replace(".", ": ")
    return text[:1].upper() + text[1:]


def name_column(areas: pd.DataFrame, key: str, asked: str | None = None) -> str:
    """Return the column that names areas for readers: a text that differs for all, else the id.

    Parameters
    ----------
    areas : DataFrame
    key : str
        Column of the ids.
    asked : str, optional
        ``areas.name`` of the configuration: that column, where all areas have a name of their own.
    """
    if asked in areas and areas[asked].notna().all() and areas[asked].is_unique:
        return str(asked)
    texts = [str(c) for c in areas.columns if c not in (key, "geometry") and _is_text(areas[c])]
    fit = [c for c in texts if areas[c].notna().all() and areas[c].is_unique]
    # "district_name" before "code", and an id that is a name before all others.
    return called_name([key, *fit]) or (fit[0] if fit else key)


def _is_text(column: pd.Series) -> bool:
    return bool(pd.api.types.is_string_dtype(column) and not pd.api.types.is_numeric_dtype(column))


def balance_sheet(balance: Mapping[str, Any], rows: list[tuple[str, Any, Any]]) -> Sheet:
    """Return the balance of people and cases as a table."""
    columns = ["", str(balance["unit"]), str(balance["cases"].get("unit", "cases"))]
    cells = [[cell(words), cell(people), cell(cases)] for words, people, cases in rows]
    return Sheet("balance", "Balance", "", columns, [False, True, True], cells)
