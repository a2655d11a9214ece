"""Sums over blocks: the same bits however the blocks are shared out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.protocol import Stats
from models.reduction import Partial, leaves, partial_sums, total


def _stats(n, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) * 10.0 ** rng.integers(-8, 8, n)
    return [Stats(float(v), 1, {"a": np.array([v, -2 * v])}) for v in values]


@given(st.integers(1, 70), st.lists(st.integers(0, 70), max_size=8))
def test_any_sharing_out_gives_the_same_bits(n, cuts):
    stats = _stats(n)
    whole = total(leaves(stats))
    edges = sorted({0, n, *(c for c in cuts if c < n)})
    parts: list[Partial] = []
    for start, stop in pairwise(edges):
        parts += partial_sums(leaves(stats[start:stop], start))
    shared = total(parts)
    assert shared.bound == whole.bound
    assert shared.n_bag == n
    np.testing.assert_array_equal(shared.sums["a"], whole.sums["a"])
    assert whole.bound == pytest.approx(sum(s.bound for s in stats), rel=1e-9, abs=1e-6)


def test_a_run_of_places_is_handed_on_in_few_sums():
    assert len(partial_sums(leaves(_stats(1000), 0))) == bin(1000).count("1")
    assert len(partial_sums(leaves(_stats(1000), 333))) <= 20


def test_the_tree_is_the_one_described():
    a, b, c, d, e = (s.bound for s in _stats(5))
    assert total(leaves(_stats(5))).bound == ((a + b) + (c + d)) + e


def test_no_blocks_are_no_sum():
    with pytest.raises(ValueError, match="no blocks"):
        total([])
