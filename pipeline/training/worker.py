"""The actor on each worker of a cluster during a fit: it holds blocks, and threads for them."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from models.backend.arrays import keep_freed_memory
from models.backend.blas import one_blas_thread
from models.core.protocol import Arrays
from models.training.device import Wanted, block_executor, find_device, joined
from models.training.estimator import Estimator
from models.training.loop import Local
from models.training.reduction import Partial
from pipeline.core.errors import StoreError
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import KEEP_MB, StoreBlockSource

KEEP_SHARE = 0.4  # of a worker's memory; the rest is for matrices and Dask's own watermarks


@dataclass(frozen=True)
class Job:
    """What a worker needs for a fit; sent to each of them once.

    It says where the store is instead of holding it: reading it back must open nothing.
    """

    model: Estimator
    path: Place
    fingerprint: str
    bags: np.ndarray
    device: Wanted = "cpu"
    device_memory: int | None = None
    n_joined: int = 1


@dataclass(frozen=True)
class Order:
    """A worker's part of a step.

    Attributes
    ----------
    blocks : list of int
        By rising number.
    span : (int, int)
        Leaves in which the step has these blocks alone; see :mod:`models.training.reduction`.
    stretch : (int, int)
        First and last block that this worker owns: those it keeps in memory.
    local : dict of dict of arrays
        What the model kept with the blocks.
    ahead : list of int
        The worker's blocks of the next step.
    """

    blocks: list[int]
    span: tuple[int, int]
    stretch: tuple[int, int]
    local: Local = field(default_factory=dict)
    ahead: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    """What comes of an order: sums, and what the model keeps with the blocks."""

    parts: list[Partial]
    local: Local


class BlockWorker:
    """The actor of one worker.

    Parameters
    ----------
    job : Job
    n_thread : int
        Blocks computed at the same time, one BLAS thread each.

    Raises
    ------
    StoreError
        If the store is not the one that the driver fits to.
    """

    def __init__(self, job: Job, n_thread: int) -> None:
        store = BagStore.open(job.path)
        if store.fingerprint != job.fingerprint:
            found = f"{job.path}: not the store that is fitted to; was it ingested anew meanwhile?"
            raise StoreError(found)
        self._source = StoreBlockSource(store, job.bags, _keep_mb())
        self._n_joined = job.n_joined
        device = find_device(job.device, job.device_memory)
        source = joined(self._source, job.n_joined)
        self._executor = block_executor(job.model, source, n_thread, device)
        keep_freed_memory()
        # For as long as this object lives: to set and to lift the limit takes 4 ms, each step.
        held = ExitStack()
        held.enter_context(one_blas_thread())
        weakref.finalize(self, held.close)

    def sums(self, params: Arrays, order: Order) -> Reply:
        """Compute an order; what will be wanted next is read meanwhile."""
        first, last = order.stretch
        self._source.cache.keep_only(first * self._n_joined, (last + 1) * self._n_joined - 1)
        fresh: Local = {}
        parts = self._executor.partials(
            params, order.blocks, order.local, fresh, order.ahead, order.span
        )
        return Reply(parts, fresh)


def _keep_mb() -> float:
    """Return the memory for decoded blocks that the worker's limit allows, MB."""
    from distributed import get_worker

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # on no worker
        limit = None
    return KEEP_MB if not limit else KEEP_SHARE * limit / 1e6
