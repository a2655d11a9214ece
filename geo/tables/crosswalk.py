"""A crosswalk: which area a name of a table is, in a file that a person has read.

Columns ``name`` and ``area_id``, and ``parent`` where a name is in several provinces; others are
for readers. A line without an ``area_id`` says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from geo.core.columns import has_column, id_text
from geo.core.errors import InputError, Problem, name_first
from geo.tables.registry import read_table

NAME, AREA, PARENT = "name", "area_id", "parent"


@dataclass(frozen=True)
class Crosswalk:
    """Names, each with the area that it is.

    Attributes
    ----------
    areas : dict
        Id by name and parent; an empty parent is any.
    """

    areas: dict[tuple[str, str], str]

    def of(self, names: pd.Series, parents: pd.Series | None) -> pd.Series:
        """Return the ids of names, those that it does not have as they are: (n_row,).

        Parameters
        ----------
        names, parents : (n_row,) Series
            Of :func:`geo.core.columns.id_text`.
        """
        above = [""] * len(names) if parents is None else [each or "" for each in parents]
        found = [
            None
            if name is None
            else self.areas.get((name, parent), self.areas.get((name, ""), name))
            for name, parent in zip(names, above, strict=True)
        ]
        return pd.Series(found, index=names.index, dtype=object)


def read_crosswalk(
    path: str | Path, place: str, known: set[str], problems: list[Problem]
) -> Crosswalk | None:
    """Read a crosswalk, and check that its areas are there.

    Parameters
    ----------
    path : str or Path
    place : str
        Configuration key, for messages.
    known : set of str
        Ids of the areas.
    problems : list of Problem
        Appended to: columns or areas that are not there, a name with two areas.

    Returns
    -------
    Crosswalk or None
        None where a problem was found.
    """
    name, n_before = f"{place} ({path})", len(problems)
    try:
        table, rows = read_table(path, name)
    except InputError as error:
        problems.extend(error.problems)
        return None
    if not all([has_column(table.columns, each, name, place, problems) for each in (NAME, AREA)]):
        return None
    names, ids = id_text(table[NAME]), id_text(table[AREA])
    parents = id_text(table[PARENT]) if PARENT in table else pd.Series([None] * len(names))
    areas: dict[tuple[str, str], str] = {}
    unknown, twice = [], []
    for row, text, area, parent in zip(rows, names, ids, parents, strict=True):
        if text is None or area is None:
            continue
        if area not in known:
            unknown.append(f"{area} (row {row})")
        elif areas.setdefault((text, parent or ""), area) != area:
            twice.append(f"{text} (row {row})")
    for which, found, remedy in (
        (unknown, "no area has the id", "correct area_id, or leave it blank"),
        (twice, "another area for the same name in", "keep one of them, or give their parents"),
    ):
        if which:
            problems.append(Problem(name, f"{found} {name_first(which)}", remedy))
    return Crosswalk(areas) if len(problems) == n_before else None


def write_crosswalk(path: Path, lines: Sequence[dict[str, object]]) -> None:
    """Write a proposal; a file that is there stays.

    Raises
    ------
    InputError
        If there is a file of that name.
    """
    try:
        # A mark of UTF-8 lets Excel show accents.
        with path.open("x", encoding="utf-8-sig", newline="") as file:
            pd.DataFrame(lines).to_csv(file, index=False)
    except FileExistsError:
        remedy = "move it away, or name it as counts.crosswalk"
        raise InputError(Problem(str(path), "is there already", remedy)) from None
