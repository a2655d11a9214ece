"""Lines of a run for log files and batch systems: text or JSON, with time, map and period."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from geo.core.text_safety import terminal_text
from pipeline.config.schema import Config
from pipeline.core.library_messages import library_messages
from pipeline.core.progress import Progress, Task
from pipeline.updates.map_run import PercentProgress

LogFormat = Literal["text", "json"]
EVERY_S = 30.0  # between two lines of the progress of one task


class RunLog:
    """Writes the lines of a run.

    Each has ``time`` (UTC), ``level``, ``map``, ``period`` and ``message``; of a long task's
    progress also ``task``, ``percent`` and ``note``.

    Parameters
    ----------
    form : {"text", "json"}
    stream : file
        Flushed after each line.
    """

    def __init__(self, form: LogFormat, stream: IO[str]) -> None:
        self._form, self._stream = form, stream
        self._map: str | None = None
        self._period: str | None = None
        self._lock = threading.Lock()

    def of(self, config: Config) -> None:
        """Name the map and the period in all lines from now on."""
        self._map, self._period = config.name, config.period

    def write(self, message: str, level: str = "info", **more: Any) -> None:
        """Write one line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._form == "json":
            record = {
                "time": now,
                "level": level,
                "map": self._map,
                "period": self._period,
                "message": message,
                **more,
            }
            line = json.dumps(record, ensure_ascii=False)
        else:
            named = " ".join(part for part in (self._map, self._period) if part) or "-"
            line = f"{now} {level.upper()} {named}: {message}"
            line = "\n".join(terminal_text(part) for part in line.splitlines())
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def progress(self) -> Progress:
        """Return the progress of a run as lines."""
        shown: set[str] = set()

        def percent(name: str, value: float, note: str) -> None:
            if value < 100 or name in shown:  # a short task has no line but that of its stage
                shown.add(name)
                text = f"{name}: {value:.0f} %" + (f", {note}" if note else "")
                self.write(text, task=name, percent=round(value, 1), note=note)

        return _LinesProgress(self, percent)

    def library_messages(self) -> AbstractContextManager[None]:
        """Write the log messages of our packages as lines, too."""
        return library_messages(_Forward(self))


class _LinesProgress(PercentProgress):
    def __init__(self, log: RunLog, percent: Any) -> None:
        super().__init__("", log.write, lambda name: name, percent, EVERY_S)
        self._log = log

    def log(self, message: str) -> None:
        """Write a line."""
        self._log.write(message)


class Both:
    """Progress that two receivers get."""

    def __init__(self, *receivers: Progress) -> None:
        self._receivers = receivers

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        """Start a task."""
        with ExitStack() as stack:
            yield _Tasks([stack.enter_context(each.task(name, total)) for each in self._receivers])

    def log(self, message: str) -> None:
        """Report a line."""
        for each in self._receivers:
            each.log(message)


class _Tasks:
    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks

    def advance(self, n: float = 1, **fields: object) -> None:
        for task in self._tasks:
            task.advance(n, **fields)


class _Forward(logging.Handler):
    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(record.getMessage(), record.levelname.lower(), logger=record.name)


def open_log_file(path: Path) -> IO[str]:
    """Open a log file to append to; its directory is created.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")
