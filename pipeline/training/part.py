"""One fit to some bags of a store, on threads or on a Dask cluster, resumable.

The loop is :func:`models.training.loop.train`. This module reads its blocks from a store, chooses
where they are computed, writes checkpoints and reports progress.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.backend.blas import in_threads
from models.core.block import check_labels, refuse_weightless
from models.training.device import Wanted, block_executor, blocks_to_join, find_device, joined
from models.training.estimator import Estimator
from models.training.executor import Executor
from models.training.loop import StepReport, Training, start_training, train
from models.training.optim import Plateau
from pipeline.core.errors import ClusterError
from pipeline.core.progress import Progress, Task
from pipeline.core.sources import code_hash
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource
from pipeline.store.point_store import BesideSource, PointStore
from pipeline.store.series_source import SeriesSource
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from pipeline.training.dask_executor import DaskExecutor
from pipeline.training.warm import start_key, warm_training

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Part:
    """Where and how fits to bags of one store are made; arguments as of :func:`fit`."""

    store: BagStore | SeriesSource
    client: Client | None
    progress: Progress
    n_thread: int | None
    device: Wanted
    device_memory: int | None
    wait: float
    start: Estimator | None
    points: PointStore | None = None

    def source(self, bags: np.ndarray | None) -> Any:
        """Return the training bags, those where ``bags`` (n_bag,) is true."""
        if isinstance(self.store, SeriesSource):
            return self.store
        if self.points is not None:
            return BesideSource.of(self.store, self.points, bags)
        return StoreBlockSource(self.store, bags)

    def fit(self, model: Estimator, bags: np.ndarray | None, directory: Path | None) -> Training:
        """Fit once to the bags where ``bags`` (n_bag,) is true."""
        source = self.source(bags)
        device, client, progress = self.device, self.client, self.progress
        n_thread, start = self.n_thread, self.start
        if not model.on_device:
            device = "cpu"
        found = find_device(device, self.device_memory) if client is None else None
        # Blocks of several periods are not put together: each has the posterior of its own.
        one_period = isinstance(source, StoreBlockSource | BesideSource)
        if one_period and (found is not None or (client is not None and device == "gpu")):
            batch = model.batch_bags if model.sweep == "minibatch" else None  # type: ignore[attr-defined]
            source = joined(source, blocks_to_join(source.block_bags, source.n_pix, batch))
        if model.responses == "labels":
            check_labels(source.store.y[source.bags])
        else:
            refuse_weightless(source.bag_weight)
        if model.sweep == "single":  # type: ignore[attr-defined]
            return _fit_whole(model, source, client, progress, n_thread)
        fingerprint = _fit_fingerprint(model, source, start)
        training = None if directory is None else load_checkpoint(directory, fingerprint, progress)
        if training is None:
            training = start_training(model, source, **model.loop_params("start"))  # type: ignore[arg-type]
            if start is not None:
                training = warm_training(training, start)
        elif not _finished(training, model):
            progress.log(f"fit: resumes from the checkpoint of epoch {training.epoch}")
        blocks: AbstractContextManager[Executor]
        if client is None:
            blocks = block_executor(model, source, n_thread or len(os.sched_getaffinity(0)), found)
        else:
            # The driver cannot know what `auto` would find on each worker when it plans the blocks.
            on_worker: Wanted = "gpu" if device == "gpu" else "cpu"
            blocks = DaskExecutor(model, source, client, on_worker, self.device_memory, self.wait)
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
    """Fit a model that needs all training bags in memory.

    Independent parts (the trees of a forest) are tasks of the cluster.
    """
    bags = source.read_all()
    if "tree_map" in inspect.signature(getattr(model, "fit_once", model.fit)).parameters:

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
    """Run one task for each item on the cluster; each worker gets the function once."""
    from distributed import KilledWorker

    futures: list[Any] = []
    try:
        (sent,) = client.scatter([function], hash=False, broadcast=True)
        futures = client.map(_call, [sent] * len(items), list(items), pure=False)
        for future in futures:
            yield future.result()
    except (CancelledError, KilledWorker, OSError) as error:  # a time-out is an OSError
        found = "the cluster lost its workers or its scheduler"
        msg = f"{found}; start them again, then run again"
        raise ClusterError(msg) from error
    finally:
        if client.status == "running":
            client.cancel(futures)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _finished(training: Training, model: Estimator) -> bool:
    ended = training.converged or bool(training.stopped)
    return ended or training.epoch >= model.max_epochs


def _saver(directory: Path | None, fingerprint: str, with_local: bool) -> Any:
    if directory is None:
        return None
    return lambda training: save_checkpoint(directory, training, fingerprint, with_local=with_local)


def _reporter(task: Task, n_bag: int) -> Any:
    def report(step: StepReport) -> None:
        if step.phase:
            left = {"nats_left": step.nats_left} if np.isfinite(step.nats_left) else {}
            task.advance(step.step / step.n_step, now=step.phase, passes=step.n_pass, **left)
            return
        task.advance(1 / step.n_step, bound_per_area=step.bound / n_bag, rate=step.rate)

    return report


def _fit_fingerprint(
    model: Estimator, source: StoreBlockSource, start: Estimator | None = None
) -> str:
    # Without max_epochs, which users may raise to continue a fit. Other code would fit otherwise.
    code = code_hash(__name__, type(model).__module__)
    params = {k: v for k, v in model.get_params().items() if k != "max_epochs"}
    begun = [] if start is None else [start_key(start)]
    fitted = [type(model).__name__, params, source.fingerprint(), code, *begun]
    text = json.dumps(fitted, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
