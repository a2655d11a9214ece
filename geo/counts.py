"""Read the counts or labels of areas and report all of their problems at once.

An area may have none: it has no row, or a cell that is empty or one of :data:`geo.columns.MISSING`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.columns import (
    AREA_ID,
    LABELS,
    WHOLE,
    attribute_columns,
    check_ids,
    column_periods,
    has_column,
    id_text,
    is_missing,
    paired,
)
from geo.errors import InputError, Problem, name_first
from geo.id_proposals import by_period, pairing
from geo.spelling import USUAL, Spelling
from geo.tables import TABLES, read_table


def read_counts(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    *,
    partial: bool = False,
    row_filter: tuple[str, str] | None = None,
    signed: bool = False,
    whole: bool = False,
    sheet: str | None = None,
    layer: str | None = None,
    spelling: Spelling = USUAL,
) -> pd.Series | None:
    """Read the count of each area, and check that each count has its area.

    Ids are compared as text: 7, "7", " 7 " and "7.0" are equal, "07" differs.

    Parameters
    ----------
    path : str, Path or None
        Table, see :data:`geo.tables.TABLES`; None for a column of the areas.
    areas : GeoDataFrame
        What :func:`geo.boundary.read_areas` returned.
    id_column, value_column : str
        Columns of the table.
    problems : list of Problem
        Problems are appended: no such file or column; counts that are negative or not numbers
        (with their rows; the header of a CSV is row 1); repeated ids; counts without an area; no
        area with a count.
    partial : bool, optional
        Return the valid counts even if others are invalid (NaN), so that other inputs can still be
        checked against them; for checks alone.
    row_filter : (column, text), optional
        Read the rows with this text in this column: one period of a table of several.
    signed : bool, optional
        Allow negative numbers: values that are not counts.
    whole : bool, optional
        Numbers should be whole: 1.490 is asked about, whatever the others are.
    sheet, layer : str, optional
        See :func:`geo.tables.read_table`.
    spelling : Spelling, optional
        How the table writes its numbers, dates and ids.

    Returns
    -------
    Series or None
        Counts, float64, indexed by id in the order of the areas, NaN for an area without one; None
        where a problem was found.
    """
    n_before = len(problems)
    columns, part = (id_column, value_column), (sheet, layer, spelling)
    given = _read_responses("count", path, areas, columns, problems, row_filter, part)
    if given is None:
        return None
    counts = given.by_area(_numbers(given, problems, signed=signed, whole=whole), areas)
    if len(problems) == n_before and counts.isna().all():
        problems.append(given.none_known())
    return counts if len(problems) == n_before or partial else None


def locate_counts(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    row_filter: tuple[str, str] | None = None,
    *,
    sheet: str | None = None,
    layer: str | None = None,
    spelling: Spelling = USUAL,
) -> dict[str, str]:
    """Return where each area's count is written, such as ``row 7``; see :func:`read_counts`."""
    columns = (id_column, value_column)
    given = _read_responses("count", path, areas, columns, [], row_filter, (sheet, layer, spelling))
    if given is None:
        return {}
    return {
        text: f"{given.word} {row}" for text, row in zip(given.ids, given.rows, strict=True) if text
    }


def words_for_missing(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    row_filter: tuple[str, str] | None = None,
    *,
    sheet: str | None = None,
    layer: str | None = None,
    spelling: Spelling = USUAL,
) -> list[str]:
    """Return cells whose word is taken for no value, such as ``row 5 (id M03: 'n/a')``."""
    columns, part = (id_column, value_column), (sheet, layer, spelling)
    given = _read_responses("count", path, areas, columns, [], row_filter, part)
    if given is None:
        return []
    return [
        f"{given.word} {row} (id {area}: {value.strip()!r})"
        for value, row, area in given.cells()
        if isinstance(value, str) and value.strip() and is_missing(value)
    ]


def read_labels(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    *,
    partial: bool = False,
    sheet: str | None = None,
    layer: str | None = None,
    spelling: Spelling = USUAL,
) -> pd.Series | None:
    """Read the label of each area, 1 or 0 (or yes or no, true or false, positive or negative).

    Parameters, returns and problems are those of :func:`read_counts`. It is a problem, too, if all
    areas have the same label.
    """
    n_before = len(problems)
    columns, part = (id_column, value_column), (sheet, layer, spelling)
    given = _read_responses("label", path, areas, columns, problems, None, part)
    if given is None:
        return None
    labels = given.by_area(_labels(given, problems), areas)
    if len(problems) == n_before and labels.isna().all():
        problems.append(given.none_known())
    elif len(problems) == n_before and labels.nunique() == 1:
        found = f"column {value_column!r} is {labels.dropna().iloc[0]:g} for every area"
        problems.append(Problem(given.name, found, "give both labels, 1 and 0"))
    return labels if len(problems) == n_before or partial else None


@dataclass(frozen=True)
class _Responses:
    """A column of responses, with its description for messages.

    Attributes
    ----------
    values, ids : (n_row,) Series
        The column as read, and the id of each row as text.
    rows : (n_row,) int array
        Number of each row, as a spreadsheet shows it.
    column, noun : str
        Name of the column; its kind: "count" or "label".
    name, word : str
        Names of the table and of its rows in messages.
    period : str
        The period of these rows; empty for a table of one.
    spelling : Spelling
        How the column is written.
    """

    values: pd.Series
    ids: pd.Series
    rows: np.ndarray
    column: str
    noun: str
    name: str
    word: str
    period: str = ""
    spelling: Spelling = USUAL

    def cells(self) -> Iterator[tuple[Any, int, str]]:
        """Yield the value, row and id of each cell."""
        return zip(self.values, self.rows, self.ids, strict=True)

    def problem(self, which: list[str], what: str, remedy: str) -> Problem:
        """Return a problem with the values of some rows."""
        many = f" in {len(which)} rows" if len(which) > 1 else ""
        place = f"{self.name} {self.word} {name_first(which)}"
        return Problem(place, f"column {self.column!r} {what}{many}", remedy)

    def none_known(self) -> Problem:
        """Return the problem that no area has a response."""
        found = f"column {self.column!r} has no {self.noun} for any area"
        found += f" in period {self.period!r}" if self.period else ""
        return Problem(self.name, found, f"give the {self.noun}s of some areas at least")

    def by_area(self, numbers: np.ndarray, areas: gpd.GeoDataFrame) -> pd.Series:
        """Return numbers in the order of the areas; NaN for missing and repeated ids."""
        ids = self.ids
        counts = pd.Series(numbers, index=ids.to_numpy(), name=self.column, dtype=np.float64)
        counts = counts[(ids.notna() & ~ids.duplicated(keep=False)).to_numpy()]
        return counts.reindex(areas[AREA_ID].to_numpy()).rename_axis("id")


def _read_responses(
    noun: str,
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    columns: tuple[str, str],
    problems: list[Problem],
    row_filter: tuple[str, str] | None,
    part: tuple[str | None, str | None, Spelling],
) -> _Responses | None:
    """Read the column of responses and check its ids; None if it cannot be read."""
    id_column, value_column = columns
    sheet, layer, spelling = part
    key = f"{noun}s"
    if path is None:
        name = f"{key} (column of the areas)"
        if not has_column(attribute_columns(areas), value_column, name, f"{key}.value", problems):
            return None
        rows = np.arange(1, len(areas) + 1)
        return _Responses(
            areas[value_column], areas[AREA_ID], rows, value_column, noun, name, "feature",
            spelling=spelling,
        )  # fmt: skip
    name = f"{key} ({path})"
    try:
        table, rows = read_table(path, name, sheet=sheet, layer=layer, encoding=spelling.encoding)
    except InputError as error:
        problems.extend(error.problems)
        return None
    word, whole = TABLES.of(path).row_word, table
    if row_filter is not None:
        column, period = row_filter
        if not has_column(table.columns, column, name, f"{key}.period", problems):
            return None
        n_before = len(problems)
        texts = column_periods(table[column], rows, name, word, spelling.dayfirst, problems)
        empty = id_text(table[column]).isna().to_numpy()
        if empty.any():
            place = f"{name} {word} {name_first(list(rows[empty]))}"
            remedy = f"give each a period, or drop the {word}s"
            problems.append(Problem(place, f"column {column!r} is empty", remedy))
        keep = (texts == period).to_numpy()
        if len(problems) > n_before and not keep.any():
            return None
        if not keep.any():
            known = name_first(sorted(set(texts.dropna())), 12)
            remedy = f"give a period that it has: {known}"
            problems.append(Problem(name, f"no row is of period {period!r}", remedy))
            return None
        table, rows = table[keep].reset_index(drop=True), rows[keep]
    found = [
        has_column(table.columns, column, name, f"{key}.{part}", problems)
        for part, column in (("id", id_column), ("value", value_column))
    ]
    if not all(found):
        return None
    ids = id_text(table[id_column])
    if spelling.loose:
        ids = paired(ids, set(areas[AREA_ID]))
    remedy = "keep one of each" + (", or add them up" if noun == "count" else "")
    if noun == "count" and ids.duplicated().any():
        remedy += by_period(
            whole, id_text(whole[id_column]), value_column, row_filter and row_filter[0]
        )
    check_ids(ids, rows, name, word, problems, remedy, id_column)
    period = "" if row_filter is None else row_filter[1]
    responses = _Responses(
        table[value_column], ids, rows, value_column, noun, name, word, period, spelling
    )
    _check_match(responses, id_column, table, areas, problems)
    return responses


def _check_match(
    given_by: _Responses,
    id_column: str,
    table: pd.DataFrame,
    areas: gpd.GeoDataFrame,
    problems: list[Problem],
) -> None:
    """Append a problem for responses without an area, with the pairing that they may mean."""
    ids, name, noun = given_by.ids, given_by.name, given_by.noun
    known, given = set(areas[AREA_ID]), set(ids.dropna())
    extra = [
        f"{text} ({given_by.word} {row})"
        for text, row in zip(ids, given_by.rows, strict=True)
        if text is not None and text not in known
    ]
    if not extra:
        return
    found = f"{len(extra)} {noun}(s) match no area: {name_first(extra)} in column {id_column!r}"
    remedy = "correct the ids or drop the rows"
    proposed = pairing(given, known, id_column, table, areas, f"{noun}s")
    remedy = f"{proposed}, or {remedy}" if proposed else remedy
    problems.append(Problem(name, found, remedy))


def _numbers(
    given: _Responses, problems: list[Problem], *, signed: bool, whole: bool
) -> np.ndarray:
    """Return a column as numbers, NaN where missing; append a problem for each invalid kind."""
    values = np.full(len(given.values), np.nan)
    text, infinite, negative, ambiguous = [], [], [], []
    spelling, key = given.spelling, f"{given.noun}s"
    texts = [v.strip() for v in given.values if isinstance(v, str) and not is_missing(v)]
    asked_about = set(spelling.may_be_thousands(texts, whole=whole))
    for place, (value, row, area) in enumerate(given.cells()):
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
        elif number < 0 and not signed:
            negative.append(f"{row} (id {area}: {number:g})")
        values[place] = number
    plain = "write plain numbers such as 1234.5, without separators, or leave the cell empty"
    asked = spelling.ask(texts, key)
    for which, what, remedy in (
        (text, "is not a number", f"{asked}, or {plain}" if asked else plain),
        (
            ambiguous,
            f"has a {'comma' if spelling.thousands == '.' else 'point'} before three digits, of "
            "thousands or decimals",
            spelling.ask_of_thousands(texts, key),
        ),
        (infinite, "is not finite", "give a finite number"),
        (negative, "is negative", "give counts of 0 or more"),
    ):
        if which:
            problems.append(given.problem(which, what, remedy))
    return values


def _labels(given: _Responses, problems: list[Problem]) -> np.ndarray:
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
