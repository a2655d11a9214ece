"""Areas that are told to have changed: against SciPy's own tests, and on simulated months."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pipeline.comparison.alarms import RATE, find_changes


def side(observed, exposure, rate=None, sd=None):
    return pd.DataFrame({"observed": observed, "exposure": exposure, "rate": rate, "sd": sd})


def test_a_pair_of_counts_is_the_binomial_test():
    a, b = side([12.0, 0.0, 40.0], [1000.0, 500.0, 900.0]), side([30.0, 3.0, 41.0], [2000.0] * 3)
    table, noise = find_changes(a, b, "counts")
    assert noise == 0  # three areas do not tell it
    for k in range(3):
        n = int(a["observed"][k] + b["observed"][k])
        share = 2000.0 / (2000.0 + a["exposure"][k])
        law = stats.binom(n, share)
        at = int(b["observed"][k])
        upper = law.sf(at) + 0.5 * law.pmf(at)
        wanted = min(1.0, 2 * min(upper, 1 - upper))
        assert table["p_value"][k] == pytest.approx(wanted, rel=1e-9)
        exact = stats.binomtest(at, n, share).pvalue  # which is more cautious by half an outcome
        assert table["p_value"][k] <= 1.3 * exact


@pytest.mark.parametrize(("kind", "noise"), [("counts", 0.0), ("counts", 0.3), ("trials", 0.3)])
def test_false_alarms_are_few_and_changes_are_found(kind, noise):
    rng = np.random.default_rng(3)
    found = false = told = 0
    for _ in range(30):
        n = 60
        exposure = np.exp(rng.normal(8, 0.5, n))
        level = 0.1 * np.exp(0.3 * rng.standard_normal(n))
        factor = np.ones(n)
        factor[:3] = 4.0
        y = []
        for month in (np.ones(n), factor):
            rate = level * month * np.exp(noise * rng.standard_normal(n) / np.sqrt(2))
            draw = (
                rng.poisson(rate * exposure)
                if kind == "counts"
                else rng.binomial(exposure.astype(int), np.minimum(rate, 0.9))
            )
            y.append(draw.astype(float))
        table, seen = find_changes(side(y[0], exposure), side(y[1], exposure), kind)
        rose = (table["told"] == "rose").to_numpy()
        found += rose[:3].sum()
        false += (table["told"] != "no").to_numpy()[3:].sum()
        told += (table["told"] != "no").sum()
        assert noise == 0 or 0.1 < seen < 0.6
    # With the noise known, 92 % would be found; it is learnt from sixty areas.
    assert found >= (0.75 if noise else 0.99) * 90
    # The rate is of the told areas in the mean; three standard errors of these 30 draws.
    assert false / told <= RATE + 3 * np.sqrt(RATE * (1 - RATE) / told)


def test_a_fall_of_all_is_told_of_all():
    rng = np.random.default_rng(4)
    people = np.full(50, 1e4)
    a, b = rng.poisson(300.0, 50), rng.poisson(90.0, 50)
    table, _ = find_changes(side(a.astype(float), people), side(b.astype(float), people), "counts")
    assert (table["told"] == "fell").all()


def test_values_are_compared_by_their_rates_and_missing_ones_are_not_told():
    a = side([1.0, 2.0, np.nan], [1.0] * 3, [5.0, 5.0, np.nan], [0.1, 0.1, np.nan])
    b = side([1.0, 2.0, 3.0], [1.0] * 3, [5.1, 9.0, 5.0], [0.1, 0.1, 0.1])
    table, _ = find_changes(a, b, "values")
    assert list(table["told"])[:2] == ["no", "rose"]
    assert table.loc[2].isna().all()
    assert table["p_value"][0] == pytest.approx(2 * stats.norm.sf(0.1 / np.hypot(0.1, 0.1)))
