"""Work on a few threads whose results come back in the order of the items."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from models.blas import one_blas_thread

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
