"""Probabilities of a change: by counting, and by another way to the same number."""

import numpy as np
import pytest

from pipeline.comparison.probability import (
    larger_by_moments,
    larger_independent,
    larger_paired,
    ratio_interval,
)


def test_every_draw_against_every_other_with_ties():
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 5, (7, 4)).astype(float), rng.integers(1, 6, (9, 4)).astype(float)
    brute = (b[None] > a[:, None]).mean((0, 1)) + 0.5 * (b[None] == a[:, None]).mean((0, 1))
    np.testing.assert_allclose(larger_independent(a, b), brute, rtol=1e-14)
    np.testing.assert_allclose(larger_independent(a, a), 0.5, rtol=0)
    assert (larger_paired(a, a) == 0.5).all()
    assert larger_paired(a[:, :1], a[:, :1] + 1) == 1


@pytest.mark.parametrize("kind", ["positive", "real"])
def test_moments_agree_with_draws_of_those_moments(kind):
    rng = np.random.default_rng(4)
    a, b = (
        (np.array([2.0, 1.0]), np.array([0.5, 1.5])),
        (np.array([2.3, 0.8]), np.array([0.7, 0.4])),
    )

    def draw(mean, sd):
        if kind == "real":
            return rng.normal(mean, sd, (400_000, 2))
        s2 = np.log1p((sd / mean) ** 2)
        return rng.lognormal(np.log(mean) - s2 / 2, np.sqrt(s2), (400_000, 2))

    x, y = draw(*a), draw(*b)
    np.testing.assert_allclose(larger_by_moments(a, b, kind), (y > x).mean(0), atol=0.004)
    if kind == "positive":
        ends = np.quantile(y / x, [0.05, 0.95], axis=0)
        np.testing.assert_allclose(ratio_interval(a, b, 0.9), ends, rtol=0.02)


def test_moments_without_spread_are_sure_and_missing_ones_unknown():
    nothing = np.zeros(4)
    found = larger_by_moments(
        (np.array([1.0, 1, 1, np.nan]), nothing), (np.array([1.0, 2, 0.5, 1]), nothing), "positive"
    )
    np.testing.assert_array_equal(found, [0.5, 1, 0, np.nan])
