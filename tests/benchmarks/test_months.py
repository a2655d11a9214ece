"""The measures of `benchmarks.months`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from benchmarks import month_alarms
from benchmarks.months import summary


def test_delay_counts_from_the_onset_at_five_percent_of_false_alarms() -> None:
    score = np.tile(np.linspace(0, 1, 24)[::-1, None], (1, 40)) * 0.5
    excess = np.zeros((24, 40))
    excess[14:18, 0] = excess[15:, 1] = excess[20:, 2] = excess[3:, 3] = 1.0
    score[16, 0] = score[16, 1] = 2.0  # the third is never seen; the fourth began before
    world = SimpleNamespace(missing=np.zeros((24, 40), bool), excess=excess)
    found = month_alarms._seen(score, world, np.random.default_rng(0))
    assert found == {"delay": (2 + 1 + 4) / 3, "seen": 2 / 3, "outbreaks": 3.0}


def test_summary_has_the_standard_error_of_the_mean() -> None:
    rows = [
        {"one_month": {}, "space_time": {}, "update": {}, "alarms": {}, "forecast": {"crps": [own]}}
        for own in (1.0, 3.0)
    ]
    assert summary(rows) == {"forecast.crps.0": {"mean": 2.0, "standard_error": 1.0}}
