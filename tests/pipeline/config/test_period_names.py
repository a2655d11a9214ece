"""Files of months whose dates Excel wrote: by the text of the table, or by the month."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.check import all_problems
from pipeline.config.reader import load_config
from tests.pipeline.series_inputs import MONTHS, write_inputs


def _dated(directory: Path, form: str) -> Path:
    """Write the inputs of six months, the table with first days; files with dates of a form."""
    config = write_inputs(directory)
    table = pd.read_csv(directory / "cases.csv", dtype=str)
    table["month"] += "-01"
    table.to_csv(directory / "cases.csv", index=False)
    for month in MONTHS:
        new = form.format(*month.split("-"))
        (directory / f"rain_{month}.tif").rename(directory / f"rain_{new}.tif")
    return config


@pytest.mark.parametrize("form", ["{}-{}-01", "{}-{}"])
def test_files_may_be_named_by_the_table_or_by_the_month(tmp_path: Path, form: str) -> None:
    path = _dated(tmp_path, form)
    config = load_config(path)
    for month in MONTHS:
        name = f"rain_{form.format(*month.split('-'))}.tif"
        assert config.at(month).covariates["rain"].path.endswith(name)
    problems, _, examined, _ = all_problems(path)
    assert problems == []
    assert examined is not None
    assert [each.period for each in examined.profile.periods] == list(MONTHS)


def test_the_text_of_the_table_comes_first(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}-{}-01")
    (tmp_path / "rain_2024-03.tif").write_bytes((tmp_path / "rain_2024-03-01.tif").read_bytes())
    assert load_config(path).at("2024-03").covariates["rain"].path.endswith("2024-03-01.tif")


def _told(path: Path) -> str:
    return "\n".join(map(str, all_problems(path)[0]))


def test_a_missing_file_has_both_names(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}-{}")
    (tmp_path / "rain_2024-03.tif").unlink()
    said = _told(path)
    assert "rain_2024-03-01.tif nor rain_2024-03.tif, of 2024-03; add it" in said


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("{}{}", "rename the files, such as rain_202401.tif to rain_2024-01.tif"),
        ("fall_{}-{}", "did you mean rain_fall_{period}.tif?"),
    ],
)
def test_one_file_is_never_proposed_for_all_periods(tmp_path: Path, form: str, remedy: str) -> None:
    said = _told(_dated(tmp_path, form))
    assert "no file of 6 of 6 periods" in said
    assert remedy in said


def test_periods_without_counts_are_written_as_the_others(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}-{}-01")
    series = load_config(path).known_series
    assert series.text(*series.following(1)) == "2024-07-01"
    assert series.text("2024-03") == "2024-03-01"
