"""What a model keeps with its blocks: given back, merged whole, and in checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from models import Bags
from models.core.protocol import Info, State, Stats
from models.training.estimator import Estimator
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint

ARGS = {"seed": 0, "learning_rate": 0.1, "batch_bags": 3}


class Counting(Estimator):
    """Counts how often each bag was visited, and reads pixels only the first time."""

    sweep = "full"
    keeps_local = True

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.reads = 0

    def init(self, sample, rng):
        return State({"total": np.zeros(1)}, {})

    def block_params(self, state):
        return state.params

    def needs_block(self, params, local):
        return local is None

    def block_stats(self, params, block, local):
        if local is None:
            self.reads += 1
            local = {"visits": np.zeros(block.n_bag), "sum": np.array([block.x.sum()])}
        assert (block is None) == bool(local["visits"].any())
        visits = local["visits"] + 1
        return Stats(0.0, visits.size, {"total": visits.sum(keepdims=True)}), {
            **local,
            "visits": visits,
        }

    def update(self, state, stats, n_bag_total):
        step = state.step + 1
        done = None if self.stop_at is None else step == self.stop_at
        return State(stats.sums, {}, step=step), Info(stats.bound, done)


def _training(model, bags):
    source = BagsSource(bags, 0, block_bags=3)
    return source, start_training(model, source, seed=0, learning_rate=0.1, tolerance=1e-3)


@pytest.fixture
def bags():
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 9, 12))])
    return Bags(rng.normal(size=(offsets[-1], 2)), offsets, rng.poisson(5, 12))


@pytest.mark.parametrize("n_thread", [1, 3])
def test_what_is_kept_comes_back_and_pixels_are_read_once(bags, n_thread):
    model = Counting(stop_at=5)
    source, training = _training(model, bags)
    with ThreadExecutor(model, source, n_thread) as executor:
        train(model, source, executor, training, max_epochs=50, **ARGS)
    assert training.epoch == 5  # the model itself said so
    assert training.converged
    assert model.reads == len(source.block_bags)
    assert training.state.params["total"][0] == 5 * bags.n_bag
    assert all((kept["visits"] == 5).all() for kept in training.local.values())


def test_a_checkpoint_holds_it(bags, tmp_path):
    model = Counting()
    source, training = _training(model, bags)
    with ThreadExecutor(model, source, 2) as executor:
        train(model, source, executor, training, max_epochs=2, **ARGS)
        save_checkpoint(tmp_path, training, "f" * 64)
        again = load_checkpoint(tmp_path, "f" * 64)
        train(model, source, executor, again, max_epochs=4, **ARGS)
        train(model, source, executor, training, max_epochs=4, **ARGS)
        save_checkpoint(tmp_path, training, "f" * 64, with_local=False)
    np.testing.assert_array_equal(again.state.params["total"], training.state.params["total"])
    assert again.local.keys() == training.local.keys()
    for number, kept in training.local.items():
        for name, value in kept.items():
            np.testing.assert_array_equal(again.local[number][name], value)
    assert load_checkpoint(tmp_path, "f" * 64).local == {}


def test_a_step_that_fails_keeps_nothing(bags):
    model = Counting()
    source, training = _training(model, bags)

    def fail(*_):
        raise RuntimeError

    model.update = fail
    with ThreadExecutor(model, source, 1) as executor, pytest.raises(RuntimeError):
        train(model, source, executor, training, max_epochs=1, **ARGS)
    assert training.local == {}
