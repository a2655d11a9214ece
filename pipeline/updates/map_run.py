"""Description of a run for a scheduler, and its progress as percentages and log lines.

Schedulers pass a `MapRun` between processes, never data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.core.errors import PipelineError, explain
from pipeline.core.progress import Task
from pipeline.run.ownership import owner_problem
from pipeline.updates.arrivals import load_watched

EVERY_S = 2.0


@dataclass(frozen=True)
class MapRun:
    """A run, by its configuration's file, period and changes.

    Attributes
    ----------
    config : str
        The YAML file.
    period : str or None
        Period of a time series.
    changes : dict
        Values that replace those of the file.
    """

    config: str
    period: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """Read and validate the configuration."""
        return load_config(Path(self.config), self.period, self.changes)


def title(config: Config) -> str:
    """Return the name of a run for log lines: map and period."""
    return config.name + (f" {config.period}" if config.period else "")


def slug(*parts: str | None) -> str:
    """Join texts into a key of lower-case letters, digits and dashes."""
    text = "-".join(part for part in parts if part)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "map"


def check_maps(configs: Sequence[str]) -> None:
    """Raise InputError unless all are readable, with names and output directories of their own."""
    seen: dict[str, str] = {}
    places: dict[str, str] = {}
    for config in configs:
        loaded = load_watched(config)
        key, place = slug(loaded.name), str(loaded.output.url or loaded.shared_dir)
        owned = owner_problem(loaded.output.dir, loaded, "output.dir")
        if owned is not None:
            raise InputError(owned)
        if place in places:
            found = f"output.dir {place} is that of {places[place]} too"
            raise InputError(Problem(config, found, "give each map an output.dir of its own"))
        places[place] = config
        if key in seen:
            found = f"its name gives the same key ({key}) as the name of {seen[key]}"
            raise InputError(Problem(config, found, "set different names"))
        seen[key] = config


def error_message(error: Exception) -> str | None:
    """Return the message for an error that a user can correct; None for a defect."""
    if isinstance(error, InputError):
        return str(error)
    problem = explain(error, "retry")
    if problem is None or isinstance(error, PipelineError):
        return str(error) if isinstance(error, PipelineError) else None
    return str(problem)


class PercentProgress:
    """Progress (see :mod:`pipeline.core.progress`) as percentages and log lines.

    Parameters
    ----------
    prefix : str
        Prefix of each line.
    on_line : callable
        Receives each line.
    on_start : callable
        Receives the name of a task of known length; returns a handle for `on_percent`.
    on_percent : callable
        Receives handle, percentage and a note, at most every ``every_s`` seconds and at the end.
    every_s : float
    """

    def __init__(
        self,
        prefix: str,
        on_line: Callable[[str], None],
        on_start: Callable[[str], Any],
        on_percent: Callable[[Any, float, str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._prefix, self._on_line = prefix, on_line
        self._on_start, self._on_percent, self._every_s = on_start, on_percent, every_s

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        """Start a task."""
        handle = self._on_start(name) if total else None
        task = _PercentTask(self._on_percent, handle, total, self._every_s)
        yield task
        task.end()

    def log(self, message: str) -> None:
        """Report a line."""
        self._on_line(f"{self._prefix}: {message}")


class _PercentTask:
    def __init__(
        self,
        on_percent: Callable[[Any, float, str], None],
        handle: Any,
        total: float | None,
        every_s: float,
    ) -> None:
        self._on_percent, self._handle = on_percent, handle
        self._total, self._every_s = total, every_s
        self._done, self._note, self._last = 0.0, "", time.monotonic()

    def advance(self, n: float = 1, **fields: object) -> None:
        self._done += n
        self._note = ", ".join(f"{key} {_short(value)}" for key, value in fields.items())
        if time.monotonic() - self._last >= self._every_s:
            self._show(self._done)

    def end(self) -> None:
        # A fit may converge before its last epoch.
        self._show(self._total or 0.0)

    def _show(self, done: float) -> None:
        self._last = time.monotonic()
        if self._handle is not None and self._total:
            percent = min(100.0, 100.0 * done / self._total)
            self._on_percent(self._handle, percent, self._note)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
