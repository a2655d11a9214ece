"""Processes that run trials: native code may crash or hang."""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fuzz.trial import run_trial

MEMORY = 8 << 30  # bytes of address space: an absurd size must not take the machine with it
DEAD_S = 150.0  # native code ignores the alarm of a trial


class Worker:
    """A process that runs one trial after another, and is replaced when it dies or hangs."""

    def __init__(self, template: Path) -> None:
        self._template, self.busy = template, False
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._template), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, seed: str, family: str, whole: bool) -> None:
        """Begin a trial."""
        self.seed, self.family, self.busy, self._since = seed, family, True, time.monotonic()
        self._pipe.send((seed, family, whole))

    def result(self) -> dict[str, Any] | None:
        """Return the trial, also if it killed its process; None while it runs."""
        what = ""
        if self._pipe.poll():
            try:
                trial: dict[str, Any] = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join()
                what = f"the process died with status {self._process.exitcode}"
            else:
                self.busy = False
                return trial
        elif time.monotonic() - self._since > DEAD_S:
            what = f"no answer within {DEAD_S:g} s, and deaf to the alarm"
        if not what:
            return None
        self.stop()
        self._start()
        self.busy = False
        return {
            "seed": self.seed, "done": [self.family], "statuses": {}, "wrong": [what],
            "seconds": round(time.monotonic() - self._since, 2),
        }  # fmt: skip

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _work(pipe: Connection, template: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            seed, family, whole = pipe.recv()
        except EOFError:
            return
        pipe.send(asdict(run_trial(seed, template, family, whole=whole)))
