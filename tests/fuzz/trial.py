"""One trial: spoil a project, run commands on it, and judge what they said."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.mutations import spoil
from tests.fuzz.project import Project

HANG_S = 60.0
STATUSES = {0, 2}  # done; bad input
COMMANDS = ("check", "ingest", "run")


class HangError(BaseException):
    """A command ran too long; no handler of ordinary errors catches it."""


@dataclass
class Trial:
    """What one trial did, and what was wrong with the answer.

    Attributes
    ----------
    seed : str
        Repeats the trial: ``python -m tests.fuzz --only SEED``.
    done : list of str
        The mutations.
    statuses : dict
        Exit status by command.
    wrong : list of str
        Empty where all is well.
    seconds : float
    """

    seed: str
    done: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_trial(seed: str, template: Path, family: str | None = None, *, whole: bool = True) -> Trial:
    """Spoil a copy of the template; run ``check``, ``ingest`` and, if ``whole``, ``run`` on it."""
    rng, trial, started = Random(seed), Trial(seed), time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="disagg-fuzz-"))
    try:
        shutil.copytree(template, directory, dirs_exist_ok=True)
        project = Project(directory)
        trial.done = spoil(project, rng, family)
        for command in COMMANDS if whole else COMMANDS[:2]:
            status = _judge(trial, command, project)
            if status != 0:
                break
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    trial.seconds = round(time.monotonic() - started, 2)
    return trial


def _judge(trial: Trial, command: str, project: Project) -> int:
    """Run a command in this process; append what is wrong with its answer."""
    status, said, trace = _run(command, project.config)
    trial.statuses[command] = status
    wrong = []
    if trace:
        wrong.append(f"{command}: {trace}")
    if status not in STATUSES and not trace:
        wrong.append(f"{command}: exit status {status}: {said[-300:]}")
    lines = [line for line in said.splitlines() if line.startswith("error:")]
    if status == 2 and not trace and not lines:
        wrong.append(f"{command}: exit status 2 without an error line: {said[-300:]}")
    wrong += [
        f"{command}: no place, finding and remedy: {line[:300]}"
        for line in lines
        if ": " not in line[7:] or "; " not in line
    ]
    if "Traceback" in said:
        wrong.append(f"{command}: a traceback on standard error: {said[-600:]}")
    if status == 2:
        left = [path.name for path in project.directory.rglob("*.partial")]
        wrong += [f"{command}: left {name}" for name in left]
    trial.wrong += wrong
    return status


def _run(command: str, config: Path) -> tuple[int, str, str]:
    """Return exit status, output and traceback of a command of ``disagg``."""
    from pipeline.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            with _time_limit(HANG_S):
                status = main([command, str(config)])
        except HangError:
            return -1, out.getvalue(), f"ran longer than {HANG_S:g} s"
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            last = traceback.format_exc().strip().splitlines()
            return 1, out.getvalue(), " | ".join(last[-7:])
    return int(status or 0), out.getvalue(), ""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
