"""Signals that end a run: all of them stop it cleanly, as Ctrl-C does.

systemd, Kubernetes and Slurm send SIGTERM and, some seconds later, SIGKILL; a closed terminal sends
SIGHUP. Python dies of both on the spot. Here they raise what Ctrl-C raises, so that whatever is
half written goes, workers end, and the user is told how to go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_DEFERRED = (signal.SIGINT, *_ENDING)


class Terminated(KeyboardInterrupt):
    """The run was told to end by a signal other than Ctrl-C's.

    Attributes
    ----------
    status : int
        Exit status by the shell's convention: 128 and the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def ending_raises() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise :class:`Terminated` in the main thread.

    One that is ignored stays so: ``nohup`` asks for it. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise Terminated(number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def endings_wait() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back until the block is done: for a few renames, no more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _DEFERRED}
    # Handlers of Python's alone: one that is the system's, or ignored, would not come back.
    caught = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in caught:
            signal.signal(number, lambda *given: held.append(given))
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)
        if held:
            caught[signal.Signals(held[0][0])](*held[0])
