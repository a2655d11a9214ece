"""The one loop: any algorithm of ``init``, ``step`` and ``terminate`` runs in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import Bags, Constant
from models.aggregate.fit_memory import CURVATURE, Memory
from models.core.protocol import Info, State
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train


class Halving:
    """Halves the mean until it is small; the third step of a model that is ``broken`` ends it."""

    def __init__(self, *, broken=False):
        self.begun, self.broken = 0, broken

    def init(self, state):
        if "begun" in state.memory:
            return state
        self.begun += 1
        return replace(state, memory={"begun": np.ones(1)})

    def step(self, state):
        mean = 0.5 * state.params["mean"]
        state = replace(state, params={**state.params, "mean": mean}, step=state.step + 1)
        return state, Info(-float(mean[0] ** 2), report={"halved": float(state.step)})

    def terminate(self, state, info):
        if self.broken and state.step == 3:
            return False, "it broke"
        return info.bound > -1e-4, ""

    def phase(self, state):
        return f"halving {state.step}"


def _trained(algorithm, training, model, source, most, seen):
    model.refinement = lambda *_: algorithm
    with ThreadExecutor(model, source, 1) as executor:
        return train(
            model, source, executor, training, seed=0, learning_rate=1.0, batch_bags=1,
            max_epochs=most, on_step=seen.append,
        )  # fmt: skip


@pytest.mark.parametrize("broken", [False, True])
def test_an_algorithm_of_three_methods_is_a_fit(broken):
    model, algorithm, seen = Constant(), Halving(broken=broken), []
    bags = Bags(np.zeros((4, 1)), np.arange(5), np.ones(4), np.ones(4))
    source = BagsSource(bags, 0, block_bags=2)
    training = start_training(model, source, seed=0, learning_rate=1.0, tolerance=0.01)
    training.state = replace(training.state, params={"mean": np.ones(1)})
    for most in (2, 300):  # taken up again, it goes on
        training = _trained(algorithm, training, model, source, most, seen)
    assert algorithm.begun == 1
    assert training.epoch == (3 if broken else 7)
    assert training.converged is not broken
    assert training.stopped == ("it broke" if broken else "")
    assert [row["halved"] for row in training.history] == list(range(1, training.epoch + 1))
    assert seen[-1].phase == f"halving {training.epoch}"


def test_a_memory_is_read_as_it_was_written():
    memory = Memory(
        stage=CURVATURE, inverse=np.eye(2), value=-3.5, left=np.inf, grad=np.ones(2), tries=2
    )
    state = memory.into(State({}, {}))
    assert set(state.memory) == {"stage", "inverse", "value", "left", "grad", "tries"}
    assert all(isinstance(each, np.ndarray) for each in state.memory.values())
    again = Memory.of(replace(state, memory={**state.memory, "unheard_of": np.ones(1)}))
    assert again.failed is None
    assert again.value == -3.5
    assert again.into(state).memory.keys() == state.memory.keys()
