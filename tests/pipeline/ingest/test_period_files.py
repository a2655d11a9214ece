"""The files of all periods: what is missing or damaged is one line, before anything is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.check import all_problems
from pipeline.config.reader import load_config
from pipeline.ingest.period_files import period_states
from tests.pipeline.series_inputs import write_inputs
from tests.typed import edit


def test_missing_periods_are_one_line(tmp_path: Path) -> None:
    config = write_inputs(tmp_path)
    for month in ("2024-02", "2024-03", "2024-06"):
        (tmp_path / f"rain_{month}.tif").unlink()
    problems, *_ = all_problems(config)
    (line,) = [str(each) for each in problems]
    assert "covariates.rain.path: no file of 3 of 6 periods: 2024-02, 2024-03, 2024-06" in line
    # A slip in the table asks for files of months to come, whose names are like others.
    assert line.endswith("leave what lacks one out; the last period is 2024-06: is it right?")
    write_inputs(tmp_path)
    (tmp_path / "rain_2024-03.tif").unlink()
    (line,) = [str(each) for each in all_problems(config)[0]]
    assert line.endswith(
        "of 2024-03; add it, or let time.from and time.to leave what lacks one out"
    )


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_damaged_header_is_told_with_its_periods(tmp_path: Path, ahead: int) -> None:
    config = write_inputs(tmp_path)
    config.write_text(config.read_text().replace("forecast: 1", f"forecast: {ahead}"))
    for month in ("2024-02", "2024-05", "2024-07"):
        (tmp_path / f"rain_{month}.tif").write_text("no raster")
    problems, *_ = all_problems(config)
    months = "2024-02, 2024-05" + (", 2024-07" if ahead else "")
    assert [each.found for each in problems] == [f"{months}: is not a raster that GDAL can read"]


def test_a_forecast_may_lack_its_file(tmp_path: Path) -> None:
    config = write_inputs(tmp_path)
    assert all_problems(config)[0] == []
    states = period_states(load_config(config))
    assert states == {"covariates.rain": ["file"] * 6 + ["no file"]}


def test_a_key_that_is_none_is_a_line(tmp_path: Path) -> None:
    """Layers that move are read again for each period, from the values as they were given."""
    config = write_inputs(tmp_path, 3)
    edit(config, {"id: id}\ncounts": "id: id, chanegs: 3}\ncounts"})
    problems, *_ = all_problems(config)
    assert [str(each) for each in problems] == [
        "disagg.yaml line 2: areas.chanegs: unknown key; did you mean areas.changes?"
    ]
