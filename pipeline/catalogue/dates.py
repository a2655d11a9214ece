"""The days that a period of the counts spans, if its name tells them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from geo.core import calendar
from pipeline.config.series import Series


def days_of(period: str | None, series: Series | None = None) -> tuple[datetime, datetime] | None:
    """Return the first and the last second of a period, UTC.

    Parameters
    ----------
    period : str or None
        As :func:`geo.core.calendar.days_of` reads it: ``2026``, ``2026-03``, ``2026-W11`` ...
    series : Series, optional
        The period is one of its calendar, whose weeks may begin on another day.

    Returns
    -------
    tuple of datetime or None
        None if the name tells no days.
    """
    found = calendar.days_of(period or "")
    if series is not None and period is not None:
        number = int(series.time_of(period))
        found = series.calendar.first(number), series.calendar.first(number + 1)
    if found is None:
        return None
    start, end = (_midnight(each) for each in found)
    return start, end - timedelta(seconds=1)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
