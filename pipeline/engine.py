"""Fit a model to a bag store: blocks from disk, on threads or on a Dask cluster, resumable.

The loop itself is :func:`models.training.train`; this module feeds it from a store, has blocks
computed where they should be, keeps checkpoints and reports progress.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.base import Estimator
from models.blas import one_blas_thread
from models.block import BagBlock
from models.classifier import check_labels
from models.forest import in_threads
from models.optim import Plateau
from models.protocol import Arrays, Stats, Summary
from models.reduction import leaves, total
from models.training import (
    N_SAMPLE,
    Executor,
    Local,
    StepReport,
    ThreadExecutor,
    Training,
    start_training,
    sums_of_block,
    train,
)
from pipeline.checkpoint import load_checkpoint, save_checkpoint
from pipeline.errors import StoreError
from pipeline.progress import Progress, Silent, Task
from pipeline.store import BagStore

if TYPE_CHECKING:
    from distributed import Client, Future

_SAMPLE_BLOCKS = 64
_RESENDS = 3  # of one step, before a cluster that keeps dying is given up


class StoreSource:
    """The training bags of a store, block by block.

    Parameters
    ----------
    store : BagStore
    bags : (n_bag,) bool array, optional
        Training bags; all where not given.

    Attributes
    ----------
    block_bags : (n_block,) int64 array
        Training bags in each block.
    """

    def __init__(self, store: BagStore, bags: np.ndarray | None = None) -> None:
        self.store = store
        self.bags = np.ones(store.n_bag, bool) if bags is None else np.asarray(bags, bool)
        if self.bags.shape != (store.n_bag,) or not self.bags.any():
            found = (
                f"bags has shape {self.bags.shape} and chooses {int(self.bags.sum())} bags; "
                f"give ({store.n_bag},) with at least one true"
            )
            raise ValueError(found)
        self.block_bags = np.add.reduceat(self.bags.astype(np.int64), store.block_offsets[:-1])

    @property
    def n_bag(self) -> int:
        """Number of training bags."""
        return int(self.bags.sum())

    def summary(self, rng: np.random.Generator) -> Summary:
        """See :class:`models.training.BlockSource`; the sample is drawn from a few blocks."""
        store = self.store
        mean, sd = store.scaling(self.bags)
        blocks = rng.permutation(np.flatnonzero(self.block_bags))[:_SAMPLE_BLOCKS]
        read = [self.read(int(number)) for number in np.sort(blocks)]
        whole = BagBlock.join(read)
        rows = np.sort(rng.permutation(whole.n_pix)[:N_SAMPLE])
        return Summary(
            x=whole.x[rows].astype(np.float64),
            coords=None if whole.coords is None else whole.coords[rows],
            x_mean=mean,
            x_sd=sd,
            y=store.y[self.bags],
            weight=store.bag_weight[self.bags],
            trials=None if store.trials is None else store.trials[self.bags],
            n_pix=int(store.sizes[self.bags].sum()),
            bag_y=np.repeat(whole.y, np.diff(whole.offsets))[rows],
        )

    def read(self, number: int) -> BagBlock:
        """See :class:`models.training.BlockSource`."""
        block = self.store.read_block(number)
        return block.select(self.bags[block.bag])

    def read_all(self) -> BagBlock:
        """Return all training bags as one block, for the models that need them at once."""
        return BagBlock.join([self.read(int(i)) for i in np.flatnonzero(self.block_bags)])

    def fingerprint(self) -> str:
        """Fingerprint of the store, its blocks and the choice of bags."""
        parts = (np.packbits(self.bags), self.store.offsets, self.store.block_offsets)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
        return f"{self.store.fingerprint}/{digest}"


@dataclass(frozen=True)
class _Step:
    """What workers need for the blocks of one step; sent to each of them once.

    It says where the store is instead of holding it: reading it back must open nothing.
    """

    model: Estimator
    params: Arrays
    path: Path
    fingerprint: str
    cache_mb: float
    bags: np.ndarray


class DaskExecutor:
    """Blocks as tasks of a Dask cluster; each worker keeps the store open between tasks.

    A worker that is lost is made up for: its blocks go to the others, or to the one that is
    started in its place.

    Parameters
    ----------
    model : Estimator
        Sent with its constructor's arguments alone.
    source : StoreSource
        Workers open the store by its path: it must be the same for them.
    client : distributed.Client
    """

    def __init__(self, model: Estimator, source: StoreSource, client: Client) -> None:
        store = source.store
        self._client = client
        self._step = _Step(
            model=type(model)(**model.get_params()),
            params={},
            path=store.path.resolve(),
            fingerprint=store.fingerprint,
            cache_mb=store.cache_mb,
            bags=source.bags,
        )

    def sum(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
    ) -> Stats:
        """See :class:`models.training.Executor`."""
        return total(leaves(self.map(params, blocks, local, fresh)))

    def map(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
    ) -> Iterator[Stats]:
        """Yield the sums of each block, in the order given.

        What the model keeps travels with the tasks: a worker that dies takes nothing with it.
        """
        from distributed.comm import CommClosedError

        step = replace(self._step, params=params)
        kept = local or {}
        done, lost = 0, 0
        while done < len(blocks):
            futures: deque[Future] = deque()
            try:
                futures = self._submit(step, blocks[done:], kept)
                while futures:
                    stats, keep = futures[0].result()
                    futures.popleft()  # lets the worker forget it
                    if fresh is not None and self._step.model.keeps_local:
                        fresh[blocks[done]] = keep
                    done += 1
                    yield stats
            except (CancelledError, CommClosedError):
                # Every worker that had the parameters is gone; tasks alone Dask repeats itself.
                lost += 1
                if lost == _RESENDS:
                    raise
            finally:
                if futures:
                    self._client.cancel(list(futures))

    def _submit(self, step: _Step, blocks: Sequence[int], kept: Local) -> deque[Future]:
        # A few M x M matrices, sent to each worker once and not with every task. In a list:
        # Dask would name the values of a dict by its keys, and serve those of the step before.
        (sent,) = self._client.scatter([step], hash=False, broadcast=True)
        copies = [sent] * len(blocks)
        local = [kept.get(number) for number in blocks]
        return deque(self._client.map(_block_stats, copies, list(blocks), local, pure=False))


def _block_stats(step: _Step, number: int, local: Arrays | None) -> tuple[Stats, Any]:
    """Run on a worker: the sums of one block, on one BLAS thread."""
    source = StoreSource(_open_store(step.path, step.fingerprint, step.cache_mb), step.bags)
    with one_blas_thread():
        return sums_of_block(step.model, step.params, source, number, local)  # type: ignore[arg-type]


@lru_cache(maxsize=1)  # an old fit's cached shards would only take a worker's memory
def _open_store(path: Path, fingerprint: str, cache_mb: float) -> BagStore:
    store = BagStore.open(path, cache_mb)
    if store.fingerprint != fingerprint:
        found = f"{path}: not the store that is fitted to; was it ingested anew during the fit?"
        raise StoreError(found)
    return store


def fit(
    model: Estimator,
    store: BagStore,
    client: Client | None = None,
    *,
    bags: np.ndarray | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    n_thread: int | None = None,
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

    Returns
    -------
    Training
        Its ``converged`` is a status, not an exception.
    """
    source = StoreSource(store, bags)
    if model.responses == "labels":
        check_labels(store.y[source.bags])
    if model.sweep == "single":  # type: ignore[attr-defined]
        return _fit_whole(model, source, client, progress or Silent(), n_thread)
    directory = None if checkpoint is None else Path(checkpoint)
    fingerprint = _fit_fingerprint(model, source)
    progress = progress or Silent()
    training = None if directory is None else load_checkpoint(directory, fingerprint)
    if training is not None:
        progress.log(f"fit: goes on from the checkpoint of epoch {training.epoch}")
    else:
        training = start_training(model, source, **model.loop_params("start"))  # type: ignore[arg-type]
    with (
        _executor(model, source, client, n_thread) as executor,
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
    source: StoreSource,
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
    (sent,) = client.scatter([function], hash=False, broadcast=True)
    futures = client.map(_call, [sent] * len(items), list(items), pure=False)
    try:
        for future in futures:
            yield future.result()
    finally:
        client.cancel(futures)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _executor(
    model: Any, source: StoreSource, client: Client | None, n_thread: int | None
) -> AbstractContextManager[Executor]:
    if client is not None:
        return nullcontext(DaskExecutor(model, source, client))
    return ThreadExecutor(model, source, n_thread or len(os.sched_getaffinity(0)))


def _saver(directory: Path | None, fingerprint: str, with_local: bool) -> Any:
    if directory is None:
        return None
    return lambda training: save_checkpoint(directory, training, fingerprint, with_local=with_local)


def _reporter(task: Task, n_bag: int) -> Any:
    def report(step: StepReport) -> None:
        task.advance(1 / step.n_step, bound_per_area=step.bound / n_bag, rate=step.rate)

    return report


def _fit_fingerprint(model: Estimator, source: StoreSource) -> str:
    # max_epochs may be raised to let a fit go on.
    params = {k: v for k, v in model.get_params().items() if k != "max_epochs"}
    text = json.dumps([type(model).__name__, params, source.fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
