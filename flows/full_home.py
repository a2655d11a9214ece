"""What child processes say, but while the disk of Prefect's directory is full one line a minute.

A server whose database cannot grow writes pages of tracebacks a second, which name no directory.
"""

from __future__ import annotations

import errno
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

EVERY_S = 60.0  # between two lines about the full disk
PROBE_S = 0.2  # between two looks at the disk
_PROBE_BYTES = 64 * 1024


class Spoken:
    """Passes lines of children on to standard error.

    Parameters
    ----------
    home : Path
        Prefect's directory.
    say : callable, optional
        Receives each line.
    clock : callable, optional
        Seconds; only moves on.
    """

    def __init__(
        self,
        home: Path,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._say, self._clock = home, say or _print, clock
        self._full, self._probed, self._told = False, float("-inf"), float("-inf")
        self._hidden = 0
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Pass a line on, or hide it while the disk is full."""
        with self._lock:
            now = self._clock()
            if now - self._probed >= PROBE_S:
                self._probed, self._full = now, is_full(self._home)
            if not self._full:
                self._told = float("-inf")
                self._say(line)
                return
            self._hidden += 1
            if now - self._told >= EVERY_S:
                self._told = now
                self._say(
                    f"serve: {self._home}: no space left on the disk of Prefect's records, and no "
                    "run starts; free some space there, or start again with PREFECT_HOME on "
                    f"another disk ({self._hidden} lines of the server, worker and watch hidden)"
                )


def is_full(directory: Path) -> bool:
    """Return whether nothing more can be written into a directory: disk, quota."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\1" * _PROBE_BYTES)
            file.flush()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
