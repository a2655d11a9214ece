"""``disagg`` typed in a process of its own: forked from one with its imports, which cost seconds.

What it shares with a process that a shell starts is all but those imports: arguments, environment,
signals, the supervising parent, the exit status. One at least is started by Python itself, in
``tests/pipeline/cli/test_exit_status.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preloaded"])


class Command:
    """``disagg`` with some words, under way in the working directory of this process.

    Parameters
    ----------
    *words
    code : str
        What to run instead, with these words in ``sys.argv``.
    """

    def __init__(self, *words: object, code: str = "") -> None:
        self._said = Path(tempfile.mkdtemp(prefix="said-"))
        given = list(map(str, words)), dict(os.environ), os.getcwd(), self._said, code
        self._process: Any = FORKS.Process(target=_be, args=given)
        self._process.start()
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        self._process.join()

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        found: int | None = self._process.exitcode
        return found

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Wait until it has printed something."""
        end = time.monotonic() + timeout
        while not (self._said / "out").exists() or text not in (self._said / "out").read_text():
            assert time.monotonic() < end
            time.sleep(0.01)

    def wait(self, timeout: float = 100.0) -> CompletedProcess[str]:
        """Wait for the end; what it said is there then."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            self.kill()
            raise TimeoutError
        out, errors = ((self._said / name).read_text() for name in ("out", "errors"))
        shutil.rmtree(self._said)
        return CompletedProcess("disagg", status, out, errors)


def disagg(*words: object) -> CompletedProcess[str]:
    """Type a command, and wait for its end."""
    return Command(*words).wait()


def _be(
    words: list[str], environment: dict[str, str], directory: str, said: Path, code: str
) -> None:
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # what nohup has ignored is passed on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "out"), (2, "errors")):
        descriptor = os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["disagg", *words]
    status = 0
    if code:
        exec(code, {"__name__": "__main__"})
    else:
        from pipeline.cli.main import main

        status = main()
    sys.stdout.flush()
    sys.exit(status)
