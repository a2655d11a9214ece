"""Areas that lose most of their people in a month are named, and files of any period looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.ingest.series import told_lost
from pipeline.run.runner import run_stages
from tests.pipeline.series_inputs import area_of_pixel, people, rain, write_inputs, write_raster


class Notes(Silent):
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


def ingested(config: Path) -> list[str]:
    notes = Notes()
    run_stages(load_config(config), ["ingest"], notes)
    return notes.lines


def test_areas_that_lose_over_half_of_their_people_are_one_line(tmp_path: Path) -> None:
    config = write_inputs(tmp_path)
    inside, there = area_of_pixel(), people()
    for month, which in ((1, {3: 0.7, 6: 0.3}), (4, {3: 0.9})):
        values = rain(month)
        for area, share in which.items():
            row, col = np.nonzero(inside == area)
            order = np.argsort(there[row, col])
            kept = np.cumsum(there[row, col][order]) <= (1 - share) * there[row, col].sum()
            values[row[order][~kept], col[order][~kept]] = np.nan
        write_raster(tmp_path / f"rain_2024-0{month + 1}.tif", values)
    lost = there[(inside == 3) & np.isnan(values)].sum() / there[inside == 3].sum()
    (line,) = [each for each in ingested(config) if "over half of their people" in each]
    assert line.startswith("ingest: warning: 1 of 16 areas lose over half of their people in some")
    assert f"A03 (2 periods, 2024-05: {100 * lost:.0f} %)" in line
    assert "A06" not in line


@pytest.mark.ci
def test_files_are_looked_at_where_what_moves_has_changed(tmp_path: Path) -> None:
    config = write_inputs(tmp_path)
    assert [line for line in ingested(config) if "suspicion" in line] == []
    write_raster(tmp_path / "rain_2024-02.tif", 1000.0 * rain(1))
    (line,) = [each for each in ingested(config) if "suspicion" in each]
    assert line.startswith("ingest: suspicion: covariates.rain (")
    assert "in 2024-02 (" in line
    text = config.read_text() + "check: {accept: ['scale:covariates.rain']}\n"
    config.write_text(text.replace("seed: 1", "seed: 2"))
    assert [line for line in ingested(config) if "suspicion" in line] == []


@pytest.mark.parametrize("lost", [{"2024-01": None}, {"2024-01": np.full(16, 0.5)}, {}])
def test_nothing_is_said_where_no_area_loses_over_half(
    lost: Mapping[str, np.ndarray | None], tmp_path: Path
) -> None:
    config = load_config(write_inputs(tmp_path))
    assert told_lost(config, [f"A{k:02d}" for k in range(16)], lost) == ""
