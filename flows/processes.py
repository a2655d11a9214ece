"""Processes that live as long as the one that starts them."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Self

from pipeline.core.errors import PipelineError

STOP_S = 30.0
START_S = 180.0


class ChildError(PipelineError, RuntimeError):
    """A process did not come up, or ended by itself."""


class Child:
    """A process that is asked to end, and made to, when the block is left.

    Parameters
    ----------
    name : str
        For messages.
    command : sequence of str
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self._command = name, list(command)

    def __enter__(self) -> Self:
        """Start it, in a group of its own: Ctrl-C is ours to pass on, in order."""
        self._process = subprocess.Popen(self._command, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()  # not Ctrl-C: what runs in the background ignores that
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self) -> int:
        """Wait until it ends by itself, or we are interrupted; return its exit status."""
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            return 0


def end_on_signals() -> None:
    """Take a service manager's request to end as Ctrl-C: the children have to go, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def wait_for_url(url: str, seconds: float = START_S) -> None:
    """Wait until a server answers.

    Raises
    ------
    ChildError
        If it does not.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > end:
                found = f"{url}: nobody answers after {seconds:g} s; see the lines above"
                raise ChildError(found) from None
        time.sleep(0.3)
