"""How a stage tells where it is, without knowing who listens.

A stage takes a `Progress`. The terminal shows a bar for work that takes over two seconds; a log
file gets lines only; a test or a worker gets `Silent`.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager, contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import rich.progress

SHOW_AFTER_S = 2.0


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, n: float = 1, **fields: object) -> None:
        """Count ``n`` more as done; ``fields`` are shown beside the bar."""


class Progress(Protocol):
    """Where a stage reports to."""

    def task(self, name: str, total: float | None = None) -> AbstractContextManager[Task]:
        """Begin a piece of work of ``total`` steps, or of unknown length."""

    def log(self, message: str) -> None:
        """Say one thing that a user wants to know."""


class Silent:
    """Progress that nobody sees."""

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:  # noqa: ARG002
        """Begin a piece of work."""
        yield _SilentTask()

    def log(self, message: str) -> None:
        """Say nothing."""


class _SilentTask:
    def advance(self, n: float = 1, **fields: object) -> None:
        pass


class Lines:
    """Progress as lines of text: for log files and pipes, where a bar would be litter.

    Parameters
    ----------
    stream : file, optional
        Standard error by default.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:  # noqa: ARG002
        """Begin a piece of work."""
        yield _SilentTask()

    def log(self, message: str) -> None:
        """Print one line."""
        print(message, file=self._stream or sys.stderr, flush=True)


class Bars:
    """Progress as bars on the terminal, for work that takes over two seconds.

    Parameters
    ----------
    stream : file, optional
        Standard error by default.
    show_after_s : float, optional
        Seconds until a piece of work gets a bar.
    """

    def __init__(self, stream: IO[str] | None = None, show_after_s: float = SHOW_AFTER_S) -> None:
        from rich.console import Console

        self._console = Console(file=stream) if stream else Console(stderr=True)
        self._show_after_s = show_after_s
        self._display: rich.progress.Progress | None = None
        self._lock = threading.RLock()

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        """Begin a piece of work."""
        task = _BarTask(self, name, total)
        # A timer, not the first step: the first step may itself take minutes.
        timer = threading.Timer(self._show_after_s, task.show)
        timer.daemon = True
        timer.start()
        try:
            yield task
        finally:
            timer.cancel()
            task.hide()

    def log(self, message: str) -> None:
        """Print one line above the bars."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def _add(self, name: str, total: float | None) -> rich.progress.TaskID:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._display is None:
                self._display = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                    TimeRemainingColumn(),
                    TextColumn("{task.fields[notes]}"),
                    console=self._console,
                    transient=True,
                )
                self._display.start()
            return self._display.add_task(name, total=total, notes="")

    def _remove(self, task: rich.progress.TaskID) -> None:
        with self._lock:
            if self._display is None:
                return
            self._display.remove_task(task)
            if not self._display.tasks:
                self._display.stop()
                self._display = None

    def _update(self, task: rich.progress.TaskID, done: float, notes: str) -> None:
        with self._lock:
            if self._display is not None:
                self._display.update(task, completed=done, notes=notes)


class _BarTask:
    def __init__(self, bars: Bars, name: str, total: float | None) -> None:
        self._bars, self._name, self._total = bars, name, total
        self._done: float = 0
        self._notes = ""
        self._id: rich.progress.TaskID | None = None
        self._over = False
        self._lock = threading.RLock()

    def advance(self, n: float = 1, **fields: object) -> None:
        with self._lock:
            self._done += n
            if fields:
                self._notes = "  ".join(f"{key} {_short(value)}" for key, value in fields.items())
            if self._id is not None:
                self._bars._update(self._id, self._done, self._notes)

    def show(self) -> None:
        with self._lock:
            if not self._over:
                self._id = self._bars._add(self._name, self._total)
                self._bars._update(self._id, self._done, self._notes)

    def hide(self) -> None:
        with self._lock:
            self._over = True
            if self._id is not None:
                self._bars._remove(self._id)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
