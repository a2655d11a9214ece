"""The failures that are provoked, one function each; how often, :data:`KINDS` says.

A trial brings the output directory to a start, lets ``disagg`` run, does it harm at a moment drawn
from its seed, and judges three times: what the run told and its exit status; what can be seen then;
and what one more, undisturbed run makes of it, compared bit for bit with a run that nothing ever
happened to. Another module adds its own with :func:`fault`, and is named in :data:`MODULES`.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.faults.bench import Bench, Processes, Run, small_disk
from tests.faults.driver import PLACES

MODULES = ("tests.faults.flips", "tests.faults.clusters", "tests.faults.publishing")
GO_ON = r".*; finished work is kept; continue with `disagg \w+ .*`"
FULL = r"error: .+: (no space left on device|file too large); .+, then continue with `disagg .*`"


class NotPossibleError(Exception):
    """This machine does not allow the failure to be provoked."""


@dataclass
class Trial:
    """One failure, provoked once.

    Attributes
    ----------
    kind : str
    moment : str
        When, in words; empty where it never came, and the trial does not count.
    wrong : list of str
        Everything that is not as it should be; empty where all is well.
    """

    kind: str
    moment: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Kind:
    """A failure: how it is provoked, and of how many in a hundred trials."""

    name: str
    weight: int
    provoke: Callable[[Any, np.random.Generator, Trial], None]

    @property
    def group(self) -> str:
        """``cluster``, ``publishing``, or ``driver``: one process, its disk and its files."""
        module = self.provoke.__module__.rpartition(".")[2]
        return {"clusters": "cluster", "publishing": "publishing"}.get(module, "driver")


KINDS: dict[str, Kind] = {}
Provoke = Callable[[Any, np.random.Generator, Trial], None]  # of the bench of its group


def fault(name: str, weight: int) -> Callable[[Provoke], Provoke]:
    """Register a failure."""

    def register(provoke: Provoke) -> Provoke:
        KINDS[name] = Kind(name, weight, provoke)
        return provoke

    return register


def load_kinds() -> dict[str, Kind]:
    """Return all failures, those of other modules too."""
    for module in MODULES:
        importlib.import_module(module)
    return KINDS


def run_trial(bench: Processes, kind: str, seed: list[int], tries: int = 8) -> Trial:
    """Provoke a failure; a moment that does not come is drawn again.

    Raises
    ------
    NotPossibleError
        If this machine does not allow it.
    """
    rng = np.random.default_rng(seed)
    started = time.monotonic()
    for _ in range(tries):
        trial = Trial(kind)
        load_kinds()[kind].provoke(bench, rng, trial)
        if trial.moment or trial.wrong:
            break
    trial.wrong += bench.check_processes()
    trial.seconds = time.monotonic() - started
    return trial


# -- the driver ends -----------------------------------------------------------------------------


def signalled(
    bench: Bench, rng: np.random.Generator, trial: Trial, number: int, place: str = ""
) -> tuple[Run, bool]:
    """Start a run that gets a signal at a drawn moment; return it, and whether the fit is another.

    Half of the runs find nothing there, half the finished run of another configuration, whose
    results theirs replace. Half of the moments are places, half times.
    """
    over = bool(rng.integers(2))
    bench.clear("finished-True" if over else None)
    if place or rng.integers(2):
        chosen = place or str(rng.choice(PLACES))
        at = {"place": chosen, "number": int(rng.integers(bench.counts[chosen])), "signal": number}
        run = bench.start(bench.config(), at=at)
        trial.moment = f"change {at['number']} of {at['place']}"
    else:
        share = float(rng.uniform(0.02, 0.98))
        run = bench.start(bench.config())
        time.sleep(share * bench.seconds)
        run.kill(number)
        trial.moment = f"{share:.3f} of the run"
    trial.moment += " over another's results" if over else ""
    return run, over


def judge_signal(
    bench: Bench, rng: np.random.Generator, trial: Trial, number: int, status: int, place: str = ""
) -> None:
    """End a run by a signal; judge what it told and left, and what one more run makes of it."""
    run, over = signalled(bench, rng, trial, number, place)
    ended = run.wait()
    # It came too late: all was done, and the interpreter perhaps on its way out, deaf to signals
    # (or, threads, one change fewer was made).
    late = ended.status == -number and not ended.lines and not bench.check_complete()
    if ended.status == 0 or late:
        trial.moment = ""
        return
    if number == signal.SIGKILL:
        if ended.status != -number or ended.lines:
            trial.wrong.append(f"status {ended.status}, told {ended.lines!r}")
    else:
        word = "interrupted" if number == signal.SIGINT else "terminated"
        trial.wrong += bench.check_told(ended, (status,), told=f"{word}{GO_ON}")
    trial.wrong += bench.check_visible((False, True) if over else (False,))
    trial.wrong += bench.recover()


@fault("driver killed", 26)
def kill_driver(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """SIGKILL, as the kernel does when memory is gone."""
    judge_signal(bench, rng, trial, signal.SIGKILL, -signal.SIGKILL)


@fault("driver terminated", 12)
def terminate_driver(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """SIGTERM, as systemd, Kubernetes and Slurm send it."""
    judge_signal(bench, rng, trial, signal.SIGTERM, 143)


@fault("driver interrupted", 4)
def interrupt_driver(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Ctrl-C."""
    judge_signal(bench, rng, trial, signal.SIGINT, 130)


# -- the disk is full ----------------------------------------------------------------------------


@fault("disk full", 12)
def fill_disk(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A small file system, that is made larger afterwards."""
    # Evenly over what a run needs at its height: a full disk meets every stage.
    n_byte = int(rng.integers(4096, 1_400_000))
    bench.clear()
    try:
        with small_disk(bench.out, n_byte) as resize:
            ended = bench.start(bench.config()).wait()
            if ended.status == 0:
                return
            trial.moment = f"{n_byte} bytes of disk"
            trial.wrong += bench.check_told(ended, (2,), told=FULL)
            trial.wrong += bench.check_visible((False,))
            resize(64_000_000)
            trial.wrong += bench.recover()
    except PermissionError as error:
        raise NotPossibleError(str(error)) from error


@fault("file too large", 6)
def limit_files(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A limit on the size of files: what a full disk is to somebody who may not mount one."""
    over = bool(rng.integers(2))
    bench.clear("finished-True" if over else None)
    n_byte = int(np.exp(rng.uniform(np.log(2048), np.log(120_000))))
    ended = bench.start(bench.config(), file_bytes=n_byte).wait()
    if ended.status == 0:
        return
    trial.moment = f"files of at most {n_byte} bytes" + (" over another's results" if over else "")
    trial.wrong += bench.check_told(ended, (2,), told=FULL)
    trial.wrong += bench.check_visible((False, True) if over else (False,))
    trial.wrong += bench.recover()


def wait_for(condition: Callable[[], Any], run: Run, seconds: float = 60) -> bool:
    """Wait until a condition holds; False where the run ended first."""
    end = time.monotonic() + seconds
    while not condition():
        if run.poll() is not None or time.monotonic() > end:
            return False
        with contextlib.suppress(InterruptedError):
            time.sleep(0.002)
    return True
