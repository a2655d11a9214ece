"""Half of a split in the table of changes is told in one line; whole ones raise nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.pipeline.series_inputs import counts, write_inputs

#: A00 and A01 were X until March, and A05 was called Y.
HEAD = "period,from,to\n"
WHOLE = ("2024-03,X,A00", "2024-03,X,A01", "2024-03,Y,A05")


def _told(directory: Path, capsys: pytest.CaptureFixture[str], table: str) -> list[str]:
    config = write_inputs(directory)
    (directory / "changes.csv").write_text(table)
    config.write_text(config.read_text().replace("id: id}", "id: id, changes: changes.csv}", 1))
    given = counts()
    old = given["month"] < "2024-03"
    given.loc[old & (given["id"] == "A00"), "id"] = "X"
    given.loc[old & (given["id"] == "A05"), "id"] = "Y"
    given[~(old & (given["id"] == "A01"))].to_csv(directory / "cases.csv", index=False)
    assert main(["check", str(config)]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if "[changes]" in line]


def test_a_whole_table_raises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(tmp_path, capsys, HEAD + "\n".join(WHOLE)) == []
    shared = "period,from,to,share\n" + "\n".join(
        f"{row},{share}" for row, share in zip(WHOLE, (0.33, 0.66, 1), strict=True)
    )
    assert _told(tmp_path, capsys, shared) == []


@pytest.mark.parametrize("left", [0, 1])
def test_a_new_area_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: int
) -> None:
    """The area of the counts that begin with the change, beside the other half."""
    rows = [WHOLE[left], WHOLE[2]]
    there, lost = WHOLE[left][-3:], WHOLE[1 - left][-3:]
    (line,) = _told(tmp_path, capsys, HEAD + "\n".join(rows))
    assert "areas.changes (" in line
    assert f"X in 2024-03 ({there} is all of it, yet {lost} beside has counts from 2024-03" in line
    assert f"add the row 2024-03,X,{lost}" in line


def test_shares_that_sum_to_less_than_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "period,from,to,share\n2024-03,X,A00,40\n2024-03,X,A01,60\n2024-03,Y,A05,55\n"
    (line,) = _told(tmp_path, capsys, table)
    assert "half of a split may be missing of Y in 2024-03 (A05 has 0.55 of it)" in line
    both = "period,from,to,share\n2024-03,X,A00,0.4\n2024-03,Y,A05,1\n"
    (line,) = _told(tmp_path, capsys, both)
    assert "on alone and A00 has 0.4 of it)" in line
    assert "add the row 2024-03,X,A01" in line
