"""Child processes that end with their parent, and that are restarted if they end before it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from pipeline.core.errors import PipelineError
from pipeline.core.supervised import end_with_parent

STOP_S = 20.0  # for all together: a service manager kills after 30
START_S = 180.0
CHECK_S = 0.5
#: Seconds before a restart: doubles with each within `RECENT_S`.
FIRST_WAIT_S, LONGEST_WAIT_S, RECENT_S = 1.0, 60.0, 600.0


class StartError(PipelineError, RuntimeError):
    """A process did not start."""


@dataclass
class ChildProcess:
    """A process of a group of its own, so that Ctrl-C reaches only the parent, which stops all.

    Attributes
    ----------
    name : str
        For messages.
    command : sequence of str
    environ : mapping of str to str
        By default this process's own.
    alone : bool
        Whether nothing of its group may outlive it: a server's own children keep its port.
    say : callable, optional
        Receives each line that it writes; by default they go where this process's own go.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    alone: bool = False
    say: Callable[[str], None] | None = None
    _process: subprocess.Popen[str] | None = None
    _deaths: list[float] = field(default_factory=list)
    _due: float | None = None

    def __enter__(self) -> Self:
        """Start the process."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process."""
        stop_all([self])

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process."""
        self._due = None
        self._process = subprocess.Popen(
            self.command,
            env=dict(self.environ),
            start_new_session=True,
            stdout=None if self.say is None else subprocess.PIPE,
            stderr=None if self.say is None else subprocess.STDOUT,
            text=True,
            errors="replace",
            # If this process is killed, the system ends its children.
            preexec_fn=functools.partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )

        if self.say is not None:  # until all that have its output end: runs of a dead worker, too
            threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None and self.say is not None:
            with process.stdout as lines:
                for line in lines:
                    self.say(line.rstrip("\n"))

    def status(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return None if self._process is None else self._process.poll()

    def revive(self, now: float) -> str | None:
        """Restart the process if it has ended; return a line if it has just been found so.

        Parameters
        ----------
        now : float
            Of a clock that only moves on.
        """
        if self._due is not None:
            if now >= self._due:
                self.start()
            return None
        status = self.status()
        if status is None:
            return None
        if self.alone:
            self._signal_group(signal.SIGKILL)
        self._deaths = [each for each in self._deaths if now - each < RECENT_S] + [now]
        wait = min(FIRST_WAIT_S * 2.0 ** (len(self._deaths) - 1), LONGEST_WAIT_S)
        self._due = now + wait
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        again = f" ({len(self._deaths)} times in {RECENT_S / 60:.0f} minutes)"
        return (
            f"the {self.name} ended {how}{again if len(self._deaths) > 1 else ''}; it is "
            f"started again in {wait:.0f} s"
        )

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.status() is None and self._process is not None:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait until a moment of the clock, then kill what is left of its group."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def supervise(children: Sequence[ChildProcess], tell: Callable[[ChildProcess, str], None]) -> None:
    """Restart children that end, until a signal comes.

    Parameters
    ----------
    children : sequence of ChildProcess
    tell : callable
        Receives a child that has ended, and a line about it.
    """
    while True:
        for child in children:
            line = child.revive(time.monotonic())
            if line is not None:
                tell(child, line)
        time.sleep(CHECK_S)


def stop_all(children: Sequence[ChildProcess]) -> None:
    """End children within `STOP_S` seconds; the last first."""
    deadline = time.monotonic() + STOP_S
    for child in reversed(children):
        child.terminate()
    for child in reversed(children):
        child.end(deadline)


def end_on_signals() -> None:
    """Handle SIGTERM as Ctrl-C, so that the children stop, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def is_free(host: str, port: int) -> bool:
    """Return whether nobody listens at a port of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def wait_for_url(url: str, child: ChildProcess | None = None, seconds: float = START_S) -> None:
    """Wait until a server answers.

    Raises
    ------
    StartError
        If it does not within ``seconds``, or its process ends.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            if child is not None and child.status() is not None:
                found = f"{child.name}: ended with status {child.status()}; see the lines above"
                raise StartError(found) from None
            if time.monotonic() > end:
                found = f"{url}: no answer after {seconds:g} s; see the log lines above"
                raise StartError(found) from None
        time.sleep(0.3)
