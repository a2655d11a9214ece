"""Stop a long computation in another thread: signals reach the main thread alone.

Whoever starts threads says when they are to stop (:func:`stoppable`); what may take long asks now
and then (:func:`stop_if_asked`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_LOCAL = threading.local()


class Stopped(BaseException):
    """The results of this thread are not wanted; no Exception, so that handlers let it pass."""


@contextlib.contextmanager
def stoppable(stopped: Callable[[], bool]) -> Iterator[None]:
    """Let :func:`stop_if_asked` end this thread's work within the context once this is true."""
    before = getattr(_LOCAL, "stopped", None)
    _LOCAL.stopped = stopped
    try:
        yield
    finally:
        _LOCAL.stopped = before


def stop_if_asked() -> None:
    """Raise :class:`Stopped` if the results of this thread are no longer wanted."""
    stopped = getattr(_LOCAL, "stopped", None)
    if stopped is not None and stopped():
        raise Stopped
