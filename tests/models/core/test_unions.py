"""Bags of several areas, and blocks that keep them whole."""

from __future__ import annotations

import numpy as np

from models.core.block import BagBlock, Bags, cut_blocks
from models.core.thinning import thinned_block
from models.core.unions import OWN, exact_shares, union_bags, union_order


def _bags(sizes: list[int]) -> Bags:
    rng, n = np.random.default_rng(1), sum(sizes)
    offsets, y = np.cumsum([0, *sizes]), rng.poisson(9.0, len(sizes)).astype(float)
    return Bags(
        rng.normal(size=(n, 2)), offsets, y, rng.uniform(1, 2, n), rng.normal(size=(n, 2)),
        trials=y + 3, margin=np.minimum(y, 2.0),
    )  # fmt: skip


def test_a_union_has_the_pixels_and_the_sums_of_its_areas() -> None:
    bags, union = _bags([3, 1, 4, 2, 5]), np.array([OWN, 7, OWN, 2, 7])
    area = np.array([10, 11, 12, 13, 14])
    found = union_bags(bags, union, area)
    assert found.bag.tolist() == [0, 1, 2, 3]
    assert np.diff(found.offsets).tolist() == [3, 6, 4, 2]
    assert found.y.tolist() == [bags.y[0], bags.y[1] + bags.y[4], bags.y[2], bags.y[3]]
    for name in ("trials", "margin"):
        own, whole = getattr(found, name), getattr(bags, name)
        assert own.sum() == whole.sum()
        assert own[1] == whole[1] + whole[4]
    assert found.area is not None
    assert found.area.tolist() == [10] * 3 + [11] + [14] * 5 + [12] * 4 + [13] * 2
    inside = found.x[found.offsets[1] : found.offsets[2]]
    np.testing.assert_array_equal(inside, np.concatenate([bags.x[3:4], bags.x[10:15]]))


def test_areas_of_pixels_follow_them() -> None:
    block = union_bags(_bags([3, 1, 4, 2]), np.array([OWN, 0, 0, OWN]), np.arange(4))
    assert block.area is not None
    for found in (
        block.at(np.array([2, 0])),
        thinned_block(block, 2, np.zeros(2), np.ones(2), 1),
        BagBlock.join([block, block]),
    ):
        assert found.area is not None
        where = {tuple(x): a for x, a in zip(block.x.tolist(), block.area.tolist(), strict=True)}
        assert [where[tuple(x)] for x in found.x.tolist()] == found.area.tolist()


def test_without_a_union_bags_stay_as_they_are() -> None:
    bags = _bags([3, 1])
    found = union_bags(bags, np.full(2, OWN), np.array([4, 5]))
    np.testing.assert_array_equal(found.x, bags.x)
    assert found.n_bag == 2


def test_shares_add_up_exactly() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        weight = rng.gamma(0.3, 1e5, rng.integers(2, 30))
        share, count = exact_shares(weight), float(rng.integers(1, 10**9))
        assert (share >= 0).all()
        assert np.add.reduceat(share * count, [0])[0] == count
        assert (share * count)[::-1].sum() == count
        np.testing.assert_allclose(share, weight / weight.sum(), atol=1e-4)


def test_blocks_keep_neighbours_together() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        sizes = rng.integers(1, 40, 60)
        runs = np.sort(rng.choice(np.arange(1, 60), 20, replace=False))
        number = np.repeat(np.arange(21), np.diff([0, *runs, 60]))
        number = np.where(rng.random(21)[number] < 0.5, number, OWN)
        cuts = cut_blocks(sizes, 60, 4, number)
        assert cuts[0] == 0
        assert cuts[-1] == 60
        assert (np.diff(cuts) > 0).all()
        inner = cuts[1:-1]
        assert ((number[inner] != number[inner - 1]) | (number[inner] == OWN)).all()
    alone = np.full(60, OWN)
    np.testing.assert_array_equal(cut_blocks(sizes, 60, 4, alone), cut_blocks(sizes, 60, 4))


def test_the_order_brings_unions_together_where_their_first_area_was() -> None:
    order, first = union_order(np.array([5, OWN, 3, 5, OWN, 3, 3]))
    assert order.tolist() == [0, 3, 1, 2, 5, 6, 4]
    assert first.tolist() == [0, 2, 3, 6]
