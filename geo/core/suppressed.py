"""Counts that a table gives as an interval, to protect patients: ``<5``, ``1-4``, ``*``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Counts of an interval: its likelihood adds up the probability of each.
MOST = 200
_BELOW = re.compile(r"(<=|=<|≤|<)\s*(\d{1,6})")
_BETWEEN = re.compile(r"(\d{1,6})\s*(?:-|\u2013|to)\s*(\d{1,6})")


@dataclass(frozen=True)
class Suppression:
    """How a table suppresses its small counts.

    Attributes
    ----------
    marks : mapping
        Cells that stand for an interval, with its ends.
    zeros_published : bool
        Whether a count of 0 is given as such: ``<5`` is then 1 to 4.
    """

    marks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    zeros_published: bool = False

    def interval(self, value: Any) -> tuple[int, int] | None:
        """Return the smallest and the largest count that a cell may be; None for no interval."""
        if not isinstance(value, str):
            return None
        text = value.strip()
        if text in self.marks:
            return self.marks[text]
        if found := _BELOW.fullmatch(text):
            low, high = int(self.zeros_published), int(found[2]) - (found[1] == "<")
        elif found := _BETWEEN.fullmatch(text):
            low, high = int(found[1]), int(found[2])
        else:
            return None
        return (low, high) if low <= high < low + MOST else None


def interval_text(low: float, high: float) -> str:
    """Write an interval as a table does: ``<5`` from 0, else ``1-4``."""
    return f"<{high + 1:,.0f}" if low == 0 else f"{low:,.0f}-{high:,.0f}"


USUAL = Suppression()
