"""Signals that end a run: SIGTERM and SIGHUP stop it cleanly, as Ctrl-C does.

systemd, Kubernetes and Slurm send SIGTERM and, some seconds later, SIGKILL; a closed terminal sends
SIGHUP. By default both end Python at once. Here they raise a KeyboardInterrupt, so that partial
files are removed, workers end, and the user sees how to continue.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_DEFERRED = (signal.SIGINT, *_ENDING)
#: systemd and `timeout` signal a parent, which passes it on, and the child itself: one is meant.
_SAME_S = 1.0
_AGAIN_S = 0.01


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP ended the run.

    Attributes
    ----------
    status : int
        Exit status by the shell's convention: 128 plus the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def signals_raise() -> Iterator[list[Terminated]]:
    """Make SIGTERM and SIGHUP raise :class:`Terminated` in the main thread.

    A signal that is ignored (``nohup``) stays ignored. Other threads see no change. Where Python
    drops the exception because a finalizer ran just then, the signal is sent once more.

    Yields
    ------
    list of Terminated
        What has been raised so far: a library may have made another exception of it.
    """
    raised: list[Terminated] = []
    if threading.current_thread() is not threading.main_thread():
        yield raised
        return

    last = float("-inf")

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal last
        del frame
        before, last = last, time.monotonic()
        if last - before > _SAME_S:
            raised.append(Terminated(number))
            raise raised[-1]

    def dropped(given: sys.UnraisableHookArgs) -> None:
        nonlocal last
        if not isinstance(given.exc_value, KeyboardInterrupt):
            report(given)
            return
        status = getattr(given.exc_value, "status", 128 + signal.SIGINT)
        last = float("-inf")
        # Not at once: this function may not raise either.
        threading.Timer(_AGAIN_S, send, (status - 128,)).start()

    def send(number: int) -> None:
        if sys.unraisablehook is dropped:  # the block has not ended meanwhile
            signal.pthread_kill(main_thread, number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    report, main_thread = sys.unraisablehook, threading.get_ident()
    try:
        sys.unraisablehook = dropped
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, end)
        yield raised
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP to the end of the block; for a few renames only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _DEFERRED}
    # Only handlers of Python: SIG_DFL and SIG_IGN cannot be called afterwards.
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
