"""The country of several months: what arrives later is what would have been there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.main import main
from pipeline.demo import months
from pipeline.demo.months import simulate_months

N, LATER = 14, 3
LABELS = ("2022-12", "2023-01", "2023-02")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the same country with and without months that arrive later."""
    small = replace(months.SPECS["small"], shape=(18, 20), n_land=180, n_area=12, n_town=4, people=3e5)
    whole, parts = (tmp_path_factory.mktemp(name) for name in ("whole", "parts"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(months.SPECS, "small", small)
        simulate_months(whole, N, seed=3)
        simulate_months(parts, N, seed=3)  # of an earlier demo: rain of later months must go
        simulate_months(parts, N, seed=3, n_later=LATER)
    return whole, parts


def _table(path: Path) -> pd.Series:
    return pd.read_csv(path).set_index(["month", "area_id"])["cases"]


def test_each_month_brings_its_rain_and_the_table_until_then(folders: tuple[Path, Path]) -> None:
    whole, parts = folders
    every = _table(whole / "cases.csv")
    assert sorted(path.name for path in (parts / "later").iterdir()) == [*LABELS, "correction"]
    first = _table(parts / "cases.csv")
    pd.testing.assert_series_equal(first, every[: len(first)])
    assert first.index.get_level_values(0).max() == "2022-11"
    for n, label in enumerate(LABELS):
        assert not (parts / f"rain_{label}.tif").exists()
        rain = f"rain_{label}.tif"
        assert (parts / "later" / label / rain).read_bytes() == (whole / rain).read_bytes()
        table = _table(parts / "later" / label / "cases.csv")
        assert len(table) == len(first) + 12 * (n + 1)
        differs = table[~((table == every[: len(table)]) | table.isna())]
        assert list(differs.index.get_level_values(0)) == (["2023-01"] if n else [])
    assert {path.name for path in whole.glob("truth_*")} == {
        path.name for path in parts.glob("truth_*")
    }


def test_the_correction_has_what_was_late_and_what_was_wrong(folders: tuple[Path, Path]) -> None:
    whole, parts = folders
    every, right = (
        _table(whole / "cases.csv"),
        _table(parts / "later" / "correction" / "cases.csv"),
    )
    reported = _table(parts / "later" / LABELS[-1] / "cases.csv")
    late = right.loc[list(LABELS)]
    assert late.notna().all()
    known = every.notna()
    pd.testing.assert_series_equal(right[known], every[known])
    wrong = reported[reported.notna() & (reported != right)]
    ((at, value),) = wrong.items()
    assert value == np.floor(right[at] / 10)
    assert right[at] == every.loc["2023-01"].max()
    before = right.index.get_level_values(0) < LABELS[0]
    pd.testing.assert_series_equal(right[before], every[before])


@pytest.mark.parametrize("words", [["--later", "6"], ["--months", "8", "--later", "4"]])
def test_a_start_without_six_months_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(tmp_path / "new"), *words]) == 2
    assert "leaves fewer than 6 months; give --months 24 --later 6" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
