"""Blocks that are brought to a device while others are computed; streams that do nothing in time.

On the stand-in a copy is made when somebody waits for it and not before: arithmetic that does not
wait sees NaN, and a buffer that is filled again too early sends the wrong block.
"""

from __future__ import annotations

import numpy as np
import pytest

import models
from models import VBAgg
from models.backend import arrays as xp
from models.core.errors import ParameterError
from models.training import device
from models.training.device import (
    DeviceSource,
    JoinedSource,
    OnDevice,
    block_executor,
    blocks_to_join,
    find_device,
    placed,
)
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training
from tests.models.backend import strict_cupy as strict
from tests.plain import plain

ON = ["strict", *([pytest.param("real", marks=pytest.mark.gpu)] if xp.count_devices() else [])]


@pytest.fixture(params=ON)
def gpu(request, monkeypatch):
    """The stand-in, or the GPU where there is one."""
    if request.param == "strict":
        strict.install(monkeypatch)
    return find_device("gpu")


@pytest.fixture
def slow_copies(monkeypatch):
    """The stand-in alone: its copies are made when somebody waits for them."""
    strict.install(monkeypatch)
    return find_device("gpu")


@pytest.fixture
def setting(make_bags):
    bags = make_bags(n_bag=60, largest=40)
    model = plain(
        VBAgg, link="exp", estimator="bound", kernel="additive", n_inducing=7, batch_bags=20
    )
    source = BagsSource(bags, 0, block_pixels=150)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    return model, source, model.block_params(state)


def _sum(executor, params, numbers):
    with executor:
        return executor.sum(params, numbers)


def test_sums_of_many_blocks_are_the_hosts(gpu, setting):
    model, source, params = setting
    numbers = range(len(source.block_bags))
    assert len(numbers) > 6
    here = _sum(ThreadExecutor(model, source, 1), params, numbers)
    for _ in range(3):  # threads meet differently each time
        there = _sum(block_executor(model, source, 1, gpu), params, numbers)
        assert there.bound == pytest.approx(here.bound, rel=1e-11)
        for name, value in here.sums.items():
            assert type(there.sums[name]) is np.ndarray
            np.testing.assert_allclose(
                there.sums[name], value, atol=1e-10 * np.abs(value).max(), err_msg=name
            )


def test_arithmetic_that_did_not_wait_for_its_copy_would_show(slow_copies, setting, monkeypatch):
    gpu = slow_copies
    model, source, params = setting
    monkeypatch.setattr(xp.Device, "arrived", lambda self, event: None)
    try:
        wrong = OnDevice(model, gpu).block_stats(params, DeviceSource(source, gpu).read(0), None)[0]
        assert not np.isfinite(wrong.bound)
    except models.errors.NumericalError:
        pass


def test_a_buffer_is_not_filled_again_before_it_has_left(slow_copies, setting, monkeypatch):
    gpu = slow_copies
    _, source, _ = setting
    there = DeviceSource(source, gpu, budget=0)
    first, second = there.read(0), there.read(1)  # one thread, one buffer
    for block, number in ((first, 0), (second, 1)):
        gpu.arrived(block.sent)
        np.testing.assert_array_equal(block.x.get(), source.read(number).x)
    # Without the wait the first would have become the second.
    monkeypatch.setattr(xp.Device, "sent", lambda self, event: None)
    third, fourth = there.read(2), there.read(3)
    gpu.arrived(fourth.sent)
    rows = min(third.n_pix, fourth.n_pix)
    assert not np.array_equal(third.x.get()[:rows], source.read(2).x[:rows])


def test_every_field_arrives_as_it_was(gpu, make_bags):
    bags = make_bags()
    bags = models.Bags(bags.x.astype(np.float32), bags.offsets, bags.y, bags.weight, bags.coords)
    source = BagsSource(bags, 0, block_pixels=60)
    block = DeviceSource(source, gpu).read(1)
    gpu.arrived(block.sent)
    wanted = source.read(1)
    assert block.trials is None
    for name in ("x", "weight", "coords", "y"):
        found = getattr(block, name)
        assert type(found).__module__.startswith("cupy")
        assert found.dtype == getattr(wanted, name).dtype
        np.testing.assert_array_equal(found.get(), getattr(wanted, name))
    for name in ("offsets", "bag"):
        assert type(getattr(block, name)) is np.ndarray
        np.testing.assert_array_equal(getattr(block, name), getattr(wanted, name))


class _Counting:
    def __init__(self, source):
        self._source, self.reads = source, []
        self.block_bags = source.block_bags

    def read(self, number):
        self.reads.append(number)
        return self._source.read(number)


def test_blocks_stay_up_to_the_budget_first_come_first_kept(gpu, setting):
    _, source, _ = setting
    counting = _Counting(source)
    size = DeviceSource(source, gpu)._send([source.read(0)])[1]
    there = DeviceSource(counting, gpu, budget=int(3.5 * size))
    for _ in range(3):
        for number in range(6):
            there.read(number)
    kept = sorted(there._kept)
    assert kept == list(range(len(kept)))  # a cyclic scan keeps its beginning
    assert 2 <= len(kept) <= 5
    assert there._held <= 3.5 * size
    assert [counting.reads.count(number) for number in kept] == [1] * len(kept)
    assert counting.reads.count(5) == 3


def test_joined_blocks_hold_the_same_bags(setting, gpu):
    model, source, params = setting
    joined = JoinedSource(source, 3)
    assert joined.block_bags.sum() == source.block_bags.sum()
    assert len(joined.block_bags) == -(-len(source.block_bags) // 3)
    bags = np.concatenate([joined.read(k).bag for k in range(len(joined.block_bags))])
    one = np.concatenate([source.read(k).bag for k in range(len(source.block_bags))])
    np.testing.assert_array_equal(bags, one)
    here = _sum(ThreadExecutor(model, source, 1), params, range(len(source.block_bags)))
    numbers = range(len(joined.block_bags))
    there = _sum(block_executor(model, joined, 1, gpu), params, numbers)
    assert there.n_bag == here.n_bag
    assert there.bound == pytest.approx(here.bound, rel=1e-11)


@pytest.mark.parametrize("batch", [None, 1, 40, 10**9])
def test_blocks_are_joined_to_what_a_device_needs_and_a_step_allows(batch):
    block_bags = np.full(1000, 4)
    joined = blocks_to_join(block_bags, 1000 * 4096, batch)
    assert joined >= 1
    assert joined == 1 or joined * 4096 <= device.DEVICE_PIXELS
    if batch is not None:
        assert joined == 1 or 2 * joined * 4 <= batch
    if batch in (None, 10**9):
        assert joined == device.DEVICE_PIXELS // 4096


def test_a_whole_fit_on_the_device_is_the_hosts(gpu, make_bags):
    bags = make_bags(n_bag=40)
    how = {"link": "exp", "kernel": "additive", "n_inducing": 6, "max_epochs": 3, "seed": 2}
    here = plain(VBAgg, **how, batch_bags=40).fit(bags, n_thread=1)
    there = plain(VBAgg, **how, batch_bags=40).fit(bags, device="gpu")
    assert there.bound_ == pytest.approx(here.bound_, rel=1e-8)
    for name, value in here.state_.params.items():
        assert type(there.state_.params[name]) is np.ndarray
        np.testing.assert_allclose(there.state_.params[name], value, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("make", [models.PsiVGPMIL, models.VWSGP])
def test_a_whole_fit_by_closed_forms(make, gpu):
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 10, 40))])
    x = rng.normal(size=(offsets[-1], 3))
    bags = models.Bags(x, offsets, np.maximum.reduceat((x[:, 0] > 1.0) * 1.0, offsets[:-1]))
    how = {"n_inducing": 8, "max_epochs": 6, "calibrate": "none"}
    how |= {"variance": 1.0, "lengthscale": 1.0}
    here = make(**how).fit(bags, n_thread=1)
    there = make(**how).fit(bags, device="gpu")
    np.testing.assert_allclose(there.predict_pixels(x).m, here.predict_pixels(x).m, atol=1e-6)


def test_which_device_is_taken(monkeypatch):
    strict.install(monkeypatch, n_device=0)
    assert find_device("auto") is None
    assert find_device("cpu") is None
    with pytest.raises(ParameterError, match=r"no GPU.*disagg\[gpu\]"):
        find_device("gpu")
    monkeypatch.undo()
    cupy = strict.install(monkeypatch, memory=1000)
    assert find_device("cpu") is None
    assert find_device("auto").memory == 900
    assert cupy.get_default_memory_pool().limit == 900
    assert find_device("gpu", 123).memory == 123
    assert cupy.get_default_memory_pool().limit == 123


def test_placed_brings_arrays_to_the_device_or_leaves_them(gpu):
    x = np.arange(3.0)
    with placed(None) as put:
        assert put(x) is x
    with placed(gpu) as put:
        assert type(put(x)).__module__.startswith("cupy")
    gpu.free()


def test_memory_is_asked_for_on_the_stream_that_computes(slow_copies):
    """Else the pool could hand out what kernels still read, and a copy overwrite it."""
    gpu = slow_copies
    compute, copies = gpu._compute, gpu._copies
    entered = []
    gpu._compute = _Noting(compute, entered)
    target, event = gpu.send(np.frombuffer(bytearray(8), np.uint8))
    assert entered == ["in", "record", "out"]
    assert event.stream is copies
    gpu.arrived(event)
    assert target.get().tolist() == [0] * 8


class _Noting:
    def __init__(self, stream, entered):
        self._stream, self._entered = stream, entered

    def __enter__(self):
        self._entered.append("in")

    def __exit__(self, *exc):
        self._entered.append("out")

    def record(self):
        self._entered.append("record")
        return self._stream.record()

    def wait_event(self, event):
        self._stream.wait_event(event)


def test_parameters_are_never_changed(gpu, setting):
    model, source, params = setting
    before = {name: np.array(value) for name, value in params.items()}
    _sum(block_executor(model, source, 1, gpu), params, range(3))
    for name, value in before.items():
        np.testing.assert_array_equal(params[name], value)
