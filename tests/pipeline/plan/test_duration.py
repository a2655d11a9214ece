"""Durations as people write them."""

from __future__ import annotations

import pytest

from geo.core.errors import InputError
from pipeline.plan.duration import parse_duration, tell_duration


def test_durations_as_people_write_them() -> None:
    for text in ("90m", "1h30m", "1h 30m", "1.5H", "5400s"):
        assert parse_duration(text) == 5400
    assert parse_duration("1d2h") == 93600
    for text in ("", "0h", "2", "h", "30m1h", "2 hours", "-1h", "1h1h", "nan"):
        with pytest.raises(InputError, match="no duration; give one such as 90m"):
            parse_duration(text)
    # What is told is read again, and never too short.
    for seconds in (0.2, 59.5, 100, 3599, 7201, 86_399, 200_000):
        assert seconds <= parse_duration(tell_duration(seconds)) < seconds + 61
