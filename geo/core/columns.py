"""Columns and ids of tables: conversion to text, and checks."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import Problem, name_first
from geo.core.period_text import read_periods

#: Texts that stand for a missing number.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "--", ".", "..", "#n/a"})
#: Texts that stand for the labels 1 and 0.
LABELS = {"1": 1.0, "yes": 1.0, "y": 1.0, "true": 1.0, "t": 1.0, "positive": 1.0, "present": 1.0,
          "0": 0.0, "no": 0.0, "n": 0.0, "false": 0.0, "f": 0.0, "negative": 0.0,
          "absent": 0.0}  # fmt: skip
#: Column of :func:`geo.sources.boundary.read_areas` with the areas' ids as text. No file
#: has one of this name: a column ``id`` of the user stays what it is.
AREA_ID = "disagg:area_id"
#: Key of ``attrs`` of areas: what to say of ids that are areas at another time, by id.
ELSEWHEN = "disagg:elsewhen"
#: Columns that hold the names of areas, the most usual first; a column that ends so counts, too.
NAMES = ("name", "nom", "nombre", "nome", "label")
WHOLE = re.compile(r"^[+-]?\d+\.0+$")


def id_text(values: Iterable[Any]) -> pd.Series:
    """Return ids as text, None where missing; 7, 7.0, "7" and "7.0 " all become "7".

    Accented letters are single characters in the result (Unicode's form C).
    """

    def text(value: Any) -> str | None:
        if value is None or value is pd.NA or value is pd.NaT:
            return None
        if isinstance(value, float | np.floating):
            if np.isnan(value):
                return None
            return str(int(value)) if float(value).is_integer() else repr(float(value))
        # An accent may be a character of its own: both spellings look alike.
        stripped = unicodedata.normalize("NFC", str(value)).strip()
        if WHOLE.match(stripped):
            stripped = stripped.split(".")[0]
        return stripped or None

    return pd.Series([text(value) for value in values], dtype=object)


def same_but_for_spelling(given: set[str], known: set[str]) -> list[tuple[str, str]]:
    """Pair ids that differ only in capitals, accents, spaces, punctuation or leading zeros.

    An id that fits several is left out.
    """
    by_text: dict[str, list[str]] = {}
    for text in known:
        by_text.setdefault(folded(text), []).append(text)
    by_given: dict[str, list[str]] = {}
    for text in given:
        by_given.setdefault(folded(text), []).append(text)
    return sorted(
        (theirs[0], by_text[plain][0])
        for plain, theirs in by_given.items()
        if plain and len(theirs) == 1 and len(by_text.get(plain, [])) == 1
    )


def paired(ids: pd.Series, known: set[str]) -> pd.Series:
    """Return ids with those of `known` in place of the same in another spelling."""
    given = set(ids.dropna())
    return ids.replace(dict(same_but_for_spelling(given - known, known - given)))


def folded(text: str) -> str:
    """Return an id without capitals, accents, spaces, punctuation and leading zeros."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if c.isalnum() or c == "0")
    return re.sub(r"(?<!\d)0+(?=\d)", "", plain)


def attribute_columns(areas: Any) -> list[str]:
    """Return the columns of areas that their file has, the geometry left out."""
    return [name for name in areas.columns if name not in (AREA_ID, areas.geometry.name)]


def name_column(columns: Iterable[str]) -> str | None:
    """Return the column with the names of areas: ``name``, ``NAME_2``, ``district_nom``."""
    given = list(columns)
    for wanted in NAMES:
        for column in given:
            if column.lower() == wanted:
                return column
    for wanted in NAMES:
        for column in given:
            if column.lower().endswith(f"_{wanted}") or column.lower().startswith(f"{wanted}_"):
                return column
    return None


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty or one of :data:`MISSING`."""
    return value is None or value is pd.NA or str(value).strip().lower() in MISSING


def check_ids(
    ids: pd.Series,
    rows: np.ndarray,
    name: str,
    word: str,
    problems: list[Problem],
    remedy: str = "keep one of each, or add them up",
    column: str = "",
) -> None:
    """Append a problem if ids are missing, and one (with ``remedy``) if ids are repeated."""
    missing, where = ids.isna().to_numpy(), f" in column {column!r}" if column else ""
    if missing.any():
        found = f"no id in {word} {name_first(list(rows[missing]))}{where}"
        problems.append(Problem(name, found, f"give each an id, or drop the {word}s"))
    repeated = ids.duplicated(keep=False).to_numpy() & ~missing
    if repeated.any():
        at: dict[str, list[str]] = {}
        for text, row in zip(ids[repeated], rows[repeated], strict=True):
            at.setdefault(text, []).append(str(row))
        which = [f"{text} ({word} {' and '.join(each[:4])})" for text, each in at.items()]
        found = f"{len(which)} id(s) are repeated: {name_first(which)}{where}"
        problems.append(Problem(name, found, remedy))


def column_periods(
    values: pd.Series,
    rows: Sequence[int] | np.ndarray,
    name: str,
    word: str,
    dayfirst: bool | None,
    problems: list[Problem],
) -> pd.Series:
    """Return the periods of a column (:func:`geo.core.period_text.read_periods`).

    Append a problem for rows without one, and for each kind of texts that are none.
    """
    texts = id_text(values)
    empty = np.asarray(rows)[texts.isna().to_numpy()]
    if empty.size:
        remedy = f"give each a period, or drop the {word}s"
        found = f"column {values.name!r} is empty"
        problems.append(Problem(f"{name} {word} {name_first(list(empty))}", found, remedy))
    periods, refused = read_periods(texts, dayfirst)
    backwards = texts.tolist()[::-1], np.asarray(rows).tolist()[::-1]
    where = dict(zip(*backwards, strict=True))  # the first row of each
    kinds: dict[str, list[str]] = {}
    for text, (found, _) in refused.items():
        kinds.setdefault(found, []).append(text)
    for found, wrong in kinds.items():
        place = f"{name} {word} {name_first([f'{where[text]} ({text!r})' for text in wrong])}"
        problems.append(Problem(place, f"column {values.name!r} {found}", refused[wrong[0]][1]))
    return pd.Series(periods, dtype=object)


def has_column(
    columns: Iterable[Any], column: str, name: str, key: str, problems: list[Problem]
) -> bool:
    """Return whether a column exists, once; append a problem if not, with the nearest name."""
    names = [str(found) for found in columns]
    if names.count(column) > 1:
        found = f"has {names.count(column)} columns {column!r}, which {key} names"
        problems.append(Problem(name, found, "give each column a name of its own"))
        return False
    if column in names:
        return True
    found = f"has no column {column!r}, which {key} names"
    problems.append(Problem(name, found, suggest(column, names, "column")))
    return False


def suggest(requested: str, names: Sequence[str], word: str) -> str:
    """Return a remedy for an unknown name: the nearest known one, and the others."""
    near = difflib.get_close_matches(requested.lower(), [name.lower() for name in names], 1, 0.5)
    nearest = next((name for name in names if near and name.lower() == near[0]), None)
    others = f"the {word}s are {name_first(names, 12)}" if names else f"it has no {word}s"
    return f"did you mean {nearest!r}? {others}" if nearest else f"choose another: {others}"
