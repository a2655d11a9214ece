"""Output of commands: results, progress, errors, and the exit status.

Bad input gives one line per problem on standard error, an interruption the command to continue, a
defect a traceback. :mod:`pipeline.core.exit_status` has the statuses.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from geo.core.errors import InputError, Problem
from geo.core.text_safety import terminal_text
from pipeline.core.errors import explain
from pipeline.core.exit_status import ExitStatus
from pipeline.core.library_messages import library_messages
from pipeline.core.progress import Progress, Task
from pipeline.core.signals import Terminated

if TYPE_CHECKING:
    import rich.progress

    from pipeline.config.schema import Config
    from pipeline.updates.log_lines import RunLog


class LogFormat(StrEnum):
    """Format of the lines of a run."""

    text = "text"
    json = "json"


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
LogFormats = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format", help="Lines with time, map and period, on standard error or in --log-file."
    ),
]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="Append such lines to a file.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print log messages, too.")]


@dataclass(frozen=True)
class Output:
    """Output of a command, by the options that all commands share."""

    as_json: bool
    quiet: bool
    verbose: bool
    log: RunLog | None = None
    log_beside: bool = False  # the log has a file of its own

    def name_log(self, config: Config) -> None:
        """Name the map and the period in the lines of the log."""
        if self.log is not None:
            self.log.of(config)

    def error(self, line: str) -> None:
        """Print a line on standard error, and write it to the log."""
        self._say(line, "error", line)

    def warn(self, line: str) -> None:
        """Print a warning on standard error, also with --quiet, and write it to the log."""
        self._say(line, "warning", f"warning: {line}")

    def _say(self, line: str, level: str, shown: str) -> None:
        if self.log is not None:
            self.log.write(line, level)
        if self.log is None or self.log_beside:
            print_error(shown)

    def print(self, text: str) -> None:
        """Print a line on standard output, without --quiet or --json."""
        if not (self.quiet or self.as_json):
            print(terminal_text(text))

    def print_json(self, value: Any) -> None:
        """Print the result as JSON, with --json."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False, indent=1))

    def progress(self, line_after_s: float | None = None) -> Progress:
        """Return the progress: bars on a terminal, lines elsewhere, none with --quiet."""
        from pipeline.core.progress import Silent

        if self.log is not None and not self.log_beside:
            return Silent() if self.quiet else self.log.progress()
        shown: Progress = Lines(line_after_s=line_after_s or LINE_AFTER_S)
        if self.quiet:
            shown = Silent()
        elif sys.stderr.isatty():
            shown = Bars()
        if self.log is None:
            return shown
        from pipeline.updates.log_lines import Both

        return Both(shown, self.log.progress())

    @contextmanager
    def library_messages(self) -> Iterator[None]:
        """Print the log messages of our packages on standard error, with --verbose."""
        if not self.verbose or (self.log is not None and not self.log_beside):
            yield
            return
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        with library_messages(handler):
            yield


def with_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --json, --quiet and --verbose to a command; pass them as its parameter ``output``."""

    @functools.wraps(command)
    def wrapped(*, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        command(**options, output=Output(as_json, quiet, verbose))

    specific = inspect.signature(command, eval_str=True).parameters.values()
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in specific if p.name != "output"]
    return _with_options(wrapped, own, False, as_json=AsJson, quiet=Quiet, verbose=Verbose)


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --log-format and --log-file to a command of :func:`with_output_options`."""

    @functools.wraps(command)
    def wrapped(
        *, log_format: LogFormat | None, log_file: Path | None, output: Output, **options: Any
    ) -> None:
        if log_format is None and log_file is None:
            command(**options, output=output)
            return
        from pipeline.updates.log_lines import RunLog, open_log_file

        with ExitStack() as stack:
            stream = sys.stderr
            if log_file is not None:
                with reported_errors(output, ""):
                    try:
                        stream = stack.enter_context(open_log_file(log_file))
                    except OSError as error:
                        found = f"cannot be written to ({error.strerror or error})"
                        raise InputError(Problem(str(log_file), found, "set --log-file")) from error
            log = RunLog((log_format or LogFormat.text).value, stream)
            shown = Output(output.as_json, output.quiet, output.verbose, log, log_file is not None)
            if output.verbose:
                stack.enter_context(log.library_messages())
            command(**options, output=shown)

    own = inspect.signature(command, eval_str=True).parameters.values()
    return _with_options(wrapped, own, None, log_format=LogFormats, log_file=LogFile)


def _with_options(
    wrapped: Callable[..., None],
    own: Iterable[inspect.Parameter],
    default: bool | None,
    **options: Any,
) -> Callable[..., None]:
    """Give a command the parameters of its own and options that stand last."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *own,
        *(
            inspect.Parameter(name, keyword, default=default, annotation=option)
            for name, option in options.items()
        ),
    ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def print_error(line: str) -> None:
    """Print a line on standard error, unbuffered."""
    print(line, file=sys.stderr, flush=True)


def report_interruption(
    stop: KeyboardInterrupt, rest: str = "", say: Callable[[str], None] = print_error
) -> int:
    """Report that a signal ended the command; return the exit status."""
    word = "terminated" if isinstance(stop, Terminated) else "interrupted"
    say(f"{word}{rest}")
    return stop.status if isinstance(stop, Terminated) else ExitStatus.INTERRUPTED


@contextmanager
def reported_errors(
    output: Output, command: str, stage: Callable[[], str] = str, *, resumable: bool = True
) -> Iterator[None]:
    """Report errors that a user can correct, and set the exit status; defects pass."""
    try:
        with output.library_messages():
            yield
    except InputError as error:
        output.print_json(
            {"ok": False, "problems": [asdict(problem) for problem in error.problems]}
        )
        for problem in error.problems:
            output.error(f"error: {problem}")
        status = status_of(error)
    except KeyboardInterrupt as stop:
        remedy = "finished work is kept; continue" if resumable else "no files remain; restart"
        message = f"{stage()}; {remedy} with `{command}`"
        raise typer.Exit(report_interruption(stop, message, output.error)) from None
    except Exception as error:
        explained = explain(error, command)
        if explained is None:
            if output.log is not None:
                text = "".join(traceback.format_exception(error))
                output.log.write(f"a defect: {error!r}", "error", traceback=text)
            raise
        output.print_json({"ok": False, "problems": [asdict(explained)]})
        output.error(f"error: {explained}")
        status = status_of(error)
    else:
        return
    raise typer.Exit(status) from None


def status_of(error: Exception) -> ExitStatus:
    """Return the status for an error that is no defect: try again later, or correct something."""
    from pipeline.storage.lock import DirectoryBusyError, LockedError
    from pipeline.updates.retry import is_transient

    # A lock is not waited for: the run that holds it may take hours.
    passes = is_transient(error) or isinstance(error, DirectoryBusyError | LockedError)
    return ExitStatus.TRANSIENT if passes else ExitStatus.BAD_INPUT


SHOW_AFTER_S = 2.0
LINE_AFTER_S, RAREST_LINE_S = 30.0, 600.0


class Lines:
    """Progress as lines of text, for log files and pipes.

    A task that takes long has a line after half a minute, then after twice as long each time, and
    every ten minutes at least.

    Parameters
    ----------
    stream : file, optional
        Standard error by default.
    line_after_s : float, optional
        Seconds before a task gets a line.
    """

    def __init__(self, stream: IO[str] | None = None, line_after_s: float = LINE_AFTER_S) -> None:
        self._stream, self._line_after_s = stream, line_after_s

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        """Begin a piece of work."""
        task = _LineTask(self.log, name, total, self._line_after_s)
        try:
            yield task
        finally:
            task.end()

    def log(self, message: str) -> None:
        """Print one line."""
        print(terminal_text(message), file=self._stream or sys.stderr, flush=True)


class _LineTask:
    """A task whose lines a timer prints: one step of it may take minutes."""

    def __init__(
        self, say: Callable[[str], None], name: str, total: float | None, after_s: float
    ) -> None:
        self._say, self._name, self._total = say, name, total
        self._done, self._notes = 0.0, ""
        self._started, self._wait = time.monotonic(), after_s
        self._over = threading.Event()
        self._timer = threading.Thread(target=self._watch, daemon=True)
        self._timer.start()

    def advance(self, n: float = 1, **fields: object) -> None:
        self._done += n
        if fields:
            self._notes = ", ".join(f"{key} {_short(value)}" for key, value in fields.items())

    def end(self) -> None:
        self._over.set()
        self._timer.join()

    def _watch(self) -> None:
        while not self._over.wait(self._wait):
            self._wait = min(2.0 * self._wait, RAREST_LINE_S)
            passed = time.monotonic() - self._started
            parts = [f"{100 * self._done / self._total:.0f} %"] if self._total else []
            parts += [self._notes] if self._notes else []
            took = f"{passed:.0f} s" if passed < 120 else f"{passed / 60:.0f} min"
            self._say(f"{self._name}: {', '.join([*parts, f'{took} so far'])}")


class Bars:
    """Progress as bars on the terminal, for tasks of more than two seconds.

    Parameters
    ----------
    stream : file, optional
        Standard error by default.
    show_after_s : float, optional
        Seconds before a task gets a bar.
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
        # By a timer: the first step may take minutes.
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
        self._console.print(terminal_text(message), markup=False, highlight=False, soft_wrap=True)

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
