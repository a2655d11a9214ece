"""Kernel matrices kept between passes: the same sums, within the budget."""

import pickle

import numpy as np
import pytest

from models import VBAgg
from models.gp.kept_kernels import KeptBlock, KeptKernels
from models.training.executor import BagsSource
from models.training.few_pixels import asked
from tests.models.aggregate.country import country
from tests.plain import plain


@pytest.mark.parametrize("most", [6, 10**6])
def test_kept_matrices_give_the_same_sums_to_the_last_bit(most):
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


def test_there_is_room_for_what_came_first():
    kept = KeptKernels(budget=1000)
    small, large = (KeptBlock(b"a", np.zeros(n)) for n in (100, 30))
    kept.keep(1, small)
    kept.keep(2, large)
    assert kept.find(1, b"a") is small
    assert kept.find(2, b"a").k is None
    assert kept.find(1, b"b").k is None  # other parameters
    kept.keep(1, KeptBlock(b"b", np.zeros(10)))
    kept.keep(2, large)
    assert kept.find(2, b"a") is large


def test_they_do_not_travel():
    kept = KeptKernels(budget=1000)
    kept.keep(1, KeptBlock(b"a", np.zeros(10)))
    assert not pickle.loads(pickle.dumps(kept))._blocks
