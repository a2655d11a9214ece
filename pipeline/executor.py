"""Blocks computed on a Dask cluster, a part of each step on every worker.

On each worker lives one actor for the time of a fit: it keeps the store open, the blocks it has
read, and threads. The driver speaks to the actors directly; a step costs one message to each of
them and one back, whatever the number of blocks. Every worker owns a stretch of the store and
computes its blocks of every step, so that a cluster reads a store once and keeps it in memory.

Who computed what does not change a bit of the result (:mod:`models.reduction`): a worker that dies
is made up for by the others, or by the one that is started in its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from models.base import Estimator
from models.blas import one_blas_thread
from models.protocol import Arrays, Stats
from models.reduction import Partial, leaves, partial_sums, total
from models.training import Local, ThreadExecutor
from pipeline.errors import ClusterError, StoreError
from pipeline.places import Place
from pipeline.source import StoreSource
from pipeline.store import BagStore

if TYPE_CHECKING:
    from distributed import Client

RESENDS = 5  # of one step, before a cluster that keeps dying is given up
LOOK_SECONDS = 5.0  # between looks at who has joined
WAIT_SECONDS = 60.0  # for a worker, where none is left
SETTLE_SECONDS = 1.0  # between looks whether a worker that gets ready is still there
LOST = (CancelledError, OSError)  # a closed connection is an OSError


@dataclass(frozen=True)
class Job:
    """What a worker needs for a fit; sent to each of them once.

    It says where the store is instead of holding it: reading it back must open nothing.
    """

    model: Estimator
    path: Place
    fingerprint: str
    cache_mb: float
    bags: np.ndarray


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
        store = BagStore.open(job.path, job.cache_mb)
        if store.fingerprint != job.fingerprint:
            found = f"{job.path}: not the store that is fitted to; was it ingested anew meanwhile?"
            raise StoreError(found)
        source = StoreSource(store, job.bags)
        self._executor = ThreadExecutor(job.model, source, n_thread)  # type: ignore[arg-type]

    def sums(
        self,
        params: Arrays,
        first: int,
        blocks: Sequence[int],
        local: Local,
        ahead: Sequence[int],
    ) -> tuple[list[Partial], Local]:
        """Return the sums over blocks at places ``first`` and on, and what the model keeps.

        Blocks ``ahead``, of the next step, are read while the driver makes this one.
        """
        fresh: Local = {}
        with one_blas_thread():
            parts = partial_sums(leaves(self._executor.map(params, blocks, local, fresh), first))
        self._executor.prefetch(ahead)
        return parts, fresh


@dataclass
class _Member:
    """A worker that takes part: its actor, and the task that holds it there."""

    address: str
    actor: Any
    future: Any


class DaskExecutor:
    """Sums over blocks on a Dask cluster; see :class:`models.training.Executor`.

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
        self._n_block = store.n_block
        self._members: dict[str, _Member] = {}
        self._looked = -np.inf
        self.job = Job(
            model=type(model)(**model.get_params()),
            path=store.path.resolve() if isinstance(store.path, Path) else store.path,
            fingerprint=store.fingerprint,
            cache_mb=store.cache_mb,
            bags=source.bags,
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Let the workers forget the fit."""
        for address in list(self._members):
            self._forget(address)

    def sum(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
        ahead: Sequence[int] = (),
    ) -> Stats:
        """See :class:`models.training.Executor`.

        Blocks go by their number, so that each worker has its own stretch of the store. What the
        model keeps travels with them: a worker that dies takes nothing with it.

        Raises
        ------
        ClusterError
            If the cluster cannot be reached, or loses its workers again and again.
        """
        kept = local or {}
        todo = [(0, len(blocks))]
        parts: list[Partial] = []
        for _ in range(RESENDS):
            todo = self._try(todo, params, blocks, kept, fresh, ahead, parts)
            if not todo:
                return total(sorted(parts, key=lambda part: part.index << part.level))
        found = f"{self._address}: workers were lost {RESENDS} times in one step"
        remedy = "see the workers' logs (memory is the usual reason), then go on"
        msg = f"{found}; {remedy}"
        raise ClusterError(msg)

    def _try(
        self,
        todo: list[tuple[int, int]],
        params: Arrays,
        blocks: Sequence[int],
        kept: Local,
        fresh: Local | None,
        ahead: Sequence[int],
        parts: list[Partial],
    ) -> list[tuple[int, int]]:
        """Have runs of places computed; return those that were lost with their workers."""
        members = self._meet()
        reading = dict(self._deal(ahead, [(0, len(ahead))], len(members)))
        calls = []
        for owner, (start, stop) in self._deal(blocks, todo, len(members)):
            mine = list(blocks[start:stop])
            keep = {number: kept[number] for number in mine if number in kept}
            following = list(ahead[slice(*reading.pop(owner, (0, 0)))])
            member = members[owner]
            try:
                future = member.actor.sums(params, start, mine, keep, following)
            except LOST:
                future = None
            calls.append((start, stop, member, future))
        lost = []
        for start, stop, member, future in calls:
            try:
                if future is None:
                    raise OSError
                found, own = future.result()
            except StoreError:
                raise
            except LOST:
                self._forget(member.address)
                self._looked = -np.inf
                lost.append((start, stop))
            else:
                parts += found
                if fresh is not None and self.job.model.keeps_local:
                    fresh.update(own)
        return lost

    def _deal(
        self, blocks: Sequence[int], runs: Iterable[tuple[int, int]], n: int
    ) -> list[tuple[int, tuple[int, int]]]:
        """Cut runs of places where the owner of the blocks changes: (owner, (start, stop))."""
        shares = []
        for start, stop in runs:
            owners = [blocks[place] * n // self._n_block for place in range(start, stop)]
            at = start
            for owner, same in groupby(owners):
                size = len(list(same))
                shares.append((owner, (at, at + size)))
                at += size
        return shares

    def _meet(self) -> list[_Member]:
        """Return the members, having looked now and then who is there."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and self._members:
            return list(self._members.values())
        end = now + WAIT_SECONDS
        while True:
            workers = self._workers()
            for address in [a for a in self._members if a not in workers]:
                self._forget(address)
            new = {a: n for a, n in workers.items() if a not in self._members}
            asked = {
                address: self._client.submit(
                    BlockWorker, self.job, n, actor=True, workers=[address], pure=False
                )
                for address, n in new.items()
            }
            for address, future in asked.items():
                actor = self._settle(address, future)
                if actor is not None:
                    self._members[address] = _Member(address, actor, future)
            if self._members:
                self._looked = time.monotonic()
                self._members = dict(sorted(self._members.items()))
                return list(self._members.values())
            if time.monotonic() > end:
                found = f"{self._address}: the cluster has no worker"
                msg = f"{found}; start some, then go on"
                raise ClusterError(msg)
            time.sleep(0.1)

    def _forget(self, address: str) -> None:
        member = self._members.pop(address, None)
        if member is not None and self._client.status == "running":
            self._client.cancel([member.future], force=True)

    def _settle(self, address: str, future: Any) -> Any:
        """Wait for an actor to be ready; None where its worker is gone meanwhile."""
        while True:
            try:
                return future.result(timeout=SETTLE_SECONDS)
            except StoreError:
                raise
            except TimeoutError:  # bound to a worker that is gone, it would wait for ever
                if address not in self._workers():
                    future.cancel()
                    return None
            except LOST:
                return None

    def _workers(self) -> dict[str, int]:
        """Ask the scheduler for its workers: threads by address."""
        if self._client.status == "running":
            try:
                workers = self._client.scheduler_info(n_workers=-1)["workers"]
            except OSError:
                workers = None
            if workers is not None:
                return {address: int(info["nthreads"]) for address, info in workers.items()}
        found = f"{self._address}: the scheduler cannot be reached"
        msg = f"{found}; start it again, then go on"
        raise ClusterError(msg)

    @property
    def _address(self) -> str:
        return str(getattr(self._client.scheduler, "address", "cluster"))
