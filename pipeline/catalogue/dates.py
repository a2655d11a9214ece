"""The days that a period of the counts spans, if its name tells them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from pipeline.config.series import Series

_PATTERN = re.compile(
    r"(?P<year>\d{4})(?:-?W(?P<week>\d{1,2})|-?Q(?P<quarter>[1-4])"
    r"|-?(?P<month>\d{2})(?:-?(?P<day>\d{2}))?)?",
    re.IGNORECASE,
)


def days_of(period: str | None, series: Series | None = None) -> tuple[datetime, datetime] | None:
    """Return the first and the last second of a period, UTC.

    Parameters
    ----------
    period : str or None
        ``2026``, ``2026-03``, ``202603``, ``2026-03-15``, ``2026-Q1`` or ``2026-W11`` (ISO 8601).
    series : Series, optional
        The period is one of its calendar, whose weeks may begin on another day.

    Returns
    -------
    tuple of datetime or None
        None if the name is none of these.
    """
    if series is not None and period is not None:
        number = int(series.time_of(period))
        return _seconds(*(series.calendar.first(number + k) for k in (0, 1)))
    found = _PATTERN.fullmatch(period or "")
    if found is None:
        return None
    year = int(found["year"])
    try:
        if found["week"]:
            first = date.fromisocalendar(year, int(found["week"]), 1)
            after = first + timedelta(weeks=1)
        elif found["day"]:
            first = date(year, int(found["month"]), int(found["day"]))
            after = first + timedelta(days=1)
        else:
            n_month = 1 if found["month"] else 3 if found["quarter"] else 12
            month = int(found["month"] or 3 * int(found["quarter"] or 1) - 2)
            first = date(year, month, 1)
            month += n_month
            after = date(year + (month > 12), (month - 1) % 12 + 1, 1)
    except ValueError:  # month 13, week 60
        return None
    return _seconds(first, after)


def _seconds(first: date, after: date) -> tuple[datetime, datetime]:
    start, end = (datetime(each.year, each.month, each.day, tzinfo=UTC) for each in (first, after))
    return start, end - timedelta(seconds=1)
