"""What the columns of tables are: ids of areas, counts, people, dates, and the step of periods."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import pandas as pd

from geo.core.calendar import STEPS, WEEKDAYS, Calendar
from geo.core.columns import LABELS, attribute_columns, folded, id_text, is_missing
from geo.core.period_text import read_periods
from geo.core.spelling import USUAL
from geo.core.suppressed import Suppression
from geo.tables.id_proposals import PERIOD_NAME
from pipeline.inspection.folder import Boundary

SHARE = 0.5  # of a table's ids that are those of areas
N_CELL = 5_000  # rows that tell what a column has
MOSTLY = 0.8  # of the cells of a column of numbers: some say `<5`
CASES = re.compile(
    r"case|(?<![a-z])cas(?![a-z])|casos?|count|confirm|positi[vf]|deaths?|deces|obitos?|"
    r"muertes?|fallecid|incid|malaria|cholera|dengue"
)
TESTED = re.compile(
    r"tested|testad[oa]s|testes|examin|depist|(?<![a-z])tests?(?![a-z])|denominator"
)
PEOPLE = re.compile(
    r"(?<![a-z])(pop(ulation|ulacao)?|poblacion|people|persons?|inhabitants|habitants|ppp|worldpop)(?![a-z])|population"
)
CODE = re.compile(r"(?<![a-z])(id|code|pcode|uid|key|iso|gid)(?![a-z])")
_FORM = re.compile(r"(19|20)\d\d(-?(0[1-9]|1[0-2])(-?[0-3]\d)?|-?[Ww]\d\d?|-?[Qq][1-4])?")
_SUPPRESSED = Suppression()


@dataclass(frozen=True)
class Pairing:
    """Which column of a table has the ids of which of the boundaries.

    Attributes
    ----------
    table_id, area_id : str
        Columns.
    share : float
        Of the ids that are those of areas.
    loose : bool
        Whether this is so but for their spelling.
    once : bool
        Whether they tell the rows apart: each id has one row, or one of each period.
    """

    table_id: str
    area_id: str
    share: float
    loose: bool
    once: bool = True


def pairing_of(table: pd.DataFrame, areas: Boundary) -> Pairing | None:
    """Return the columns of a table and of boundaries that have the same ids; None if none do."""
    found = pairings_of(table, areas)
    return found[0] if found else None


def pairings_of(table: pd.DataFrame, areas: Boundary) -> list[Pairing]:
    """Return all columns of a table and of boundaries that have the same ids, the best first.

    Ids tell rows apart. A column of few numbers may have but ids among these, and says nothing of
    which area a row is of.
    """
    found: list[tuple[tuple[float, ...], Pairing]] = []
    dates: list[pd.Series] | None = None
    own = {c: id_text(areas.frame[c]) for c in attribute_columns(areas.frame)}
    unique = {c: set(t) for c, t in own.items() if t.notna().all() and t.is_unique}
    for column in map(str, table.columns):
        texts = set(id_text(table[column].head(100 * N_CELL)).dropna())
        for area_column, known in unique.items():
            if not texts or (_counting(texts) and folded(column) != folded(area_column)):
                continue
            share = len(texts & known) / len(texts)
            loose = share < SHARE
            if loose:
                by_fold = {folded(text) for text in known}
                share = sum(folded(text) in by_fold for text in texts) / len(texts)
            if share >= SHARE:
                same, code = (
                    folded(column) == folded(area_column),
                    CODE.search(area_column.lower()),
                )
                if dates is None:
                    dates = [id_text(table[c]) for c in map(str, table.columns)
                             if has_dates(table[c])]  # fmt: skip
                once = _tells_apart(id_text(table[column]), dates)
                few = len(texts & known) < SHARE * len(known)
                if few and not once and all(map(str.isdigit, texts)):  # 1 in every row: no ids
                    continue
                order = (once, not loose, round(share, 2), bool(code), same)
                found.append((order, Pairing(column, area_column, share, loose, once)))
    return [each for _, each in sorted(found, key=lambda each: each[0], reverse=True)]


def _tells_apart(ids: pd.Series, dates: Sequence[pd.Series]) -> bool:
    """Return whether ids tell most rows apart, alone or together with a column of dates."""
    known = ids.notna()
    given = [[ids], *([ids, each] for each in dates)]
    repeated = (pd.concat(each, axis=1)[known].duplicated().mean() for each in given)
    return bool(known.any()) and min(repeated) < 1 - SHARE


def _counting(texts: set[str]) -> bool:
    """Return whether ids may only count rows."""
    numbers = [int(text) for text in texts if text.isdigit()]
    return len(numbers) == len(texts) > (max(numbers) - min(numbers)) / 2


def count_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns that may be counts, without ids, dates and people.

    Numbers have to be whole, unless the name says cases: modelled counts have decimals.
    """
    found = []
    for name in map(str, table.columns):
        plain = name.lower()
        other = PEOPLE.search(plain) or CODE.search(plain.replace("_", " "))
        if other or has_dates(table[name]):
            continue
        numbers = numbers_of(table[name])
        if is_whole(numbers) or (CASES.search(plain) and numbers.size and numbers.min() >= 0):
            found.append(name)
    return found


def label_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns whose cells are words for labels alone, such as yes and no."""
    return [name for name in map(str, table.columns) if _has_words(table[name])]


def _has_words(column: pd.Series) -> bool:
    given = column.head(N_CELL)
    words = {str(each).strip().lower() for each in given if not is_missing(each)}
    both = len({LABELS[word] for word in words if word in LABELS}) == 2
    return both and words <= set(LABELS) and not words <= {"0", "1"}


def numbers_of(column: pd.Series) -> np.ndarray:
    """Return the numbers of a column; empty if many cells have other texts, such as names.

    A suppressed count such as ``<5`` is its upper end. 1.490 is 1490 where other cells have no
    point: the check asks which it is.
    """
    given = [each for each in column.head(N_CELL) if not is_missing(each)]
    # 1-4 may be years of age.
    within = [
        _SUPPRESSED.interval(each) if str(each).strip()[0] in "<≤" else None for each in given
    ]
    texts = [
        each.strip()
        for each, ends in zip(given, within, strict=True)
        if isinstance(each, str) and ends is None
    ]
    spelling = USUAL.detected(texts)
    if spelling is USUAL and any(map(str.isdigit, texts)) and any("." in t for t in texts):
        whole = replace(USUAL, thousands=".")
        if not any(math.isnan(whole.number_or_nan(text)) for text in texts):
            spelling = whole
    numbers = np.array(
        [
            spelling.number_or_nan(each) if ends is None else ends[1]
            for each, ends in zip(given, within, strict=True)
        ],
        np.float64,
    )
    known: np.ndarray = numbers[~np.isnan(numbers)]
    return known if known.size >= MOSTLY * numbers.size else np.empty(0)


def is_whole(numbers: np.ndarray) -> bool:
    """Return whether there are numbers, all of them whole and none below 0."""
    return bool(numbers.size and (numbers >= 0).all() and (numbers % 1 == 0).all())


def has_dates(column: pd.Series) -> bool:
    """Return whether a column has dates; bare numbers are, if its name says so."""
    texts = id_text(column.head(N_CELL)).dropna()
    read, refused = read_periods(texts.unique())
    if not len(texts) or refused or not all(_FORM.fullmatch(str(text)) for text in read):
        return False
    return PERIOD_NAME.fullmatch(str(column.name)) is not None or not all(
        str(text).isdigit() for text in texts
    )


def is_period_name(name: str) -> bool:
    """Return whether the name of a column is a date."""
    (read,), _ = read_periods([name])
    return read is not None and _FORM.fullmatch(read) is not None


def step_of(texts: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the step of periods, and the weekday that a week of dates begins on."""
    read = [text for text in read_periods(texts)[0] if text is not None]
    days = [n for text in read if (n := Calendar("day").number(text)) is not None]
    if not days:
        fit = [s for s in STEPS[1:] if all(Calendar(s).number(text) is not None for text in read)]
        return (fit[0] if read and fit else None), None
    if len(days) < len(read):
        return None, None
    each = [date.fromordinal(day) for day in days]
    if len({day.day for day in each}) == 1 and each[0].day == 1:
        return "month", None
    if len(days) > 1 and not any((day - days[0]) % 7 for day in days):
        return "week", WEEKDAYS[each[0].weekday()]
    return "day", None
