"""Fit a model to a bag store: blocks from disk, on threads or on a Dask cluster, resumable.

The loop itself is :func:`models.training.train`; this module feeds it from a store, has blocks
computed where they should be, keeps checkpoints and reports progress.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import ThreadpoolController

from models.base import Estimator
from models.block import BagBlock
from models.protocol import Arrays, Stats, Summary
from models.training import (
    N_SAMPLE,
    Executor,
    StepReport,
    ThreadExecutor,
    Training,
    start_training,
    train,
)
from pipeline.checkpoint import load_checkpoint, save_checkpoint
from pipeline.progress import Progress, Silent, Task
from pipeline.store import BagStore

if TYPE_CHECKING:
    from distributed import Client

_SAMPLE_BLOCKS = 64


class StoreSource:
    """The training bags of a store, block by block.

    Parameters
    ----------
    store : BagStore
    bags : (n_bag,) bool array, optional
        Training bags; all where not given.
    """

    def __init__(self, store: BagStore, bags: np.ndarray | None = None) -> None:
        self._store = store
        self._bags = np.ones(store.n_bag, bool) if bags is None else np.asarray(bags, bool)
        if self._bags.shape != (store.n_bag,) or not self._bags.any():
            found = (
                f"bags has shape {self._bags.shape} and chooses {int(self._bags.sum())} bags; "
                f"give ({store.n_bag},) with at least one true"
            )
            raise ValueError(found)
        self.block_bags = np.add.reduceat(self._bags.astype(np.int64), store.block_offsets[:-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreSource, (self._store, self._bags)

    @property
    def n_bag(self) -> int:
        """Number of training bags."""
        return int(self._bags.sum())

    def summary(self, rng: np.random.Generator) -> Summary:
        """See :class:`models.training.BlockSource`; the sample is drawn from a few blocks."""
        store = self._store
        mean, sd = store.scaling(self._bags)
        blocks = rng.permutation(np.flatnonzero(self.block_bags))[:_SAMPLE_BLOCKS]
        read = [self.read(int(number)) for number in np.sort(blocks)]
        x = np.concatenate([block.x for block in read])
        coords = np.concatenate([block.coords for block in read])  # a store always has them
        rows = np.sort(rng.permutation(x.shape[0])[:N_SAMPLE])
        return Summary(
            x=x[rows].astype(np.float64),
            coords=coords[rows],
            x_mean=mean,
            x_sd=sd,
            total_y=float(store.y[self._bags].sum()),
            total_weight=float(store.bag_weight[self._bags].sum()),
            n_bag=self.n_bag,
            n_pix=int(store.sizes[self._bags].sum()),
        )

    def read(self, number: int) -> BagBlock:
        """See :class:`models.training.BlockSource`."""
        block = self._store.read_block(number)
        return block.select(self._bags[block.bag])

    def fingerprint(self) -> str:
        """Fingerprint of the store and of the choice of bags."""
        chosen = hashlib.sha256(np.packbits(self._bags).tobytes()).hexdigest()
        return f"{self._store.fingerprint}/{chosen}"


class DaskExecutor:
    """Blocks as tasks of a Dask cluster; each worker keeps the store open between tasks.

    Parameters
    ----------
    model : Estimator
        Sent with its constructor's arguments alone.
    source : StoreSource
        Workers open the store by its path: it must be reachable from them.
    client : distributed.Client
    """

    def __init__(self, model: Estimator, source: StoreSource, client: Client) -> None:
        self._model = type(model)(**model.get_params())
        self._source = source
        self._client = client
        settings = json.dumps(model.get_params(), sort_keys=True)
        self._key = f"{type(model).__name__} {settings} {source.fingerprint()}"

    def map(self, params: Arrays, blocks: Sequence[int]) -> Iterator[Stats]:
        """See :class:`models.training.Executor`."""
        # A few M x M matrices, sent to each worker once a step and not with every task.
        sent = self._client.scatter(params, hash=False, broadcast=True)
        futures = [
            self._client.submit(
                _block_stats, self._key, self._model, self._source, sent, number, pure=False
            )
            for number in blocks
        ]
        try:
            for future in futures:
                yield future.result()
        finally:
            self._client.cancel([future for future in futures if not future.done()])


_OPEN: dict[str, tuple[Estimator, StoreSource]] = {}


def _block_stats(key: str, model: Any, source: StoreSource, params: Arrays, number: int) -> Stats:
    """Run on a worker: the sums of one block, on one BLAS thread."""
    if key not in _OPEN:
        _OPEN.clear()  # one fit at a time: an old one's cached blocks would only take memory
        _OPEN[key] = (model, source)
    kept_model, kept_source = _OPEN[key]
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        stats: Stats = kept_model.block_stats(params, kept_source.read(number), None)[0]  # type: ignore[attr-defined]
    return stats


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
            on_epoch=_saver(directory, fingerprint),
            on_step=_reporter(task, source.n_bag),
            **model.loop_params("train"),
        )
    model.adopt(training)
    return training


def _executor(
    model: Any, source: StoreSource, client: Client | None, n_thread: int | None
) -> AbstractContextManager[Executor]:
    if client is not None:
        return nullcontext(DaskExecutor(model, source, client))
    return ThreadExecutor(model, source, n_thread or len(os.sched_getaffinity(0)))


def _saver(directory: Path | None, fingerprint: str) -> Any:
    if directory is None:
        return None
    return lambda training: save_checkpoint(directory, training, fingerprint)


def _reporter(task: Task, n_bag: int) -> Any:
    def report(step: StepReport) -> None:
        task.advance(1 / step.n_step, bound_per_area=step.bound / n_bag, rate=step.rate)

    return report


def _fit_fingerprint(model: Estimator, source: StoreSource) -> str:
    # max_epochs may be raised to let a fit go on.
    params = {k: v for k, v in model.get_params().items() if k != "max_epochs"}
    text = json.dumps([type(model).__name__, params, source.fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
