"""Thread pools that return results in order, and that stop all threads after a failure."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from geo.core.stopping import Stopped, stoppable
from models.backend.arrays import keep_freed_memory
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
    keep_freed_memory()
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


def run_tasks(
    function: Callable[..., Result],
    arguments: Iterable[tuple[object, ...]],
    workers: int | None = None,
) -> list[Result]:
    """Call ``function(*a)`` for each ``a``, in threads; return the results in order.

    If a call raises, or the user interrupts, no further call starts, and the exception propagates
    after the running calls have ended: cleaning up cannot race with a writer. They end at their
    next read of a raster (:mod:`geo.core.stopping`): a tile may take minutes.

    Parameters
    ----------
    function : callable
        Called from several threads.
    arguments : iterable of tuple
        Arguments of each call.
    workers : int, optional
        Number of threads; the number of cores, as Dask counts them, if not given.
    """
    from dask.system import CPU_COUNT  # starts slowly

    stop = threading.Event()

    def guarded(call: tuple[object, ...]) -> Result:
        if stop.is_set():
            raise Stopped
        try:
            with stoppable(stop.is_set):
                return function(*call)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(workers or CPU_COUNT, thread_name_prefix="disagg") as pool:
        try:
            calls = [pool.submit(guarded, call) for call in arguments]
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    failures = [call.exception() for call in calls if not call.cancelled()]
    for failure in failures:
        # The exception that stopped the others is the one to raise.
        if failure is not None and not isinstance(failure, Stopped):
            raise failure
    return [call.result() for call in calls]
