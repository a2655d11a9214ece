"""Calendars of periods: numbers, labels, days."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from geo.core.calendar import STEPS, Calendar


@pytest.mark.parametrize("step", STEPS)
def test_periods_follow_each_other_without_a_gap(step: str) -> None:
    calendar = Calendar(step)
    number = calendar.of_day(date(2019, 12, 15))
    for each in range(number, number + 30):
        label = calendar.label(each)
        assert calendar.number(label) == each
        last = calendar.first(each + 1) - timedelta(1)
        assert calendar.of_day(calendar.first(each)) == calendar.of_day(last) == each
        assert calendar.number(str(last)) == each
        assert calendar.number(calendar.like(each, "202403")) == each or step == "day"


def test_weeks_are_those_of_iso_8601() -> None:
    calendar = Calendar("week")
    for k in range(3000):
        day = date(2018, 12, 20) + timedelta(k)
        year, week, _ = day.isocalendar()
        assert calendar.label(calendar.of_day(day)) == f"{year}-W{week:02d}"
    assert calendar.number("2020-W53") is not None
    assert calendar.number("2021-W53") is None


@pytest.mark.parametrize(
    ("day", "label"),  # of the epidemiological weeks that the CDC prints
    [
        (date(2023, 12, 31), "2024-W01"),
        (date(2024, 12, 28), "2024-W52"),
        (date(2024, 12, 29), "2025-W01"),
        (date(2020, 12, 27), "2020-W53"),
        (date(2021, 1, 2), "2020-W53"),
        (date(2021, 1, 3), "2021-W01"),
    ],
)
def test_weeks_from_sunday_are_epidemiological_weeks(day: date, label: str) -> None:
    assert Calendar("week", "sunday").label(Calendar("week", "sunday").of_day(day)) == label


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("month", "2024-13"),
        ("month", "2024"),
        ("quarter", "2024-Q5"),
        ("day", "2024-02-30"),
        ("year", "24"),
        ("week", "2024-W00"),
        ("month", "round2"),
    ],
)
def test_what_is_no_period_has_no_number(step: str, text: str) -> None:
    assert Calendar(step).number(text) is None
