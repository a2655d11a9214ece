"""Calendars: periods of one length, numbered without gaps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

STEPS = ("day", "week", "month", "quarter", "year")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Steps of a season, by step.
_SEASONS = {"day": 365.25, "week": 365.25 / 7, "month": 12.0, "quarter": 4.0, "year": None}
_DAY = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)")
_PLAIN_DAY = re.compile(r"(\d{4})(\d\d)(\d\d)")
_MONTH = re.compile(r"(\d{4})-?(\d\d?)")
_WEEK = re.compile(r"(\d{4})-?[Ww](\d\d?)")
_QUARTER = re.compile(r"(\d{4})-?[Qq](\d)")
_YEAR = re.compile(r"(\d{4})")


@dataclass(frozen=True)
class Calendar:
    """Periods of one length.

    A period has a number, which rises by one from each to the next and depends on nothing else, and
    a label: 2024-03-31, 2024-W13, 2024-03, 2024-Q1 or 2024.

    Parameters
    ----------
    step : {"day", "week", "month", "quarter", "year"}
    first_day : str
        Day that a week begins on. Week 1 is the first that has four days of its year, as ISO 8601
        and, from Sunday, epidemiological weeks have it.
    """

    step: str
    first_day: str = "monday"

    @property
    def season_length(self) -> float | None:
        """Steps of a year; None for years."""
        return _SEASONS[self.step]

    def number(self, text: str) -> int | None:
        """Return the number of the period of a label, or of a day in it; None for another text."""
        day = _DAY.fullmatch(text) or _PLAIN_DAY.fullmatch(text)
        if day:
            try:
                return self.of_day(date(*map(int, day.groups())))
            except ValueError:
                return None
        return _PARSERS[self.step](self, text) if self.step in _PARSERS else None

    def number_in_name(self, text: str) -> int | None:
        """Return the number of a period as names of files write it, such as 2024.03 and 2024_03."""
        return self.number(re.sub("[._]", "-", text))

    def of_day(self, day: date) -> int:
        """Return the number of the period that a day is in."""
        quarter = (day.month - 1) // 3
        return {
            "day": day.toordinal(),
            "week": (day.toordinal() - 1 - self._shift) // 7,
            "month": 12 * day.year + day.month - 1,
            "quarter": 4 * day.year + quarter,
            "year": day.year,
        }[self.step]

    def first(self, number: int) -> date:
        """Return the first day of a period."""
        if self.step == "day":
            return date.fromordinal(number)
        if self.step == "week":
            return date.fromordinal(7 * number + 1 + self._shift)
        months = number * {"month": 1, "quarter": 3, "year": 12}[self.step]
        return date(months // 12, months % 12 + 1, 1)

    def label(self, number: int) -> str:
        """Return the label of a period."""
        day = self.first(number)
        if self.step == "week":
            year = (day + timedelta(3)).year
            return f"{year}-W{number - self._week_1(year) + 1:02d}"
        return {
            "day": day.isoformat(),
            "month": f"{day:%Y-%m}",
            "quarter": f"{day.year}-Q{(day.month + 2) // 3}",
            "year": str(day.year),
        }[self.step]

    def like(self, number: int, text: str) -> str:
        """Return a label written as another text of the calendar is: 202403 as 202401."""
        label, own = self.label(number), self.number(text)
        if own is not None and self.first(own).isoformat() == text:  # 2024-03-01 of a month
            label = self.first(number).isoformat()
        return label if "-" in text else label.replace("-", "")

    def days(self, number: int, start: int | None = None) -> str:
        """Return the first and the last day of a period, ``2024-02-01/2024-02-29``.

        With ``start``, the number of an earlier period, the first day is that one's.
        """
        first = self.first(number if start is None else start)
        return f"{first}/{self.first(number + 1) - timedelta(1)}"

    @property
    def _shift(self) -> int:
        return WEEKDAYS.index(self.first_day)

    def _week_1(self, year: int) -> int:
        return self.of_day(date(year, 1, 4))  # always in it

    def _of_week(self, text: str) -> int | None:
        found = _WEEK.fullmatch(text)
        if found is None:
            return None
        year, week = (int(part) for part in found.groups())
        number = self._week_1(year) + week - 1
        return number if week >= 1 and number < self._week_1(year + 1) else None


def days_of(text: str, window: int = 1) -> tuple[date, date] | None:
    """Return the first day of a text and the day after its last; None for another text.

    Parameters
    ----------
    text : str
        A period, whose length its own form tells (``2024``, ``2024-Q1``, ``2024-02``, ``2024-W05``,
        from Monday, ``2024-02-29``), or two days with a slash between them.
    window : int
        Periods up to and with that of the text, of its length.
    """
    first, slash, last = text.strip().partition("/")
    if slash:
        ends = [Calendar("day").number(each.strip()) for each in (first, last)]
        if None in ends or ends[0] > ends[1]:  # type: ignore[operator]
            return None
        return date.fromordinal(ends[0] or 1), date.fromordinal((ends[1] or 1) + 1)
    for step in STEPS:  # a day is of every step: days first
        calendar = Calendar(step)
        number = calendar.number(first)
        if number is not None:
            return calendar.first(number - window + 1), calendar.first(number + 1)
    return None


def in_year(span: tuple[date, date], year: int) -> tuple[date, date]:
    """Return the same days so that the last lies in a year; a 29 February may be 1 March.

    Parameters
    ----------
    span : (date, date)
        First day, and day after the last.
    year : int
    """
    shift = year - (span[1] - timedelta(1)).year

    def moved(day: date) -> date:
        try:
            return day.replace(year=day.year + shift)
        except ValueError:
            return date(day.year + shift, 3, 1)

    return moved(span[0]), moved(span[1])


def _of(form: re.Pattern[str], most: int) -> Callable[[Calendar, str], int | None]:
    def read(calendar: Calendar, text: str) -> int | None:
        del calendar
        found = form.fullmatch(text)
        if found is None:
            return None
        year, part = (*map(int, found.groups()), 1)[:2]
        return most * year + part - 1 if 1 <= part <= most else None

    return read


_PARSERS: dict[str, Callable[[Calendar, str], int | None]] = {
    "week": Calendar._of_week,
    "month": _of(_MONTH, 12),
    "quarter": _of(_QUARTER, 4),
    "year": _of(_YEAR, 1),
}
