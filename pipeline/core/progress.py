"""Interface through which a stage reports progress.

A terminal shows a bar for tasks of more than two seconds, a log file gets lines only, a test or a
worker uses `Silent`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Task(Protocol):
    """A task in progress."""

    def advance(self, n: float = 1, **fields: object) -> None:
        """Advance by ``n`` steps; ``fields`` appear beside the bar."""


class Progress(Protocol):
    """Receiver of a stage's progress."""

    def task(self, name: str, total: float | None = None) -> AbstractContextManager[Task]:
        """Start a task of ``total`` steps, or of unknown length."""

    def log(self, message: str) -> None:
        """Report one line to the user."""


class Silent:
    """Progress that discards everything."""

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:  # noqa: ARG002
        """Start a task."""
        yield SilentTask()

    def log(self, message: str) -> None:
        """Discard the line."""


class SilentTask:
    """Task that discards its progress."""

    def advance(self, n: float = 1, **fields: object) -> None:
        """Do nothing."""
