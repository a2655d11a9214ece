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
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("period: month}", "periods: columns}"), encoding="utf-8")


@pytest.mark.parametrize("has_time", [True, False])
def test_wide_counts_are_the_long_ones(tmp_path: Path, has_time: bool) -> None:
    config = write_inputs(tmp_path, 3)
    if not has_time:
        text = config.read_text(encoding="utf-8").replace("time:        {step: month}\n", "")
        text = text.replace(SMALL_OPTIONS, "")
        cut = text.replace(', periods: ["2024-01"], forecast: 1', "")
        config.write_text(cut, encoding="utf-8")
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
    text = config.read_text(encoding="utf-8").replace("value: cases, periods: columns", given)
    config.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_config(config)
