"""Files of months whose dates Excel wrote: by the text of the table, or by the month."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from geo.core.calendar import Calendar
from pipeline.cli.check import all_problems
from pipeline.config import period_names
from pipeline.config.reader import load_config
from pipeline.config.series import Series
from pipeline.storage.location import Storage
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


@pytest.mark.parametrize("form", ["{}-{}-01", "{}-{}", "{}{}", "v2.0.{}.{}", "{}_{}_01", "{}{}15"])
def test_files_may_be_named_by_the_table_or_by_the_month(tmp_path: Path, form: str) -> None:
    path = _dated(tmp_path, form)
    head = form.partition("{")[0]
    path.write_text(path.read_text().replace("rain_{period}", f"rain_{head}{{period}}"))
    (tmp_path / f"rain_{head}mask.tif").touch()  # no period
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


def test_one_file_is_never_proposed_for_all_periods(tmp_path: Path) -> None:
    said = _told(_dated(tmp_path, "fall_{}-{}"))
    assert "no file of 6 of 6 periods" in said
    assert "did you mean rain_fall_{period}.tif?" in said


def test_of_several_files_of_a_period_none_is_guessed(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}{}05")
    for month in MONTHS:
        each = tmp_path / f"rain_{month.replace('-', '')}05.tif"
        (tmp_path / each.name.replace("05.tif", "15.tif")).write_bytes(each.read_bytes())
    said = _told(path)
    assert "no file of 6 of 6 periods" in said
    assert "rain_20240105.tif, rain_20240115.tif are of 2024-01: name the one to use " in said


def test_a_day_among_months_is_no_month(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}-{}")
    (tmp_path / "rain_2024-03.tif").rename(tmp_path / "rain_2024-03-15.tif")
    assert "rain_2024-03-01.tif nor rain_2024-03.tif, of 2024-03; add it" in _told(path)


def test_files_of_dhis2_months_serve_a_table_of_months(tmp_path: Path) -> None:
    path = write_inputs(tmp_path)
    for month in MONTHS:
        old = tmp_path / f"rain_{month}.tif"
        old.rename(tmp_path / f"rain_{month.replace('-', '')}.tif")
    assert load_config(path).at("2024-03").covariates["rain"].path.endswith("rain_202403.tif")
    assert all_problems(path)[0] == []


def test_periods_without_counts_are_written_as_the_others(tmp_path: Path) -> None:
    path = _dated(tmp_path, "{}-{}-01")
    series = load_config(path).known_series
    assert series.text(*series.following(1)) == "2024-07-01"
    assert series.text("2024-03") == "2024-03-01"


@pytest.mark.parametrize(
    ("step", "text", "time"),
    [
        ("month", "202403", "2024-03"),
        ("month", "2024-03-01", "2024-03"),
        ("quarter", "2024-Q1", "2024-01-01/2024-03-31"),
        ("week", "2024-W13", "2024-03-25/2024-03-31"),
    ],
)
def test_bands_of_a_file_have_dates_however_the_counts_write_theirs(
    step: str, text: str, time: str
) -> None:
    series = series_of_texts(step, text)
    data = {"covariates": {"rain": {"path": "rain.nc", "time": "{period}"}}}
    assert series.of(data, series.periods[0])["covariates"]["rain"]["time"] == time


def series_of_texts(step: str, text: str) -> Series:
    calendar = Calendar(step)
    number = calendar.number(text)
    assert number is not None
    return Series(calendar, number, number, {calendar.label(number): text})


def test_an_object_store_is_asked_only_where_labels_are_not_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def listed(path: str, *_: object) -> list[tuple[str, str]]:
        asked.append(path)
        return [("2024.03", f"{path}/2024.03")]

    monkeypatch.setattr(period_names, "period_files", listed)
    path = "s3://maps/rain_{period}.tif"
    data = {"covariates": {"rain": {"path": path}}}
    assert (
        period_names.named_files(data, Path(), series_of_texts("month", "2024-03"), Storage()) == {}
    )
    assert asked == []
    of_dhis2 = series_of_texts("month", "202403")
    assert period_names.named_files(data, Path(), of_dhis2, Storage()) == {
        path: {"2024-03": "2024.03"}
    }


@pytest.mark.parametrize(
    "reconcile", ["{}", "{to: 5}", "{to: total, levels: 7}", "{to: total, levels: {}}", "[]"]
)
def test_totals_that_are_none_are_told_by_the_validation(tmp_path: Path, reconcile: str) -> None:
    path = write_inputs(tmp_path, 2)
    text = path.read_text().replace("draws: 40", f"draws: 40, reconcile: {reconcile}")
    path.write_text(text)
    assert "output.reconcile" in _told(path)
