"""Periods as tables write them: read, put in the order of time, or refused with a remedy."""

import pytest

from geo.core.period_text import natural_key, read_periods, time_order


@pytest.mark.parametrize(
    ("dayfirst", "texts", "periods"),
    [
        (None, ["12/2024", "1-2025", "2.2025"], ["2024-12", "2025-01", "2025-02"]),
        (None, ["31/12/2024", "01/02/2024"], ["2024-12-31", "2024-02-01"]),
        (None, ["12/31/2024", "01/02/2024"], ["2024-12-31", "2024-01-02"]),
        (True, ["03/04/2024"], ["2024-04-03"]),
        (False, ["03/04/2024"], ["2024-03-04"]),
        (None, ["2024/5", "2024/05/06", None], ["2024-05", "2024-05-06", None]),
        (None, ["Jan-24", "sept. 2023", "January 2024"], ["2024-01", "2023-09", "2024-01"]),
        (None, ["31 March 2024", "Mar 30, 2024"], ["2024-03-31", "2024-03-30"]),
        (None, ["2024-01-01 00:00:00", "2024-02-01T00:00:00Z"], ["2024-01-01", "2024-02-01"]),
        (None, ["W05-2024", "Week 6 2024", "Q1 2024"], ["2024-W05", "2024-W06", "2024-Q1"]),
        # What sorts as it is stays: files may be named by it. One period never has two names.
        (None, ["2024-9", "202401", "2024W5", "1", "round2"], None),
        (None, ["2024-9", "2024-09"], ["2024-09", "2024-09"]),
    ],
)
def test_periods(dayfirst, texts, periods):
    assert read_periods(texts, dayfirst) == (periods or texts, {})


@pytest.mark.parametrize(
    ("texts", "found", "remedy"),
    [
        (["13/2024"], "no such day or month", "correct it"),
        (["30/02/2024", "31/12/2024"], "no such day or month", "correct it"),
        (["2024-13"], "no such day or month", "2024-W13"),
        (["2024-W60"], "no such week", "correct it"),
        (["31/12/2024", "12/31/2024"], "the day first in some", "write all as 2024-03-31"),
        (["03/04/2024"], "cannot be told apart", "set counts.dayfirst: true"),
        (["45292"], "five digits", "format the cells as dates, or write 2024-01-01 for 45292"),
        (["1234567"], "a number, and no date", "write it as 2024"),
        (["31/12/24"], "no year of four digits", "31/03/2024"),
        (["2024-01-01 12:30:00"], "time of day", "write its day"),
        (["S1 2024"], "no period that is read", "March 2024"),
    ],
)
def test_refused_periods(texts, found, remedy):
    _, refused = read_periods(texts)
    assert found in refused[texts[0]][0]
    assert remedy in refused[texts[0]][1]


@pytest.mark.parametrize(
    ("texts", "ordered"),
    [
        (["Feb-24", "Jan-24", "Dec-23"], ["Dec-23", "Jan-24", "Feb-24"]),
        (["2024-10", "2024-9"], ["2024-9", "2024-10"]),
        (["round10", "round9"], ["round9", "round10"]),
        (["2024-2025", "2023-2024"], ["2023-2024", "2024-2025"]),
        (["janv-24", "mars-24"], None), (["2024", "2024-01"], None), (["S1-2024", "S2-2023"], None),
        (["2024-01", "2024-01_old"], None), (["a"], ["a"]), (["01-12-2024", "01-11-2024"], None),
    ],
)  # fmt: skip
def test_the_order_of_time_is_told_or_left_to_the_user(texts, ordered):
    assert time_order(texts) == ordered


def test_periods_of_versions_are_compared_by_their_time():
    assert natural_key("2026-9") < natural_key("2026-10")
    assert natural_key("2026") < natural_key("2026-W01")
    assert natural_key("Dec-25") < natural_key("Jan-26")
