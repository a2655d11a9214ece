"""Periods that a run with ``time`` maps, and windows of which it maps the mean.

Those of ``output.periods`` and ``output.windows``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from geo.core.calendar import Calendar
from geo.core.errors import name_first
from pipeline.config.series import EXAMPLE, Series

_LAST = re.compile(r"last[ _](\d{1,4})", re.IGNORECASE)
_BETWEEN = ".."


@dataclass(frozen=True)
class Window:
    """Periods without a gap.

    Attributes
    ----------
    text : str
        As the configuration has it.
    name : str
        Of its folder: without two dots, which paths read as the folder above.
    labels : tuple of str
        Of the periods, by rising time.
    """

    text: str
    name: str
    labels: tuple[str, ...]

    @property
    def title(self) -> str:
        """What is mapped of it, in words: no period has this name."""
        ends = " to ".join(dict.fromkeys((self.labels[0], self.labels[-1])))
        recent = _LAST.fullmatch(self.text.strip())
        return f"mean of the last {len(self.labels)} ({ends})" if recent else f"mean of {ends}"


def windows_of(
    series: Series, texts: Sequence[str], n_ahead: int = 0
) -> tuple[list[Window], list[str]]:
    """Return the windows that a series has whole, and the texts of those that it has not.

    A window of a fixed year is not whole before its last month, and "last 12" not before the
    twelfth: neither is an error of a configuration that each update reads again.

    Parameters
    ----------
    series : Series
    texts : sequence of str
        Each of :func:`ends_of`.
    n_ahead : int
        Forecasts that are mapped, which a window may reach into.
    """
    found: dict[str, Window] = {}
    lacking = []
    for text in texts:
        ends = ends_of(text, series.calendar, series.last)
        assert ends is not None  # else the configuration was refused
        first, last = ends
        if first < series.first or last > series.last + n_ahead:
            lacking.append(text)
            continue
        labels = tuple(series.calendar.label(number) for number in range(first, last + 1))
        name = "_".join(dict.fromkeys((labels[0], labels[-1])))
        if _LAST.fullmatch(text.strip()):
            name = f"last_{len(labels)}"
        found.setdefault(name, Window(text, name, labels))
    return list(found.values()), lacking


def left_out(
    series: Series, periods: str | Sequence[str], windows: Sequence[str], n_ahead: int
) -> list[str]:
    """Say which of ``output.periods`` and ``output.windows`` a run cannot map.

    Parameters
    ----------
    series : Series
    periods, windows : str or sequence of str
        The keys.
    n_ahead : int
        Forecasts that are mapped.
    """
    has = f"not mapped, this run has {series.periods[0]} to "
    _, absent = periods_to_map(series, periods, series.periods[-1])
    found = [f"output.periods: {name_first(absent)}: {has}{series.periods[-1]}"] if absent else []
    last = (*series.periods, *series.following(n_ahead))[-1]
    _, lacking = windows_of(series, windows, n_ahead)
    return [*found, *(f"output.windows: {text}: {has}{last}" for text in lacking)]


def ends_of(text: str, calendar: Calendar, last: int = 0) -> tuple[int, int] | None:
    """Return the numbers of the first and the last period of a window; None for another text.

    Parameters
    ----------
    text : str
        ``2023-01..2023-06``, ``2023-06`` or ``last 12``.
    calendar : Calendar
    last : int
        Number of the last period of the series.
    """
    recent = _LAST.fullmatch(text.strip())
    if recent:
        n = int(recent[1])
        return (last - n + 1, last) if n else None
    one, between, other = text.partition(_BETWEEN)
    first = calendar.number(one.strip())
    end = calendar.number(other.strip()) if between else first
    if first is None or end is None or end < first:
        return None
    return first, end


def wrong_window(calendar: Calendar, texts: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the key, what was found and the remedy where a text is no window of a calendar."""
    for text in texts:
        if ends_of(text, calendar) is None:
            start = calendar.of_day(EXAMPLE)
            example = f"{calendar.label(start)}{_BETWEEN}{calendar.label(start + 5)}"
            found = f"{text!r} is no window of periods (time.step: {calendar.step})"
            return "output.windows", found, f'write "{example}", the earlier first, or "last 12"'
    return None


def wrong_periods(calendar: Calendar, texts: str | Sequence[str]) -> tuple[str, str, str] | None:
    """Return the key, what was found and the remedy where ``output.periods`` names no period."""
    for text in () if isinstance(texts, str) else texts:
        if calendar.number(text) is None:
            found = f"{text!r} is no {calendar.step} (time.step)"
            return "output.periods", found, f"write {calendar.label(calendar.of_day(EXAMPLE))}"
    return None


def periods_to_map(
    series: Series, asked: str | Sequence[str], latest: str
) -> tuple[list[str], list[str]]:
    """Return the labels of ``output.periods`` by rising time, and those that the series lacks."""
    if asked == "latest":
        return [latest], []
    if isinstance(asked, str):
        return list(series.periods), []
    numbers = (series.calendar.number(text) for text in asked)
    labels = {series.calendar.label(number) for number in numbers if number is not None}
    return [p for p in series.periods if p in labels], sorted(labels - set(series.periods))
