"""Ids of a table that no area has: one problem of all their rows, with what each may be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import geopandas as gpd

from geo.core.columns import AREA_ID, attribute_columns, id_text, name_column
from geo.core.errors import Problem, name_first
from geo.core.period_text import natural_key
from geo.tables.row_problems import OfRows, joined_rows

N_NAMED = 5  # ids in one message
N_ROW = 12  # rows of an id
N_NEAR = 3  # ids whose area is guessed
#: From which a text is near: to an area without a row, and to any.
FREE, ANY = 0.6, 0.8
TIE = 0.01  # by which the next best is worse
N_MANY = 20  # ids of one period, from which the column may be another


@dataclass(frozen=True)
class Unmatched(Problem):
    """The problem of some rows whose ids are those of no area.

    Attributes
    ----------
    rows : tuple of (str, int, str)
        Id, row and period of each.
    near : tuple of (str, str)
        Ids with the area that each may be.
    words : tuple of (str, str)
        Before and after the ids; ``{n}`` is the number of rows, ``{period}`` their only period.
    base : str
        The remedy without the guesses.
    noun, word : str
        Of the table's values and of its rows.
    files : tuple of str
        Places of the files that have the rows.
    after : mapping of str to str
        What to say of an id behind its rows.
    """

    rows: tuple[tuple[str, int, str], ...] = ()
    near: tuple[tuple[str, str], ...] = ()
    words: tuple[str, str] = ("", "")
    base: str = ""
    noun: str = ""
    word: str = "row"
    files: tuple[str, ...] = ()
    after: Mapping[str, str] = field(default_factory=dict, hash=False)


def unmatched(
    files: Sequence[str],
    base: str,
    rows: Sequence[tuple[str, int, str]],
    words: tuple[str, str],
    noun: str,
    word: str,
    *,
    near: Mapping[str, str] | None = None,
    after: Mapping[str, str] | None = None,
) -> Unmatched:
    """Return the problem of some rows; see :class:`Unmatched`."""
    guessed, told = tuple((near or {}).items()), after or {}
    found, remedy = _found(rows, words, word, told), base
    place, n_more = files[0], len(files) - 1
    if n_more:
        place += f" and {n_more} more file{'s' * (n_more > 1)}"
    if guessed:
        several = len({text for text, _, _ in rows}) > 1
        asked = [f"{area} for {text!r}" if several else area for text, area in guessed[:N_NEAR]]
        remedy = f"did you mean {', '.join(asked)}? {base}"
    return Unmatched(
        place, found, remedy, rows=tuple(rows), near=guessed, words=words, base=base, noun=noun,
        word=word, files=tuple(files), after=told,
    )  # fmt: skip


def guesses(ids: Iterable[str], areas: gpd.GeoDataFrame, given: set[str]) -> dict[str, str]:
    """Return which area some texts may be, by text: one that differs in few letters.

    Parameters
    ----------
    ids : iterable of str
        That no area has.
    areas : GeoDataFrame
    given : set of str
        All ids of the table: an area without a row is more likely, and most codes are near others.
    """
    wanted = list(dict.fromkeys(ids))
    if len(wanted) > N_MANY:
        return {}
    titles = dict.fromkeys(areas[AREA_ID].dropna().astype(str))
    texts = {each: (each, repr(each)) for each in titles}
    column = name_column(attribute_columns(areas))
    if column is not None:
        for own, name in zip(areas[AREA_ID], id_text(areas[column]), strict=True):
            if name and own and name not in texts:
                texts[name] = (own, f"{own!r} ({name})")
    free = {text: said for text, (own, said) in texts.items() if own not in given}
    taken = {text: said for text, (own, said) in texts.items() if own in given}
    found = {}
    for text in wanted[:N_NEAR]:
        near = _nearest(text, free, FREE)
        if not near and not any(map(str.isdigit, text)):
            near = _nearest(text, taken, ANY)
        if near:
            found[text] = near
    return found


def _nearest(text: str, known: Mapping[str, str], least: float) -> str:
    """Return the only text that is nearest, or the two that are; "" if none or more are."""
    match, scored = difflib.SequenceMatcher(None, b=text.casefold(), autojunk=False), []
    for each, said in known.items():
        match.set_seq1(each.casefold())
        if match.real_quick_ratio() >= least and match.quick_ratio() >= least:
            scored.append((match.ratio(), said))
    best = max((score for score, _ in scored), default=0.0)
    near = list(dict.fromkeys(said for score, said in scored if score >= max(least, best - TIE)))
    return " or ".join(near) if len(near) <= 2 else ""


def at_period(problems: Sequence[Problem], period: str) -> list[Problem]:
    """Return problems with the period of rows that have none: the file is of it."""
    found = list[Problem]()
    for each in problems:
        if isinstance(each, Unmatched) and not any(label for _, _, label in each.rows):
            each = replace(each, rows=tuple((text, row, period) for text, row, _ in each.rows))
        found.append(each)
    return found


def together(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems with those of rows of one table, of any period, as one of each kind."""
    found: dict[object, list[Problem]] = {}
    for number, each in enumerate(problems):
        key: object = number
        if isinstance(each, Unmatched):
            key = each.noun, each.words
        elif isinstance(each, OfRows):
            key = each.kind
        found.setdefault(key, []).append(each)
    joined = list[Problem]()
    for alike in found.values():
        ids = [each for each in alike if isinstance(each, Unmatched)]
        rows = [each for each in alike if isinstance(each, OfRows)]
        joined.append(_joined(ids) if ids else joined_rows(rows) if rows else alike[0])
    return joined


def _joined(own: Sequence[Unmatched]) -> Unmatched:
    if len(own) == 1:
        return own[0]
    rows = {row for one in own for row in one.rows}
    order = {period: natural_key(period) for _, _, period in rows}
    by_time = sorted(rows, key=lambda row: (order[row[2]], row[1], row[0]))
    files = sorted({file for one in own for file in one.files}, key=natural_key)
    near = {text: area for one in reversed(own) for text, area in one.near}
    after = {text: said for one in own for text, said in one.after.items()}
    base, first = max((one.base for one in own), key=len), own[0]
    return unmatched(
        files, base, by_time, first.words, first.noun, first.word, near=near, after=after
    )


def _found(
    rows: Sequence[tuple[str, int, str]],
    words: tuple[str, str],
    word: str,
    after: Mapping[str, str],
) -> str:
    """Return what was found: each id with its rows, and their periods if they are several."""
    of: dict[str, list[tuple[int, str]]] = {}
    for text, row, period in rows:
        of.setdefault(text, []).append((row, period))
    every = list(dict.fromkeys(period for _, _, period in rows))
    each = []
    for text, own in of.items():
        numbers = list(dict.fromkeys(row for row, _ in own))
        periods = list(dict.fromkeys(period for _, period in own))
        said = f"{word}{'s' * (len(numbers) > 1)} {name_first(numbers, N_ROW)}"
        if len(periods) > 1:
            said += f"; {len(periods)} periods from {periods[0]} to {periods[-1]}"
        elif len(every) > 1:
            said += f"; {periods[0]}"
        each.append(f"{text} ({said}){after.get(text, '')}")
    first = words[0].replace("{n}", str(len(rows)))
    first = first.replace("{period}", every[0] if len(every) == 1 else "its period")
    return f"{first}{name_first(each, N_NAMED)}{words[1]}"
