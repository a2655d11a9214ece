"""Why a table has several rows of an area, where its periods do not tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from geo.core.columns import id_text
from geo.tables.id_proposals import by_period


def repeated_rows(
    frame: pd.DataFrame, table_id: str, value: str, dated: Sequence[str]
) -> tuple[str, str]:
    """Return what is wrong with a table whose areas have several rows, and the remedy.

    Parameters
    ----------
    frame : DataFrame
    table_id, value : str
        Columns of the ids and of the counts.
    dated : sequence of str
        Columns of dates: none has each area once.
    """
    ids = id_text(frame[table_id])
    remedy = by_period(frame, ids, value, None).removeprefix("; ")
    what = f"column {table_id!r} has ids several times"
    if not dated:
        remedy = remedy or "give one row for each area, or a column with the period"
        return f"{what}, and no column of dates", remedy
    known = pd.concat([ids, id_text(frame[dated[0]])], axis=1).dropna()
    twice = known[known.duplicated()]
    if twice.empty:
        return f"{what}, and some without a date in column {dated[0]!r}", "give the date"
    area, date = twice.iloc[0]
    what += f" in one date of column {dated[0]!r} (such as {area} in {date})"
    if remedy:
        return what, remedy
    parts = [name for name in _parts(frame, known) if name not in (table_id, value, *dated)]
    if not parts:
        return what, "keep one row of each, or add up parts"
    return what, f"column {parts[0]!r} tells these rows apart: add them up, or keep one of them"


def _parts(frame: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """Return the columns that tell apart the rows of an area and a date."""
    found = []
    for name in map(str, frame.columns):
        own = id_text(frame[name]).loc[known.index]
        if own.nunique() > 1 and not pd.concat([known, own], axis=1).duplicated().any():
            found.append(name)
    return found
