"""Fits from a store: the same numbers from threads, a Dask cluster, and after any interruption."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from models import Bags, VBAgg
from models.aggregate.fit_memory import CLIMB, CURVATURE, MEMBERS
from models.core.block import BagBlock
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import Training, start_training, train
from pipeline.core.errors import ClusterError, StoreError
from pipeline.store.bag_store import BagStore, StoreLayout
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.dask_executor import DaskExecutor
from pipeline.training.fit import fit
from tests.command import Command
from tests.pipeline.stores import write_store
from tests.plain import plain

N_BAG = 24


def make_store(
    path: Path,
    *,
    y: dict[str, float] | None = None,
    block_pixels: int = 60,
    fingerprint: str = "inputs",
    **layout: Any,
) -> BagStore:
    rng = np.random.default_rng(2)
    sizes = rng.integers(5, 40, N_BAG)
    base = np.concatenate([[0], np.cumsum(sizes)])
    n_pix = int(base[-1])
    x = rng.normal([3.0, -5.0], [2.0, 0.5], (n_pix, 2)).astype(np.float32)
    weight, coords = rng.gamma(1.0, 40, n_pix), rng.normal(size=(n_pix, 2)) * 50
    mean = np.add.reduceat(weight * 0.1 * np.exp(0.3 * (x[:, 0] - 3)), base[:-1])
    counts = rng.poisson(mean).astype(float)
    for name, value in (y or {}).items():
        counts[int(name)] = value
    given = StoreLayout(block_pixels=block_pixels, chunk_pixels=64, shard_pixels=128, **layout)
    return write_store(
        path, sizes, x, counts, weight, coords, seed=4, fingerprint=fingerprint, layout=given
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    return make_store(tmp_path_factory.mktemp("engine") / "bags.zarr")


def new_model(**params: Any) -> VBAgg:
    start = {"n_inducing": 8, "kernel": "additive", "max_epochs": 4, "batch_bags": 6}
    return plain(VBAgg, **{**start, **params})


@pytest.fixture(scope="module")
def whole(store: BagStore) -> Training:
    """What a fit without any interruption gives."""
    return fit(new_model(), store)


MINI_BATCHES = {"posterior_steps": "adam"}  # steps within an epoch, no climb over all areas


def assert_identical(one: Training, other: Training) -> None:
    for group in ("params", "fixed", "memory", "members"):
        arrays, others = getattr(one.state, group), getattr(other.state, group)
        assert arrays.keys() == others.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(value, others[name], err_msg=f"{group} {name}")
    assert (one.state.step, one.state.rate) == (other.state.step, other.state.rate)
    assert [h["bound"] for h in one.history] == [h["bound"] for h in other.history]
    assert one.plateau == other.plateau
    assert one.converged == other.converged


class Record:
    """Progress that keeps what it was told, and may raise past so many epochs."""

    def __init__(self, stop_at: float = np.inf) -> None:
        self.logs: list[str] = []
        self.total: float | None = None
        self.steps: list[tuple[float, dict[str, Any]]] = []
        self.done = 0.0
        self._stop_at = stop_at

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Record]:
        self.total = total
        yield self

    def advance(self, n: float = 1, **fields: Any) -> None:
        self.done += n
        if fields:
            self.steps.append((n, fields))
            if self.done > self._stop_at:
                raise KeyboardInterrupt

    def log(self, message: str) -> None:
        self.logs.append(message)


# -- what is fitted ----------------------------------------------------------------------------


class Memory(BagsSource):
    """Bags in memory, cut where the store cuts them."""

    def __init__(self, bags: BagBlock, block_offsets: np.ndarray) -> None:
        super().__init__(bags, seed=0)
        self._members = np.split(np.arange(bags.n_bag), block_offsets[1:-1])
        self.block_bags = np.diff(block_offsets)


def in_memory(store: BagStore) -> Bags:
    rows = store.read_rows(0, store.n_pix)
    return Bags(rows.x, store.offsets, store.y, rows.weight, rows.coords)


def test_a_store_gives_what_the_same_bags_in_memory_give(store: BagStore) -> None:
    model = new_model()
    source = Memory(in_memory(store), store.block_offsets)
    start = start_training(model, StoreBlockSource(store), **model.loop_params("start"))
    with ThreadExecutor(model, source, 1) as executor:
        expected = train(model, source, executor, start, **model.loop_params("train"))
    found = fit(model, store)
    assert_identical(found, expected)
    assert len(expected.history) == 4
    assert model.bound_ == expected.history[-1]["bound"]
    # Not converged is a status.
    assert not found.converged
    assert not model.converged_


def test_the_block_plan_changes_only_rounding(store: BagStore, tmp_path: Path) -> None:
    whole = make_store(tmp_path / "whole", block_pixels=10**6, block_bags=N_BAG)
    assert (whole.n_block, store.n_block > 5) == (1, True)
    assert whole.ids == store.ids
    model = new_model(batch_bags=N_BAG, max_epochs=3)  # a step holds every bag, in either plan
    start = start_training(model, StoreBlockSource(store), **model.loop_params("start"))
    fits = []
    for source in (StoreBlockSource(store), StoreBlockSource(whole)):
        with ThreadExecutor(model, source, 2) as executor:
            training = deepcopy(start)
            fits.append(train(model, source, executor, training, **model.loop_params("train")))
    for name, value in fits[0].state.params.items():
        np.testing.assert_allclose(fits[1].state.params[name], value, rtol=1e-7, atol=1e-9)
    assert fits[1].history[-1]["bound"] == pytest.approx(fits[0].history[-1]["bound"], rel=1e-10)


def test_what_a_model_is_told_of_the_data(store: BagStore) -> None:
    bags = np.arange(N_BAG) % 3 != 0
    rows, pixel = store.read_rows(0, store.n_pix), np.repeat(bags, store.sizes)
    summary = StoreBlockSource(store, bags).summary(np.random.default_rng(0))
    x = rows.x[pixel].astype(np.float64)
    np.testing.assert_allclose(summary.x_mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(summary.x_sd, x.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(summary.y, store.y[bags])
    assert summary.weight.sum() == pytest.approx(rows.weight[pixel].sum(), rel=1e-12)
    assert (summary.n_bag, summary.n_pix) == (bags.sum(), pixel.sum())
    assert summary.coords is not None
    sampled = np.column_stack([summary.x, summary.coords])
    training = np.column_stack([x, rows.coords[pixel]])
    np.testing.assert_array_equal(  # few pixels: the sample is all training pixels, once each
        sampled[np.lexsort(sampled.T)], training[np.lexsort(training.T)]
    )


def test_a_subset_has_its_own_scaling_and_never_sees_the_counts_held_out(
    store: BagStore, tmp_path: Path
) -> None:
    bags = np.ones(N_BAG, bool)
    bags[[0, 5, 6, 7, 20]] = False
    bags[store.block_offsets[1] : store.block_offsets[2]] = False  # a block without any
    held_out = [store.ids[k] for k in np.flatnonzero(~bags)]
    other = make_store(tmp_path / "s", y=dict.fromkeys(held_out, 1e6))
    assert (other.y != store.y).sum() == len(held_out)
    one, two = fit(new_model(), store, bags=bags), fit(new_model(), other, bags=bags)
    assert_identical(one, two)
    rows, pixel = store.read_rows(0, store.n_pix), np.repeat(bags, store.sizes)
    np.testing.assert_allclose(one.state.fixed["x_mean"], rows.x[pixel].mean(axis=0), rtol=1e-5)
    assert one.state.fixed["base_rate"][0] == pytest.approx(
        store.y[bags].sum() / rows.weight[pixel].sum()
    )


@pytest.mark.parametrize("bags", [np.ones(3, bool), np.zeros(N_BAG, bool)])
def test_impossible_subsets_are_refused(store: BagStore, bags: np.ndarray) -> None:
    with pytest.raises(ValueError, match=rf"give \({N_BAG},\) with at least one true"):
        fit(new_model(), store, bags=bags)


# -- who computes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A worker in this process; two blocks at once share its store."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def mortal(forked_workers: None) -> Iterator[Client]:
    """Two workers in processes of their own, which nannies start again."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def wait_until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_threads_and_workers_give_the_same(store: BagStore, client: Client) -> None:
    bags = np.arange(N_BAG) != 3
    for settings in ({}, MINI_BATCHES):
        expected = fit(new_model(**settings), store, bags=bags, n_thread=1)
        assert_identical(fit(new_model(**settings), store, bags=bags, n_thread=3), expected)
        assert_identical(fit(new_model(**settings), store, client, bags=bags), expected)
    assert len(expected.history) * 3 <= expected.state.step  # several steps an epoch

    # The cluster keeps nothing of the steps.
    def count(dask_scheduler: Any = None) -> int:
        return len(dask_scheduler.tasks)

    wait_until(lambda: client.run_on_scheduler(count) == 0)


def test_other_responses_reach_threads_and_workers(
    store: BagStore, whole: Training, client: Client
) -> None:
    assert_identical(fit(new_model(), store.with_responses(store.y), n_thread=1), whole)
    other = store.with_responses(store.y[::-1] + 1.0)
    expected = fit(new_model(), other, n_thread=1)
    assert expected.state.params["mean"] != whole.state.params["mean"]
    assert_identical(fit(new_model(), other, client), expected)


@pytest.mark.ci
def test_a_worker_killed_while_it_computes_changes_nothing(
    store: BagStore, whole: Training, mortal: Client
) -> None:
    killed: list[int] = []

    def kill() -> None:
        # The nannies know, without asking: a worker that died just now would not answer.
        pids = [nanny.pid for nanny in mortal.cluster.workers.values() if nanny.pid]
        for pid in pids[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    class Killer(Record):
        def advance(self, n: float = 1, **fields: Any) -> None:
            super().advance(n, **fields)
            if fields and len(self.steps) == 2:
                threading.Timer(0.01, kill).start()

    assert_identical(fit(new_model(), store, mortal, progress=Killer()), whole)
    assert killed


@pytest.mark.ci
def test_workers_that_are_all_killed_are_waited_for(store: BagStore, mortal: Client) -> None:
    model, source = new_model(), StoreBlockSource(store)
    start = start_training(model, source, **model.loop_params("start"))
    params, blocks = model.block_params(start.state), range(store.n_block)
    with ThreadExecutor(model, source, 1) as threads:
        expected = threads.sum(params, blocks)
    with DaskExecutor(model, source, mortal) as executor:
        first = executor.sum(params, blocks)
        for pid in mortal.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)  # the nannies start others
        again = executor.sum(params, blocks)
    for found in (first, again):
        assert found.bound == expected.bound
        for name, value in expected.sums.items():
            np.testing.assert_array_equal(found.sums[name], value)


def test_an_actor_known_to_be_lost_is_made_up_for(store: BagStore, client: Client) -> None:
    """Dask then refuses the call itself, by another error than that of a lost connection."""
    model, source = new_model(), StoreBlockSource(store)
    start = start_training(model, source, **model.loop_params("start"))
    params, blocks = model.block_params(start.state), range(store.n_block)
    with DaskExecutor(model, source, client) as executor:
        first = executor.sum(params, blocks)
        (member,) = executor._members.values()
        client.cancel([member.future], force=True)
        wait_until(lambda: member.future.status != "finished")
        again = executor.sum(params, blocks)
    for name, value in first.sums.items():
        np.testing.assert_array_equal(again.sums[name], value)


def test_nobody_comes_in_the_time_to_wait(store: BagStore) -> None:
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", host="127.0.0.1") as empty,
        Client(empty) as client,
        DaskExecutor(new_model(), StoreBlockSource(store), client, wait=0.2) as executor,
        pytest.raises(ClusterError, match=r"no worker has been ready for 0\.2 seconds"),
    ):
        executor.sum({}, [0])


def test_a_cluster_that_is_gone_is_said_in_one_line(store: BagStore, cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        executor = DaskExecutor(new_model(), StoreBlockSource(store), client)
    with pytest.raises(ClusterError, match="cannot be reached; start it again"):
        executor.sum({}, [0])


def test_ctrl_c_leaves_the_cluster_free(
    store: BagStore, whole: Training, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(new_model(), store, client, checkpoint=tmp_path, progress=Record(stop_at=2.3))
    assert client.submit(int, "7").result(timeout=10) == 7
    assert_identical(fit(new_model(), store, client, checkpoint=tmp_path), whole)


def test_what_fails_on_a_worker_is_said_here(tmp_path: Path, client: Client) -> None:
    store = make_store(tmp_path / "s")
    executor = DaskExecutor(new_model(), StoreBlockSource(store), client)
    make_store(tmp_path / "s", fingerprint="another")
    with pytest.raises(StoreError, match="store differs from the driver"):
        executor.sum({}, [0])


def test_a_task_carries_neither_the_store_nor_its_arrays(store: BagStore, client: Client) -> None:
    job = DaskExecutor(new_model().fit(in_memory(store)), StoreBlockSource(store), client).job
    assert len(pickle.dumps(job)) < 1500
    assert job.source.store.path.is_absolute()


# -- interrupted and resumed -------------------------------------------------------------------


def test_interrupted_in_the_middle_of_an_epoch_and_resumed(store: BagStore, tmp_path: Path) -> None:
    model = partial(new_model, max_epochs=4, **MINI_BATCHES)
    whole = fit(model(), store)
    for stop_at, logs in (
        (0.3, []),
        (1.3, []),
        (2.3, ["fit: resumes from the checkpoint of epoch 1"]),
    ):
        record = Record(stop_at=stop_at)
        with pytest.raises(KeyboardInterrupt):
            fit(model(), store, checkpoint=tmp_path, progress=record)
        assert record.done < stop_at + 0.7
        assert record.logs == logs
    record = Record()
    resumed = fit(model(), store, checkpoint=tmp_path, progress=record)
    assert_identical(resumed, whole)
    assert record.logs == ["fit: resumes from the checkpoint of epoch 2"]
    assert sum(n for n, _ in record.steps) == pytest.approx(2)
    assert record.done == pytest.approx(4)


@pytest.mark.ci
def test_interrupted_after_any_step_of_the_climb_or_of_the_members(
    store: BagStore, tmp_path: Path
) -> None:
    model = partial(new_model, max_epochs=100, integrate=4)
    whole = fit(model(), store)
    assert whole.converged
    stages = [row["stage"] for row in whole.history]
    assert {CLIMB, CURVATURE, MEMBERS} <= {*stages}
    assert whole.state.members["theta"].shape[0] == 4
    # A run stops before its checkpoint of that step: in the climb, at the curvature, and between
    # two pairs of members.
    for number in sorted({1, stages.index(CURVATURE), len(stages) - 1}):
        stopping = Record(stop_at=number - 0.5)
        with pytest.raises(KeyboardInterrupt):
            fit(model(), store, checkpoint=tmp_path / str(number), progress=stopping)
        found = fit(model(), store, checkpoint=tmp_path / str(number))
        assert_identical(found, whole)


@pytest.mark.ci
def test_killed_and_resumed(store: BagStore, whole: Training, tmp_path: Path) -> None:
    program = """
import os, signal, sys
from tests.pipeline.training import test_fit as t
class Dies(t.Record):
    def advance(self, n=1, **fields):
        super().advance(n, **fields)
        if self.done > 2.1:  # in the third epoch
            os.kill(os.getpid(), signal.SIGKILL)
t.fit(t.new_model(), t.BagStore.open(sys.argv[1]), checkpoint=sys.argv[2], progress=Dies())
"""
    assert Command(store.path, tmp_path, code=program).wait().returncode == -signal.SIGKILL
    record = Record()
    resumed = fit(new_model(), store, checkpoint=tmp_path, progress=record)
    assert record.logs == ["fit: resumes from the checkpoint of epoch 2"]
    assert_identical(resumed, whole)


def test_more_epochs_go_on_also_behind_a_damaged_checkpoint(
    store: BagStore, whole: Training, tmp_path: Path
) -> None:
    fit(new_model(max_epochs=3), store, checkpoint=tmp_path)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-300])
    record = Record()
    resumed = fit(new_model(), store, checkpoint=tmp_path, progress=record)
    assert record.logs == [
        f"fit: the checkpoint {newest.name} is damaged and passed over",
        "fit: resumes from the checkpoint of epoch 2",
    ]
    assert_identical(resumed, whole)
    again = Record()
    assert_identical(fit(new_model(), store, checkpoint=tmp_path, progress=again), whole)
    assert again.steps == []


@pytest.mark.parametrize("change", ["model", "data", "bags", "blocks"])
def test_a_checkpoint_of_something_else_is_not_taken_up(
    store: BagStore, old: Path, tmp_path: Path, change: str
) -> None:
    shutil.copytree(old, tmp_path / "c")
    model = new_model(max_epochs=1, seed=int(change == "model"))
    bags = np.arange(N_BAG) != 1 if change == "bags" else None
    if change == "data":
        store = make_store(tmp_path / "s", y={"3": 9.0}, fingerprint="other inputs")
    elif change == "blocks":
        store = make_store(tmp_path / "s", block_pixels=200)
    record = Record()
    found = fit(model, store, bags=bags, checkpoint=tmp_path / "c", progress=record)
    assert record.logs == []
    assert_identical(found, fit(model, store, bags=bags))
    # Its own is kept, though the old fit's are of later epochs.
    again = Record()
    fit(model, store, bags=bags, checkpoint=tmp_path / "c", progress=again)
    assert again.steps == []


@pytest.fixture(scope="module")
def old(store: BagStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("old")
    fit(new_model(max_epochs=3), store, checkpoint=directory)
    return directory


# -- what it tells -----------------------------------------------------------------------------


def test_progress_tells_bound_and_rate_of_each_step(store: BagStore) -> None:
    record = Record()
    training = fit(new_model(learning_rate=0.03, **MINI_BATCHES), store, progress=record)
    assert record.total == 4
    assert record.done == pytest.approx(4)
    assert len(record.steps) == training.state.step
    ends = np.cumsum([n for n, _ in record.steps])
    last = [step for step, end in zip(record.steps, ends, strict=True) if end > 3 + 1e-9]
    assert len(last) > 1
    assert {fields["rate"] for _, fields in last} == {0.03}
    bounds = [fields["bound_per_area"] * N_BAG for _, fields in last]
    assert min(bounds) <= training.history[-1]["bound"] <= max(bounds)


def test_converged_is_a_status(store: BagStore, tmp_path: Path) -> None:
    model = new_model(max_epochs=200, integrate="none")
    done = fit(model, store)
    assert model.converged_
    assert done.epoch < 200
    assert model.convergence_["nats_left"] < model.nats_left
    # No rise is large enough: as soon as can be.
    model = new_model(max_epochs=200, tolerance=1e3, **MINI_BATCHES)
    done = fit(model, store, checkpoint=tmp_path)
    assert model.converged_
    assert done.epoch < 200
    assert done.state.rate < model.learning_rate
    record = Record()
    assert_identical(fit(model, store, checkpoint=tmp_path, progress=record), done)
    assert record.steps == []
