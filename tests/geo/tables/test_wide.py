"""Tables with a column for each period."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from geo.core.errors import InputError
from geo.tables.registry import read_table


@pytest.mark.parametrize("heads", [("2024-01", "2024-02"), ("202401", "202402"), ("2024", "2025")])
def test_a_wide_table_is_its_long_form(tmp_path: Path, heads: tuple[str, str]) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(f"id,{heads[0]},name,{heads[1]}\nA,1,Aa,\nB,3,Bb,4\n", encoding="utf-8")
    table, rows = read_table(path, "counts", wide=("month", "cases"))
    expected = pd.DataFrame(
        {
            "id": ["A", "B", "A", "B"],
            "name": ["Aa", "Bb", "Aa", "Bb"],
            "month": [heads[0]] * 2 + [heads[1]] * 2,
            "cases": ["1", "3", "", "4"],
        }
    )
    pd.testing.assert_frame_equal(table.fillna(""), expected, check_dtype=False)
    assert rows.tolist() == [2, 3, 2, 3]  # as a spreadsheet shows them


@pytest.mark.parametrize(
    ("head", "said"),
    [("id,jan", "no column is named as a period"), ("id,cases,2024-01", "a column 'cases'")],
)
def test_tables_that_are_not_wide_are_refused(tmp_path: Path, head: str, said: str) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(f"{head}\n" + ",".join("1" * len(head.split(","))) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_table(path, "counts", wide=("month", "cases"))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("id,2024-01,2024-01", "two columns '2024-01' are of one period; keep one"),
        ("id,2024-01,2024-02,2024/01", "columns '2024-01' and '2024/01' are of one period"),
        ("id,2024-01,2024-02,2024", "2024 is a year, and the others are shorter"),
        ("id,01/01/2024,01/02/2024", "told apart: 01/01/2024, 01/02/2024; set counts.dayfirst"),
        ("id,2021-W04,2021-W55", "no such week or quarter: 2021-W55"),
        ("id,2021-04,2021-13", "no such day or month: 2021-13"),
        ("id,2021-W04,2021-WO5", "the head '2021-WO5' is no period, and like '2021-W04'; correct"),
    ],
)
def test_columns_of_no_period_of_their_own_are_named(tmp_path: Path, head: str, said: str) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(f"{head}\n" + ",".join("1" * len(head.split(","))) + "\n", encoding="utf-8")
    with pytest.raises(InputError) as raised:
        read_table(path, "counts", wide=("month", "cases"))
    assert said in str(raised.value)
    if "01/01" in head:
        table, _ = read_table(path, "counts", wide=("month", "cases"), dayfirst=True)
        assert table["month"].tolist() == ["01/01/2024", "01/02/2024"]
