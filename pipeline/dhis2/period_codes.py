"""DHIS2's codes of periods, and the calendars that have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

from geo.core.calendar import Calendar
from geo.core.errors import InputError, Problem

TAKEN = (
    "days (20240115), weeks (2024W3, and 2024WedW3, ThuW, FriW, SatW, SunW), months (202401), "
    "quarters (2024Q1) and years (2024)"
)
#: Weeks of DHIS2, by what is before their W; no week of it begins on Tuesday.
_WEEKS = {"": "monday", "Wed": "wednesday", "Thu": "thursday", "Fri": "friday", "Sat": "saturday",
          "Sun": "sunday"}  # fmt: skip
_WEEK = re.compile(rf"(\d{{4}})({'|'.join(filter(None, _WEEKS))})?W(\d\d?)")
_STEPS = {
    "day": re.compile(r"\d{8}|\d{4}-\d\d-\d\d"),
    "month": re.compile(r"\d{6}|\d{4}-\d\d"),
    "quarter": re.compile(r"\d{4}Q\d"),
    "year": re.compile(r"\d{4}"),
}
#: What DHIS2 has, and no calendar of ours.
_OTHERS = {
    "two weeks": re.compile(r"\d{4}BiW\d\d?"),
    "two months": re.compile(r"\d{6}B"),
    "a quarter that begins in November": re.compile(r"\d{4}NovQ\d"),
    "six months": re.compile(r"\d{4}(April|Nov)?S\d"),
    "a financial year": re.compile(r"\d{4}(Feb|April|July|Aug|Sep|Oct|Nov)"),
}
_RELATIVE = re.compile(r"[A-Z][A-Z0-9_]+")
LATEST = "latest"


def read_code(code: str) -> tuple[Calendar, int]:
    """Return the calendar of a code, and the period's number in it.

    Raises
    ------
    ValueError
        Of a code that is none, or of a period that no calendar has; the text says which.
    """
    for what, form in _OTHERS.items():
        if form.fullmatch(code):
            message = f"is {what}, and {TAKEN} are taken"
            raise ValueError(message)
    week = _WEEK.fullmatch(code)
    if week:
        calendar = Calendar("week", _WEEKS[week[2] or ""])
        number = calendar.number(f"{week[1]}W{week[3]}")
    else:
        step = next((step for step, form in _STEPS.items() if form.fullmatch(code)), None)
        calendar = Calendar(step or "day")
        number = calendar.number(code) if step else None
    if number is None:
        message = f"is no period of DHIS2; {TAKEN} are taken"
        raise ValueError(message)
    return calendar, number


def write_code(calendar: Calendar, number: int) -> str:
    """Return DHIS2's code of a period.

    Raises
    ------
    ValueError
        Of weeks that begin on a day on which DHIS2 has none.
    """
    plain = calendar.label(number).replace("-", "")
    if calendar.step != "week":
        return plain
    days = {day: mark for mark, day in _WEEKS.items()}
    if calendar.first_day not in days:
        message = f"DHIS2 has no weeks from {calendar.first_day.capitalize()}"
        raise ValueError(message)
    year, week = plain.split("W")
    return f"{year}{days[calendar.first_day]}W{int(week)}"


def expand(texts: Iterable[str], today: date, place: str) -> list[str]:
    """Return the codes of periods, and of ranges such as ``202201..latest``.

    Parameters
    ----------
    texts : iterable of str
    today : date
        The latest period is the last that was over by then.
    place : str
        For problems.

    Returns
    -------
    list of str
        Codes as DHIS2 writes them; relative periods (``LAST_12_MONTHS``) as they are.

    Raises
    ------
    InputError
        Of a code that is not taken, or a range of two kinds of periods or none.
    """
    found: dict[str, None] = {}
    for text in texts:
        first, dots, last = text.partition("..")
        if not dots and _RELATIVE.fullmatch(text):
            found[text] = None
            continue
        calendar, start = _read(first, place)
        stop = start
        if last == LATEST:
            stop = calendar.of_day(today) - 1
        elif dots:
            other, stop = _read(last, place)
            if other != calendar:
                remedy = "write both in one way, such as 202201..202412"
                raise InputError(Problem(place, f"{text}: periods of two kinds", remedy))
        if stop < start:
            raise InputError(Problem(place, f"{text} has no period", "give an earlier first one"))
        found |= dict.fromkeys(write_code(calendar, n) for n in range(start, stop + 1))
    return list(found)


def common_calendar(codes: Iterable[str], place: str) -> tuple[Calendar, dict[str, int]]:
    """Return the one calendar of some codes, and the number of each.

    Raises
    ------
    InputError
        If there are none, one is not taken, or they are of several kinds.
    """
    read = {code: _read(code, place) for code in dict.fromkeys(codes)}
    kinds = {calendar: code for code, (calendar, _) in read.items()}
    if len(kinds) != 1:
        found = f"periods of several kinds: {', '.join(kinds.values())}" if kinds else "no periods"
        raise InputError(Problem(place, found, "give one kind, of one data set"))
    return next(iter(kinds)), {code: number for code, (_, number) in read.items()}


def describe(calendar: Calendar) -> str:
    """Return the keys of ``time`` that a calendar needs, as YAML."""
    week = f", week: {calendar.first_day}" if calendar.step == "week" else ""
    return f"{{step: {calendar.step}{week}}}"


def _read(code: str, place: str) -> tuple[Calendar, int]:
    try:
        return read_code(code)
    except ValueError as error:
        remedy = "give or export periods of these"
        raise InputError(Problem(place, f"{code!r} {error}", remedy)) from None
