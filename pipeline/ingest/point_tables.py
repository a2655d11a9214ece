"""The tables of points beside areas: survey clusters, facilities, totals of zones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from geo.core.columns import column_periods, has_column, id_text, is_missing
from geo.core.errors import InputError, Problem, name_first
from geo.core.spelling import USUAL
from geo.core.suppressed import USUAL as SUPPRESSED
from geo.tables.registry import TABLES, read_table
from geo.tables.table_vector import Vector, point_degrees
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config

ONE_LEVEL = "give zones that lie in one another, or the totals of one level"
_GROUPED = re.compile(r"\d{1,3}([.,])\d{3}(\1\d{3})*")
IN_TOWNS, ELSEWHERE = ("U", "URBAN", "1"), ("R", "RURAL", "2")


def read_points(config: Config, problems: list[Problem]) -> list[pd.DataFrame]:
    """Read the table of each source; append its problems.

    Returns
    -------
    list of DataFrame
        ``id``, ``lon``, ``lat``, ``value``, ``tested`` (NaN of counts), ``urban`` and ``row`` of
        each point; without rows where a problem was found.
    """
    return [read_source(spec, problems) for spec in config.point_sources]


def read_source(spec: Points, problems: list[Problem]) -> pd.DataFrame:
    """Read the table of a source; see :func:`read_points`.

    ``period``, a text, is empty without; ``margin`` is half of the width of a suppressed total.
    """
    place = f"points.{spec.name} ({spec.path})"
    columns = ["id", "lon", "lat", "value", "tested", "urban", "row", "period", "margin"]
    none = pd.DataFrame(columns=columns)
    try:
        table, rows = read_table(
            spec.path, place, sheet=spec.sheet, layer=spec.layer, encoding=spec.encoding
        )
    except InputError as error:
        problems.extend(error.problems)
        return none
    given = ("id", "lon", "lat", "value", "tested", "urban", "period")
    wanted = {key: getattr(spec, key) for key in given}
    if spec.zone is not None:  # its place is that of its areas
        wanted |= {"lon": None, "lat": None}
    wanted = {key: column for key, column in wanted.items() if column is not None}
    if "lon" in wanted and not {spec.lon, spec.lat} & set(table.columns):
        table = _with_places(spec, table)
    known = [
        has_column(table, column, place, f"points.{key}", problems)
        for key, column in wanted.items()
    ]
    if not all(known):
        return none
    found = pd.DataFrame({"id": id_text(table[spec.id]), "row": rows}).assign(
        lon=np.nan, lat=np.nan, tested=np.nan, urban=None, period="", margin=0.0
    )
    before = len(problems)
    if spec.zone is not None and spec.period is not None and spec.tested is None:
        # A rest of a zone is a count of areas, and may be suppressed as one.
        table = table.copy()
        table[spec.value], margin = _intervals(table[spec.value])
        found["margin"] = margin
    for key in ("lon", "lat", "value", "tested"):
        if key in wanted:
            found[key] = _numbers(
                table[wanted[key]],
                rows,
                wanted[key],
                place,
                problems,
                counts=key in ("value", "tested"),
            )
    if "urban" in wanted:
        found["urban"] = _urban(table[wanted["urban"]], rows, wanted["urban"], place, problems)
    if "period" in wanted:
        word = TABLES.of(spec.path).row_word
        texts = column_periods(table[wanted["period"]], rows, place, word, None, problems)
        found["period"] = texts.to_numpy()
    if len(problems) == before:
        _check(found, spec, place, problems)
    return found if len(problems) == before else none


def _with_places(spec: Points, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a vector file with the degrees of its points, where it has some."""
    if TABLES.of(spec.path).name != Vector.name:
        return table
    places = point_degrees(spec.path, spec.layer)
    if places is None or len(places) != len(table):
        return table
    own = {spec.lon: places["lon"].to_numpy(), spec.lat: places["lat"].to_numpy()}
    return table.assign(**own)


def _numbers(
    given: pd.Series,
    rows: np.ndarray,
    column: str,
    place: str,
    problems: list[Problem],
    *,
    counts: bool,
) -> np.ndarray:
    """Return a column as numbers, NaN where missing; append a problem for what is none.

    Of ``counts`` numbers such as 1.490 may be thousands, and are refused.
    """
    text = ["" if is_missing(each) else str(each).strip() for each in given]
    some = [each for each, cell in zip(text, given, strict=True) if each and isinstance(cell, str)]
    spelling = USUAL.detected(some)
    asked = set(spelling.may_be_thousands(some, whole=True)) if counts else set()
    values = np.array([spelling.number_or_nan(each) if each else np.nan for each in text])
    there = np.array([bool(each) for each in text], bool)
    written = np.array([isinstance(cell, str) for cell in given], bool)  # others are numbers
    doubtful = np.array([each in asked for each in text], bool) & written
    if counts:
        doubtful |= np.isnan(values) & [bool(_GROUPED.fullmatch(each)) for each in text]
    wrong = (np.isnan(values) & there & ~doubtful) | np.isinf(values)
    for bad, found, remedy in (
        (wrong, "which is no number", "correct it, or leave it empty"),
        (
            doubtful,
            "which may be thousands or decimals",
            "write thousands without a separator",
        ),
    ):
        if bad.any():
            each = [f"{text[k]!r} (row {rows[k]})" for k in np.flatnonzero(bad)]
            problems.append(
                Problem(place, f"column {column!r} has {name_first(each)}, {found}", remedy)
            )
    return values


def _intervals(given: pd.Series) -> tuple[pd.Series, np.ndarray]:
    """Return counts with the middle in place of each interval, and half of the widths."""
    within = [SUPPRESSED.interval(each) for each in given]
    margin = np.array([0.0 if each is None else 0.5 * (each[1] - each[0]) for each in within])
    middle = [str(0.5 * (each[0] + each[1])) if each else "" for each in within]
    some = np.array([each is not None for each in within], bool)
    return given.astype("string").mask(some, pd.Series(middle, given.index)), margin


def _urban(
    given: pd.Series, rows: np.ndarray, column: str, place: str, problems: list[Problem]
) -> list[bool]:
    text = given.astype("string").str.strip().str.upper().fillna("")
    wrong = ~text.isin([*IN_TOWNS, *ELSEWHERE]).to_numpy()
    if wrong.any():
        first = int(np.argmax(wrong))
        found = f"column {column!r} has {text.iloc[first]!r}"
        problems.append(Problem(f"{place} row {rows[first]}", found, "give U or R"))
    return text.isin(IN_TOWNS).tolist()


def _check(found: pd.DataFrame, spec: Points, place: str, problems: list[Problem]) -> None:
    """Append the first problem of impossible values, and repeated ids."""
    tested, timed = found["tested"], spec.period is not None
    for wrong, what, remedy in (
        (
            found.duplicated(["id", "period"]),
            "a second total of {id!r} for {period}" if timed else "repeats the id {id!r}",
            "give one total of a zone and period" if timed else "give each point an id of its own",
        ),
        (found["lat"].abs() > 90, "latitude {lat:g}", "give degrees; are lon and lat exchanged?"),
        (found["lon"].abs() > 360, "longitude {lon:g}", "give degrees (WGS 84)"),
        (found["value"] < 0, "column {column!r} is {value:g}", "give numbers of at least 0"),
        (
            tested < found["value"],
            "{value:g} positives of {tested:g} tested",
            "correct one of them",
        ),
        (
            tested.notna() & ((found["value"] % 1 > 0) | (tested % 1 > 0)),
            "{value:g} positives of {tested:g} tested",
            "give whole numbers of people, not a share",
        ),
        (tested <= 0, "{tested:g} tested", "give the number tested, or leave the point out"),
    ):
        if wrong.any():
            row = found[wrong].iloc[0].to_dict()
            more = f" (and {int(wrong.sum()) - 1} more)" if wrong.sum() > 1 else ""
            said = what.format(**row, column=spec.value) + more
            problems.append(Problem(f"{place} row {row['row']}", said, remedy))
    if not found["value"].notna().any():
        problems.append(Problem(place, f"column {spec.value!r} has no value", "give some at least"))


def across(zones: Mapping[str, frozenset[Any]], own: frozenset[Any]) -> str:
    """Say what is wrong with the areas of a zone beside those of smaller ones; maybe nothing."""
    for name, other in zones.items():
        if other == own:
            return f"has the areas of {name}: one of both totals is enough"
        if other & own and not other <= own:
            return f"has some of the areas of {name}, not all"
    return ""
