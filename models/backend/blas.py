"""One thread of BLAS or of OpenMP, for as long as anybody in the process needs that."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

_lock = threading.RLock()  # a finalizer may leave while its thread is in here
_users = 0
_limits: list[Any] = []
_limited: ThreadpoolController | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold matrix products to one thread; may be nested and entered from several threads.

    BLAS keeps one number for the process, and ``threadpoolctl`` puts back what it found on entry:
    of two uses that overlap, the first to leave frees the threads under the other, and the last
    leaves a limit of 1 behind for good. Here the first to enter sets the limit and the last to
    leave lifts it, whichever threads they are. Libraries that came since the first are limited by
    the next to enter.
    """
    global _users, _limited
    with _lock:
        there = _libraries(len(sys.modules))
        if there is not _limited:
            _take_control()
            _limits.append(there.limit(limits=1, user_api="blas"))
            _limited = there
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limited, limits = None, _limits[::-1]
                _limits.clear()
                _take_control()
                for limit in limits:
                    limit.restore_original_limits()
                _take_control()


@contextmanager
def one_openmp_thread() -> Iterator[None]:
    """Hold the loops that libraries run by OpenMP to the calling thread, where they start from it.

    GNU's OpenMP keeps the threads of its first loop for the next one. A fork has none of them and
    waits for them for ever: so a process that may be forked starts none, and a fork asks for none.
    """
    with _libraries(len(sys.modules)).limit(limits=1, user_api="openmp"):
        yield


@functools.lru_cache(maxsize=1)
def _libraries(_n_modules: int) -> ThreadpoolController:
    # It is found by reading the map of the process's memory, which many libraries make long; a
    # BLAS that came since came with a module.
    return ThreadpoolController()


def _take_control() -> None:
    """Let the calling thread change OpenBLAS's number of threads.

    From threadpoolctl 3.8 on the first thread that changed it owns it, and limits that another
    thread sets or lifts do nothing, without a word.
    """
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


def on_all_cores(
    function: Callable[[Any], Any], items: Sequence[Any], most: int | None = None
) -> list[Any]:
    """Map in threads, one for each core, or ``most`` of them, each with one BLAS thread."""
    n = max(1, min(len(items), most or len(items), len(os.sched_getaffinity(0))))
    with one_blas_thread(), ThreadPoolExecutor(n, thread_name_prefix="core") as pool:
        return list(pool.map(function, items))


def in_threads(
    function: Callable[[int], Any], items: Sequence[int], n: int | None
) -> Iterable[Any]:
    """Map in threads, after the first alone: the compiler would make the others wait."""
    yield function(items[0])
    with ThreadPoolExecutor(n or os.cpu_count() or 1) as pool:
        yield from pool.map(function, items[1:])
