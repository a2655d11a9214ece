"""Cells that give a count as an interval."""

from __future__ import annotations

import pytest

from geo.core.suppressed import MOST, Suppression, interval_text


@pytest.mark.parametrize(
    ("cell", "interval"),
    [
        ("<5", (0, 4)), (" < 5 ", (0, 4)), ("<=4", (0, 4)), ("≤4", (0, 4)), ("1-4", (1, 4)),
        ("1 \u2013 4", (1, 4)), ("1 to 4", (1, 4)), ("*", (1, 9)), ("5", None), (5.0, None),
        ("4-1", None), ("<0", None), (f"<{MOST + 1}", None), ("-4", None), ("2024-03-01", None),
    ],
)  # fmt: skip
def test_a_cell_is_an_interval(cell, interval):
    assert Suppression({"*": (1, 9)}).interval(cell) == interval


def test_published_zeros_are_not_among_the_suppressed():
    assert Suppression(zeros_published=True).interval("<5") == (1, 4)
    assert Suppression(zeros_published=True).interval("0-4") == (0, 4)  # it says so
    assert Suppression(zeros_published=True).interval("<1") is None


def test_intervals_are_written_as_tables_do():
    assert [interval_text(0, 4), interval_text(1, 4)] == ["<5", "1-4"]
