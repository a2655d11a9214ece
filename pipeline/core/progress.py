"""How a stage tells where it is, without knowing who listens.

A stage takes a `Progress`. The terminal shows a bar for work that takes over two seconds; a log
file gets lines only; a test or a worker gets `Silent`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        yield SilentTask()

    def log(self, message: str) -> None:
        """Say nothing."""


class SilentTask:
    """A piece of work whose progress nobody sees."""

    def advance(self, n: float = 1, **fields: object) -> None:
        """Count nothing."""
