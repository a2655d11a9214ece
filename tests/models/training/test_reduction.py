"""Sums over blocks: the same bits however the blocks are shared out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.core.protocol import Stats
from models.training.reduction import Partial, depth, leaf_of, leaves, partial_sums, span, total


def _stats(n, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) * 10.0 ** rng.integers(-8, 8, n)
    return [Stats(float(v), 1, {"a": np.array([v, -2 * v])}) for v in values]


def _by_definition(stats, low, high):
    """Sum of leaves low to high, a power of two of them, as the tree's description has it."""
    if high - low == 1:
        return stats.get(low)
    middle = (low + high) // 2
    left, right = _by_definition(stats, low, middle), _by_definition(stats, middle, high)
    return left + right if left and right else left or right


@given(
    st.integers(1, 300).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.sets(st.integers(0, n - 1), min_size=1, max_size=70),
            st.lists(st.integers(0, n), max_size=8),
        )
    )
)
def test_any_sharing_out_gives_the_same_bits(drawn):
    n, chosen, cuts = drawn
    blocks = sorted(chosen)
    stats = dict(zip(blocks, _stats(len(blocks)), strict=True))
    whole = total(leaves(stats.values(), blocks, n))
    parts: list[Partial] = []
    for start, stop in pairwise(sorted({0, n, *cuts})):
        mine = [b for b in blocks if start <= b < stop]
        given = leaves((stats[b] for b in mine), mine, n)
        parts += partial_sums(given, *span(start, stop - 1, n))
    shared = total(parts)
    assert shared.bound == whole.bound
    assert shared.n_bag == len(blocks)
    np.testing.assert_array_equal(shared.sums["a"], whole.sums["a"])
    by_leaf = {leaf_of(b, n): s for b, s in stats.items()}
    assert len(by_leaf) == len(blocks)
    assert _by_definition(by_leaf, 0, 1 << depth(n)).bound == whole.bound


@pytest.mark.parametrize("n_block", [260, 1000, 1024, 333])
def test_equal_stretches_hand_on_one_sum_each(n_block):
    for n_worker, most in ((1, 1), (2, 1), (4, 1), (8, 1), (3, 9), (5, 9)):
        blocks = list(range(0, n_block, 3))
        for owner in range(n_worker):
            start, stop = -(-owner * n_block // n_worker), -(-(owner + 1) * n_block // n_worker)
            mine = [b for b in blocks if start <= b < stop]
            assert {b * n_worker // n_block for b in mine} == {owner}
            given = leaves(_stats(len(mine)), mine, n_block)
            found = partial_sums(given, *span(start, stop - 1, n_block))
            assert 1 <= len(found) <= most


def test_the_tree_is_the_one_described():
    a, b, c, d, e = (s.bound for s in _stats(5))
    # 5 blocks on 8 leaves: 0, 1, 3, 4, 6; quarters hold a b | c | d | e.
    assert total(leaves(_stats(5), range(5), 5)).bound == ((a + b) + c) + (d + e)
    assert total(leaves(_stats(5), [0, 1, 2, 4, 7], 8)).bound == ((a + b) + c) + (d + e)


def test_no_blocks_are_no_sum():
    with pytest.raises(ValueError, match="no blocks"):
        total([])
