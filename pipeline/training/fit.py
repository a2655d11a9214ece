"""Fit a model to a bag store: blocks from disk, on threads or on a Dask cluster, resumable.

The loop itself is :func:`models.training.loop.train`; this module feeds it from a store, has blocks
computed where they should be, keeps checkpoints and reports progress.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.backend.blas import in_threads
from models.core.block import check_labels
from models.training.device import Wanted, block_executor, blocks_to_join, find_device, joined
from models.training.estimator import Estimator
from models.training.loop import Executor, StepReport, Training, start_training, train
from models.training.optim import Plateau
from pipeline.core.errors import ClusterError
from pipeline.core.progress import Progress, Silent, Task
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from pipeline.training.dask_executor import WAIT_SECONDS, DaskExecutor

if TYPE_CHECKING:
    from distributed import Client


def fit(
    model: Estimator,
    store: BagStore,
    client: Client | None = None,
    *,
    bags: np.ndarray | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    n_thread: int | None = None,
    device: Wanted = "cpu",
    device_memory: int | None = None,
    wait: float = WAIT_SECONDS,
) -> Training:
    """Fit a model to the bags of a store.

    Parameters
    ----------
    model : Estimator
        Its learnt attributes are set in place.
    store : BagStore
    client : distributed.Client, optional
        Where blocks are computed; threads of this process where not given.
    bags : (n_bag,) bool array, optional
        Training bags; all where not given. The covariates' scaling is theirs alone.
    checkpoint : path-like, optional
        Directory of checkpoints, one an epoch. A fit of the same data and model found there is
        taken up from its last finished epoch, with the same result as without the interruption.
    progress : Progress, optional
    n_thread : int, optional
        Threads without a client; one for each core where not given. It changes no number.
    device : {"cpu", "gpu", "auto"}
        What computes the blocks, here or on each worker. Blocks for GPUs are joined ones, so that
        the numbers differ from the processors' by rounding and by the blocks of each step.
    device_memory : int, optional
        Bytes of a GPU's memory that we may fill.
    wait : float, optional
        Seconds to wait for a worker where the client's cluster has none left.

    Returns
    -------
    Training
        Its ``converged`` is a status, not an exception.
    """
    source = StoreBlockSource(store, bags)
    if not model.on_device:
        device = "cpu"
    found = find_device(device, device_memory) if client is None else None
    if found is not None or (client is not None and device == "gpu"):
        batch = model.batch_bags if model.sweep == "minibatch" else None  # type: ignore[attr-defined]
        n_pix = int(store.sizes[source.bags].sum())
        source = joined(source, blocks_to_join(source.block_bags, n_pix, batch))
    if model.responses == "labels":
        check_labels(store.y[source.bags])
    if model.sweep == "single":  # type: ignore[attr-defined]
        return _fit_whole(model, source, client, progress or Silent(), n_thread)
    directory = None if checkpoint is None else Path(checkpoint)
    fingerprint = _fit_fingerprint(model, source)
    progress = progress or Silent()
    training = None if directory is None else load_checkpoint(directory, fingerprint, progress)
    if training is not None:
        progress.log(f"fit: goes on from the checkpoint of epoch {training.epoch}")
    else:
        training = start_training(model, source, **model.loop_params("start"))  # type: ignore[arg-type]
    blocks: AbstractContextManager[Executor]
    if client is None:
        blocks = block_executor(model, source, n_thread or len(os.sched_getaffinity(0)), found)
    else:
        # What `auto` finds on each worker, the driver cannot know when it plans the blocks.
        on_worker: Wanted = "gpu" if device == "gpu" else "cpu"
        blocks = DaskExecutor(model, source, client, on_worker, device_memory, wait)
    with (
        blocks as executor,
        progress.task("fit", model.max_epochs) as task,
    ):
        task.advance(training.epoch)
        train(
            model,  # type: ignore[arg-type]
            source,
            executor,
            training,
            on_epoch=_saver(directory, fingerprint, model.saves_local),
            on_step=_reporter(task, source.n_bag),
            **model.loop_params("train"),
        )
    model.adopt(training)
    return training


def _fit_whole(
    model: Any,
    source: StoreBlockSource,
    client: Client | None,
    progress: Progress,
    n_thread: int | None,
) -> Training:
    """Fit a model that is no sum over blocks: all training bags in memory.

    Where its parts are independent (the trees of a forest) they are tasks of the cluster.
    """
    bags = source.read_all()
    if "tree_map" in inspect.signature(model.fit).parameters:

        def counted(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            done = (
                in_threads(function, items, n_thread)
                if client is None
                else _map_on_cluster(client, function, items)
            )
            with progress.task("fit", len(items)) as task:
                for tree in done:
                    yield tree
                    task.advance(1)

        model.fit(bags, tree_map=counted)
    else:
        with progress.task("fit", None):
            model.fit(bags, n_thread=n_thread)
    return Training(
        model.state_,
        Plateau(0.0),
        epoch=len(model.history_),
        history=model.history_,
        converged=model.converged_,
    )


def _map_on_cluster(
    client: Client, function: Callable[[Any], Any], items: Sequence[Any]
) -> Iterator[Any]:
    """Run one task an item on the cluster; the function, with its data, is sent to each once."""
    from distributed import KilledWorker

    futures: list[Any] = []
    try:
        (sent,) = client.scatter([function], hash=False, broadcast=True)
        futures = client.map(_call, [sent] * len(items), list(items), pure=False)
        for future in futures:
            yield future.result()
    except (CancelledError, KilledWorker, OSError) as error:  # a time-out is an OSError
        found = "the cluster lost its workers or its scheduler"
        msg = f"{found}; start them again, then go on"
        raise ClusterError(msg) from error
    finally:
        if client.status == "running":
            client.cancel(futures)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _saver(directory: Path | None, fingerprint: str, with_local: bool) -> Any:
    if directory is None:
        return None
    return lambda training: save_checkpoint(directory, training, fingerprint, with_local=with_local)


def _reporter(task: Task, n_bag: int) -> Any:
    def report(step: StepReport) -> None:
        task.advance(1 / step.n_step, bound_per_area=step.bound / n_bag, rate=step.rate)

    return report


def _fit_fingerprint(model: Estimator, source: StoreBlockSource) -> str:
    # max_epochs may be raised to let a fit go on.
    params = {k: v for k, v in model.get_params().items() if k != "max_epochs"}
    text = json.dumps([type(model).__name__, params, source.fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
