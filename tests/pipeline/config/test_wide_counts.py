"""Counts with a column for each period, in a configuration."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from geo.core.errors import InputError, Problem
from geo.sources.boundary import read_areas
from geo.sources.repair import Repairs
from pipeline.config.reader import load_config
from pipeline.ingest.responses import read_responses
from tests.pipeline.series_inputs import MONTHS, SMALL_OPTIONS, write_inputs
from tests.typed import edit


def _counts(config: Path, label: str) -> pd.Series:
    found = load_config(config).at(label) if load_config(config).series else load_config(config)
    problems: list[Problem] = []
    areas = read_areas(found.areas.path, None, "id", "areas", problems)
    assert areas is not None
    columns = read_responses(found, areas, Repairs(), problems)
    assert not problems
    assert columns.counts is not None
    return columns.counts


def _widen(config: Path) -> None:
    long = pd.read_csv(config.parent / "cases.csv", dtype=str)
    wide = long.pivot(index="id", columns="month", values="cases")
    wide.to_csv(config.parent / "cases.csv")
    edit(config, {"period: month}": "periods: columns}"})


@pytest.mark.parametrize("has_time", [True, False])
def test_wide_counts_are_the_long_ones(tmp_path: Path, has_time: bool) -> None:
    config = write_inputs(tmp_path, 3)
    if not has_time:
        cut = "time:        {step: month}\n", SMALL_OPTIONS, ', periods: ["2024-01"], forecast: 1'
        edit(config, dict.fromkeys(cut, ""))
    labels = MONTHS[:3] if has_time else MONTHS[2:3]
    before = [_counts(config, label) for label in labels]
    _widen(config)
    found = load_config(config)
    assert found.period == MONTHS[2]
    assert found.series is None or found.series.periods == MONTHS[:3]
    for label, expected in zip(labels, before, strict=True):
        pd.testing.assert_series_equal(_counts(config, label), expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("value: cases, periods: columns, tested: n", "with tested"),
        ("value: cases, period: monat", r"counts\.periods: columns|no column 'monat'"),
    ],
)
def test_wide_counts_that_cannot_be_read(tmp_path: Path, given: str, said: str) -> None:
    config = write_inputs(tmp_path, 2)
    _widen(config)
    edit(config, {"value: cases, periods: columns": given})
    with pytest.raises(InputError, match=said):
        load_config(config)
