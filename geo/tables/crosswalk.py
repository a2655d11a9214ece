"""A crosswalk: which area a name of a table is, in a file that a person has read.

Columns ``name`` and ``area_id``, and ``parent`` where a name is in several provinces; others are
for readers. A line without an ``area_id`` says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from geo.core.columns import folded, id_text
from geo.core.errors import InputError, Problem, name_first
from geo.tables.registry import read_columns

NAME, AREA, PARENT = "name", "area_id", "parent"


@dataclass(frozen=True)
class Crosswalk:
    """Names, each with the area that it is.

    Attributes
    ----------
    areas : dict
        Id by name and parent, without its capitals and accents; an empty parent is any.
    broken : set
        Names and parents of the lines that have a problem.
    """

    areas: dict[tuple[str, str], str]
    broken: set[tuple[str, str]] = field(default_factory=set)

    def of(self, names: pd.Series, parents: pd.Series | None) -> pd.Series:
        """Return the ids of names, those that it does not have as they are: (n_row,).

        Parameters
        ----------
        names, parents : (n_row,) Series
            Of :func:`geo.core.columns.id_text`.
        """
        found = [
            None
            if name is None
            else self.areas.get((name, parent), self.areas.get((name, ""), name))
            for name, parent in zip(names, _above(names, parents), strict=True)
        ]
        return pd.Series(found, index=names.index, dtype=object)

    def is_broken(self, names: pd.Series, parents: pd.Series | None) -> np.ndarray:
        """Return whether the line of a name has a problem: (n_row,) bool."""
        each = zip(names, _above(names, parents), strict=True)
        return np.array(
            [(name, above) in self.broken or (name, "") in self.broken for name, above in each],
            bool,
        )

    def wants_parents(self, names: set[str]) -> bool:
        """Return whether it has an area of one of these names in a parent alone."""
        return any(parent and name in names for name, parent in self.areas)


def _above(names: pd.Series, parents: pd.Series | None) -> list[str]:
    return [""] * len(names) if parents is None else [folded(each or "") for each in parents]


def with_zeros(ids: pd.Series, known: set[str]) -> pd.Series:
    """Return ids, those that a spreadsheet took the leading zeros from as they were.

    Parameters
    ----------
    ids : (n_row,) Series
        Of :func:`geo.core.columns.id_text`.
    known : set of str
        Ids of the areas; 1 is 001 only if it is no area itself, and no other is 01.
    """
    full: dict[str, list[str]] = {}
    for each in known:
        full.setdefault(each.lstrip("0"), []).append(each)
    found = {
        text: full[text][0] for text in set(ids.dropna()) - known if len(full.get(text, [])) == 1
    }
    return pd.Series([found.get(text, text) for text in ids], index=ids.index, dtype=object)


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
        None where it cannot be read; lines with a problem are left out.
    """
    name = f"{place} ({path})"
    read = read_columns(path, name, [(each, place) for each in (NAME, AREA)], problems)
    if read is None:
        return None
    table, rows = read
    names, ids = id_text(table[NAME]), with_zeros(id_text(table[AREA]), known)
    parents = id_text(table[PARENT]) if PARENT in table else pd.Series([None] * len(names))
    found_lines = Crosswalk({})
    unknown, twice = [], []
    for row, text, area, parent in zip(rows, names, ids, parents, strict=True):
        if text is None or area is None:
            continue
        pair = text, folded(parent or "")
        if area not in known:
            unknown.append(f"{area} (row {row})")
            found_lines.broken.add(pair)
        elif found_lines.areas.setdefault(pair, area) != area:
            twice.append(f"{text} (row {row})")
    for which, found, remedy in (
        (unknown, "no area has the id", "correct area_id, or leave it blank"),
        (twice, "another area for the same name in", "keep one of them, or give their parents"),
    ):
        if which:
            problems.append(Problem(name, f"{found} {name_first(which)}", remedy))
    found_lines.broken.difference_update(found_lines.areas)
    return found_lines


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
