"""Areas that were split, merged or renamed: what a count of before is of, in areas of today.

A table has a row for each pair of an area before a change and one after it that share ground::

    period,from,to
    2023-07,D12,D12a
    2023-07,D12,D12b

From July 2023 on, D12a and D12b are what was D12. A count of before is of a union of areas of
today: the smallest that whole areas of before make up. So no boundary of before is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from geo.core.calendar import Calendar, days_of
from geo.core.columns import column_periods, id_text, suggest
from geo.core.errors import Problem, name_first
from geo.tables.registry import TABLES, read_columns

PERIOD, FROM, TO = "period", "from", "to"


@dataclass(frozen=True)
class Union:
    """Areas of before, and those of today on the same ground.

    Attributes
    ----------
    before, today : tuple of str
        Ids, sorted.
    """

    before: tuple[str, ...]
    today: tuple[str, ...]

    @property
    def name(self) -> str:
        """What a reader calls it: its areas of before."""
        return " + ".join(self.before)


@dataclass(frozen=True)
class AreaChanges:
    """The changes of some areas.

    Attributes
    ----------
    today : tuple of str
        Ids of the areas of today.
    steps : tuple of (int, tuple of (str, str))
        Number of the first period after each change, rising, and its pairs of before and after.
    """

    today: tuple[str, ...]
    steps: tuple[tuple[int, tuple[tuple[str, str], ...]], ...]

    def at(self, number: int) -> tuple[Union, ...]:
        """Return the unions of a period, in the order of today's first: every area is in one."""
        n_after = sum(first <= number for first, _ in self.steps)
        return self._stages[n_after]

    @cached_property
    def _stages(self) -> list[tuple[Union, ...]]:
        """Unions before the first change, before the second, ..., after the last."""
        stage = tuple(Union((area,), (area,)) for area in self.today)
        found = [stage]
        for _, pairs in reversed(self.steps):
            stage = _before(stage, pairs)
            found.append(stage)
        return found[::-1]

    @property
    def former(self) -> set[str]:
        """Ids of areas of before that are none of today."""
        every = {each for stage in self._stages for union in stage for each in union.before}
        return every - set(self.today)

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The areas of today of each union of several, of any period."""
        every = (union.today for stage in self._stages for union in stage)
        return list(dict.fromkeys(today for today in every if len(today) > 1))

    def elsewhen(self, number: int, label: Sequence[str]) -> dict[str, str]:
        """Return what to say of ids that are areas, but not in a period, by id.

        Parameters
        ----------
        number : int
            Of the period.
        label : sequence of str
            Label of the first period after each change.
        """
        n_after = sum(first <= number for first, _ in self.steps)
        areas = [{each for union in stage for each in union.before} for stage in self._stages]
        found: dict[str, str] = {}
        for k, own in enumerate(areas):
            for each in own - areas[n_after]:
                if k < n_after:
                    found[each] = f"ended with {label[k]}"
                else:
                    found.setdefault(each, f"begins in {label[k - 1]}")
        return found


def _before(stage: Iterable[Union], pairs: Iterable[tuple[str, str]]) -> tuple[Union, ...]:
    """Return the unions before a change, by those after it."""
    origins: dict[str, set[str]] = {}
    for old, new in pairs:
        origins.setdefault(new, set()).add(old)
    of: dict[str, int] = {}  # number of the union of each area of before
    joined: dict[int, tuple[set[str], set[str]]] = {}
    for number, union in enumerate(stage):
        before = set().union(*(origins.get(each, {each}) for each in union.before))
        today = set(union.today)
        others = {of[each] for each in before if each in of}
        for other in others:
            before |= joined[other][0]
            today |= joined.pop(other)[1]
        own = min(others, default=number)
        joined[own] = before, today
        of |= dict.fromkeys(before, own)
    ordered = (joined[number] for number in sorted(joined))
    return tuple(Union(tuple(sorted(a)), tuple(sorted(b))) for a, b in ordered)


def read_area_changes(
    path: str | Path,
    place: str,
    today: Sequence[str],
    calendar: Calendar,
    problems: list[Problem],
) -> AreaChanges | None:
    """Read a table of changes, and check that it leads to the areas of today.

    Parameters
    ----------
    path : str or Path
        Table, see :data:`geo.tables.registry.TABLES`.
    place : str
        Configuration key, for messages.
    today : sequence of str
        Ids of the areas.
    calendar : Calendar
        Of the periods.
    problems : list of Problem
        Problems are appended: no such file or column, empty cells, texts that are no period, areas
        that are not there after a change, or still there after their end.

    Returns
    -------
    AreaChanges or None
        None where a problem was found.
    """
    name, n_before = f"{place} ({path})", len(problems)
    read = read_columns(path, name, [(each, place) for each in (PERIOD, FROM, TO)], problems)
    if read is None:
        return None
    table, rows = read
    word = TABLES.of(path).row_word
    table = pd.DataFrame({key: id_text(table[key]) for key in (PERIOD, FROM, TO)})
    empty = table[[FROM, TO]].isna().any(axis=1).to_numpy()
    if empty.any():
        which = name_first([f"{word} {row}" for row in rows[empty]])
        remedy = "give the id before the change and the id after it"
        problems.append(Problem(f"{name} {which}", "an empty cell", remedy))
    texts = column_periods(table[PERIOD], rows, name, word, None, problems)
    if len(problems) > n_before:
        return None
    numbers = [_number(text, calendar) for text in texts]
    wrong = [
        f"{word} {row} ({text!r})"
        for row, text, number in zip(rows, texts, numbers, strict=True)
        if number is None
    ]
    if wrong:
        remedy = f"write the first {calendar.step} in which the new areas hold"
        problems.append(Problem(name, f"is no {calendar.step} in {name_first(wrong)}", remedy))
        return None
    steps: dict[int, list[tuple[str, str]]] = {}
    row_of: dict[tuple[int, str], int] = {}
    for number, old, new, row in zip(numbers, table[FROM], table[TO], rows, strict=True):
        assert number is not None
        steps.setdefault(number, []).append((old, new))
        row_of.setdefault((number, old), row)
        row_of.setdefault((number, new), row)
    _check_chain(sorted(steps.items()), today, calendar, f"{name} {word}", row_of, problems)
    if len(problems) > n_before:
        return None
    ordered = tuple((number, tuple(pairs)) for number, pairs in sorted(steps.items()))
    return AreaChanges(tuple(today), ordered)


def _number(text: str, calendar: Calendar) -> int | None:
    """Return the number of the period of a text; of a longer one, that of its first day."""
    number, days = calendar.number(text), days_of(text)
    return number if number is not None or days is None else calendar.of_day(days[0])


def _check_chain(
    steps: Sequence[tuple[int, list[tuple[str, str]]]],
    today: Sequence[str],
    calendar: Calendar,
    place: str,
    row_of: dict[tuple[int, str], int],
    problems: list[Problem],
) -> None:
    """Append a problem for each id that cannot be what the table says, the last change first."""
    after = set(today)
    for number, pairs in reversed(steps):
        olds, news = {old for old, _ in pairs}, {new for _, new in pairs}
        label = calendar.label(number)
        for each in sorted(news - after):
            where = f"{place} {row_of[number, each]}"
            found = f"no area is {each!r} from {label} on"
            problems.append(Problem(where, found, suggest(each, sorted(after), "area")))
        for each in sorted((olds - news) & after):
            where = f"{place} {row_of[number, each]}"
            found = f"{each!r} ends with {label}, and is an area later"
            remedy = f"if a part of it goes on, add the row {label},{each},{each}; else another id"
            problems.append(Problem(where, found, remedy))
        after = (after - news) | olds
