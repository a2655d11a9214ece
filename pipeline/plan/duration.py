"""Durations as people write them: 90m, 2h, 1h30m."""

from __future__ import annotations

import re

from geo.core.errors import InputError, Problem

SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in SECONDS))


def parse_duration(text: str) -> float:
    """Return the seconds of a duration.

    Parameters
    ----------
    text : str
        Days, hours, minutes and seconds, largest first, each at most once: ``1d``, ``2h``,
        ``1h30m``, ``1.5h``, ``45s``.

    Raises
    ------
    InputError
        If it is no duration, or 0.
    """
    found = _FORM.fullmatch(re.sub(r"\s", "", text.lower()))
    amounts = found.groups() if found else ()
    seconds = sum(float(n) * unit for n, unit in zip(amounts, SECONDS.values(), strict=False) if n)
    if not seconds > 0:
        raise InputError(
            [Problem("--within", f"{text!r} is no duration", "give one such as 90m, 2h or 1h30m")]
        )
    return seconds


def tell_duration(seconds: float) -> str:
    """Return a duration that :func:`parse_duration` reads, rounded up to two units at most."""
    if seconds < 100:
        return f"{max(1, int(-(-seconds // 1)))}s"
    minutes = int(-(-seconds // 60))
    if minutes < 100:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{rest}m" if rest else f"{hours}h"
