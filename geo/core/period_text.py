"""Periods as tables write them: years, quarters, months, weeks and days."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

#: What is read as a period.
ACCEPTED = "2024, 2024-Q1, 2024-03, 2024-W13, 2024-03-31, 03/2024, 31/03/2024, Mar-24 or March 2024"
#: A name that a period may have besides, such as round2; it has to fit in the name of a file.
NAME = re.compile(r"\w[\w.-]*")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MIDNIGHT = re.compile(r"[t ]00:00(:00(\.0+)?)?(z|\+00:?00)?$")
_YEAR, _WORD, _UNIT = r"(?P<y>(?:1[89]|2[01])\d\d)", r"(?P<word>[a-z]{3,9})\.?", "(?P<unit>[wq])"
_DAY = re.compile(rf"(?P<a>\d{{1,2}})([-/.])(?P<b>\d{{1,2}})\2{_YEAR}")
_DATES = [
    re.compile(form)
    for form in (
        rf"{_YEAR}[-/.](?P<m>\d{{1,2}})(?:[-/.](?P<d>\d{{1,2}}))?",
        rf"(?P<m>\d{{1,2}})[-/.]{_YEAR}",
        rf"(?:(?P<d>\d{{1,2}})[ -]+)?{_WORD}[ ,/-]*{_YEAR}",
        rf"{_WORD} (?P<d>\d{{1,2}}),? {_YEAR}",
        rf"{_WORD}[-'](?P<yy>\d\d)",
        rf"{_YEAR}[ /-]*{_WORD}(?:[ -](?P<d>\d{{1,2}}))?",
        rf"{_YEAR}-?{_UNIT}(?P<n>\d{{1,2}})",
        rf"{_UNIT}(?:eek|uarter)? ?(?P<n>\d{{1,2}})[ /-]*{_YEAR}",
        rf"{_YEAR}(?P<m>\d\d)(?P<d>\d\d)",
    )
]
#: Forms that sort as they are; files may be named by them, so they are left.
_SORTED = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?|\d{8}|\d{4}-?[wq]\d{1,2}", re.IGNORECASE)
_SHORT_YEAR = re.compile(r"\d{1,2}([-/.])\d{1,2}(\1\d{2})?")
_EXCEL_DAY_0 = datetime.date(1899, 12, 30)


class _RefusedError(ValueError):
    """A text is no period: what is wrong, and the remedy."""


def read_periods(
    texts: Iterable[str | None], dayfirst: bool | None = None
) -> tuple[list[str | None], dict[str, tuple[str, str]]]:
    """Read periods.

    12/2024 and Dec-24 become 2024-12, and 31/12/2024 becomes 2024-12-31. What sorts as it is
    (2024-9, 20240131) stays unless the same period is written in another way, too. So do numbers of
    up to four digits, 202401 and names.

    Parameters
    ----------
    texts : iterable of str or None
        Of one column.
    dayfirst : bool, optional
        Whether 03/04/2024 is 3 April; by default, dates that can be read in one way alone tell.

    Returns
    -------
    periods : list of str or None
        None where the text is missing or refused.
    refused : dict
        Of each refused text, what is wrong, and the remedy.
    """
    given = [text or None for text in texts]
    days = [found for text in given if text and (found := _DAY.fullmatch(_plain(text)))]
    pairs = [(int(day["a"]), int(day["b"])) for day in days]
    first, last = any(a > 12 >= b for a, b in pairs), any(b > 12 >= a for a, b in pairs)
    order = dayfirst if dayfirst is not None or first == last else first
    both = dayfirst is None and first and last
    read: dict[str, str] = {}
    refused: dict[str, tuple[str, str]] = {}
    for text in filter(None, dict.fromkeys(given)):
        try:
            read[text] = _iso(text, order, both=both)
        except _RefusedError as error:
            refused[text] = error.args
    spellings = Counter(read.values())
    for text, iso in read.items():
        if _SORTED.fullmatch(text) and spellings[iso] == 1:
            read[text] = text
    return [None if text is None else read.get(text) for text in given], refused


def time_order(periods: Iterable[str], dayfirst: bool | None = None) -> list[str] | None:
    """Return periods in the order of time, the earliest first; None if they do not tell it.

    They tell it if all are written alike: as dates, by the year first, or with a single number.
    """
    known = list(dict.fromkeys(periods))
    isos, refused = read_periods(known, dayfirst)
    of = {period: iso or period for period, iso in zip(known, isos, strict=True)}
    kinds = {_form(iso) for iso in of.values()}
    alike = not refused and len(kinds) == 1
    if len(known) > 1 and not (alike and re.match(r"\d|[^\d#]*[\d#]?[^\d#]*$", kinds.pop())):
        return None
    return sorted(known, key=lambda period: natural_key(of[period]))


def unlike_most(periods: Iterable[str], dayfirst: bool | None = None) -> list[str]:
    """Return the periods of another form than most of them; none where no form is that of most."""
    known = list(dict.fromkeys(periods))
    isos, _ = read_periods(known, dayfirst)
    forms = [_form(iso or period) for period, iso in zip(known, isos, strict=True)]
    (form, n), *_ = Counter(forms).most_common(1) or [("", 0)]
    if 2 * n <= len(known):
        return []
    return [period for period, own in zip(known, forms, strict=True) if own != form]


def natural_key(period: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key of a period that places 2026-9 before 2026-10, and Dec-25 before both."""
    (iso,), _ = read_periods([period])
    parts = re.split(r"(\d+)", iso or period)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def _form(iso: str) -> str:
    return re.sub(r"\d+", lambda digits: _size(digits[0]), iso)


def _size(digits: str) -> str:
    return "#" if len(digits) < 4 else str(len(digits))


def _refuse(found: str, remedy: str) -> NoReturn:
    raise _RefusedError(found, remedy)


def _plain(text: str) -> str:
    return _MIDNIGHT.sub("", re.sub(r"\s+", " ", text.strip().lower()))


def _iso(text: str, dayfirst: bool | None, *, both: bool) -> str:
    plain = _plain(text)
    day = _DAY.fullmatch(plain)
    if day and both:
        _refuse("has the day first in some dates, the month in others", "write all as 2024-03-31")
    if day and dayfirst is None:
        remedy = "set counts.dayfirst: true if the first number is the day, else false"
        _refuse("has dates whose day and month cannot be told apart", remedy)
    if day:
        of_day, of_month = (day["a"], day["b"]) if dayfirst else (day["b"], day["a"])
        return _date(day["y"], of_month, of_day)
    for form in _DATES:
        found_form = form.fullmatch(plain)
        iso = found_form and _of_parts(found_form.groupdict())
        if iso:
            return iso
    if ":" in plain:
        _refuse("has a time of day", "write its day alone (2024-03-31)")
    if re.fullmatch(r"\d{5}(\.\d+)?", plain):
        day_of = _EXCEL_DAY_0 + datetime.timedelta(int(plain[:5]))
        remedy = f"format the cells as dates, or write {day_of} for {plain}, if Excel counted days"
        _refuse("is a number of five digits, and no date", remedy)
    month = re.fullmatch(rf"{_YEAR}(\d\d)", plain)
    if plain.isdecimal() and not (len(plain) < 5 or (month and 0 < int(month[2]) < 54)):
        _refuse("is a number, and no date", f"write it as {ACCEPTED}")
    if _SHORT_YEAR.fullmatch(plain):
        _refuse("has no year of four digits", f"write it as {ACCEPTED}")
    if not NAME.fullmatch(text):
        _refuse("is no period that is read", f"write it as {ACCEPTED}")
    return text


def _of_parts(part: dict[str, Any]) -> str | None:
    """Return the ISO text of the parts of a date; None if its word is no English month."""
    year, word, unit = part.get("y"), part.get("word"), part.get("unit")
    if year is None:  # Jan-24
        century = "20" if part["yy"] < "70" else "19"
        year = f"{century}{part['yy']}"
    if unit:
        number = int(part["n"])
        if not 0 < number <= (53 if unit == "w" else 4):
            _refuse("is no date: there is no such week or quarter", "correct it")
        return f"{year}-W{number:02d}" if unit == "w" else f"{year}-Q{number}"
    if word is None:
        return _date(year, part["m"], part.get("d"))
    months = [k for k, name in enumerate(_MONTHS, 1) if name.startswith(word)]
    return _date(year, months[0], part.get("d")) if months else None


def _date(year: str, month: str | int, day: str | None) -> str:
    try:
        date = datetime.date(int(year), int(month), int(day or 1))
    except ValueError:
        remedy = "correct it (a week is written 2024-W13)"
        _refuse("is no date: there is no such day or month", remedy)
    return date.isoformat() if day else f"{date:%Y-%m}"
