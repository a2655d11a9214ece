"""The actor on each worker of a cluster during a fit: it caches and computes blocks."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from models.backend.blas import one_blas_thread
from models.training.device import Wanted, block_executor, find_device, joined
from models.training.estimator import Estimator
from models.training.executor import Local
from models.training.reduction import Partial
from pipeline.core.errors import StoreError
from pipeline.core.plugins import load_plugins
from pipeline.store.block_source import KEEP_MB, BlockReference
from pipeline.store.point_store import BesideReference
from pipeline.store.series_source import SeriesReference
from pipeline.training.half_matrices import halved_sums, whole

KEEP_SHARE = 0.4  # of a worker's memory; the rest is for matrices and Dask's own watermarks


@dataclass(frozen=True)
class Job:
    """Description of a fit, sent to each worker once.

    It has the paths of the stores, not the stores: unpickling it must open no file.
    """

    model: Estimator
    source: BlockReference | SeriesReference | BesideReference
    fingerprint: str
    device: Wanted = "cpu"
    device_memory: int | None = None
    n_joined: int = 1


@dataclass(frozen=True)
class Order:
    """A worker's part of a step.

    Attributes
    ----------
    blocks : list of int
        In ascending order.
    span : (int, int)
        Leaves that have no other blocks of this step; see :mod:`models.training.reduction`.
    stretch : (int, int)
        First and last block that this worker owns and caches.
    local : dict of dict of arrays
        The model's state of each block.
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
    """The result of an order: sums, and the model's new state of each block."""

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
        If the worker's store is not the driver's.
    """

    def __init__(self, job: Job, n_thread: int) -> None:
        load_plugins()
        self._source = job.source.open(_keep_mb())
        source = joined(self._source, job.n_joined)
        if source.fingerprint() != job.fingerprint:
            found = f"{self._source.place}: the worker's store differs from the driver's; run the "
            found += "fit again"
            raise StoreError(found)
        self._n_joined = job.n_joined
        device = find_device(job.device, job.device_memory)
        self._executor = block_executor(job.model, source, n_thread, device)
        # Until this object is deleted: setting and lifting the limit in each step takes 4 ms.
        blas_limit = ExitStack()
        blas_limit.enter_context(one_blas_thread())
        weakref.finalize(self, blas_limit.close)

    def sums(self, params: dict[str, Any], order: Order) -> Reply:
        """Compute an order, and read the next step's blocks meanwhile.

        Parameters and sums travel with halves of their symmetric matrices.
        """
        first, last = order.stretch
        self._source.cache.keep_only(first * self._n_joined, (last + 1) * self._n_joined - 1)
        fresh: Local = {}
        parts = self._executor.partials(
            whole(params), order.blocks, order.local, fresh, order.ahead, order.span
        )
        return Reply(halved_sums(parts), fresh)


def _keep_mb() -> float:
    """Return the size of the block cache for the worker's memory limit, MB."""
    from distributed import get_worker

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # not on a worker
        limit = None
    return KEEP_MB if not limit else KEEP_SHARE * limit / 1e6
