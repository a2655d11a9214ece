"""How a table writes its text, numbers, dates and ids, where that is not the usual way."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_BLANKS = re.compile(r"[\s\u00a0\u2007\u2009\u202f]+")  # blanks that programs group digits by
_APOSTROPHES = re.compile("[\u2019\u02bc`\u00b4]")
# Separators of thousands and decimals, the most usual first.
_WAYS = ((",", "."), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","), (None, ","))


@dataclass(frozen=True)
class Spelling:
    """How a table is written.

    Attributes
    ----------
    encoding : str or None
        Encoding of a text file; UTF-8 by default, UTF-16 where its first bytes say so, else
        Windows-1252.
    delimiter : str or None
        What separates the cells of a text file; by default as its rows tell.
    skip_rows : int
        Rows above the names of the columns.
    thousands, decimal : str or None
        What separates the thousands, and the decimals, of numbers that are text.
    dayfirst : bool or None
        Whether 03/04/2024 is 3 April; None if other dates of the column have to tell.
    loose : bool
        Whether ids that differ in their spelling alone are the same.
    wide : (str, str) or None
        For a table with a column for each period, the columns of period and value to make of them.
    crosswalk, parent : str or None
        File of names with the ids of their areas, and column of the areas that hold these: see
        :mod:`geo.tables.crosswalk`.
    """

    encoding: str | None = None
    delimiter: str | None = None
    skip_rows: int = 0
    thousands: str | None = None
    decimal: str | None = None
    dayfirst: bool | None = None
    loose: bool = False
    wide: tuple[str, str] | None = None
    crosswalk: str | None = None
    parent: str | None = None

    @property
    def layout(self) -> dict[str, Any]:
        """The arguments of :func:`geo.tables.registry.read_table` that it tells."""
        names = ("encoding", "delimiter", "skip_rows", "wide", "dayfirst")
        return {name: getattr(self, name) for name in names}

    def number(self, value: Any) -> float:
        """Convert a cell to a number; raise ValueError if it is none."""
        if not isinstance(value, str):
            return float(str(value))  # True is no number
        text, mark = _plain(value), self.thousands
        point = self.decimal or ("," if mark == "." else ".")
        whole, _, rest = text.partition(point)
        if mark is not None and mark in whole:
            if not _grouped(whole, mark):
                raise ValueError(value)
            whole = whole.replace(mark, "")
        # float() accepts "1_000", which is surely a mistake.
        if "_" in text or (point != "." and "." in whole + rest) or point in rest:
            raise ValueError(value)
        return float(f"{whole}.{rest}" if rest else whole)

    def number_or_nan(self, value: Any) -> float:
        """Convert a cell to a number, NaN if it is none."""
        try:
            return self.number(value)
        except (ValueError, TypeError):
            return math.nan

    def detected(self, texts: Sequence[str]) -> Spelling:
        """Return the spelling with the separators of numbers that can be read in one way alone.

        Itself where some are declared, none are needed, or the numbers can be read in two ways.
        """
        if self.thousands is not None or self.decimal is not None:
            return self
        ways = list(self._ways(texts).values())
        if len(ways) != 1:
            return self
        return replace(self, thousands=ways[0].get("thousands"), decimal=ways[0].get("decimal"))

    def ask(self, texts: Sequence[str], key: str) -> str:
        """Return the remedy for texts that declared separators would make numbers, or ""."""
        found = []
        for numbers, used in self._ways(texts).items():
            new = [f'{key}.{k}: "{v}"' for k, v in used.items() if getattr(self, k) is None]
            wrong = next(k for k, t in enumerate(texts) if math.isnan(self.number_or_nan(t)))
            found.append(f"{' and '.join(new)} if {texts[wrong]!r} is {numbers[wrong]:.15g}")
        return f"set {', or '.join(found)}" if found else ""

    def _ways(self, texts: Sequence[str]) -> dict[tuple[float, ...], dict[str, str]]:
        """Return the separators that make numbers of all texts, by these numbers.

        Nothing where all are numbers already.
        """
        wrong = any(math.isnan(self.number_or_nan(text)) for text in texts)
        found: dict[tuple[float, ...], dict[str, str]] = {}
        for mark, point in _WAYS if wrong else ():
            way = replace(self, thousands=mark, decimal=point)
            numbers = tuple(way.number_or_nan(text) for text in texts)
            if any(map(math.isnan, numbers)) or (
                mark and not any(mark in t for t in map(_plain, texts))
            ):
                continue
            used = {"thousands": mark} if mark else {}
            used |= {"decimal": point} if point == "," and any("," in t for t in texts) else {}
            if all(getattr(self, name) in (None, value) for name, value in used.items()):
                found.setdefault(numbers, used)
        return found

    def may_be_thousands(self, texts: Sequence[str], *, whole: bool) -> list[str]:
        """Return numbers such as 1.490, which are 1490 in half of the world, if nothing tells.

        Counts are whole, so nothing but a declared mark tells. Of other values, the point is that
        of decimals if it does not have three digits after it everywhere, or numbers are below 1.
        """
        if self.decimal is not None or (self.thousands is not None and not whole):
            return []
        point = "," if self.thousands == "." else "."
        one = re.compile(rf"[+-]?[1-9]\d{{0,2}}{re.escape(point)}\d{{3}}")
        pointed = [text for text in texts if point in text]
        found = [text for text in pointed if one.fullmatch(_plain(text))]
        return found if whole or found == pointed else []

    def ask_of_thousands(self, texts: Sequence[str], key: str) -> str:
        """Return the remedy for what :meth:`may_be_thousands` returned."""
        point = "," if self.thousands == "." else "."
        way, decimal = replace(self, thousands=point), f'{key}.decimal: "{point}"'
        if self.thousands is None and not any(math.isnan(way.number_or_nan(t)) for t in texts):
            return f'set {key}.thousands: "{point}" or {decimal}'
        return f"write thousands without it, or set {decimal}"


USUAL = Spelling()


def _plain(text: str) -> str:
    return _APOSTROPHES.sub("'", _BLANKS.sub(" ", text.strip()))


def _grouped(text: str, mark: str) -> bool:
    """Return whether a mark groups the digits of a whole number; India groups by two, too."""
    each = re.escape(mark)
    return re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({each}\d{{2,3}})*{each}\d{{3}}", text) is not None
