"""Thread pools that return results in order, and that stop all threads after a failure."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import dask
from dask import threaded

from geo.core.stopping import Stopped, stoppable
from models.backend.blas import one_blas_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    n_thread: int | None = None,
    ahead: int = 1,
) -> Iterator[Result]:
    """Apply a function on threads; yield the results in order.

    At most ``n_thread + ahead`` items are in progress or wait to be consumed: memory does not grow
    with their number. An exception is raised in place of its result, and cancels the items that
    have not started. Meanwhile each BLAS call uses one thread: concurrent calls that use all cores
    are slower than sequential ones.

    Parameters
    ----------
    function : callable
        Must be safe to call on several threads.
    items : iterable
        Consumed lazily, on the calling thread.
    n_thread : int, optional
        Number of threads; the number of cores by default.
    ahead : int
        Number of finished results that may wait.

    Yields
    ------
    Result
        In the order of ``items``.
    """
    n_thread = n_thread or len(os.sched_getaffinity(0))
    waiting: deque[Future[Result]] = deque()
    with (
        one_blas_thread(),
        ThreadPoolExecutor(max_workers=n_thread, thread_name_prefix="disagg") as pool,
    ):
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= n_thread + ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Gate:
    """Admits calls until it is closed; `drain` waits for the admitted calls to end."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._inside = 0
        self._closed = False

    def enter(self) -> bool:
        with self._free:
            self._inside += not self._closed
            return not self._closed

    def leave(self) -> None:
        with self._free:
            self._inside -= 1
            self._free.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def drain(self) -> None:
        with self._free:
            self._closed = True
            self._free.wait_for(lambda: self._inside == 0)


def run_tasks(
    function: Callable[..., Result],
    arguments: Iterable[tuple[object, ...]],
    workers: int | None = None,
) -> list[Result]:
    """Call ``function(*a)`` for each ``a``, in threads; return the results in order.

    If a call raises, or the user interrupts, no further call starts, and the exception propagates
    after the running calls have ended: cleaning up cannot race with a writer. They end at their
    next read of a raster (:mod:`geo.core.stopping`): a tile may take minutes. (Dask itself
    raises at once, while its other threads continue.)

    Parameters
    ----------
    function : callable
        Called from several threads.
    arguments : iterable of tuple
        Arguments of each call; must not contain Dask collections.
    workers : int, optional
        Number of threads; Dask's default if not given.
    """
    gate = _Gate()

    def guarded(call: tuple[object, ...]) -> Result | None:
        if not gate.enter():
            return None
        try:
            with stoppable(lambda: gate.closed):
                return function(*call)
        except Stopped:  # the exception that closed the gate is the one to raise
            return None
        except BaseException:
            gate.close()
            raise
        finally:
            gate.leave()

    # Dask gets only the index of a call: it would search the arguments for collections.
    calls = list(arguments)
    task = dask.delayed(lambda k: guarded(calls[k]), pure=False)
    try:
        # Given by name ("threads"), Dask would import distributed, which takes half a second.
        return list(
            dask.compute(*map(task, range(len(calls))), scheduler=threaded.get, num_workers=workers)
        )
    except BaseException:
        gate.drain()
        raise
