"""The problem of some rows of a table: those of all periods are told together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from geo.core.errors import Problem, name_first


@dataclass(frozen=True)
class OfRows(Problem):
    """The same problem in some rows of a table.

    Attributes
    ----------
    table : str
        The table, and its word for a row.
    which : tuple of str
        Each row, such as ``7 (id A03: 'x')``.
    what : str
        What was found in each.
    """

    table: str = ""
    which: tuple[str, ...] = ()
    what: str = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """What problems that are told together share."""
        return self.table, self.what, self.remedy


def of_rows(table: str, which: Sequence[str], what: str, remedy: str) -> OfRows:
    """Return the problem of some rows; see :class:`OfRows`."""
    many = f" in {len(which)} rows" if len(which) > 1 else ""
    place = f"{table} {name_first(which)}"
    return OfRows(place, f"{what}{many}", remedy, table=table, which=tuple(which), what=what)


def joined_rows(each: Sequence[OfRows]) -> OfRows:
    """Return one of several of a kind, with the rows of all."""
    if len(each) == 1:
        return each[0]
    rows = dict.fromkeys(row for one in each for row in one.which)
    return of_rows(each[0].table, sorted(rows, key=_number), each[0].what, each[0].remedy)


def _number(row: str) -> int:
    found = re.match(r"\d+", row)
    return int(found[0]) if found else 0
