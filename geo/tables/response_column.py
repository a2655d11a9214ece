"""One column of a table of counts or labels, with the ids of its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import (
    AREA_ID,
    ELSEWHEN,
    attribute_columns,
    check_ids,
    column_periods,
    has_column,
    id_text,
    is_missing,
    paired,
)
from geo.core.errors import InputError, Problem, name_first
from geo.core.spelling import USUAL, Spelling
from geo.tables.crosswalk import read_crosswalk
from geo.tables.id_proposals import by_period, pairing
from geo.tables.registry import TABLES, once, read_table
from geo.tables.row_problems import of_rows
from geo.tables.table_xlsx import MERGED
from geo.tables.unmatched import guesses, unmatched

MOST_CHARACTERS, MOST_UNKNOWN = 1000, 100_000  # of an id; of a table's ids
MOST_SKIPPED = 5  # rows above the names that are looked for
TOTAL = re.compile(
    r"(grand |sub)?(total|sum|ensemble|gesamt|summe|national|country|all)( general| national|s)?:?",
    re.IGNORECASE,
)
_IDS_OF_AREAS = "give the table of these areas, and the column of their ids"


@dataclass(frozen=True)
class ResponseColumn:
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

    def places(self) -> dict[str, str]:
        """Return where each area's cell is written, such as ``row 7``, by id."""
        return {
            text: f"{self.word} {row}"
            for text, row in zip(self.ids, self.rows, strict=True)
            if text
        }

    def problem(self, which: list[str], what: str, remedy: str) -> Problem:
        """Return a problem with the values of some rows."""
        return of_rows(f"{self.name} {self.word}", which, f"column {self.head!r} {what}", remedy)

    @property
    def head(self) -> str:
        """The column as the file names it: of a table with a column for each period, by period."""
        return self.period if self.spelling.wide and self.period else self.column

    def none_known(self) -> Problem:
        """Return the problem that no area has a response."""
        found = f"column {self.head!r} has no {self.noun} for any area"
        found += f" in period {self.period!r}" if self.period and not self.spelling.wide else ""
        return Problem(self.name, found, f"give the {self.noun}s of some areas at least")

    def by_area(self, numbers: np.ndarray, areas: gpd.GeoDataFrame) -> pd.Series:
        """Return numbers in the order of the areas; NaN for missing and repeated ids."""
        ids = self.ids
        counts = pd.Series(numbers, index=ids.to_numpy(), name=self.column, dtype=np.float64)
        counts = counts[(ids.notna() & ~ids.duplicated(keep=False)).to_numpy()]
        return counts.reindex(areas[AREA_ID].to_numpy()).rename_axis("id")


@dataclass(frozen=True)
class ResponseTable:
    """Where responses of areas are written.

    Attributes
    ----------
    path : str, Path or None
        Table, see :data:`geo.tables.registry.TABLES`; None for columns of the areas.
    areas : GeoDataFrame
        What :func:`geo.sources.boundary.read_areas` returned.
    id_column : str
        Of the areas' ids.
    row_filter : (column, text) or None
        The rows with this text in this column: one period of a table of several.
    sheet, layer : str or None
        See :func:`geo.tables.registry.read_table`.
    spelling : Spelling
        How the table writes its numbers, dates and ids.
    """

    path: str | Path | None
    areas: gpd.GeoDataFrame
    id_column: str
    row_filter: tuple[str, str] | None = None
    sheet: str | None = None
    layer: str | None = None
    spelling: Spelling = USUAL

    def column(self, noun: str, value: str, problems: list[Problem]) -> ResponseColumn | None:
        """Read a column of "count" or "label" and check its ids; None if it cannot be read."""
        key = f"{noun}s"
        if self.path is None:
            return self._own_column(noun, value, problems)
        read = self._rows(key, problems)
        if read is None:
            return None
        table, rows = read
        name, word = f"{key} ({self.path})", TABLES.of(self.path).row_word
        n_problem = len(problems)
        found = [
            has_column(table.columns, column, name, f"{key}.{part}", problems)
            for part, column in (("id", self.id_column), ("value", value))
        ]
        if not all(found):
            columns = self.id_column, value
            if above := title_above(self.path, columns, self.sheet, self.spelling.layout):
                problems[n_problem:] = [replace(problems[n_problem], remedy=above)]
            return None
        names = id_text(table[self.id_column])
        here = set(self.areas[AREA_ID].dropna()) | set(self.areas.attrs.get(ELSEWHEN, {}))
        ids, usable, hint = translated(names, table, self.spelling, here, key, name, problems)
        if not usable.all():
            table, rows = table[usable].reset_index(drop=True), rows[usable]
            names, ids = (each[usable].reset_index(drop=True) for each in (names, ids))
        if absurd := _absurd(ids, rows, word, self.areas):
            found_text = f"{absurd} in column {self.id_column!r}"
            problems.append(Problem(name, found_text, _IDS_OF_AREAS))
            return None
        if self.spelling.loose:
            ids = paired(ids, set(self.areas[AREA_ID]))
        same = _two_names(names, ids, rows, word) if self.spelling.crosswalk is not None else []
        if same:
            file = Path(str(self.spelling.crosswalk)).name
            found_text = f"{file} has one area for two names of column {self.id_column!r}: "
            remedy = f"correct a line of {file}, or add the rows up"
            problems.append(Problem(name, found_text + name_first(same), remedy))
        else:
            remedy = self._remedy_of_two(noun, value, twice=bool(ids.duplicated().any()))
            other = _nameless_totals(ids, table, rows, f"{name} {word}", problems)
            check_ids(ids[other], rows[other], name, word, problems, remedy, self.id_column)
        period = "" if self.row_filter is None else self.row_filter[1]
        responses = ResponseColumn(
            table[value], ids, rows, value, noun, name, word, period, self.spelling
        )
        _check_match(responses, self.id_column, table, self.areas, problems, hint)
        return responses

    def _own_column(self, noun: str, value: str, problems: list[Problem]) -> ResponseColumn | None:
        """Return a column of the areas themselves."""
        areas, name = self.areas, f"{noun}s (column of the areas)"
        if not has_column(attribute_columns(areas), value, name, f"{noun}s.value", problems):
            return None
        rows = np.arange(1, len(areas) + 1)
        return ResponseColumn(
            areas[value], areas[AREA_ID], rows, value, noun, name, "feature",
            spelling=self.spelling,
        )  # fmt: skip

    def _whole(self, name: str) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the table, of all periods, and the numbers of its rows."""
        assert self.path is not None
        layout = self.spelling.layout
        return read_table(self.path, name, sheet=self.sheet, layer=self.layer, **layout)

    def _rows(self, key: str, problems: list[Problem]) -> tuple[pd.DataFrame, np.ndarray] | None:
        """Return the rows of the period, and their numbers; None where they cannot be told."""
        name = f"{key} ({self.path})"
        try:
            whole, rows = self._whole(name)
        except InputError as error:
            problems.extend(error.problems)
            return None
        of_table = (str(self.path), self.sheet, self.layer, *self.spelling.layout.values())
        looked_at = [self.id_column, *(self.row_filter or ())[:1]]
        merged = once(("merged", *of_table, *looked_at), lambda: _merged(whole, looked_at))
        if merged:
            remedy = "unmerge them, and fill each cell with what the first one has"
            problem = Problem(name, merged, remedy)
            problems.extend([problem] if problem not in problems else [])
            return None
        if self.row_filter is None:
            return whole, rows
        column, period = self.row_filter
        if not has_column(whole.columns, column, name, f"{key}.period", problems):
            return None
        word, dayfirst = TABLES.of(str(self.path)).row_word, self.spelling.dayfirst
        rows_of, wrong = once(
            ("periods", name, *of_table, column),
            lambda: _rows_by_period(whole[column], rows, name, word, dayfirst),
        )
        problems.extend(wrong)
        keep = rows_of.get(period)
        if keep is None:
            if not wrong:
                known = name_first(sorted(rows_of), 12)
                remedy = f"give a period that it has: {known}"
                problems.append(Problem(name, f"no row is of period {period!r}", remedy))
            return None
        return whole.iloc[keep].reset_index(drop=True), rows[keep]

    def _remedy_of_two(self, noun: str, value: str, *, twice: bool) -> str:
        """Return what to do about two responses of an area."""
        remedy = "keep one of each" + (", or add them up" if noun == "count" else "")
        if self.row_filter is not None:
            remedy = f"{self.row_filter[1]} has two {noun}s of an area: keep the later ones"
            remedy += ", or add up parts" if noun == "count" else ""
        if noun == "count" and twice:
            whole, _ = self._whole("")
            period = self.row_filter and self.row_filter[0]
            remedy += by_period(whole, id_text(whole[self.id_column]), value, period)
        return remedy


def _rows_by_period(
    values: pd.Series, rows: np.ndarray, name: str, word: str, dayfirst: bool | None
) -> tuple[dict[str, np.ndarray], list[Problem]]:
    """Return the places of the rows of each period, and the problems of all rows."""
    problems: list[Problem] = []
    texts = column_periods(values, rows, name, word, dayfirst, problems)
    return {str(text): at for text, at in texts.groupby(texts).indices.items()}, problems


def translated(
    names: pd.Series,
    table: pd.DataFrame,
    spelling: Spelling,
    known: set[str],
    key: str,
    name: str,
    problems: list[Problem],
) -> tuple[pd.Series, np.ndarray, str]:
    """Return the ids that a crosswalk gives the names of a table, the rows to look at, and a hint.

    Parameters
    ----------
    names : (n_row,) Series
        Of :func:`geo.core.columns.id_text`; the ids where there is no crosswalk.
    table : DataFrame
    spelling : Spelling
    known : set of str
        Ids of the areas.
    key, name : str
        Section of the configuration and name of the table, for messages.
    problems : list of Problem
        Appended to.

    Notes
    -----
    A row whose line of the crosswalk has a problem is not looked at: it would be another problem.
    """
    every = np.ones(len(names), bool)
    if spelling.crosswalk is None:
        return names, every, ""
    crosswalk = read_crosswalk(spelling.crosswalk, f"{key}.crosswalk", known, problems)
    parents = None
    if spelling.parent is not None and has_column(
        table.columns, spelling.parent, name, f"{key}.parent", problems
    ):
        parents = id_text(table[spelling.parent])
    if crosswalk is None:
        return names, every, ""
    ids, hint = crosswalk.of(names, parents), ""
    unknown = set(ids.dropna()) - known
    if spelling.parent is None and crosswalk.wants_parents(unknown):
        file = Path(spelling.crosswalk).name
        hint = f"{file} has names by their parent: set {key}.parent to the column that has these"
    return ids, ~crosswalk.is_broken(names, parents), hint


def _two_names(names: pd.Series, ids: pd.Series, rows: np.ndarray, word: str) -> list[str]:
    """Return the areas that have several names in a table, with these."""
    at: dict[str, dict[str, str]] = {}
    for name, text, row in zip(names, ids, rows, strict=True):
        if text is not None:
            at.setdefault(text, {}).setdefault(name, f"{name} ({word} {row})")
    return [f"{' and '.join(each.values())} are {k}" for k, each in at.items() if len(each) > 1]


def title_above(
    path: str | Path, columns: tuple[str, str], sheet: str | None, layout: dict[str, Any]
) -> str:
    """Return the remedy that the names stand below the first row, "" if they do not."""
    if layout["skip_rows"] or layout["wide"]:
        return ""
    for skip, table in below_rows(path, sheet=sheet, **layout):
        if set(columns) <= set(map(str, table.columns)):
            return f"set skip_rows: {skip}, for the names stand below"
    return ""


def below_rows(path: str | Path, **layout: Any) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield a table as it is below its first row, its first two, and so on, where it is one."""
    for skip in range(1, MOST_SKIPPED + 1):
        with suppress(InputError):
            table, _ = read_table(path, "", **{**layout, "skip_rows": skip})
            yield skip, table


def _merged(table: pd.DataFrame, columns: list[str]) -> str:
    """Say which cells of some columns are merged with others; "" if none are."""
    for column in columns:
        cells = table[column] if column in table and list(table.columns).count(column) == 1 else ()
        texts = dict.fromkeys(c for c in cells if isinstance(c, str) and c.startswith(MERGED))
        if texts:
            each = [text.removeprefix(MERGED) for text in texts]
            return f"column {column!r} has merged cells: {name_first(each)}"
    return ""


def _absurd(ids: pd.Series, rows: np.ndarray, word: str, areas: gpd.GeoDataFrame) -> str:
    """Say what is wrong with ids that nobody can mean, before each is looked at; "" if nothing."""
    length = ids.str.len()
    if length.max() > MOST_CHARACTERS:
        at = int(np.flatnonzero(length > MOST_CHARACTERS)[0])
        return f"{word} {rows[at]} has an id of {int(length[at]):,} characters"
    unknown = ids.notna() & ~ids.isin(set(areas[AREA_ID]))
    if unknown.sum() <= MOST_UNKNOWN:
        return ""
    at = int(np.flatnonzero(unknown)[0])
    first = f"{ids[at]} ({word} {rows[at]})"
    return f"{int(unknown.sum()):,} ids match none of {len(areas):,} areas, such as {first},"


def _totals(given: ResponseColumn, known: set[str]) -> tuple[list[str], str]:
    """Return the ids of rows, of no area, that are a total by their name or their value.

    And by how much one that is called a total differs from the sum of the areas' rows.
    """
    numbers = np.array([given.spelling.number_or_nan(value) for value in given.values])
    is_area = given.ids.isin(known).to_numpy()
    total = float(np.nansum(numbers[is_area]))
    sums = [
        text
        for text, number, inside in zip(given.ids, numbers, is_area, strict=True)
        if text is not None
        and not inside
        and (TOTAL.fullmatch(text.strip()) or (number == total > 0 and is_area.sum() > 1))
    ]
    hidden = any(
        math.isnan(number) and not is_missing(value)  # such as <5
        for number, value in zip(numbers[is_area], given.values[is_area], strict=True)
    )
    off = numbers[given.ids.isin(sums)] - total
    if given.period or hidden or len(off) != 1 or np.isclose(off[0] + total, total):
        return sums, ""
    more = "more" if off[0] > 0 else "less"
    return sums, f", {abs(off[0]):,.6g} {more} than these add up to"


def _nameless_totals(
    ids: pd.Series, table: pd.DataFrame, rows: np.ndarray, place: str, problems: list[Problem]
) -> np.ndarray:
    """Append the problem of totals without an id, by another column; return the other rows."""
    other, which = np.ones(len(ids), bool), dict[str, list[str]]()
    for at in np.flatnonzero(ids.isna().to_numpy()):
        cells = zip(map(str, table.columns), table.iloc[at], strict=True)
        said = ((column, cell.strip()) for column, cell in cells if isinstance(cell, str))
        for column, text in said:
            if TOTAL.fullmatch(text):
                what = f"is a total (its column {column!r} says {text})"
                which.setdefault(what, []).append(str(rows[at]))
                other[at] = False
                break
    problems += [of_rows(place, each, what, "remove it") for what, each in which.items()]
    return other


def _check_match(
    given_by: ResponseColumn,
    id_column: str,
    table: pd.DataFrame,
    areas: gpd.GeoDataFrame,
    problems: list[Problem],
    hint: str,
) -> None:
    """Append a problem for responses without an area, with the pairing that they may mean.

    A hint comes before any other remedy.
    """
    ids, name, noun = given_by.ids, given_by.name, given_by.noun
    known, given = set(areas[AREA_ID]), set(ids.dropna())
    elsewhen: Mapping[str, str] = areas.attrs.get(ELSEWHEN, {})
    extra, untimely = [], []
    for value, row, text in given_by.cells():
        if text is None or text in known:
            continue
        # A wide table has a cell of every area and period.
        if is_missing(value) and (text in elsewhen or given_by.spelling.wide):
            continue
        extra.append((text, int(row), given_by.period))
        if text in elsewhen:
            untimely.append(text)
    if not extra:
        return

    def told(words: tuple[str, str], remedy: str, **more: Mapping[str, str]) -> None:
        problem = unmatched([name], remedy, extra, words, noun, given_by.word, **more)
        problems.append(problem)

    if len(untimely) == len(extra):
        remedy = "correct areas.changes, where an area that a change leaves in place has a row "
        remedy += "from itself to itself; or the ids"
        after = {text: f", which {elsewhen[text]}" for text in untimely}
        told((f"no area of {{period}} in column {id_column!r}: ", ""), remedy, after=after)
        return
    words = f"{{n}} {noun}(s) match no area: ", f" in column {id_column!r}"
    remedy = "correct the ids or drop the rows"
    sums, off = _totals(given_by, known)
    if len(sums) == len(extra):
        told((words[0], f"{words[1]}: a total of other rows{off}"), "remove the row")
        return
    walk = given_by.spelling.crosswalk
    remedy += ", or let `disagg check --fix` propose "
    remedy += "a crosswalk of names" if walk is None else f"lines for {Path(walk).name}"
    if given_by.period and ELSEWHEN not in areas.attrs:
        remedy += "; or, where an area was split or merged with time, list it in areas.changes"
    proposed = hint or pairing(given, known, id_column, table, areas, f"{noun}s")
    if proposed:
        told(words, f"{proposed}, or {remedy}")
    else:
        told(words, remedy, near=guesses([text for text, _, _ in extra], areas, given))
