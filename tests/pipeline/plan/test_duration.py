"""Durations as people write them."""

from __future__ import annotations

import pytest

from geo.core.errors import InputError
from pipeline.plan.duration import parse_duration, tell_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("45s", 45),
        ("1.5h", 5400),
        ("1d2h", 93600),
        ("2H", 7200),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0h", "2", "h", "30m1h", "2 hours", "-1h", "1h1h", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no duration; give one such as 90m"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.2, 59.5, 100, 3599, 7201, 86_399, 200_000])
def test_what_is_told_is_read_again_and_never_too_short(seconds: float) -> None:
    again = parse_duration(tell_duration(seconds))
    assert seconds <= again < seconds + 61
