"""Counts that an update names: far outside all that was foreseen, and not what chance makes."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.training.update import _far


@pytest.mark.parametrize("mean", [0.05, 1.0, 20.0, 400.0])
def test_counts_of_the_model_itself_are_not_far(mean: float) -> None:
    rng = np.random.default_rng(int(mean))
    rate = mean * rng.gamma(10.0, 0.1, (200, 2000))
    drawn, y = rng.poisson(rate).astype(float), rng.poisson(rate[0]).astype(float)
    ids = [str(k) for k in range(2000)]
    assert _far(ids, ids, y, drawn, counts=True) == []


def test_a_digit_too_many_or_too_few_is_named_the_farthest_first() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.poisson(240 * rng.gamma(20.0, 0.05, (200, 3))).astype(float)
    y, given = np.array([2430.0, 250.0, 4.0]), ["2,430", "250", "<5"]
    first, second = _far(["a", "b", "c"], given, y, drawn, counts=True)
    assert first.startswith("c has <5, where ")
    assert second.startswith("a has 2,430, where ")
    low, high = drawn[:, 0].min(), drawn[:, 0].max()
    assert second.endswith(f"{low:.4g} to {high:.4g} were foreseen")
    values, drawn = np.array([9.0, 0.1]), rng.normal(0, 1, (200, 2))
    (only,) = _far(["a", "b"], ["9", "0.1"], values, drawn, counts=False)
    assert only.startswith("a has 9, where -")
    (large,) = _far(["a"], ["1,000,000"], np.array([1e6]), 20_000 + drawn[:, :1], counts=True)
    low, high = (20_000 + drawn[:, 0]).min(), (20_000 + drawn[:, 0]).max()
    assert large == f"a has 1,000,000, where {low:,.0f} to {high:,.0f} were foreseen"
