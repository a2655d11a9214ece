"""Fit a model to a bag store, on threads or on a Dask cluster, resumable.

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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from models.backend.blas import in_threads
from models.core.block import BagBlock, check_labels, refuse_weightless
from models.mil.data.calibration import mean_logit
from models.mil.data.classifier import Classifier
from models.mil.data.inner_folds import fit_with_inner_folds
from models.training.device import Wanted, block_executor, blocks_to_join, find_device, joined
from models.training.estimator import Estimator
from models.training.executor import Executor
from models.training.loop import StepReport, Training, start_training, train
from models.training.optim import Plateau
from pipeline.core.errors import ClusterError
from pipeline.core.progress import Progress, Silent, Task
from pipeline.core.sources import code_hash
from pipeline.core.threads import map_in_order
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource
from pipeline.store.point_store import BesideSource, PointStore
from pipeline.store.series_source import SeriesSource
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from pipeline.training.dask_executor import WAIT_SECONDS, DaskExecutor
from pipeline.training.inner_progress import InnerProgress
from pipeline.training.warm import start_key, warm_training

if TYPE_CHECKING:
    from distributed import Client


def fit(
    model: Estimator,
    store: BagStore | SeriesSource,
    client: Client | None = None,
    *,
    bags: np.ndarray | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    n_thread: int | None = None,
    device: Wanted = "cpu",
    device_memory: int | None = None,
    wait: float = WAIT_SECONDS,
    start: Estimator | None = None,
    points: PointStore | None = None,
) -> Training:
    """Fit a model to the bags of a store.

    Parameters
    ----------
    model : Estimator
        Its fitted attributes are set in place.
    store : BagStore or SeriesSource
        The bags of one period, or of several.
    client : distributed.Client, optional
        Cluster that computes the blocks; threads of this process if not given.
    bags : (n_bag,) bool array, optional
        Training bags; all that have a response if not given. They alone determine the scaling of
        the covariates.
    checkpoint : path-like, optional
        Directory of checkpoints, one an epoch. If it has one of the same data and model, the fit
        resumes from it, with the same result as without the interruption.
    progress : Progress, optional
    n_thread : int, optional
        Threads without a client; one for each core if not given. Results do not depend on it.
    device : {"cpu", "gpu", "auto"}
        Device of the blocks, here or on each worker. GPUs compute several blocks as one, so that
        results differ from those of a CPU by rounding and by the blocks of each step.
    device_memory : int, optional
        Bytes of a GPU's memory to use.
    wait : float, optional
        Seconds to wait for a worker if the client's cluster has none left.
    start : Estimator, optional
        A fitted VBAgg at whose kernel, noise and inducing points the fit begins, see
        :func:`pipeline.training.warm.warm_training`.
    points : PointStore, optional
        Points beside the areas; those of areas that are not among ``bags`` are left out.

    Returns
    -------
    Training
        Its ``converged`` is a status, not an exception.
    """
    part = _Part(
        store, client, progress or Silent(), n_thread, device, device_memory, wait, start, points
    )
    directory = None if checkpoint is None else Path(checkpoint)
    if isinstance(model, Classifier) and model.sweep != "single":
        fitter = StoreFitter(part, cast(BagStore, store), bags, directory)
        check_labels(fitter.y)
        final = fit_with_inner_folds(model, fitter)
        training = fitter.whole[id(final)]
        training.state = model.state_
        return training
    return part.fit(model, bags, directory)


@dataclass(frozen=True)
class _Part:
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


class StoreFitter:
    """Fits classifiers to bags of a store, and predicts others (see :class:`Fitter`).

    Parameters
    ----------
    part : _Part
    store : BagStore
    bags : (n_bag,) bool array, optional
        The data set: bags that are trained on or held out in turn; all that have a response if not
        given.
    directory : Path, optional
        Of checkpoints, one inside it for each fit.
    """

    def __init__(
        self, part: _Part, store: BagStore, bags: np.ndarray | None, directory: Path | None
    ) -> None:
        self._part, self._store, self._directory = part, store, directory
        self._bags = store.in_training if bags is None else np.asarray(bags, bool)
        self.y = store.y[self._bags]
        self.sizes = store.sizes[self._bags]
        self.whole: dict[int, Training] = {}
        self._within: InnerProgress | None = None

    def fit(self, model: Classifier, keep: np.ndarray | None, name: str) -> None:
        """See :class:`Fitter`."""
        directory, part = self._directory, self._part
        if name != "all":
            directory = None if directory is None else directory / name
            if self._within is not None:
                self._within.name = name
            part = replace(part, progress=self._within or Silent())
        training = part.fit(model, self._kept(keep), directory)
        if keep is None:
            self.whole[id(model)] = training

    @contextmanager
    def counted(self, n_step: int, n_fit: int = 1) -> Iterator[Callable[[], None]]:
        """See :class:`Fitter`."""
        with self._part.progress.task("inner folds", n_step) as task:
            self._within = InnerProgress(self._part.progress, task, n_fit)
            try:
                yield self._within.finish
            finally:
                self._within = None

    def logits(self, model: Classifier, keep: np.ndarray) -> np.ndarray:
        """See :class:`Fitter`."""
        return self._by_block(keep, lambda block: mean_logit(model.predict_bags(block)))

    def left_out(self, model: Classifier) -> np.ndarray:
        """See :class:`Fitter`."""
        return self._by_block(None, model.left_out_log_probability)

    def _by_block(
        self, keep: np.ndarray | None, predict: Callable[[BagBlock], np.ndarray]
    ) -> np.ndarray:
        source = StoreBlockSource(self._store, self._kept(keep))
        blocks = np.flatnonzero(source.block_bags).tolist()
        found = map_in_order(lambda n: predict(source.read(n)), blocks, self._part.n_thread)
        return np.concatenate(list(found))

    def _kept(self, keep: np.ndarray | None) -> np.ndarray:
        if keep is None:
            return self._bags
        out = np.zeros(self._bags.shape, bool)
        out[np.flatnonzero(self._bags)[keep]] = True
        return out


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
