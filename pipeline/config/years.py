"""The years that have a file of the population: ``population: {path: "people_{year}.tif"}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from geo.core.errors import Problem
from pipeline.config.document import dotted
from pipeline.config.periods import can_be_listed, period_files
from pipeline.config.schema import Config
from pipeline.config.series import MARKS, Series, moves
from pipeline.storage.location import Location, Storage, is_object_address

PERIOD, YEAR = MARKS
_YEAR = re.compile(r"\d{4}")


def years_of(data: Mapping[str, Any], base: Path, storage: Storage) -> tuple[int, ...] | None:
    """List the years that have a file of the population, by rising year.

    Parameters
    ----------
    data : mapping
        A configuration that is not yet validated.
    base : Path
        Base directory of relative paths.
    storage : Storage
        Connection settings of object stores.

    Returns
    -------
    tuple of int or None
        None where the path has no ``{year}``, or more than the year differs by period, or the path
        is an address whose files cannot be listed: each year then needs its own.
    """
    section = data.get("population")
    path = section.get("path") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(path, str) or YEAR not in path:
        return None
    others = {key: value for key, value in section.items() if key != "path"}
    if PERIOD in path or moves(others):
        return None
    if not can_be_listed(path):
        return None
    found = period_files(path, base, storage, YEAR)
    return tuple(
        sorted(int(year) for year, file in found if _YEAR.fullmatch(year) and _is(file, storage))
    )


def _is(path: str, storage: Storage) -> bool:
    # `{year}/people_{year}.tif` lists folders.
    if is_object_address(path):
        return Location(path, storage).info() is not None
    return Path(path).exists()


def no_people(config: Config) -> Problem | None:
    """Return the problem of a population of which no year has a file; None if there is none."""
    series, document = config.series, config.document
    if series is None or document is None or series.years != ():
        return None
    path = str(document.values["population"]["path"])
    example = path.replace(YEAR, str(series.calendar.first(series.last).year))
    found = f"no file of any year: {path}"
    remedy = f"add one of a year at least, such as {example}, or correct the path"
    key = ("population", "path")
    return Problem(document.place(key) if document.lines else dotted(key), found, remedy)


def told_people(series: Series, n_ahead: int = 0) -> str:
    """Return which people the periods have whose year has no file; empty if each has its own.

    Parameters
    ----------
    series : Series
    n_ahead : int
        Periods after it that are told of, too.
    """
    if not series.years:
        return ""
    told, labels = list[str](), (*series.periods, *series.following(n_ahead))
    years = {label: series.calendar.first(int(series.time_of(label))).year for label in labels}
    lacking = [label for label, year in years.items() if year not in series.years]
    for (before, later), group in groupby(lacking, lambda label: series.people_years(label)[:2]):
        own = sorted({years[label] for label in group})
        when = str(own[0]) if len(own) == 1 else f"{own[0]} to {own[-1]}"
        if before < later:
            told.append(f"{when} between the files of {before} and {later}")
        else:
            edge = "first" if before > own[0] else "last"
            told.append(f"{when} as in {before}, the {edge} year with a file")
    return "; ".join(told)
