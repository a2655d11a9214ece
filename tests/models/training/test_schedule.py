"""Plans of an epoch: every block once, at random, and a fair share for every part of the store."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.training.schedule import interleaved, plan_epoch


@given(st.integers(1, 300), st.integers(0, 5))
def test_an_order_is_a_permutation_spread_evenly(n, seed):
    order = interleaved(n, np.random.default_rng(seed))
    assert sorted(order) == list(range(n))
    half = np.where(order < n / 2, 1, -1)
    # Partial sums of +1 and -1 that stay near 0: every run is balanced.
    drift = np.concatenate([[0], np.cumsum(half)])
    assert drift.max() - drift.min() <= 2 + n % 2


@pytest.mark.parametrize("n_owner", [2, 4, 8])
def test_every_owner_of_a_stretch_has_its_share_of_every_step(n_owner):
    order = interleaved(256, np.random.default_rng(0))
    owner = order * n_owner // 256
    for start in range(0, 256, n_owner):
        assert np.bincount(owner[start : start + n_owner], minlength=n_owner).tolist() == (
            [1] * n_owner
        )


def test_orders_are_random():
    rng = np.random.default_rng(1)
    orders = np.array([interleaved(16, rng) for _ in range(4000)])
    assert len({tuple(order) for order in orders}) > 3000
    seen = np.array([np.bincount(orders[:, k], minlength=16) for k in range(16)]) / 4000
    np.testing.assert_allclose(seen, 1 / 16, atol=0.015)  # any block may come at any place


def test_every_bag_is_in_exactly_one_step():
    sizes = np.array([3, 0, 4, 1, 8, 2, 2])
    steps = plan_epoch(sizes, 5, np.random.default_rng(0))
    assert sorted(b for step in steps for b in step) == [0, 2, 3, 4, 5, 6]
    assert all(sizes[step].sum() >= 3 for step in steps)
    assert all(step == sorted(step) for step in steps)
    assert plan_epoch(np.zeros(3, int), 5, np.random.default_rng(0)) == []
    # A rest of half a step is a step; a smaller one joins the last.
    for n_block, lengths in ((8, [5, 3]), (7, [7])):
        steps = plan_epoch(np.ones(n_block, int), 5, np.random.default_rng(0))
        assert [len(step) for step in steps] == lengths
