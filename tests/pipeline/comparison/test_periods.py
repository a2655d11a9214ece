"""What two maps of several periods say differently of the areas that both have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.comparison.periods import PERIODS_CHANGE, periods_line, write_periods_change


def _side(directory: Path, observed: Any, mean: Any, *, first: int = 1, **more: Any) -> Any:
    directory.mkdir()
    mean = np.array(mean, float)
    months = [f"2024-{first + k:02d}" for k in range(mean.size // 2)]
    table = pd.DataFrame(
        {
            "id": ["A", "B"] * len(months),
            "period": np.repeat(months, 2),
            "observed": np.array(observed, float),
            "mean": mean,
            "lower": mean - 5.0,
            "upper": mean + 5.0,
            "rate": mean / 10.0,
            **more,
        }
    )
    table.to_parquet(directory / "periods.parquet")
    return SimpleNamespace(directory=directory)


def test_new_and_corrected_counts_and_moved_estimates_are_told(tmp_path: Path) -> None:
    a = _side(tmp_path / "a", [396, np.nan, 20, 30], [400, 12, 20, 30])
    b = _side(tmp_path / "b", [39, 11, 20, 30], [380, 12, 27, 33])
    found = write_periods_change(a, b, tmp_path)
    assert found is not None
    assert (found["n_new"], found["n_corrected"], found["n_estimates"]) == (1, 1, 2)
    assert "1 corrected (A 2024-01 396 -> 39); 2 estimates" in periods_line(found)
    table = pd.read_csv(tmp_path / PERIODS_CHANGE).set_index(["id", "period"])
    assert table["count"].fillna("").to_dict() == {
        ("A", "2024-01"): "corrected", ("B", "2024-01"): "new", ("A", "2024-02"): ""
    }  # fmt: skip


def test_new_months_are_told_and_so_are_those_that_are_left_out(tmp_path: Path) -> None:
    """A forecast of A, a month that A does not know, and a month before the series of B."""
    a = _side(tmp_path / "a", [1, 2, 3, 4, np.nan, np.nan], [1, 2, 3, 4, 5, 6])
    b = _side(tmp_path / "b", [3, 4, 50, 6, 7, np.nan], [3, 4, 50, 6, 7, 8], first=2)
    found = write_periods_change(a, b, tmp_path)
    assert found is not None
    assert (found["n_new"], found["n_left_out"], found["n_withdrawn"]) == (3, 2, 0)
    assert found["n_estimates"] == 1  # one that A lacks is inside no interval, nor outside
    assert periods_line(found).startswith(
        "All periods: 3 new counts, 0 corrected, 2 of periods that B lacks; 1 estimate is outside"
    )
    json.dumps(found, allow_nan=False)
    table = pd.read_csv(tmp_path / PERIODS_CHANGE)
    assert table[["id", "period", "count"]].to_numpy().tolist() == [
        ["A", "2024-01", "left out"], ["B", "2024-01", "left out"], ["A", "2024-03", "new"],
        ["B", "2024-03", "new"], ["A", "2024-04", "new"],
    ]  # fmt: skip


def test_areas_of_one_map_alone_are_told_elsewhere(tmp_path: Path) -> None:
    a = _side(tmp_path / "a", [1, 2, 3, 4], [1, 2, 3, 4])
    b = _side(tmp_path / "b", [1, 2, 3, 4], [1, 2, 3, 4], id=["A", "C"] * 2)
    found = write_periods_change(a, b, tmp_path)
    assert found is not None
    assert (found["n_new"], found["n_left_out"], found["n_withdrawn"]) == (0, 0, 0)


def test_a_map_of_one_period_has_none(tmp_path: Path) -> None:
    a = _side(tmp_path / "a", [1, 2, 3, 4], [1, 2, 3, 4])
    assert write_periods_change(a, SimpleNamespace(directory=tmp_path), tmp_path) is None  # type: ignore[arg-type]
    assert not (tmp_path / PERIODS_CHANGE).exists()


def test_a_suppressed_count_that_is_given_at_last_is_a_correction(tmp_path: Path) -> None:
    hidden = {
        "observed_lower": [np.nan, 0, np.nan, np.nan],
        "observed_upper": [np.nan, 4, *[np.nan] * 2],
    }
    a = _side(tmp_path / "a", [1, np.nan, 3, 4], [1, 2, 3, 4], **hidden)
    b = _side(tmp_path / "b", [1, 3, 3, 9], [1, 2, 3, 4])  # nothing is suppressed: no columns
    found = write_periods_change(a, b, tmp_path)
    assert found is not None
    assert (found["n_new"], found["n_corrected"]) == (0, 2)
    assert "(B 2024-02 4 -> 9, B 2024-01 <5 -> 3)" in periods_line(found)
    json.dumps(found, allow_nan=False)


def test_a_withdrawn_count_is_told_from_a_suppressed_one(tmp_path: Path) -> None:
    ends = {
        "observed_lower": [np.nan, 0, np.nan, 0],
        "observed_upper": [np.nan, 4, np.nan, 9],
    }
    a = _side(tmp_path / "a", [60, 2, 7.5, 30], [60, 2, 8, 30])
    b = _side(tmp_path / "b", [np.nan, np.nan, 7.5, np.nan], [60, 2, 8, 30], **ends)
    found = write_periods_change(a, b, tmp_path)
    assert found is not None
    numbers = {name: found[f"n_{name}"] for name in ("corrected", "withdrawn", "suppressed")}
    assert numbers == dict.fromkeys(numbers, 1)
    assert periods_line(found).startswith(
        "All periods: 0 new counts, 1 corrected (B 2024-02 30 -> <10), 1 withdrawn "
        "(A 2024-01 60), 1 suppressed (B 2024-01 2 -> <5); 0 estimates are"
    )
    json.dumps(found, allow_nan=False)
    table = pd.read_csv(tmp_path / PERIODS_CHANGE).set_index(["id", "period"])
    assert table["count"].to_dict() == {
        ("A", "2024-01"): "withdrawn", ("B", "2024-01"): "suppressed", ("B", "2024-02"): "corrected"
    }  # fmt: skip
    assert table.loc[("B", "2024-01"), ["observed_lower_b", "observed_upper_b"]].tolist() == [0, 4]
    assert table[["observed_lower_a", "observed_upper_a"]].isna().all(axis=None)
    # Back again: the interval is that of A, and the count of A 2024-01 is new.
    back = write_periods_change(b, a, tmp_path)
    assert back is not None
    assert (back["n_new"], back["n_corrected"], back["n_withdrawn"]) == (1, 2, 0)
    assert "B 2024-02 <10 -> 30" in periods_line(back)
    ends_of_a = pd.read_csv(tmp_path / PERIODS_CHANGE).set_index(["id", "period"])
    assert ends_of_a.loc[("B", "2024-02"), "observed_upper_a"] == 9
