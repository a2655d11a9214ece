"""Tables of CHAP: a row for each time period and location, on a complete grid.

Columns: a leading index without a name, ``time_period`` (YYYY-MM, or YYYY-Wnn of ISO weeks),
``location``, ``disease_cases`` (may be empty; absent of the future), ``population``, covariates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from geo.core.errors import InputError, Problem, name_first, one_line

CASES, PEOPLE, TIME, PLACE = "disease_cases", "population", "time_period", "location"
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_WEEK = re.compile(r"(\d{4})-W(\d{2})")


@dataclass(frozen=True)
class Table:
    """Counts, people and covariates by period and location.

    Attributes
    ----------
    step : str
        ``month`` or ``week``.
    names : list of str
        Of the periods, in order of time.
    times : (n_period,) int64
        Months or weeks since the year 0, without gaps.
    locations : list of str
    cases : (n_period, n_location) float64
        NaN where not known.
    people : (n_period, n_location) float64
        NaN where not given.
    covariates : dict of str to (n_period, n_location) float64
    """

    step: str
    names: list[str]
    times: np.ndarray
    locations: list[str]
    cases: np.ndarray
    people: np.ndarray
    covariates: dict[str, np.ndarray]


def read_table(path: Path, *, future: bool = False) -> Table:
    """Read a table.

    Parameters
    ----------
    path : Path
    future : bool
        Whether the counts are unknown, and the population may be absent.

    Raises
    ------
    InputError
        If it cannot be read, a column or a row is missing, or a value is no number.
    """
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(Problem(str(path), "does not exist", "give a CSV table")) from None
    except (OSError, ValueError) as error:
        remedy = "give a CSV table with a head, in UTF-8"
        raise InputError(Problem(str(path), f"is not read: {one_line(error)}", remedy)) from error
    needed = [TIME, PLACE] if future else [TIME, PLACE, CASES, PEOPLE]
    absent = [name for name in needed if name not in rows.columns]
    if absent or rows.empty:
        found = f"has no column {name_first(absent)}" if absent else "has no rows"
        raise InputError(Problem(str(path), found, f"give rows with {', '.join(needed)}"))
    step, time = _times(path, rows[TIME])
    names = dict(zip(time.tolist(), rows[TIME], strict=True))
    times = np.arange(time.min(), time.max() + 1)
    locations = sorted(set(rows[PLACE]))
    _check_grid(path, rows, time, times, locations)
    row = time - times[0]
    column = np.array([{name: k for k, name in enumerate(locations)}[name] for name in rows[PLACE]])

    def grid(name: str, *, empty: bool) -> np.ndarray:
        values = np.full((times.size, len(locations)), np.nan)
        if name in rows.columns:
            values[row, column] = _numbers(path, rows, name, empty=empty)
        return values

    people = grid(PEOPLE, empty=False)
    _refuse(path, rows, PEOPLE, people[row, column] <= 0, "people are needed", "give more than 0")
    cases = grid(CASES, empty=True)
    _refuse(path, rows, CASES, cases[row, column] < 0, "a count below 0", "correct it")
    covariates = {name: grid(name, empty=False) for name in _covariate_names(rows)}
    ordered = [names[t] for t in times.tolist()]
    return Table(step, ordered, times, locations, cases, people, covariates)


def period_number(text: str) -> tuple[str, int] | None:
    """Return the step and the number of a period since the year 0; None where it is none."""
    if month := _MONTH.fullmatch(text):
        return "month", 12 * int(month[1]) + int(month[2]) - 1
    if week := _WEEK.fullmatch(text):
        try:
            return "week", date.fromisocalendar(int(week[1]), int(week[2]), 1).toordinal() // 7
        except ValueError:  # week 53 of a year that has 52
            return None
    return None


def _times(path: Path, texts: pd.Series) -> tuple[str, np.ndarray]:
    found = [period_number(text) for text in texts]
    steps = sorted({each[0] for each in found if each is not None})
    if None in found:
        number = found.index(None)
        place = f"{path} row {number + 2}: {TIME}"
        remedy = "write YYYY-MM, or YYYY-Wnn of an ISO week"
        raise InputError(Problem(place, f"{texts.iloc[number]!r} is no period", remedy))
    if len(steps) > 1:
        raise InputError(Problem(f"{path}: {TIME}", "has months and weeks", "give one of them"))
    return steps[0], np.array([each[1] for each in found if each is not None])


def _check_grid(
    path: Path, rows: pd.DataFrame, time: np.ndarray, times: np.ndarray, locations: list[str]
) -> None:
    keys = list(zip(time.tolist(), rows[PLACE], strict=True))
    if len(set(keys)) < len(keys):
        twice = int(np.argmax(rows.assign(**{TIME: time}).duplicated([TIME, PLACE]).to_numpy()))
        found = f"{rows[PLACE][twice]} in {rows[TIME][twice]} twice"
        raise InputError(Problem(f"{path} row {twice + 2}", found, "give each once"))
    if len(keys) < times.size * len(locations):
        known = set(keys)
        gaps = [
            f"{place} {time - times[0] + 1} of {times.size}"
            for time in times.tolist()
            for place in locations
            if (time, place) not in known
        ]
        found = f"no row for (location, period number) {name_first(gaps)}"
        remedy = "give a row for each location in each period; disease_cases may be empty"
        raise InputError(Problem(str(path), found, remedy))


def _numbers(path: Path, rows: pd.DataFrame, name: str, *, empty: bool) -> np.ndarray:
    """Return a column as numbers; NaN where it is empty and may be."""
    text = rows[name].str.strip()
    missing = text.str.lower().isin(["", "nan", "na"]).to_numpy()
    values = pd.to_numeric(text.mask(missing), errors="coerce").to_numpy(dtype=np.float64)
    bad = ~missing & ~np.isfinite(values)
    _refuse(path, rows, name, bad, "no number", "correct it")
    if not empty:
        _refuse(path, rows, name, missing, "empty", "give a number in each row")
    return values


def _refuse(
    path: Path, rows: pd.DataFrame, name: str, bad: np.ndarray, what: str, remedy: str
) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        found = f"{rows[name].iloc[first]!r} in {int(bad.sum())} of {bad.size} rows: {what}"
        raise InputError(Problem(f"{path} row {first + 2}: {name}", found, remedy))


def _covariate_names(rows: pd.DataFrame) -> list[str]:
    """Return the columns with numbers; those of words alone (names of places) are not."""
    found = []
    for name in rows.columns:
        if name in (TIME, PLACE, CASES, PEOPLE) or not name or name.startswith("Unnamed:"):
            continue
        text = rows[name].str.strip()
        if pd.to_numeric(text, errors="coerce").notna().any():
            found.append(name)
    return found
