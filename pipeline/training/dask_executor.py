"""Compute blocks on a Dask cluster, a part of each step on every worker.

During a fit each worker has one actor with the open store, a cache of blocks, and threads. The
driver calls the actors directly: a step costs one message to each and one back, whatever the
number of blocks. Every worker owns a range of the store's blocks and computes those of each step,
so that a cluster reads a store once and keeps it in memory.

Results are bit-identical whichever worker computes a block (:mod:`models.training.reduction`). If a
worker dies, the others, or its replacement, compute its blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from models.backend.arrays import keep_freed_memory
from models.core.protocol import Arrays, Stats
from models.training.device import Wanted
from models.training.estimator import Estimator
from models.training.executor import Local
from models.training.reduction import Partial, span, total
from pipeline.core.errors import ClusterError, StoreError
from pipeline.store.block_source import StoreBlockSource
from pipeline.store.point_store import BesideSource
from pipeline.store.series_source import SeriesSource
from pipeline.training.half_matrices import halved, whole_sums
from pipeline.training.worker import BlockWorker, Job, Order, Reply

if TYPE_CHECKING:
    from distributed import Client

RESENDS = 5  # attempts at one step before the fit fails
LOOK_SECONDS = 5.0  # between two looks for new workers
WAIT_SECONDS = 60.0  # default time to wait for a worker if none is left
SETTLE_SECONDS = 1.0  # between two checks that a starting worker still exists
DIRECT_SECONDS = 5.0  # timeout of a direct call from the driver to a worker


@dataclass
class _Member:
    """A worker, and the future of its actor."""

    address: str
    future: Any


class DaskExecutor:
    """Computes sums over blocks on a Dask cluster; see :class:`models.training.executor.Executor`.

    Parameters
    ----------
    model : Estimator
        Only its constructor's arguments are sent.
    source : StoreBlockSource, SeriesSource or BesideSource
        Workers open the stores by their paths, which must be valid on all of them.
    client : distributed.Client
    device : {"cpu", "gpu", "auto"}
        What computes the blocks of a worker.
    device_memory : int, optional
        Bytes of a GPU's memory that a worker may fill.
    wait : float
        Seconds to wait for a worker if none is left.
    """

    def __init__(
        self,
        model: Estimator,
        source: StoreBlockSource | SeriesSource | BesideSource,
        client: Client,
        device: Wanted = "cpu",
        device_memory: int | None = None,
        wait: float = WAIT_SECONDS,
    ) -> None:
        keep_freed_memory()  # each step allocates sums and matrices anew
        self._client = client
        self._wait = wait
        self._n_block = len(source.block_bags)
        self._members: dict[str, _Member] = {}
        self._looked = -np.inf
        self._direct = True  # until a worker cannot be reached except through the scheduler
        self.job = Job(
            model=type(model)(**model.get_params()),
            source=source.reference,
            fingerprint=source.fingerprint(),
            device=device if model.on_device else "cpu",
            device_memory=device_memory,
            n_joined=getattr(source, "n_joined", 1),
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the actors from the workers."""
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
        """Sum over blocks; see :class:`models.training.executor.Executor`.

        Blocks are sent by number: each worker owns a range of the store. The model's state of each
        block is sent along, so that nothing is lost with a worker.

        Raises
        ------
        ClusterError
            If the cluster cannot be reached, or loses workers repeatedly.
        """
        try:
            return self._sum(params, blocks, local or {}, fresh, ahead)
        except (ClusterError, StoreError):
            raise
        except (CancelledError, OSError, RuntimeError) as error:
            # Which of these a dying scheduler causes depends on timing.
            if self._client.status == "running" and not isinstance(error, CancelledError | OSError):
                raise
            raise self._unreachable() from error

    def _sum(
        self,
        params: Arrays,
        blocks: Sequence[int],
        kept: Local,
        fresh: Local | None,
        ahead: Sequence[int],
    ) -> Stats:
        todo = list(blocks)
        parts: list[Partial] = []
        for _ in range(RESENDS):
            members = self._meet()
            orders = self._orders(todo, blocks, kept, ahead, len(members))
            todo = []
            replies = self._ask(params, [(members[owner], order) for owner, order in orders])
            for (owner, order), reply in zip(orders, replies, strict=True):
                if reply is None:
                    self._forget(members[owner].address)
                    self._looked = -np.inf
                    todo += order.blocks
                    continue
                parts += whole_sums(reply.parts)
                if fresh is not None:
                    fresh.update(reply.local)
            if not todo:
                return total(sorted(parts, key=lambda part: part.leaf))
        found = f"{self._address}: workers were lost {RESENDS} times in one step"
        remedy = "see the workers' logs (usually they lack memory), then run again"
        msg = f"{found}; {remedy}"
        raise ClusterError(msg)

    def _orders(
        self,
        todo: Sequence[int],
        blocks: Sequence[int],
        kept: Local,
        ahead: Sequence[int],
        n: int,
    ) -> list[tuple[int, Order]]:
        """Split the blocks among ``n`` workers, one order for each run of consecutive blocks."""
        size = self._n_block
        place = {number: at for at, number in enumerate(blocks)}
        reading: dict[int, list[int]] = {}
        for number in ahead:
            reading.setdefault(number * n // size, []).append(number)
        orders = []
        # A run ends where the owner changes, or where a block between is already done.
        for (owner, _), run in groupby(
            enumerate(todo), key=lambda item: (item[1] * n // size, place[item[1]] - item[0])
        ):
            numbers = [number for _, number in run]
            before, after = place[numbers[0]] - 1, place[numbers[-1]] + 1
            first = blocks[before] + 1 if before >= 0 else 0
            last = blocks[after] - 1 if after < len(blocks) else size - 1
            order = Order(
                blocks=numbers,
                span=span(first, last, size),
                stretch=(-(-owner * size // n), -(-(owner + 1) * size // n) - 1),
                local={number: kept[number] for number in numbers if number in kept},
                ahead=reading.pop(owner, []),
            )
            orders.append((owner, order))
        return orders

    def _ask(self, params: Arrays, orders: list[tuple[_Member, Order]]) -> list[Reply | None]:
        """Send all orders and wait for the replies; None where a worker was lost."""
        from distributed.protocol import to_serialize

        shared = to_serialize(halved(params))  # sends arrays without a copy

        async def ask_all() -> list[Reply | None]:
            calls = (self._call(m, [shared, to_serialize(order)]) for m, order in orders)
            return await asyncio.gather(*calls)

        replies: list[Reply | None] = self._client.sync(ask_all)
        return replies

    async def _call(self, member: _Member, args: list[Any]) -> Reply | None:
        call = {"function": "sums", "actor": member.future.key, "args": args, "kwargs": {}}
        try:
            if self._direct:
                coming = self._client.rpc(member.address).actor_execute(**call)
            else:
                message = {"op": "actor_execute", **call}
                coming = cast(Any, self._client.scheduler).proxy(worker=member.address, msg=message)
            answer = await self._answer(member, asyncio.ensure_future(coming))
        except (OSError, KeyError):  # a closed connection; a worker that has lost its actor
            return None
        if answer["status"] == "OK":
            return cast(Reply, answer["result"])
        raise answer["exception"]

    async def _answer(self, member: _Member, coming: asyncio.Future[Any]) -> Any:
        """Wait for a worker; raise OSError once the scheduler has removed it."""
        while not (await asyncio.wait({coming}, timeout=LOOK_SECONDS))[0]:
            scheduler = cast(Any, self._client.scheduler)
            if member.address not in (await scheduler.identity(n_workers=-1))["workers"]:
                coming.cancel()
                raise OSError
        return await coming

    async def _reaches(self, address: str) -> bool:
        """Return whether the driver can call a worker directly."""
        try:
            await asyncio.wait_for(self._client.rpc(address).identity(), DIRECT_SECONDS)
        except (OSError, TimeoutError):
            return False
        return True

    def _meet(self) -> list[_Member]:
        """Return the ready workers; every few seconds, look for new and lost ones."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and self._members:
            return list(self._members.values())
        end = now + self._wait
        while True:
            workers = self._workers()
            for address in [a for a in self._members if a not in workers]:
                self._forget(address)
            new = {a: n for a, n in workers.items() if a not in self._members}
            requested = {
                address: self._client.submit(
                    BlockWorker, self.job, n, actor=True, workers=[address], pure=False
                )
                for address, n in new.items()
            }
            for address, future in requested.items():
                if self._settle(address, future):
                    self._members[address] = _Member(address, future)
                    self._direct &= self._client.sync(self._reaches, address)
            if self._members:
                self._looked = time.monotonic()
                self._members = dict(sorted(self._members.items()))
                return list(self._members.values())
            if time.monotonic() > end:
                found = f"{self._address}: no worker has been ready for {self._wait:g} seconds"
                msg = f"{found}; start some, or give them more memory, then run again"
                raise ClusterError(msg)
            time.sleep(0.1)

    def _forget(self, address: str) -> None:
        member = self._members.pop(address, None)
        if member is not None and self._client.status == "running":
            # If the scheduler is gone, there is nothing to cancel.
            with contextlib.suppress(CancelledError, OSError, RuntimeError):
                self._client.cancel([member.future], force=True)

    def _settle(self, address: str, future: Any) -> bool:
        """Wait until an actor is ready; return False if its worker is lost meanwhile."""
        from distributed import KilledWorker

        while True:
            try:
                future.result(timeout=SETTLE_SECONDS)
            except StoreError:
                raise
            except TimeoutError:  # a future bound to a lost worker would wait for ever
                if address not in self._workers():
                    future.cancel()
                    return False
            except (CancelledError, KilledWorker, OSError):  # a closed connection is an OSError
                return False
            else:
                return True

    def _workers(self) -> dict[str, int]:
        """Return the running workers of the cluster: threads by address."""
        if self._client.status == "running":
            try:
                workers = self._client.scheduler_info(n_workers=-1)["workers"]
            except OSError:
                workers = None
            if workers is not None:
                # A worker paused for lack of memory would never start an actor.
                return {
                    address: int(info["nthreads"])
                    for address, info in workers.items()
                    if info["status"] == "running"
                }
        raise self._unreachable()

    def _unreachable(self) -> ClusterError:
        found = f"{self._address}: the scheduler cannot be reached"
        return ClusterError(f"{found}; start it again, then run again")

    @property
    def _address(self) -> str:
        return str(getattr(self._client.scheduler, "address", "cluster"))
