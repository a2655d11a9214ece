"""Progress of fits within a fit: one task of all of them, which each advances as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.core.progress import Progress, Task


class InnerProgress:
    """Progress for inner fits, which together are one task.

    An inner fit over a store may take hours. Its steps are seen, and a receiver that interrupts by
    raising is heard at each of them.

    Parameters
    ----------
    progress : Progress
        Gets the lines that inner fits log.
    task : Task
        Of all inner fits.
    n_fit : int
        Inner fits that make one step of the task.
    """

    def __init__(self, progress: Progress, task: Task, n_fit: int) -> None:
        self._progress, self._task, self._n_fit = progress, task, n_fit
        self._done = 0.0  # of the step
        self.name = ""  # of the fit that is made now

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Task]:
        """Start an inner fit of ``total`` epochs; what it advances is a part of the step."""
        del name
        yield _Part(self, 1.0 / (self._n_fit * total) if total else 0.0)

    def log(self, message: str) -> None:
        """Report a line, with the name of the inner fit."""
        self._progress.log(f"{message} ({self.name})")

    def advance(self, n: float, **fields: object) -> None:
        """Advance the step by a share ``n`` of it."""
        self._done += n
        self._task.advance(n, **fields)

    def finish(self) -> None:
        """End the step: fits that converged early, or failed, made no more of it."""
        left, self._done = 1.0 - self._done, 0.0
        self._task.advance(left)


class _Part:
    def __init__(self, step: InnerProgress, share: float) -> None:
        self._step, self._share = step, share

    def advance(self, n: float = 1, **fields: object) -> None:
        self._step.advance(n * self._share, **fields)
