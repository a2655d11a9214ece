"""The same bits from 1, 2 and 4 workers, threads or processes, and after a resume on others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import models.backend.blas
from benchmarks.coordination import cluster
from models import VBAgg
from models.training.executor import ThreadExecutor
from models.training.loop import Training, start_training
from models.training.reduction import leaves, partial_sums, total
from pipeline.core.errors import ClusterError
from pipeline.store.bag_store import BagStore, StoreLayout
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.dask_executor import DaskExecutor
from pipeline.training.fit import fit
from pipeline.training.worker import KEEP_SHARE, _keep_mb
from tests.pipeline.stores import write_store
from tests.plain import plain

N_BAG, N_STEP = 48, 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    path = tmp_path_factory.mktemp("workers") / "bags.zarr"
    rng = np.random.default_rng(8)
    sizes = rng.integers(5, 40, N_BAG)
    base = np.concatenate([[0], np.cumsum(sizes)])
    n_pix = int(base[-1])
    x = rng.normal(size=(n_pix, 3)).astype(np.float32)
    weight, coords = rng.gamma(1.0, 40, n_pix), rng.normal(size=(n_pix, 2))
    mean = np.add.reduceat(weight * 0.1 * np.exp(0.5 * x[:, 0]), base[:-1])
    layout = StoreLayout(block_pixels=60, chunk_pixels=64, shard_pixels=128)
    store = write_store(path, sizes, x, rng.poisson(mean) * 1.0, weight, coords, layout=layout)
    assert store.n_block > 16
    return store


def new_model(max_epochs: int = 5) -> VBAgg:
    """Four or five steps an epoch."""
    return plain(
        VBAgg,
        n_inducing=10,
        kernel="additive",
        max_epochs=max_epochs,
        batch_bags=10,
        posterior_steps="adam",
        seed=3,
    )


@pytest.fixture(scope="module")
def alone(store: BagStore) -> Training:
    training = fit(new_model(), store, n_thread=1)
    assert training.state.step >= N_STEP
    return training


def assert_identical(one: Training, other: Training) -> None:
    assert one.state.step == other.state.step
    for group in ("params", "memory"):
        for name, value in getattr(one.state, group).items():
            np.testing.assert_array_equal(value, getattr(other.state, group)[name], err_msg=name)
    assert [h["bound"] for h in one.history] == [h["bound"] for h in other.history]


def start_then_resume(store: BagStore, path: Path, first: Client, then: Client) -> Training:
    fit(new_model(max_epochs=2), store, first, checkpoint=path)
    return fit(new_model(), store, then, checkpoint=path)


@pytest.mark.ci
def test_workers_as_threads_and_resumed_on_another_number(
    store: BagStore, alone: Training, tmp_path: Path
) -> None:
    with (
        cluster(1, processes=False) as one,
        cluster(2, processes=False) as two,
        cluster(4, processes=False) as four,
    ):
        for client in (one, two, four):
            assert_identical(fit(new_model(), store, client), alone)
        assert_identical(start_then_resume(store, tmp_path / "a", four, two), alone)
        assert_identical(start_then_resume(store, tmp_path / "b", one, four), alone)


@pytest.mark.ci
def test_two_processes_and_resumed_on_threads(
    store: BagStore, alone: Training, tmp_path: Path, forked_workers: None
) -> None:
    with cluster(2, processes=True) as processes, cluster(4, processes=False) as threads:
        assert_identical(fit(new_model(), store, processes), alone)
        assert_identical(start_then_resume(store, tmp_path, processes, threads), alone)


def test_equal_stretches_send_one_sum_each(store: BagStore) -> None:
    model, source = new_model(), StoreBlockSource(store)
    state = start_training(model, source, **model.loop_params("start")).state
    params, blocks = model.block_params(state), list(range(0, store.n_block, 2))
    with (
        cluster(4, processes=False) as client,
        DaskExecutor(model, source, client) as executor,
        ThreadExecutor(model, source, 1) as here,
    ):
        whole = executor.sum(params, blocks)
        orders = executor._orders(blocks, blocks, {}, blocks[:3], 4)
        parts = [here.partials(params, order.blocks, span=order.span) for _, order in orders]
        by_hand = [
            total(partial_sums(leaves(here.map(params, o.blocks), o.blocks, store.n_block)))
            for _, o in orders
        ]
    assert [owner for owner, _ in orders] == [0, 1, 2, 3]
    assert [number for _, order in orders for number in order.blocks] == blocks
    assert [number for _, order in orders for number in order.ahead] == blocks[:3]
    assert [len(each) for each in parts] == [1, 1, 1, 1]
    first, second, third, fourth = (each.bound for each in by_hand)
    assert whole.bound == (first + second) + (third + fourth)


def test_workers_that_only_the_scheduler_reaches(
    store: BagStore, alone: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(self: Any, address: str) -> bool:
        return False

    direct = []
    with cluster(2, processes=False) as client, monkeypatch.context() as patch:
        patch.setattr(DaskExecutor, "_reaches", unreachable)
        rpc = client.rpc
        patch.setattr(client, "rpc", lambda *a: direct.append(a) or rpc(*a))
        assert_identical(fit(new_model(), store, client), alone)
    assert not direct


def test_paused_workers_get_no_part(store: BagStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, processes=False) as client, monkeypatch.context() as patch:
        found = client.scheduler_info(n_workers=-1)
        for worker in found["workers"].values():
            assert worker["status"] == "running"
            worker["status"] = "paused"
        patch.setattr(client, "scheduler_info", lambda **_: found)
        with (
            DaskExecutor(new_model(), StoreBlockSource(store), client, wait=0.2) as executor,
            pytest.raises(ClusterError, match=r"been ready for 0\.2 seconds; start some, or"),
        ):
            executor.sum({}, [0])


def test_a_worker_keeps_blocks_by_its_memory_and_frees_blas_after_the_fit(store: BagStore) -> None:
    before = models.backend.blas._users
    with (
        # This process is the worker; after thousands of tests it may hold more than 4 GB.
        dask.config.set({"distributed.worker.memory.pause": False}),
        LocalCluster(
            n_workers=1,
            processes=False,
            memory_limit="4GB",
            dashboard_address=":0",
            silence_logs=50,
        ) as workers,
        Client(workers) as client,
    ):
        (limit,) = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit).values()
        assert client.submit(_keep_mb).result(timeout=20) == pytest.approx(KEEP_SHARE * limit / 1e6)
        model, source = new_model(), StoreBlockSource(store)
        state = start_training(model, source, **model.loop_params("start")).state
        with DaskExecutor(model, source, client) as executor:
            executor.sum(model.block_params(state), [0])
            assert models.backend.blas._users == before + 1
        for _ in range(500):
            client.run(lambda: None)
            if models.backend.blas._users == before:
                break
        assert models.backend.blas._users == before
