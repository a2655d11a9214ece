"""How a table writes its text, numbers, dates and ids, where that is not the usual way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[\s\u00a0\u2007\u2009\u202f]+")  # blanks that programs group digits by
_APOSTROPHES = re.compile("[\u2019\u02bc`\u00b4]")
_MARKS = (",", ".", " ", "'")


@dataclass(frozen=True)
class Spelling:
    """How a table is written.

    Attributes
    ----------
    encoding : str or None
        Encoding of a text file; UTF-8 by default, else Windows-1252.
    thousands, decimal : str or None
        What separates the thousands, and the decimals, of numbers that are text.
    dayfirst : bool or None
        Whether 03/04/2024 is 3 April; None if other dates of the column have to tell.
    loose : bool
        Whether ids that differ in their spelling alone are the same.
    """

    encoding: str | None = None
    thousands: str | None = None
    decimal: str | None = None
    dayfirst: bool | None = None
    loose: bool = False

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

    def ask(self, texts: Sequence[str], key: str) -> str:
        """Return the remedy for numbers that could be read with a declared separator, or ""."""
        if self.thousands is not None or self.decimal is not None or not texts:
            return ""
        plain = [_plain(text) for text in texts]
        for mark in _MARKS:
            other = "," if mark == "." else "."
            wholes = [text.partition(other)[0] for text in plain]
            if all(_grouped(whole, mark) for whole in wholes):
                joined = plain[0].replace(mark, "").replace(",", ".")
                remedy = f'set {key}.thousands: "{mark}" if {texts[0]!r} is {joined}'
                once = all(text.count(mark) == 1 and other not in text for text in plain)
                if mark in ".," and once:
                    decimal = float(plain[0].replace(",", "."))
                    remedy += f', or {key}.decimal: "{mark}" if it is {decimal:.10g}'
                return remedy
        if all(re.fullmatch(r"[+-]?\d*,\d+", text) for text in plain):
            return f'set {key}.decimal: "," if {texts[0]!r} is {plain[0].replace(",", ".")}'
        return ""

    def may_be_thousands(self, texts: Iterable[str]) -> list[str]:
        """Return numbers such as 1.490, if all with a point have three digits after it.

        They are 1490 in half of the world, and nothing in the table tells. Of numbers below 1, or
        with other decimals, the point is that of decimals.
        """
        if self.thousands is not None or self.decimal is not None:
            return []
        pointed = [text for text in texts if "." in text]
        found = all(re.fullmatch(r"[+-]?[1-9]\d{0,2}\.\d{3}", _plain(text)) for text in pointed)
        return pointed if found else []


USUAL = Spelling()


def _plain(text: str) -> str:
    return _APOSTROPHES.sub("'", _BLANKS.sub(" ", text.strip()))


def _grouped(text: str, mark: str) -> bool:
    """Return whether a mark groups the digits of a whole number; India groups by two, too."""
    each = re.escape(mark)
    return re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({each}\d{{2,3}})*{each}\d{{3}}", text) is not None
