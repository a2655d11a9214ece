"""The days that a period of the counts spans, if its name tells them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_PATTERN = re.compile(
    r"(?P<year>\d{4})(?:-?W(?P<week>\d{1,2})|-?Q(?P<quarter>[1-4])"
    r"|-?(?P<month>\d{2})(?:-?(?P<day>\d{2}))?)?",
    re.IGNORECASE,
)


def days_of(period: str | None) -> tuple[datetime, datetime] | None:
    """Return the first and the last second of a period, UTC.

    Parameters
    ----------
    period : str or None
        ``2026``, ``2026-03``, ``202603``, ``2026-03-15``, ``2026-Q1`` or ``2026-W11`` (ISO 8601).

    Returns
    -------
    tuple of datetime or None
        None if the name is none of these.
    """
    found = _PATTERN.fullmatch(period or "")
    if found is None:
        return None
    year = int(found["year"])
    try:
        if found["week"]:
            first = datetime.fromisocalendar(year, int(found["week"]), 1)
            after = first + timedelta(weeks=1)
        elif found["day"]:
            first = datetime(year, int(found["month"]), int(found["day"]), tzinfo=UTC)
            after = first + timedelta(days=1)
        else:
            n_month = 1 if found["month"] else 3 if found["quarter"] else 12
            month = int(found["month"] or 3 * int(found["quarter"] or 1) - 2)
            first = datetime(year, month, 1, tzinfo=UTC)
            month += n_month
            after = datetime(year + (month > 12), (month - 1) % 12 + 1, 1, tzinfo=UTC)
    except ValueError:  # month 13, week 60
        return None
    return first.replace(tzinfo=UTC), after.replace(tzinfo=UTC) - timedelta(seconds=1)
