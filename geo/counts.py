"""Counts of areas: read from a table, and every reason why they cannot be used said at once."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.errors import Problem, name_first

#: What people write where there is no number.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "--", ".", "#n/a"})
#: Other ways to write the labels 1 and 0.
LABELS = {"1": 1.0, "yes": 1.0, "y": 1.0, "true": 1.0, "t": 1.0, "positive": 1.0, "present": 1.0,
          "0": 0.0, "no": 0.0, "n": 0.0, "false": 0.0, "f": 0.0, "negative": 0.0,
          "absent": 0.0}  # fmt: skip
_WHOLE = re.compile(r"^[+-]?\d+\.0+$")


def read_counts(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    place: str = "counts",
    *,
    partial: bool = False,
    only: tuple[str, str] | None = None,
    signed: bool = False,
) -> pd.Series | None:
    """Read the count of each area, and check that counts and areas belong together.

    Ids are compared as text, however they were stored: 7, "7", " 7 " and "7.0" are the
    same, "07" is not.

    Parameters
    ----------
    path : str, Path or None
        CSV (comma, semicolon or tab) or Parquet file; None for a column of the areas.
    areas : GeoDataFrame
        What :func:`geo.boundary.read_areas` returned.
    id_column, value_column : str
        Columns of the table.
    problems : list of Problem
        What is wrong is appended: no such file or column, counts that are negative,
        missing or no numbers (with their rows; the header of a CSV is row 1), ids that
        come twice, counts that match no area, areas without a count.
    place : str
        Configuration key, to name in a problem.
    partial : bool, optional
        Return the counts that are sound also where others are not, NaN in their place, so that
        what depends on them can be checked in the same run; not to be used otherwise.
    only : (column, text), optional
        Rows of a table whose column says this alone, of a table of several periods.
    signed : bool, optional
        Take negative numbers too: values of the areas that are no counts.

    Returns
    -------
    Series or None
        Counts, float64, indexed by id in the order of the areas; None where a problem was
        found.
    """
    return _read_responses(
        path, areas, id_column, value_column, problems, place, "count",
        functools.partial(_numbers, signed=signed), partial=partial, only=only,
    )  # fmt: skip


def read_labels(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    place: str = "labels",
    *,
    partial: bool = False,
) -> pd.Series | None:
    """Read the label of each area, 1 or 0 (or yes or no, true or false, positive or negative).

    Parameters, returns and problems are those of :func:`read_counts`; besides, all areas with the
    same label are a problem: nothing can be learnt from them.
    """
    n_before = len(problems)
    labels = _read_responses(
        path, areas, id_column, value_column, problems, place, "label", _labels, partial=partial
    )
    if labels is not None and len(problems) == n_before and labels.nunique() == 1:
        name = f"{place} ({path})" if path else f"{place} (column of the areas)"
        found = f"column {value_column!r} is {labels.iloc[0]:g} for every area"
        problems.append(Problem(name, found, "give labels of both kinds, 1 and 0"))
        return labels if partial else None
    return labels


_Parse = Callable[[pd.Series, pd.Series, np.ndarray, str, str, list[Problem]], np.ndarray]


def _read_responses(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    place: str,
    noun: str,
    parse: _Parse,
    *,
    partial: bool,
    only: tuple[str, str] | None = None,
) -> pd.Series | None:
    n_before = len(problems)
    if path is None:
        name, word = f"{place} (column of the areas)", "feature"
        table = pd.DataFrame(areas.drop(columns=[areas.geometry.name]))
        rows = np.arange(1, len(table) + 1)
        ids = areas["id"]
        if not has_column(table.columns, value_column, name, f"{place}.value", problems):
            return None
    else:
        name, word = f"{place} ({path})", "row"
        read = _read_table(path, name, problems)
        if read is None:
            return None
        table, rows = read
        if only is not None:
            if not has_column(table.columns, only[0], name, f"{place}.period", problems):
                return None
            texts = id_text(table[only[0]])
            mine = (texts == only[1]).to_numpy()
            if not mine.any():
                known = name_first(sorted(set(texts.dropna())), 12)
                remedy = f"give a period that it has: {known}"
                problems.append(Problem(name, f"no row is of period {only[1]!r}", remedy))
                return None
            table, rows = table[mine].reset_index(drop=True), rows[mine]
        found = [
            has_column(table.columns, column, name, f"{place}.{key}", problems)
            for key, column in (("id", id_column), ("value", value_column))
        ]
        if not all(found):
            return None
        ids = id_text(table[id_column])
        check_ids(ids, rows, name, word, problems)
        _check_match(ids, areas["id"], rows, name, noun, problems)
    values = parse(table[value_column], ids, rows, f"{name} {word}", value_column, problems)
    if len(problems) > n_before and not partial:
        return None
    counts = pd.Series(values, index=ids.to_numpy(), name=value_column, dtype=np.float64)
    counts = counts[(ids.notna() & ~ids.duplicated(keep=False)).to_numpy()]
    return counts.reindex(areas["id"].to_numpy()).rename_axis("id")


def column_texts(path: str | Path, column: str) -> list[str]:
    """Return the texts in a table's column; none where the table or the column is not there."""
    read = _read_table(path, "", [])
    if read is None or column not in read[0].columns:
        return []
    return list(id_text(read[0][column]).dropna())


def id_text(values: Iterable[Any]) -> pd.Series:
    """Return ids as text, None where missing: 7, 7.0, "7" and "7.0 " all are "7"."""

    def text(value: Any) -> str | None:
        if value is None or value is pd.NA or value is pd.NaT:
            return None
        if isinstance(value, float | np.floating):
            if np.isnan(value):
                return None
            return str(int(value)) if float(value).is_integer() else repr(float(value))
        stripped = str(value).strip()
        if _WHOLE.match(stripped):
            stripped = stripped.split(".")[0]
        return stripped or None

    return pd.Series([text(value) for value in values], dtype=object)


def check_ids(
    ids: pd.Series, rows: np.ndarray, name: str, word: str, problems: list[Problem]
) -> None:
    """Append a problem where ids are missing, and one where they come twice."""
    missing = ids.isna().to_numpy()
    if missing.any():
        found = f"no id in {word} {name_first(list(rows[missing]))}"
        problems.append(Problem(name, found, "give each its id"))
    repeated = ids.duplicated(keep=False).to_numpy() & ~missing
    if repeated.any():
        where: dict[str, list[str]] = {}
        for text, row in zip(ids[repeated], rows[repeated], strict=True):
            where.setdefault(text, []).append(str(row))
        which = [f"{text} ({word} {' and '.join(at[:4])})" for text, at in where.items()]
        found = f"{len(which)} id(s) come more than once: {name_first(which)}"
        problems.append(Problem(name, found, "keep one of each, or add them up"))


def has_column(
    columns: Iterable[Any], column: str, name: str, key: str, problems: list[Problem]
) -> bool:
    """Return whether a column is there; append a problem with the nearest name if not."""
    names = [str(found) for found in columns]
    if column in names:
        return True
    found = f"has no column {column!r}, asked for by {key}"
    problems.append(Problem(name, found, choose(column, names, "column")))
    return False


def choose(asked: str, names: Sequence[str], word: str) -> str:
    """Return a remedy: the nearest name there is, and the others."""
    near = difflib.get_close_matches(asked.lower(), [name.lower() for name in names], 1, 0.5)
    nearest = next((name for name in names if near and name.lower() == near[0]), None)
    others = f"the {word}s are {name_first(names, 12)}" if names else f"it has no {word}s"
    return f"did you mean {nearest!r}? {others}" if nearest else f"choose another: {others}"


def is_local(path: str | Path) -> bool:
    """Return whether a path is a file of this machine, not an address."""
    return "://" not in str(path) and not str(path).startswith("/vsi")


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_match(
    ids: pd.Series,
    area_ids: pd.Series,
    rows: np.ndarray,
    name: str,
    noun: str,
    problems: list[Problem],
) -> None:
    known, given = set(area_ids), set(ids.dropna())
    extra = [
        f"{text} (row {row})"
        for text, row in zip(ids, rows, strict=True)
        if text is not None and text not in known
    ]
    absent = [text for text in area_ids if text not in given]
    hint = ""
    if {text.lstrip("0") for text in known} & {text.lstrip("0") for text in given - known}:
        hint = "; some ids differ only in leading zeros, which spreadsheets drop: format as text"
    elif {text.lower() for text in known} & {text.lower() for text in given - known}:
        hint = "; some ids differ only in capitals"
    if extra:
        found = f"{len(extra)} {noun}(s) match no area: {name_first(extra)}"
        problems.append(Problem(name, found, f"correct the ids or drop the rows{hint}"))
    if absent:
        found = f"{len(absent)} of {len(area_ids)} areas have no {noun}: {name_first(absent)}"
        where = " (0 where there were no cases)" if noun == "count" else ""
        remedy = f"add their {noun}s{where} or drop the areas"
        problems.append(Problem(name, found, remedy + hint))


def _numbers(
    column: pd.Series,
    ids: pd.Series,
    rows: np.ndarray,
    name: str,
    value_column: str,
    problems: list[Problem],
    *,
    signed: bool,
) -> np.ndarray:
    """Return a column as numbers; append a problem for each kind of value that is none."""
    values = np.full(len(column), np.nan)
    missing, text, infinite, negative = [], [], [], []
    for place, (value, row, area) in enumerate(zip(column, rows, ids, strict=True)):
        label = f"{row} (id {area})"
        if value is None or value is pd.NA or str(value).strip().lower() in MISSING:
            missing.append(label)
            continue
        try:
            # float() would take "1_000", which nobody means to write.
            number = float("_" if "_" in str(value) else str(value).strip())
        except ValueError:
            text.append(f"{row} (id {area}: {str(value).strip()!r})")
            continue
        if not np.isfinite(number):
            infinite.append(f"{row} (id {area}: {number})")
        elif number < 0 and not signed:
            negative.append(f"{row} (id {area}: {number:g})")
        values[place] = number
    for which, what, remedy in (
        (missing, "is missing", "give a number (0 where there were no cases) or drop the area"),
        (text, "is no number", "write plain numbers such as 1234.5, without separators or words"),
        (infinite, "is not finite", "give a finite number"),
        (negative, "is negative", "give counts of 0 or more"),
    ):
        if which:
            n = len(which)
            count = f"column {value_column!r} {what}" + (f" in {n} rows" if n > 1 else "")
            problems.append(Problem(f"{name} {name_first(which)}", count, remedy))
    return values


def _labels(
    column: pd.Series,
    ids: pd.Series,
    rows: np.ndarray,
    name: str,
    value_column: str,
    problems: list[Problem],
) -> np.ndarray:
    """Return a column as 1 and 0; append a problem for what is missing and what is neither."""
    values = np.full(len(column), np.nan)
    missing, other = [], []
    for place, (value, row, area) in enumerate(zip(column, rows, ids, strict=True)):
        text = "" if value is None or value is pd.NA else str(value).strip().lower()
        if _WHOLE.match(text):
            text = text.split(".")[0]
        if text in LABELS:
            values[place] = LABELS[text]
        elif text in MISSING:
            missing.append(f"{row} (id {area})")
        else:
            other.append(f"{row} (id {area}: {str(value).strip()!r})")
    for which, what, remedy in (
        (missing, "is missing", "give 1 or 0, or drop the area"),
        (other, "is no label", "write 1 or 0 (or yes or no, true or false)"),
    ):
        if which:
            n = len(which)
            found = f"column {value_column!r} {what}" + (f" in {n} rows" if n > 1 else "")
            problems.append(Problem(f"{name} {name_first(which)}", found, remedy))
    return values


def _read_table(
    path: str | Path, name: str, problems: list[Problem]
) -> tuple[pd.DataFrame, np.ndarray] | None:
    """Return a table and the number of each of its rows, as a spreadsheet would show it."""
    if is_local(path) and not Path(path).is_file():
        found = "is a directory" if Path(path).is_dir() else "no such file"
        problems.append(Problem(name, found, "correct the path"))
        return None
    remedy = "give a CSV or Parquet file with a header"
    try:
        if str(path).lower().endswith((".parquet", ".pq")):
            table = pd.read_parquet(path)
            rows = np.arange(1, len(table) + 1)
        else:
            table = _read_csv(path)
            # Blank lines are no data, but they count where rows are numbered.
            blank = table.isna().all(axis=1) | (table == "").all(axis=1)
            rows = np.flatnonzero(~blank.to_numpy()) + 2
            table = table[~blank]
    except UnicodeDecodeError as error:
        problems.append(Problem(name, f"is not UTF-8 text ({error.reason})", "save it as UTF-8"))
        return None
    except (ValueError, OSError) as error:  # pandas' and Arrow's own errors are ValueErrors
        found = f"cannot be read as a table ({one_line(error)})"
        problems.append(Problem(name, found, remedy))
        return None
    if len(table) == 0:
        problems.append(Problem(name, "holds no rows", remedy))
        return None
    return table.reset_index(drop=True), rows


def _read_csv(path: str | Path) -> pd.DataFrame:
    """Read every cell as text: what was written is what is checked and reported."""
    options: dict[str, Any] = {
        "dtype": str,
        "keep_default_na": False,
        "skip_blank_lines": False,
        "encoding": "utf-8-sig",
        "index_col": False,
    }
    header = pd.read_csv(path, nrows=0, **options).columns
    first = str(header[0]) if len(header) else ""
    separator = max(",;\t", key=lambda mark: first.count(mark)) if len(header) == 1 else ","
    table = pd.read_csv(path, sep=separator, **options)
    return table.rename(columns=lambda column: str(column).strip())
