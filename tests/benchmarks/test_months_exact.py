"""The exact posterior of a series: its gradient, its prior, and a record of a small run."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import months_exact, sbc_months
from benchmarks.months_exact import Exact, averaged, measure
from benchmarks.prior_draws import Design

SMALL = Design(n_side=5, n_area=4)


@pytest.mark.ci
@pytest.mark.parametrize("noise", [False, True])
def test_the_gradient_is_that_of_differences(noise):
    rng = np.random.default_rng(3)
    model = sbc_months.make_model(integrate="none", area_effect=noise, max_epochs=2)
    series = sbc_months.draw_series(model, SMALL, rng)
    model.fit(series.periods, n_thread=1)
    exact = Exact(model, series)
    n_count = sbc_months.MONTHS * SMALL.n_area
    assert exact.size == 25 * (sbc_months.MONTHS + 1) + noise * n_count
    q, away = 0.3 * rng.standard_normal((2, exact.size))
    away *= 1e-5 / np.linalg.norm(away)
    by_differences = exact.density(q + away)[0] - exact.density(q - away)[0]
    assert by_differences == pytest.approx(2 * exact.density(q)[1] @ away, rel=1e-5)
    assert exact.mass_at(q).j.shape == (n_count, exact.size)


@pytest.mark.ci
def test_a_record_says_how_far_the_model_is_from_the_exact_posterior(monkeypatch):
    monkeypatch.setattr(months_exact, "DESIGN", SMALL)
    records = [measure("months", 1, 150)]
    found = averaged(records)
    assert records[0]["rhat"] < 1.3
    for month in ("last", "ahead"):
        assert 0.6 < found[month]["pixels"]["sd_ratio"] < 1.6
        assert found[month]["areas"]["off"] < 0.6
