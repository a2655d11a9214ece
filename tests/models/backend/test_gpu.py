"""On a real GPU: results beside float64 on the processor, at the sizes of a block.

``test_device`` and ``test_device_blocks`` run there too, every kernel and likelihood on small bags.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import speed
from models import VBAgg
from models.backend import arrays as xp
from models.training.device import block_executor, find_device, placed
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.plain import plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not xp.count_devices(), reason="no GPU is to be seen from here"),
]


def _problem(dtype):
    bags = speed.make_bags(40_000, 400)
    model = plain(
        VBAgg, link="exp", estimator="bound", kernel="additive", n_inducing=200, dtype=dtype,
        posterior_steps="adam", learn_inducing=True,
    )  # fmt: skip
    source = BagsSource(bags, 0, block_pixels=20_000, block_bags=bags.n_bag)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    rng = np.random.default_rng(1)
    n_ind = state.params["w"].shape[0]
    root = state.params["root"] + 0.02 * rng.normal(size=(n_ind, n_ind))
    params = {**state.params, "v_mean": 0.3 * rng.normal(size=n_ind), "root": root}
    return bags, model, source, replace(state, params=params)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-3)])
def test_value_and_all_gradients(dtype, tolerance):
    bags, exact, source, state = _problem("float64")
    params, numbers = exact.block_params(state), range(len(source.block_bags))
    with block_executor(exact, source, 2) as executor:
        wanted = exact.objective(state, executor.sum(params, numbers), bags.n_bag)
    model = VBAgg(**{**exact.get_params(), "dtype": dtype})
    with block_executor(model, source, 1, find_device("gpu")) as executor:
        found = model.objective(state, executor.sum(params, numbers), bags.n_bag)
    assert found.bound == pytest.approx(wanted.bound, rel=tolerance)
    for name, value in wanted.grad.items():
        worst = np.abs(found.grad[name] - value).max() / np.abs(value).max()
        assert worst < tolerance, f"{name}: {worst:.1e}"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-3)])
def test_predictions(dtype, tolerance):
    bags, exact, _, state = _problem("float64")
    params = exact.block_params(state)
    wanted = exact.predict_block(params, bags.x, bags.coords)
    model = VBAgg(**{**exact.get_params(), "dtype": dtype})
    with placed(find_device("gpu")) as put:
        found = model.predict_block(params, put(bags.x), put(bags.coords))
        for say in (lambda p: p.mean, lambda p: p.sd, lambda p: p.quantile(0.95)):
            scale = np.abs(say(wanted)).max()
            assert np.abs(xp.to_host(say(found)) - say(wanted)).max() < tolerance * scale


def test_the_same_bits_each_time():
    _, model, source, state = _problem("float32")
    params, numbers = model.block_params(state), range(len(source.block_bags))
    found = []
    for _ in range(3):
        with block_executor(model, source, 1, find_device("gpu")) as executor:
            found.append(executor.sum(params, numbers))
    for other in found[1:]:
        assert other.bound == found[0].bound
        for name, value in found[0].sums.items():
            np.testing.assert_array_equal(other.sums[name], value, err_msg=name)
