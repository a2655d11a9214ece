"""How commands speak: what they print, for whom, and the exit status that says how it went.

Errors are for people: bad input is one line each on standard error and exit status 2, an
interruption 130 and how to go on; a defect of ours passes, to be a traceback.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from geo.errors import InputError
from pipeline.core.errors import explain
from pipeline.core.progress import Progress, SilentTask, Task
from pipeline.core.signals import Terminated

if TYPE_CHECKING:
    import rich.progress

DONE, DEFECT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say also why each step is done.")]


@dataclass(frozen=True)
class Talk:
    """How a command speaks: the options that all commands share."""

    as_json: bool
    quiet: bool
    verbose: bool

    def say(self, text: str) -> None:
        """Print a line for people, on standard output."""
        if not (self.quiet or self.as_json):
            print(text)

    def give(self, value: Any) -> None:
        """Print the result for machines, if it was asked for."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False, indent=1))

    def progress(self) -> Progress:
        """Choose who shows progress: bars on a terminal, lines elsewhere, nobody if quiet."""
        from pipeline.core.progress import Silent

        if self.verbose:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            for package in ("geo", "models", "pipeline", "flows"):
                logging.getLogger(package).setLevel(logging.INFO)
                logging.getLogger(package).addHandler(handler)
        if self.quiet:
            return Silent()
        return Bars() if sys.stderr.isatty() else Lines()


def talking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all share: its parameter ``talk`` is made of them."""
    shared = {"as_json": AsJson, "quiet": Quiet, "verbose": Verbose}

    @functools.wraps(command)
    def wrapped(*, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        command(**options, talk=Talk(as_json, quiet, verbose))

    own = inspect.signature(command, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in own if p.name != "talk"]
    parameters += [
        inspect.Parameter(name, keyword, default=False, annotation=option)
        for name, option in shared.items()
    ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def tell_error(line: str) -> None:
    """Print a line on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def tell_interrupted(stop: KeyboardInterrupt, rest: str = "") -> int:
    """Say that a signal ended the command, and return the exit status that says so."""
    word = "terminated" if isinstance(stop, Terminated) else "interrupted"
    tell_error(f"{word}{rest}")
    return stop.status if isinstance(stop, Terminated) else INTERRUPTED


@contextmanager
def errors_told(
    talk: Talk, command: str, stage: Callable[[], str] = str, *, resumable: bool = True
) -> Iterator[None]:
    """Turn what a user can mend into lines and an exit status; let defects pass."""
    try:
        yield
    except InputError as error:
        talk.give({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        for problem in error.problems:
            tell_error(f"error: {problem}")
    except KeyboardInterrupt as stop:
        kept = "what is finished is kept: go on" if resumable else "nothing is left behind: go"
        raise typer.Exit(tell_interrupted(stop, f"{stage()}; {kept} with `{command}`")) from None
    except Exception as error:
        explained = explain(error, command)
        if explained is None:
            raise
        talk.give({"ok": False, "problems": [asdict(explained)]})
        tell_error(f"error: {explained}")
    else:
        return
    raise typer.Exit(BAD_INPUT) from None


SHOW_AFTER_S = 2.0


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
        yield SilentTask()

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
