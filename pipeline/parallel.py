"""Run one function over many arguments in Dask's threads, and never outlive a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import dask

Result = TypeVar("Result")


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
