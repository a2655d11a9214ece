"""Kernel matrices kept between passes: the same sums, within the budget."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from models import VBAgg
from models.gp import kept_kernels, pixel_pass
from models.gp.kept_kernels import KeptBlock, KeptKernels
from models.training.executor import BagsSource
from models.training.few_pixels import asked
from tests.models.aggregate.country import country
from tests.plain import plain


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("most", [6, 10**6])
def test_kept_matrices_give_the_same_sums_to_the_last_bit(most, share, monkeypatch):
    monkeypatch.setattr(kept_kernels, "WITH_BY_PRODUCTS", share)
    bags = country(side=10, n_area=6, cases=40.0, range_=4.0)
    model = plain(VBAgg, kernel="smooth_additive", link="exp", priors="weak", pair_pixels=most)
    rng = np.random.default_rng(0)
    state = model.init(BagsSource(bags, 0).summary(rng), rng)
    fresh, _ = model.block_stats(model.block_params(state), bags, None)
    for slopes in (False, True, False):
        found, _ = model.block_stats(asked(model, state, slopes=slopes), bags, None)
        assert found.bound == fresh.bound
        for name, value in fresh.sums.items():
            if slopes or name not in ("theta", "w"):
                np.testing.assert_array_equal(found.sums[name], value, err_msg=name)
    assert len(model._kernels._blocks) == 1
    other = model.block_params(state)
    other["theta"] = other["theta"] + 0.1
    made, _ = model.block_stats({**other, "slopes": np.array([False])}, bags, None)
    assert made.bound == model.block_stats(other, bags, None)[0].bound
    model.forget_kernels()
    assert not model._kernels._blocks


def test_there_is_room_for_what_came_first(monkeypatch):
    monkeypatch.setattr(kept_kernels, "WITH_BY_PRODUCTS", 0.5)
    kept = KeptKernels(budget=1000)
    first, second = (KeptBlock(b"a", np.zeros(n)) for n in (60, 100))
    kept.keep(1, first)
    kept.keep(2, second)
    assert kept.find(1, b"a") is first
    assert kept.find(2, b"a").k is None
    assert kept.find(1, b"b").k is None  # other parameters
    kept.keep(1, KeptBlock(b"b", np.zeros(10)))
    kept.keep(2, second)
    assert kept.find(2, b"a").k is second.k


def test_by_products_leave_room_for_covariances(monkeypatch):
    """Steps of q, the most of a fit, read the covariances alone."""
    monkeypatch.setattr(kept_kernels, "WITH_BY_PRODUCTS", 0.5)
    kept = KeptKernels(budget=1000)
    for number in range(3):
        prior = np.zeros(10)
        strips = [(prior, [prior, np.zeros(10)])]
        kept.keep(number, KeptBlock(b"a", np.zeros(10), [np.zeros(20)], strips))
    found = [kept.find(number, b"a") for number in range(3)]
    assert [each.size() for each in found] == [400, 160, 160]
    assert [len(each.tiles) for each in found] == [1, 0, 0]
    assert [each.strips[0][1] is None for each in found] == [False, True, True]


def test_they_do_not_travel():
    kept = KeptKernels(budget=1000)
    kept.keep(1, KeptBlock(b"a", np.zeros(10)))
    assert not pickle.loads(pickle.dumps(kept))._blocks


@pytest.mark.parametrize("most", [6, 10**6])
@pytest.mark.parametrize("link", ["exp", "square"])
def test_half_a_product_gives_the_sums_of_a_whole_one(link, most, monkeypatch):
    """Passes without slopes by the kernel take a triangle in the place of ``Q``."""
    monkeypatch.setattr(pixel_pass, "STRIP", 8)
    bags = country(side=10, n_area=6, cases=40.0, range_=4.0)
    model = plain(VBAgg, kernel="smooth_additive", link=link, priors="weak", pair_pixels=most)
    rng = np.random.default_rng(0)
    state = model.init(BagsSource(bags, 0).summary(rng), rng)
    root = state.params["root"] + np.tril(0.2 * rng.standard_normal(state.params["root"].shape))
    state = replace(state, params={**state.params, "root": root})
    assert root.shape[0] > 16
    whole, half = (
        model.block_stats(asked(model, state, slopes=slopes), bags, None)[0]
        for slopes in (True, False)
    )
    assert half.bound == pytest.approx(whole.bound, rel=1e-12)
    for name in ("alpha", "q", "cov", "mean"):
        if name in whole.sums:
            one, other = half.sums[name], whole.sums[name]
            np.testing.assert_allclose(one, other, atol=1e-10 * np.abs(other).max(), err_msg=name)
