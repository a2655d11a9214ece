"""The countries of the area effect's benchmark, and its averages."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.area_effect import simulate, summarise


def test_a_country_is_the_same_for_every_deviation_and_its_factors_have_mean_one():
    one, other = simulate(25, 0.0, 3), simulate(25, 0.4, 3)
    np.testing.assert_array_equal(one.expected, other.expected)
    np.testing.assert_array_equal(one.bags.x, other.bags.x)
    many = [simulate(25, 0.4, seed, people=6e5) for seed in range(40)]
    factor = np.concatenate([each.bags.y / each.expected for each in many])
    assert factor.mean() == pytest.approx(1.0, abs=0.05)  # 1,000 factors: error 0.013
    assert np.log(factor).std() == pytest.approx(0.4, abs=0.04)
    again = np.concatenate([each.again / each.expected for each in many])
    assert abs(np.corrcoef(np.log(factor), np.log(again))[0, 1]) < 0.12


def test_averages_by_hand():
    row = {"n_area": 25, "tau": 0.2, "upper": 0.1, "observed": 100.0, "own_off": 0.1}
    shares = {"share_below": 0.5, "again_share_below": 0.9, "true_share_below": 0.99}
    points = {"fitted": 110.0, "medians": 105.0, "with_own_factor": 101.0}
    rows = [
        {**row, **shares, **points, "seed": 0, "fitted_tau": 0.1},
        {**row, **shares, **points, "seed": 1, "fitted_tau": 0.4, "fitted": 120.0},
    ]
    found = summarise(rows)
    [cell], [total] = found["tau"], found["totals"]
    assert cell["mean_tau"] == pytest.approx(0.25)
    assert cell["rmse_tau"] == pytest.approx(np.sqrt((0.01 + 0.04) / 2))
    assert total["fitted_by_observed"] == pytest.approx(1.15)
    assert total["standard_error"] == pytest.approx(0.05)
    assert (total["observed_in_50"], total["second_year_in_90"]) == (1.0, 1.0)
    assert (total["second_year_in_50"], total["expectation_in_90"]) == (0.0, 0.0)
