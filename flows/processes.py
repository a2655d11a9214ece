"""Child processes that end with their parent."""

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


class StartError(PipelineError, RuntimeError):
    """A process did not start."""


class ChildProcess:
    """A process that is terminated, or killed after `STOP_S` seconds, when the block ends.

    Parameters
    ----------
    name : str
        For messages.
    command : sequence of str
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self._command = name, list(command)

    def __enter__(self) -> Self:
        """Start the process in its own group: Ctrl-C reaches only the parent, which stops all."""
        self._process = subprocess.Popen(self._command, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process."""
        if self._process.poll() is None:
            self._process.terminate()  # background processes ignore SIGINT
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self) -> int:
        """Wait until the process ends or Ctrl-C arrives; return the exit status."""
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            return 0


def end_on_signals() -> None:
    """Handle SIGTERM as Ctrl-C, so that the children stop, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def wait_for_url(url: str, seconds: float = START_S) -> None:
    """Wait until a server answers.

    Raises
    ------
    StartError
        If it does not within ``seconds``.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > end:
                found = f"{url}: no answer after {seconds:g} s; see the log lines above"
                raise StartError(found) from None
        time.sleep(0.3)
