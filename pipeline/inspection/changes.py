"""Tables of a folder that say what became of areas: they are no counts, and have a key."""

from __future__ import annotations

import re

import pandas as pd

from geo.core.columns import id_text
from geo.tables.area_changes import FROM, PERIOD, TO
from pipeline.inspection.columns import CASES, is_period_name
from pipeline.inspection.folder import Boundary, Folder, TableFile

#: How people name the columns of a table of changes; the first is what `areas.changes` reads.
_NAMES = {
    PERIOD: re.compile(r"period|since|date|month|year|valid.?from|start|when|ab|depuis|desde"),
    FROM: re.compile(r"from|(from|old|previous|former|before|ancien|antiguo)(.?(id|code|area))?"),
    TO: re.compile(r"to|(to|new|after|nouveau|nuevo)(.?(id|code|area))?"),
}


def split_changes(folder: Folder) -> list[TableFile]:
    """Take the tables of changes of areas out of those that may be counts, and return them."""
    found = [table for table in folder.tables if change_columns(table.frame) is not None]
    folder.tables = [table for table in folder.tables if table not in found]
    return found


def change_columns(table: pd.DataFrame) -> dict[str, str] | None:
    """Return the columns of a table that are ``period``, ``from`` and ``to`` of changes.

    None where it lacks one of them, has two that fit, or has a column of cases or of a period.
    """
    names = list(map(str, table.columns))
    if any(CASES.search(name.lower()) or is_period_name(name) for name in names):
        return None
    found = {}
    for key, pattern in _NAMES.items():
        fit = [name for name in names if name == key]
        fit = fit or [name for name in names if pattern.fullmatch(name.strip().lower())]
        if len(fit) != 1:
            return None
        found[key] = fit[0]
    return found if len(set(found.values())) == len(found) else None


def usable_changes(
    tables: list[TableFile], areas: Boundary, id_column: str, *, periods: bool
) -> tuple[TableFile | None, list[str]]:
    """Return the table for ``areas.changes``, and why others are none.

    Parameters
    ----------
    tables : list of TableFile
        Of :func:`split_changes`.
    areas : Boundary
    id_column : str
        Column of the areas' ids.
    periods : bool
        Whether the counts are a table with periods: only these can be of areas of before.
    """
    chosen, left = None, []
    known = set(id_text(areas.frame[id_column]).dropna())
    for table in tables:
        columns = change_columns(table.frame)
        assert columns is not None
        other = [f"{name!r} as {key!r}" for key, name in columns.items() if name != key]
        why = ""
        if not known & set(id_text(table.frame[columns[TO]]).dropna()):
            why = f"no area of {areas.title} is in its column {columns[TO]!r}"
        elif not periods:
            why = "for `areas.changes` the counts need a table with periods"
        elif table.labels or table.sheet is not None or table.skip_rows:
            why = "for `areas.changes`, save it as a file of its own that begins with the names"
        elif other:
            why = f"for `areas.changes`, name its columns {', '.join(other)}"
        elif chosen is not None:
            why = f"{chosen.title} is nearer: put all changes in one table"
        else:
            chosen = table
        if why:
            left.append(f"{table.title}: changes of areas; {why}")
    return chosen, left
