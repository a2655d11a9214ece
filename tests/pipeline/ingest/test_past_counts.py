"""Counts of earlier periods that stand alone are told; outbreaks, seasons and noise are not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.config.reader import load_config
from pipeline.ingest.past_counts import past_suspicions
from pipeline.ingest.profile import PeriodCounts
from tests.pipeline.series_inputs import write_inputs

N_AREA, N_PERIOD = 40, 24


def counted(seed: int) -> np.ndarray:
    """Draw noisy counts with a season: (n_area, n_period)."""
    rng = np.random.default_rng(seed)
    season = 1.0 + 0.8 * np.sin(2 * np.pi * np.arange(N_PERIOD) / 12)
    mean = rng.gamma(1.0, 10.0, (N_AREA, 1)) * season * rng.gamma(2.0, 0.5, (N_AREA, N_PERIOD))
    return rng.poisson(mean).astype(float)


def told(y: np.ndarray, directory: Path) -> list[str]:
    """Return the codes and texts of what is suspicious."""
    config = load_config(write_inputs(directory))
    labels = [f"{2022 + t // 12}-{1 + t % 12:02d}" for t in range(y.shape[1])]
    ids = pd.Index([f"A{k:02d}" for k in range(y.shape[0])])
    none = pd.Series(False, index=ids)
    periods = {
        label: PeriodCounts(pd.Series(y[:, t], index=ids), none) for t, label in enumerate(labels)
    }
    found = past_suspicions(config, ids.to_numpy(), periods)
    return [f"{each.code}: {each.found}" for each in found]


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_seasons_are_not_odd(seed: int, tmp_path: Path) -> None:
    assert told(counted(seed), tmp_path) == []


def test_an_outbreak_that_comes_and_goes_is_not_odd(tmp_path: Path) -> None:
    y = counted(1)
    y[3, 8:13] = [60, 400, 900, 300, 40]
    assert told(y, tmp_path) == []


def test_a_typed_count_of_an_early_month_is_odd(tmp_path: Path) -> None:
    y = counted(2)
    y[5] = 6
    y[5, 1] = 700
    (text,) = told(y, tmp_path)
    assert text.startswith("count: ")
    assert "2022-02 (A05: 700, by its other periods about " in text


def test_a_lost_zero_is_odd(tmp_path: Path) -> None:
    y = counted(3)
    y[7] = 650
    y[7, 3] = 6
    (text,) = told(y, tmp_path)
    assert "2022-04 (A07: 6, by its other periods about " in text


def test_one_number_that_is_not_whole_is_named(tmp_path: Path) -> None:
    y = counted(4)
    y[9, 2] = 3.5
    assert told(y, tmp_path) == [
        "fraction: column 'cases' has numbers that are not whole in 2022-03 (A09: 3.5)"
    ]


def test_a_month_without_any_count_between_others_is_told(tmp_path: Path) -> None:
    config = load_config(write_inputs(tmp_path))
    y, ids = counted(4), pd.Index([f"A{k:02d}" for k in range(N_AREA)])
    labels, none = config.known_series.periods, pd.Series(False, index=ids)
    y[:, [2, len(labels) - 1]] = np.nan  # the last is not between
    periods = {
        label: PeriodCounts(pd.Series(y[:, t], index=ids), none) for t, label in enumerate(labels)
    }
    (found,) = past_suspicions(config, ids.to_numpy(), periods)
    assert found.found == f"no area has a count in {labels[2]}, between periods that have some"
    hidden = pd.Series(True, index=ids)
    periods[labels[2]] = periods[labels[2]]._replace(hidden=hidden)  # suppressed counts are counts
    assert past_suspicions(config, ids.to_numpy(), periods) == []


@pytest.mark.parametrize("typed", [700, 7000])
def test_a_typed_count_does_not_raise_the_level_that_it_is_judged_by(
    typed: int, tmp_path: Path
) -> None:
    y = np.random.default_rng(5).poisson(7.0, (4, N_PERIOD)).astype(float)
    y[2, 6] = typed
    (text,) = told(y, tmp_path)
    assert f"2022-07 (A02: {typed:,}, by its other periods about " in text
    assert text.count("by its other periods") == 1


def test_months_without_the_largest_area_are_not_odd(tmp_path: Path) -> None:
    """The level of a period is that of the areas with a count in it."""
    y = np.random.default_rng(6).poisson(np.full((5, N_PERIOD), 30.0)).astype(float)
    y[0] *= 80.0
    y[0, 4:9] = np.nan
    y[1, 6] = 3000.0
    (text,) = told(y, tmp_path)
    (expected,) = re.findall(r"2022-07 \(A01: 3,000, by its other periods about ([\d.]+)\)", text)
    assert 20 < float(expected) < 40


@pytest.mark.parametrize("months", [[5], [N_PERIOD - 1], [5, 6, 7], [0, 1]])
def test_months_of_zeros_beside_many_cases_are_told(months: list[int], tmp_path: Path) -> None:
    y = counted(5)
    y[:, months] = 0
    said = told(y, tmp_path)
    labels = ", ".join(f"{2022 + m // 12}-{1 + m % 12:02d}" for m in months)
    text = f"zeros: column 'cases' has not one case in any area in {labels}, and 100 and more in"
    assert said[0].startswith(text)
    for m in (months[0] - 1, months[-1] + 1):
        if 0 <= m < N_PERIOD:
            y[:, m] = y[:, m] > 0  # cases come and go: few before and after
    assert not any(each.startswith("zeros") for each in told(y, tmp_path))
