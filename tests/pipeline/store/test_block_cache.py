"""Blocks that are kept under a budget and read ahead: what is read, how often, and what comes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from models import VBAgg
from models.core.block import BagBlock
from pipeline.core.errors import StoreError
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.block_cache import MAX_PENDING, BlockCache, block_bytes
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.fit import fit
from tests.plain import plain


class Shelf:
    """Blocks of ten pixels that count how often each is read."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.threads: set[str] = set()

    def __call__(self, number: int) -> BagBlock:
        if number == 13:
            raise StoreError("block 13 is damaged")
        self.read.append(number)
        self.threads.add(threading.current_thread().name)
        x, bag = np.full((10, 2), float(number), np.float32), np.array([number])
        return BagBlock(x, np.ones(10), None, np.array([0, 10]), np.ones(1), bag)


SIZE = block_bytes(Shelf()(0))


def test_what_fits_is_read_once_and_the_rest_once_an_epoch():
    shelf = Shelf()
    cache = BlockCache(shelf, 4.5 * SIZE)
    rng = np.random.default_rng(0)
    for epoch in range(5):
        for number in rng.permutation(10).tolist():
            assert (cache.get(number).x == number).all()
            assert cache.n_byte <= 4.5 * SIZE
        assert len(shelf.read) == 10 + 6 * epoch
    assert cache.n_load == len(shelf.read)
    assert cache.n_byte == 4 * SIZE


@pytest.mark.parametrize("budget", [0.0, 100.0])
def test_what_is_read_ahead_is_not_read_again(budget):
    shelf = Shelf()
    cache = BlockCache(shelf, budget * SIZE)
    for number in range(12):
        cache.ahead([number + 1, number + 2] if number < 10 else [])
        assert (cache.get(number).x == number).all()
    assert sorted(shelf.read) == list(range(12))
    cache.ahead(range(200, 200 + 3 * MAX_PENDING))
    assert len(cache._pending) == MAX_PENDING
    cache.close()
    assert cache.n_byte == 0
    assert cache.get(3).n_pix == 10


def test_reading_ahead_is_done_by_other_threads():
    shelf = Shelf()
    cache = BlockCache(shelf, 0.0)
    done = threading.Event()
    load = cache._load
    cache._load = lambda number: (load(number), done.set())[0]
    cache.ahead([5])
    assert done.wait(10)
    assert all(name.startswith("reader") for name in shelf.threads)


def test_what_fails_ahead_is_said_when_it_is_wanted():
    cache = BlockCache(Shelf(), 0.0)
    cache.ahead([13])
    with pytest.raises(StoreError, match="13 is damaged"):
        cache.get(13)


def test_blocks_that_others_own_now_make_room():
    shelf = Shelf()
    cache = BlockCache(shelf, 4 * SIZE)
    for number in range(8):
        cache.get(number)
    cache.keep_only(3, 7)
    assert cache.n_byte == SIZE  # of 0 to 3
    for number in (4, 5, 6, 4, 5, 6, 3):
        cache.get(number)
    assert shelf.read == [*range(8), 4, 5, 6]


def _store(path: Path) -> BagStore:
    rng = np.random.default_rng(5)
    sizes = rng.integers(3, 30, 30)
    x = rng.normal(size=(sizes.sum(), 2)).astype(np.float32)
    base = np.concatenate([[0], np.cumsum(sizes)])

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        parts = [np.arange(base[b] + i, base[b] + j) for b, i, j in zip(bag, start, stop)]  # noqa: B905
        at = np.concatenate(parts)
        return PixelRows(x[at], np.ones(at.size), np.zeros((at.size, 2)) + at[:, None], at)

    write_bags(
        path,
        NewBags(
            sizes=sizes,
            rows=rows,
            y=rng.poisson(3.0, 30).astype(float),
            ids=[str(k) for k in range(30)],
            covariates=["a", "b"],
        ),
        fingerprint="cache",
        layout=StoreLayout(block_pixels=40, chunk_pixels=16, shard_pixels=64),
    )
    return BagStore.open(path)


def test_a_block_by_its_chunks_is_the_block_by_its_shards(tmp_path):
    store = _store(tmp_path / "s")
    assert store.n_block > 8
    for number in range(store.n_block):
        one, other = store.read_block(number), store.read_block(number, whole_shards=False)
        for name in ("x", "weight", "coords", "offsets", "y", "bag"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert not other.x.flags.writeable


def test_the_budget_changes_no_bit_of_a_fit(tmp_path, monkeypatch):
    store = _store(tmp_path / "s")
    fitted, loads = [], []
    init = StoreBlockSource.__init__
    for keep_mb in (0.0, 0.004, 10.0):
        made = []

        def new(self, store, bags=None, keep_mb=keep_mb, made=made):
            init(self, store, bags, keep_mb)
            made.append(self)

        monkeypatch.setattr(StoreBlockSource, "__init__", new)
        model = plain(VBAgg, n_inducing=6, max_epochs=4, batch_bags=8, posterior_steps="adam")
        fit(model, store, n_thread=2)
        fitted.append(model)
        loads.append(made[0].cache.n_load)
    assert loads[2] == store.n_block
    # Without any room: the sample for the start, and each epoch; in between where some fit.
    assert loads[0] == 5 * store.n_block
    assert loads[2] < loads[1] < loads[0]
    for name, value in fitted[0].state_.params.items():
        for other in fitted[1:]:
            np.testing.assert_array_equal(value, other.state_.params[name])
