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
    assert _far([str(k) for k in range(2000)], y, drawn, counts=True) == []


def test_a_digit_too_many_or_too_few_is_named_the_farthest_first() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.poisson(240 * rng.gamma(20.0, 0.05, (200, 3))).astype(float)
    first, second = _far(["a", "b", "c"], np.array([2430.0, 250.0, 2.0]), drawn, counts=True)
    assert first.startswith("c has 2, where ")
    assert second.startswith("a has 2,430, where ")
    low, high = drawn[:, 0].min(), drawn[:, 0].max()
    assert second.endswith(f"{low:.4g} to {high:.4g} were foreseen")
    (only,) = _far(["a", "b"], np.array([9.0, 0.1]), rng.normal(0, 1, (200, 2)), counts=False)
    assert only.startswith("a has 9, where -")
