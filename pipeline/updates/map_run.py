"""A run as something that can be addressed: by its configuration's file, period and changes.

Schedulers pass this on, never data; what they show of it (names, percentages, lines) is made here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geo.errors import InputError, Problem
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.core.errors import PipelineError, explain
from pipeline.core.progress import Task
from pipeline.updates.arrivals import load_watched

EVERY_S = 2.0


@dataclass(frozen=True)
class MapRun:
    """Address of a run.

    Attributes
    ----------
    config : str
        The YAML file.
    period : str or None
        Of a time series.
    changes : dict
        Values in the place of the file's.
    """

    config: str
    period: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """Read the configuration, checked in full."""
        return load_config(Path(self.config), self.period, self.changes)

    def fixed(self, config: Config) -> MapRun:
        """Return the address with the period that the latest one was when it was read."""
        return replace(self, period=config.period)


def title(config: Config) -> str:
    """Name a run in log lines: the map, and its period."""
    return config.name + (f" {config.period}" if config.period else "")


def slug(*parts: str | None) -> str:
    """Join texts to a key of lower-case letters, digits and dashes."""
    text = "-".join(part for part in parts if part)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "map"


def check_names(configs: Sequence[str]) -> None:
    """Raise InputError unless every configuration can be read and has a name of its own."""
    seen: dict[str, str] = {}
    for config in configs:
        key = slug(load_watched(config).name)
        if key in seen:
            found = f"has the name of {seen[key]}, but for letters that a key cannot have ({key})"
            raise InputError(Problem(config, found, "give each map a name of its own"))
        seen[key] = config


def state_line(error: Exception) -> str | None:
    """Return the line or lines that tell a person what to do; None for a defect of ours."""
    if isinstance(error, InputError):
        return str(error)
    problem = explain(error, "retry")
    if problem is None or isinstance(error, PipelineError):
        return str(error) if isinstance(error, PipelineError) else None
    return str(problem)


class Percent:
    """Progress (see :mod:`pipeline.core.progress`) as percentages, now and then, and lines.

    Parameters
    ----------
    prefix : str
        Before each line.
    on_line : callable
        Gets each line.
    on_start : callable
        Gets the name of a piece of work of known length; returns what `on_percent` is given.
    on_percent : callable
        Gets that, the percentage and a note, at most every ``every_s`` seconds, and at the end.
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
        """Begin a piece of work."""
        handle = self._on_start(name) if total else None
        piece = _Piece(self, handle, total, self._every_s)
        yield piece
        piece.end()

    def log(self, message: str) -> None:
        """Pass a line on."""
        self._on_line(f"{self._prefix}: {message}")

    def show(self, handle: Any, percent: float, note: str) -> None:
        """Pass a percentage on; who shows it must not stop the work."""
        self._on_percent(handle, percent, note)


class _Piece:
    def __init__(self, shown: Percent, handle: Any, total: float | None, every_s: float) -> None:
        self._shown, self._handle, self._total, self._every_s = shown, handle, total, every_s
        self._done, self._note, self._last = 0.0, "", time.monotonic()

    def advance(self, n: float = 1, **fields: object) -> None:
        self._done += n
        self._note = ", ".join(f"{key} {_short(value)}" for key, value in fields.items())
        if time.monotonic() - self._last >= self._every_s:
            self._show(self._done)

    def end(self) -> None:
        # A fit may converge before its last epoch: over is over.
        self._show(self._total or 0.0)

    def _show(self, done: float) -> None:
        self._last = time.monotonic()
        if self._handle is not None and self._total:
            percent = min(100.0, 100.0 * done / self._total)
            self._shown.show(self._handle, percent, self._note)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
