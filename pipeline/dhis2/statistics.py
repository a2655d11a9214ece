"""Statistics of areas in the tables of a run, as the values that DHIS2 gets."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path

from geo.core.calendar import STEPS, Calendar
from geo.core.errors import InputError, Problem
from pipeline.config.dhis2_schema import Push
from pipeline.config.schema import Config
from pipeline.config.suggestions import suggest_value
from pipeline.dhis2.period_codes import write_code
from pipeline.dhis2.values import Value
from pipeline.products.periods import period_folders

PERIODS_CSV, AREAS_CSV, LEVEL_CSV = "periods.csv", "areas.csv", "levels_training.csv"
#: Columns that are no statistics.
_TEXTS = ("id", "name", "period", "forecast", "in_training", "observed_why", "counted_in")

Rows = Mapping[str, Mapping[str, str]]  # of an area's id


def statistics(config: Config, push: Push) -> list[Value]:
    """Return the values of all areas that have them, for the elements of a configuration.

    A column is looked for in ``periods.csv`` (of a run with ``time``), then in ``areas.csv`` and in
    ``levels_training.csv`` of the period's map.

    Parameters
    ----------
    config : Config
        Of a finished run.
    push : Push

    Returns
    -------
    list of Value
        By period, area and element. Values are rounded to the element's decimals, halves away from
        0, from the digits of the table.

    Raises
    ------
    InputError
        If a column or a period is not there, or DHIS2 has no such periods.
    """
    out, found = config.output.dir, []
    of_period = _of_periods(out) if config.series is not None else {}
    folders = period_folders(config, out) or {config.period or "": out}
    for label, code in _codes(config, push, of_period).items():
        tables = [of_period[label]] if label in of_period else []
        folder = folders.get(label)
        if folder is not None:
            tables += [_of_areas(folder / AREAS_CSV), _of_areas(folder / LEVEL_CSV)]
        for name in push.elements:
            if not any(name in row for table in tables for row in table.values()):
                raise InputError(_no_column(name, label, tables, mapped=folder is not None))
        for unit in dict.fromkeys(unit for table in tables for unit in table):
            for name, to in push.elements.items():
                cells = (table[unit][name] for table in tables if name in table.get(unit, ()))
                decimals = push.decimals if to.decimals is None else to.decimals
                value = rounded(next(cells, ""), decimals)
                if value is not None:
                    combos = to.combo or "", push.attribute_combo or ""
                    found.append(Value(to.element, code, unit, value, *combos))
    return found


def rounded(text: str, decimals: int) -> str | None:
    """Return a number with so many decimals at most, halves away from 0; None where it is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    number = number.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    plain = format(number, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain == "-0" else plain


def _codes(config: Config, push: Push, of_period: Mapping[str, Rows]) -> dict[str, str]:
    """Return DHIS2's code of each period to send, by label."""
    if config.series is None:
        return {config.period or "": _code_of_map(config, push)}
    series, ahead = config.series, config.series.following(config.output.forecast)
    chosen = series.periods[-1:] if push.periods == "latest" else series.periods
    if not isinstance(push.periods, str):
        numbers = {text: series.calendar.number(text) for text in push.periods}
        chosen = tuple(t if n is None else series.calendar.label(n) for t, n in numbers.items())
    wanted = dict.fromkeys([*chosen, *(ahead if push.forecast else ())])
    missing = [label for label in wanted if label not in of_period]
    if missing:
        found, remedy = (
            f"{PERIODS_CSV} has no {missing[0]}",
            "give periods of the run, or run again",
        )
        raise InputError(Problem("dhis2.push.periods", found, remedy))
    return {label: _written(series.calendar, int(series.time_of(label))) for label in wanted}


def _code_of_map(config: Config, push: Push) -> str:
    """Return the code of the one period of a map, as its counts or the configuration say."""
    if push.period is not None:
        return push.period
    text = config.period or ""
    for step in STEPS:
        calendar = Calendar(step)
        number = calendar.number(text)
        if number is not None:
            return _written(calendar, number)
    found = f"{text!r} is no period of DHIS2" if text else "the counts have no period"
    raise InputError(Problem("dhis2.push.period", found, "give it, such as 202403 or 2024"))


def _written(calendar: Calendar, number: int) -> str:
    try:
        return write_code(calendar, number)
    except ValueError as error:
        remedy = "give another time.week, or the tables by hand"
        raise InputError(Problem("time.week", str(error), remedy)) from None


def _of_periods(out: Path) -> dict[str, Rows]:
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in _rows(out / PERIODS_CSV):
        found.setdefault(row["period"], {})[row["id"]] = row
    return dict(found)


def _of_areas(path: Path) -> Rows:
    rows = _rows(path)
    return {next(iter(row.values())): row for row in rows}


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of the run, none where there is no such table."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _no_column(name: str, label: str, tables: list[Rows], *, mapped: bool) -> Problem:
    known = {column for table in tables for row in table.values() for column in row}
    at = f" of {label}" if label else ""
    if not mapped:
        found = f"{PERIODS_CSV} has no such column, and {label} has no maps"
        return Problem(f"dhis2.push.elements.{name}", found, "add it to output.periods")
    remedy = suggest_value(name, sorted(known - set(_TEXTS)))
    return Problem(f"dhis2.push.elements.{name}", f"no table{at} has such a column", remedy)
