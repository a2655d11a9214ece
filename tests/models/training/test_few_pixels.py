"""Bags of few pixels on the driver: the sums are those of the blocks that they came from."""

import numpy as np
import pytest

from models import VBAgg
from models.core.block import BagBlock
from models.core.thinning import thinned_block
from models.training import few_pixels
from models.training.executor import BagsSource, ThreadExecutor
from models.training.few_pixels import ALL_PIXELS, WholeSums, asked
from tests.models.aggregate.country import country
from tests.plain import plain


@pytest.fixture(scope="module")
def setting():
    bags = country(side=16, n_area=12, cases=40.0, range_=4.0)
    model = plain(VBAgg, kernel="ridge + matern32(space)", link="exp", integrate="none")
    source = BagsSource(bags, 0, block_bags=3)
    state = model.init(source.summary(np.random.default_rng(0)), np.random.default_rng(0))
    return bags, model, source, state


def _sums(setting, cap, *, slopes=True, n_thread=2):
    _, model, source, state = setting
    blocks = list(range(len(source.block_bags)))
    with (
        ThreadExecutor(model, source, n_thread) as executor,
        WholeSums(model, executor, blocks) as sums,
    ):
        return sums(state, cap, slopes)


def _same(one, other, **tolerance):
    assert one.n_bag == other.n_bag
    assert one.bound == pytest.approx(other.bound, rel=1e-12)
    for name, value in one.sums.items():
        np.testing.assert_allclose(value, other.sums[name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_all_pixels_here_are_all_pixels_there(setting):
    _same(_sums(setting, ALL_PIXELS), _sums(setting, 0))


def test_few_pixels_are_those_of_each_block(setting):
    _, model, source, state = setting
    scale = state.fixed["x_mean"], state.fixed["x_sd"]
    parts = [
        thinned_block(source.read(n), 8, *scale, model.seed) for n in range(len(source.block_bags))
    ]
    joined = BagBlock.join(parts)
    assert np.diff(joined.offsets).max() == 8
    whole = joined.at(np.argsort(joined.bag))
    params = {**asked(model, state, slopes=True), "thin": np.array([8])}
    _same(_sums(setting, 8), model.block_stats(params, whole, None)[0])


@pytest.mark.parametrize("n_thread", [1, 4])
def test_many_pieces_are_summed_alike_on_any_threads(setting, monkeypatch, n_thread):
    one = _sums(setting, 8)
    monkeypatch.setattr(few_pixels, "BLOCK", 20)
    _same(_sums(setting, 8, n_thread=n_thread), one)


def test_the_blocks_are_visited_once(setting, monkeypatch):
    _, model, source, state = setting
    read = []
    monkeypatch.setattr(source, "read", lambda n, real=source.read: (read.append(n), real(n))[1])
    blocks = list(range(len(source.block_bags)))
    with (
        ThreadExecutor(model, source, 1) as executor,
        WholeSums(model, executor, blocks) as sums,
    ):
        for slopes in (False, True, False):
            sums(state, 8, slopes)
    assert sorted(read) == blocks
