"""DHIS2's codes of periods against days that were counted by hand, and against Python's weeks."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from geo.core.calendar import Calendar
from geo.core.errors import InputError
from pipeline.dhis2.period_codes import common_calendar, expand, read_code, write_code


@pytest.mark.parametrize(
    ("code", "first", "last", "label"),
    [
        ("20240115", "2024-01-15", "2024-01-15", "2024-01-15"),
        ("2024-01-15", "2024-01-15", "2024-01-15", "2024-01-15"),
        ("2024W3", "2024-01-15", "2024-01-21", "2024-W03"),
        ("2020W53", "2020-12-28", "2021-01-03", "2020-W53"),
        ("2015WedW5", "2015-01-28", "2015-02-03", "2015-W05"),
        ("2015ThuW6", "2015-02-05", "2015-02-11", "2015-W06"),
        ("2015SatW7", "2015-02-14", "2015-02-20", "2015-W07"),
        ("2015SunW8", "2015-02-22", "2015-02-28", "2015-W08"),
        ("2024FriW1", "2023-12-29", "2024-01-04", "2024-W01"),
        ("202402", "2024-02-01", "2024-02-29", "2024-02"),
        ("2024Q1", "2024-01-01", "2024-03-31", "2024-Q1"),
        ("2024", "2024-01-01", "2024-12-31", "2024"),
    ],
)
def test_a_code_is_the_days_that_dhis2_means(code: str, first: str, last: str, label: str) -> None:
    calendar, number = read_code(code)
    assert calendar.days(number) == f"{first}/{last}"
    assert calendar.label(number) == label
    assert write_code(calendar, number) == code.replace("-", "")


@pytest.mark.parametrize("day", ["monday", "wednesday", "thursday", "friday", "saturday", "sunday"])
def test_weeks_are_those_that_java_counts(day: str) -> None:
    """WeekFields.of(day, 4): the year of a week is that of its fourth day, its number by weeks."""
    calendar = Calendar("week", day)
    for n in range(3000):
        number = calendar.of_day(date(2019, 1, 1) + timedelta(n))
        fourth = calendar.first(number) + timedelta(3)
        week = (fourth - date(fourth.year, 1, 1)).days // 7 + 1
        year, _, text = write_code(calendar, number).partition(
            "W" if day == "monday" else day[:3].title() + "W"
        )
        assert (int(year), int(text)) == (fourth.year, week)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("2024BiW1", "two weeks"), ("202401B", "two months"), ("2024S1", "six months"),
        ("2024AprilS1", "six months"), ("2024NovS2", "six months"), ("2024April", "financial"),
        ("2024July", "financial"), ("2024Oct", "financial"), ("2024Nov", "financial"),
        ("2024NovQ1", "November"), ("2024W54", "no period"), ("202413", "no period"),
        ("2024Q5", "no period"), ("20240230", "no period"), ("LAST_WEEK", "no period"),
    ],
)  # fmt: skip
def test_what_no_calendar_has_is_refused_with_what_is_taken(code: str, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        read_code(code)
    assert "weeks (2024W3" in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "codes"),
    [
        (["202311..202402"], ["202311", "202312", "202401", "202402"]),
        (["202401..latest"], ["202401", "202402"]),
        (["2024W8..latest"], ["2024W8", "2024W9"]),
        (["2024", "LAST_12_MONTHS"], ["2024", "LAST_12_MONTHS"]),
    ],
)
def test_ranges(texts: list[str], codes: list[str]) -> None:
    assert expand(texts, date(2024, 3, 4), "here") == codes


@pytest.mark.parametrize("text", ["202402..202401", "202401..2024W3", "2024S1", "202403..latest"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^here: "):
        expand([text], date(2024, 3, 4), "here")


def test_one_kind_of_periods() -> None:
    calendar, numbers = common_calendar(["202401", "202402", "202401"], "here")
    assert calendar == Calendar("month")
    assert numbers["202402"] - numbers["202401"] == 1
    with pytest.raises(InputError, match="several kinds: 202401, 2024W1"):
        common_calendar(["202401", "2024W1"], "here")
    with pytest.raises(ValueError, match="Tuesday"):
        write_code(Calendar("week", "tuesday"), 1)
