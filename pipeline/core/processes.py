"""Long calls in processes of their own, each with a share of the cores; results in order.

A fit to a few thousand pixels is thousands of short steps of Python: threads would wait for each
other's interpreter, processes do not. They are forks: what the caller has in memory needs no copy.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from geo.core.errors import InputError, Problem
from models.backend.blas import one_blas_thread, one_openmp_thread
from pipeline.core import supervised
from pipeline.core.progress import Progress, Task

Result = TypeVar("Result")
#: A long call, given what it reports its progress to.
Call = Callable[[Progress], Result]


def shares(n_call: int, n_core: int | None = None) -> int:
    """Return how many of some calls run at once here: 1 where processes are no way.

    Parameters
    ----------
    n_call : int
    n_core : int, optional
        Cores to use; all that this process may use, if not given.
    """
    if not supervised.own_process or not sys.platform.startswith("linux"):
        return 1  # of a server's process, or elsewhere: forks beside unknown threads are not safe
    if threading.current_thread() is not threading.main_thread():
        return 1  # a thread of a server: its other threads may hold locks
    if multiprocessing.current_process().daemon:
        return 1
    return max(1, min(n_call, n_core or len(os.sched_getaffinity(0))))


def in_processes(
    calls: Sequence[Call[Result]], n_process: int, progress: Progress
) -> Iterator[Result]:
    """Call each, several at once; yield the results in order.

    The progress of the first unfinished call is shown, and the log lines of each when its turn
    comes. An exception is raised in place of its result, and ends the other processes, as does an
    interruption; what the calls have written remains.

    Parameters
    ----------
    calls : sequence of callable
        Results, and what is logged, are pickled.
    n_process : int
        At once; 1 calls here, one after the other.
    progress : Progress

    Yields
    ------
    Result
        In the order of ``calls``.
    """
    n_process = min(n_process, len(calls))
    if n_process <= 1:
        for call in calls:
            yield call(progress)
        return
    waiting = list(enumerate(calls))[::-1]
    cores, n_done = sorted(os.sched_getaffinity(0)), 0
    running: dict[int, _Child[Result]] = {}
    try:
        while n_done < len(calls):
            while waiting and sum(child.open for child in running.values()) < n_process:
                number, call = waiting.pop()
                busy = {child.place for child in running.values() if child.open}
                place = min(set(range(n_process)) - busy)
                own = cores[place::n_process] or [cores[place % len(cores)]]
                running[number] = _Child(call, place, own)
            first = running[n_done]
            if not first.open:
                yield first.result(progress)
                del running[n_done]
                n_done += 1
                continue
            readable = wait([child.events for child in running.values() if child.open])
            for child in running.values():
                if child.events in readable:
                    child.read()
            first.show(progress)
    finally:
        for child in running.values():
            child.end()


class _Child(Generic[Result]):
    """A process with one call, and what it has told."""

    def __init__(self, call: Call[Result], place: int, cores: Sequence[int]) -> None:
        self.place, self.open = place, True
        self.events, remote = multiprocessing.Pipe(duplex=False)
        self._told: list[tuple[Any, ...]] = []
        self._tasks: dict[int, Any] = {}
        self._process = multiprocessing.get_context("fork").Process(
            target=_run, args=(call, remote, os.getpid(), cores), daemon=True
        )
        self._process.start()
        remote.close()

    def read(self) -> None:
        """Take an event; the last is the end of the process."""
        try:
            self._told.append(self.events.recv())
        except EOFError:
            self.open = False

    def show(self, progress: Progress) -> None:
        """Pass on what has been told."""
        told, self._told = self._told, []
        for kind, *rest in told:
            if kind == "log":
                progress.log(rest[0])
            elif kind == "task":
                number, name, total = rest
                shown = progress.task(name, total)
                self._tasks[number] = shown, shown.__enter__()
            elif kind == "advance":
                number, n, fields = rest
                self._tasks[number][1].advance(n, **fields)
            elif kind == "done":
                self._tasks.pop(rest[0])[0].__exit__(None, None, None)
            else:
                self._told.append((kind, *rest))

    def result(self, progress: Progress) -> Result:
        """Return the result of a process that has ended, or raise its error."""
        self.show(progress)
        self._process.join()
        if not self._told:
            code = self._process.exitcode
            found = f"a process with a part of the work ended with status {code}"
            remedy = "most often for want of memory (see `dmesg`); finished work is kept: run again"
            raise InputError(Problem("memory", found, remedy))
        ((kind, value),) = self._told
        if kind == "error":
            raise value
        result: Result = value
        return result

    def end(self) -> None:
        """End the process, if it runs, and what it has shown."""
        for shown, _ in self._tasks.values():
            shown.__exit__(None, None, None)
        self._tasks.clear()
        self._process.terminate()
        self._process.join()
        self.events.close()


def _run(call: Call[Any], events: Connection, parent: int, cores: Sequence[int]) -> None:
    # The parent decides what a signal means, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    supervised.end_with_parent(parent, signal.SIGKILL)
    os.sched_setaffinity(0, cores)  # "one thread a core" then means these
    try:
        with one_blas_thread(), one_openmp_thread():
            found: tuple[str, Any] = "result", call(_Told(events))
    except Exception as error:
        found = "error", error
    try:
        events.send(found)
    except (pickle.PicklingError, TypeError, AttributeError):
        events.send(("error", RuntimeError(f"{type(found[1]).__name__}: {found[1]}")))


class _Told:
    """Progress that another process shows."""

    def __init__(self, events: Connection) -> None:
        self._events, self._lock, self._number = events, threading.Lock(), 0

    def tell(self, *event: Any) -> None:
        with self._lock:
            self._events.send(event)

    def log(self, message: str) -> None:
        self.tell("log", message)

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        self._number += 1
        number = self._number
        self.tell("task", number, name, total)
        try:
            yield _ToldTask(self, number)
        finally:
            self.tell("done", number)


class _ToldTask:
    def __init__(self, told: _Told, number: int) -> None:
        self._told, self._number = told, number

    def advance(self, n: float = 1, **fields: object) -> None:
        self._told.tell("advance", self._number, n, fields)
