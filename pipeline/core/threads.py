"""Work on threads: results in the order of the items, and no thread that outlives a failure."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import dask

from models.backend.blas import one_blas_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    n_thread: int | None = None,
    ahead: int = 1,
) -> Iterator[Result]:
    """Apply a function on threads, yielding the results one after the other.

    At most ``n_thread + ahead`` items are begun and not yet consumed, so memory does not grow with
    their number. An exception comes out where its result would have; what has not begun by then
    is dropped. Matrix products are held to one thread each until the last result has been taken:
    several that each want all cores are slower than one after the other.

    Parameters
    ----------
    function : callable
        Must be safe to call on several threads.
    items : iterable
        Taken on the calling thread, lazily.
    n_thread : int, optional
        Threads; one a core where not given.
    ahead : int
        Finished results that may wait beyond those being computed.

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
    """Lets calls in until it is shut; draining waits for those inside."""

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

    def shut(self) -> None:
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

    When a call raises, or the user interrupts, calls that run are waited for and no other is
    begun before the exception goes on: whoever cleans up finds nobody still writing. (Dask by
    itself raises at once, while its other threads carry on.)

    Parameters
    ----------
    function : callable
        Called from several threads.
    arguments : iterable of tuple
        Of each call; must not hold Dask collections.
    workers : int, optional
        Number of threads; Dask's default where not given.
    """
    gate = _Gate()

    def guarded(call: tuple[object, ...]) -> Result | None:
        if not gate.enter():
            return None
        try:
            return function(*call)
        except BaseException:
            gate.shut()
            raise
        finally:
            gate.leave()

    # Arguments travel by position in a list: Dask would look for its collections inside them.
    calls = list(arguments)
    task = dask.delayed(lambda k: guarded(calls[k]), pure=False)
    try:
        return list(
            dask.compute(*map(task, range(len(calls))), scheduler="threads", num_workers=workers)
        )
    except BaseException:
        gate.drain()
        raise
