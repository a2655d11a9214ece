"""One count written otherwise than all others is told, with how it is read."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import pandas as pd
import pytest

from geo.core.columns import AREA_ID
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.ingest.written_counts import words_suspicions, written_suspicions
from tests.pipeline.series_inputs import areas, counts, write_inputs


def _with(cells: dict[tuple[str, str], str]) -> pd.DataFrame:
    table = counts()
    for (area, month), text in cells.items():
        table.loc[(table["id"] == area) & (table["month"] == month), "cases"] = text
    return table


def _told(directory: Path, table: pd.DataFrame, *told: str, keys: str = "") -> list[str]:
    config = write_inputs(directory)
    table.to_csv(directory / "cases.csv", index=False)
    config.write_text(config.read_text().replace("period: month", f"period: month{keys}", 1))
    frame = gpd.GeoDataFrame(areas().assign(**{AREA_ID: areas()["id"]}))
    return [f"{s.code}: {s.found}; {s.remedy}" for s in
            written_suspicions(load_config(config), frame, told)]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "read"),
    [("1 234", 1234), ("1\u00a0234", 1234), ("1'234", 1234), ("1,234,567", 1234567)],
)
def test_a_separator_among_plain_digits_is_told(tmp_path: Path, written: str, read: int) -> None:
    (text,) = _told(tmp_path, _with({("A03", "2024-02"): written}))
    shown = written.replace("\u00a0", " ")
    assert text.startswith("separator: column 'cases' has a separator among digits, and plain")
    assert f"row 21 (id A03, 2024-02: {shown!r}, read as {read})" in text
    assert f'counts.thousands: "{shown[1]}"' in text


def test_a_mark_that_is_between_no_thousands_is_one_of_decimals(tmp_path: Path) -> None:
    (text,) = _told(tmp_path, _with({("A03", "2024-02"): "24,0"}))
    assert text.endswith('or set counts.decimal: "," if it is right')


def _words(directory: Path, keys: str = "", model: str = "") -> list[str]:
    config = write_inputs(directory)
    table = _with({("A03", "2024-02"): "n/a", ("A04", "2024-03"): "-"})
    table.to_csv(directory / "cases.csv", index=False)
    text = config.read_text().replace("period: month", f"period: month{keys}", 1)
    config.write_text(text.replace("inducing: 6", f"inducing: 6{model}", 1))
    frame = gpd.GeoDataFrame(areas().assign(**{AREA_ID: areas()["id"]}))
    return [f"{s.code}: {s.found}" for s in words_suspicions(load_config(config), frame)]


def test_words_for_no_count_are_told_of_every_period(tmp_path: Path) -> None:
    one, other = "row 21 (id A03, 2024-02: 'n/a')", "row 38 (id A04, 2024-03: '-')"
    said = "missing: column 'cases' has no number in "
    assert _words(tmp_path) == [f"{said}{one}, {other}"]
    # A mark of suppressed counts is no word for a missing one.
    assert _words(tmp_path, keys=', suppressed: {"-": [1, 4]}') == [f"{said}{one}"]
    # Of measured values as well, which are no counts.
    assert _words(tmp_path, model="\n  likelihood: normal") == [f"{said}{one}, {other}"]


def test_a_separator_that_is_declared_or_everywhere_is_not(tmp_path: Path) -> None:
    one = _with({("A03", "2024-02"): "1 234"})
    assert _told(tmp_path, one, keys=', thousands: " "') == []
    every, some = counts(), counts()
    apart = pd.Series([f"{k % 7 + 1} {k:03d}" for k in range(len(every))])
    every["cases"] = apart
    assert _told(tmp_path, every) == []
    # Where a sixth of all have a separator, and no other thousand is without, it is the way.
    some.loc[::6, "cases"] = apart[::6]
    assert _told(tmp_path, some) == []
    some.loc[1, "cases"] = "1234"
    (text,) = _told(tmp_path, some)
    assert "... (16 in all)" in text


def test_what_is_refused_is_not_told_again(tmp_path: Path) -> None:
    refused = {("A03", "2024-02"): "1.234", ("A04", "2024-03"): "1,234", ("A05", "2024-04"): "?"}
    assert _told(tmp_path, _with(refused)) == []


def test_one_fraction_is_told_unless_it_is_already(tmp_path: Path) -> None:
    table = _with({("A03", "2024-02"): "3.5"})
    assert _told(tmp_path, table) == [
        "fraction: column 'cases' has numbers that are not whole in row 21 (id A03, 2024-02: "
        "'3.5', read as 3.5); give cases; look for a mark between thousands"
    ]
    assert _told(tmp_path, table, "fraction") == []
    table["cases"] = [f"{text}.5" if text else "" for text in table["cases"]]  # modelled
    assert _told(tmp_path, table) == []


def test_files_of_months_are_named_by_their_months(tmp_path: Path) -> None:
    table = _with({("A03", "2024-02"): "1 234"})
    config = write_inputs(tmp_path)
    for month, own in table.groupby("month"):
        own[["id", "cases"]].to_csv(tmp_path / f"cases_{month}.csv", index=False)
    text = config.read_text().replace("path: cases.csv", 'path: "cases_{period}.csv"')
    config.write_text(text.replace(", period: month", ""))
    frame = gpd.GeoDataFrame(areas().assign(**{AREA_ID: areas()["id"]}))
    (found,) = written_suspicions(load_config(config), frame, ())
    assert found.place == f"counts ({tmp_path / 'cases_2024-02.csv'})"
    assert "row 5 (id A03, 2024-02: '1 234', read as 1234)" in found.found


def test_a_check_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where areas changed, too: counts of several of today are shared out there."""
    config = write_inputs(tmp_path)
    (tmp_path / "changes.csv").write_text("period,from,to\n2024-03,X,A00\n2024-03,X,A01\n")
    config.write_text(config.read_text().replace("id: id}", "id: id, changes: changes.csv}", 1))
    table = _with({("A03", "2024-02"): "1 002", ("A04", "2024-01"): "3.5"})
    old = table["id"].eq("A01") & (table["month"] < "2024-03")
    table = table[~old].copy()
    table.loc[table["id"].eq("A00") & (table["month"] < "2024-03"), "id"] = "X"
    table.to_csv(tmp_path / "cases.csv", index=False)
    assert main(["check", str(config)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("[")[2] for line in lines] == ["separator]", "fraction]"]
    assert "2024-02: '1 002', read as 1002)" in lines[0]
    assert "2024-01: '3.5', read as 3.5)" in lines[1]


def test_refused_numbers_of_all_months_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_inputs(tmp_path)
    _with({("A03", "2024-02"): "1.234", ("A04", "2024-03"): "1.235"}).to_csv(
        tmp_path / "cases.csv", index=False
    )
    assert main(["check", str(config), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "row 21 (id A03: '1.234'), 38 (id A04: '1.235'): column 'cases' has a point" in line
