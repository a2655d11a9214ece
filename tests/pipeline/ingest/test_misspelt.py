"""A misspelt area is told in one line, whatever its periods and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.pipeline.series_inputs import MONTHS, counts, write_inputs


def _told(config: Path, capsys: pytest.CaptureFixture[str], command: str = "check") -> list[str]:
    assert main([command, str(config), "--quiet"]) == 2
    return capsys.readouterr().err.strip().splitlines()


def test_an_area_misspelt_in_every_month_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_inputs(tmp_path)
    table = counts()
    table.loc[table["id"] == "A03", "id"] = "A3O"
    table.loc[(table["id"] == "A07") & (table["month"] == MONTHS[3]), "id"] = "A77"
    table.to_csv(tmp_path / "cases.csv", index=False)
    (line,) = _told(config, capsys)
    rows = ", ".join(str(5 + 16 * k) for k in range(6))
    assert f"7 count(s) match no area: A3O (rows {rows}; 6 periods from 2024-01 to" in line
    assert "A77 (row 57; 2024-04) in column 'id'; did you mean 'A03' for 'A3O', 'A07'" in line
    assert _told(config, capsys, "ingest") == [line]


def test_files_of_months_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_inputs(tmp_path)
    table = counts().replace({"id": {"A03": "A3O"}})
    for month, own in table.groupby("month"):
        own[["id", "cases"]].to_csv(tmp_path / f"cases_{month}.csv", index=False)
    text = config.read_text().replace("path: cases.csv", 'path: "cases_{period}.csv"')
    config.write_text(text.replace(", period: month", ""))
    (line,) = _told(config, capsys)
    assert "cases_2024-01.csv) and 5 more files: 6 count(s) match no area: A3O (row 5; 6" in line


def test_an_area_that_has_ended_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_inputs(tmp_path)
    (tmp_path / "changes.csv").write_text("period,from,to\n2024-03,X,A03\n")
    config.write_text(config.read_text().replace("id: id}", "id: id, changes: changes.csv}", 1))
    counts().replace({"id": {"A03": "X"}}).to_csv(tmp_path / "cases.csv", index=False)
    (line,) = _told(config, capsys)
    assert "no area of its period in column 'id': X (rows 37, 53, 69, 85; 4 periods" in line
    assert "from 2024-03 to 2024-06), which ended with 2024-03" in line
