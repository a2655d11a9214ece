"""The bench that trials are made on: starts processes, waits for them, judges what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from tests.faults.country import EPOCHS, Country, Digests, digests, is_whole, visible

ROOT = Path(__file__).parents[2]
PATIENCE = 100.0  # seconds after which a process counts as hung
TOKEN = "DISAGG_FAULT_TRIAL"  # an environment variable that every process of a trial inherits


@dataclass
class Ended:
    """How a run ended."""

    status: int | None  # None: it hung
    lines: list[str]  # on standard error


@dataclass
class Run:
    """A process under way."""

    bench: Processes
    pid: int
    stderr: Path
    started: float = field(default_factory=time.monotonic)

    def kill(self, number: int = signal.SIGKILL, *, group: bool = False) -> None:
        """Send a signal, to the whole process group if asked, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self.bench.poll(self.pid)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Wait for the end; a run that hangs is killed and has no status."""
        end = time.monotonic() + patience
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                self.kill(signal.SIGKILL, group=True)
                while self.poll() is None:
                    time.sleep(0.01)
                break
            time.sleep(0.01)
        text = self.stderr.read_text(encoding="utf-8", errors="replace")
        return Ended(status, text.splitlines())


class Processes:
    """One server of processes, and one trial after the other.

    Parameters
    ----------
    directory : Path
        For everything; should be on a disk with some 100 MB.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ended: dict[int, int] = {}
        self._number = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Start the server."""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver", "serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # GeoPackages bear the time at which they were written.
            env={
                **os.environ,
                "OGR_CURRENT_DATE": "2020-01-01T00:00:00Z",
                "DISAGG_REVISION": "trials",  # else `.dirty` once results are in the checkout
                TOKEN: str(os.getpid()),
            },
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        """End every process that this bench started."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()

    def processes(self) -> list[psutil.Process]:
        """List the processes of trials that still run, without the server."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mine = process.environ().get(TOKEN) == str(os.getpid())
                if mine and process.pid != self._server.pid and not _is_zombie(process):
                    found.append(process)
        return found

    def _start(self, **request: Any) -> Run:
        self._number += 1
        stderr = self.directory / f"stderr-{self._number % 20}"
        stderr.unlink(missing_ok=True)
        answer = self._ask({"op": "start", "stdout": os.devnull, "stderr": str(stderr), **request})
        self._ended.pop(int(answer["pid"]), None)  # a number that has been used before
        return Run(self, int(answer["pid"]), stderr)

    def poll(self, pid: int) -> int | None:
        """Return the exit status of a process, None while it runs."""
        if pid not in self._ended:
            status = self._ask({"op": "poll", "pid": pid})["status"]
            if status is None:
                return None
            self._ended[pid] = status
        return self._ended[pid]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return dict(json.loads(self._server.stdout.readline()))

    def check_told(self, ended: Ended, statuses: tuple[int, ...], *, told: str) -> list[str]:
        """Check the status, and that standard error has exactly one line, as a pattern has it."""
        wrong = []
        if ended.status not in statuses:
            wrong.append(f"exit status {ended.status}, not one of {statuses}")
        if len(ended.lines) != 1 or not re.fullmatch(told, ended.lines[0]):
            wrong.append(f"told {ended.lines[:12]!r}, not one line like {told!r}")
        return wrong

    def check_processes(self) -> list[str]:
        """Check that no process of the trial is left; workers get a moment to notice."""
        end = time.monotonic() + 30
        while left := self.processes():
            if time.monotonic() > end:
                for process in left:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                return [f"{len(left)} processes are left behind"]
            time.sleep(0.1)
        return []


class Bench(Processes):
    """A country, and what undisturbed runs leave of it.

    Parameters
    ----------
    directory : Path
        For everything; should be on a disk with some 100 MB.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.out = directory / "out"  # always the same: nothing may depend on it, nothing does
        self.country = Country(directory / "country")
        self.expected: dict[bool, Digests] = {}
        self.counts: dict[str, int] = {}
        self.seconds = 0.0

    def __enter__(self) -> Self:
        """Start the server and make the undisturbed run."""
        super().__enter__()
        self.clear("finished-False")
        told = json.loads((self.directory / "report.json").read_text())
        self.counts, self.seconds = told["counts"], told["seconds"]
        return self

    def clear(self, start: str | None = None) -> None:
        """Empty the output directory, or put there what an undisturbed run left.

        ``start`` is ``ingested``, ``finished-False`` (of the configuration) or ``finished-True``
        (of the other one).
        """
        shutil.rmtree(self.out, ignore_errors=True)
        if start is None:
            return
        if not (self.directory / start).exists():
            other = start == "finished-True"
            command = "ingest" if start == "ingested" else "run"
            first = start == "finished-False"  # its changes and seconds are those of all
            ended = self.start(self.config(other=other), command, report=first).wait()
            if ended.status != 0:
                raise RuntimeError("\n".join([f"the undisturbed {command} failed", *ended.lines]))
            if command == "run":
                self.expected[other] = digests(self.out)
            self.out.rename(self.directory / start)
        shutil.copytree(self.directory / start, self.out)

    def config(self, *, other: bool = False, **compute: Any) -> Path:
        """Write the configuration of a run."""
        return self.country.config(self.directory / "disagg.yaml", self.out, other=other, **compute)

    def start(
        self,
        config: Path,
        command: str = "run",
        *options: str,
        report: bool = False,
        at: dict[str, Any] | None = None,
        file_bytes: int | None = None,
        quiet: bool = True,
    ) -> Run:
        """Start ``disagg COMMAND CONFIG``."""
        quiet_option = ["--quiet"] if quiet else []
        return self._start(
            role="driver",
            argv=[command, str(config), *quiet_option, *options],
            out=str(self.out),
            report=str(self.directory / "report.json") if report else None,
            at=at,
            file_bytes=file_bytes,
        )

    def start_scheduler(self, port: int) -> Run:
        """Start a Dask scheduler."""
        return self._start(role="scheduler", port=port)

    def start_worker(self, scheduler: str, port: int = 0) -> Run:
        """Start a Dask worker without a nanny."""
        scratch = str(self.directory / "scratch")
        return self._start(role="worker", scheduler=scheduler, scratch=scratch, port=port)

    # -- judging -----------------------------------------------------------------------------

    def check_visible(self, allowed: tuple[bool, ...]) -> list[str]:
        """Check that whatever can be seen is whole: bit for bit what an undisturbed run leaves."""
        wrong = []
        for name, digest in digests(self.out).items():
            if not visible(name):
                continue
            if name.endswith(".npz") and "checkpoint" in name:
                if not is_whole(self.out / name):
                    wrong.append(f"{name} can be seen and is half a checkpoint")
            elif name in ("work/stages.json", "run.json"):
                try:
                    json.loads((self.out / name).read_text())
                except ValueError:
                    wrong.append(f"{name} can be seen and is half a file")
            elif digest not in [self.expected[other].get(name) for other in allowed]:
                wrong.append(f"{name} can be seen and is none of an undisturbed run's")
        return wrong

    def check_complete(self, *, other: bool = False) -> list[str]:
        """Check that everything is there, bit for bit, and nothing else."""
        found, expected = digests(self.out), self.expected[other]
        wrong = [f"{name} is missing" for name in expected if name not in found]
        wrong += [f"{name} is left behind" for name in found if name not in expected]
        wrong += [
            f"{name} differs" for name in found if expected.get(name, found[name]) != found[name]
        ]
        return wrong

    @property
    def finished(self) -> Path:
        """The record of stages that an undisturbed run leaves."""
        return self.directory / "finished-False/work/stages.json"

    def standing(self) -> tuple[int, tuple[str, ...]]:
        """Return the epoch of the newest checkpoint and the stages that are done."""
        epochs = [
            int(path.name.split("-")[1])
            for path in (self.out / "work/checkpoint").glob("epoch-*.npz")
            if is_whole(path)
        ]
        try:
            record = json.loads((self.out / "work/stages.json").read_text())
        except (OSError, ValueError):
            record = {}
        # Stages of this configuration: another one's results may stand here to be replaced.
        expected = json.loads(self.finished.read_text())
        return max(epochs, default=0), tuple(
            name for name, entry in record.items() if _same_inputs(entry, expected[name])
        )

    def recover(self, *, other: bool = False, lost: bool = False, **compute: Any) -> list[str]:
        """Run again, undisturbed: everything has to be there then, and nothing done twice.

        Parameters
        ----------
        other : bool
            Which configuration.
        lost : bool
            True where the trial damaged what was done, so that it may be done again.
        """
        epoch, done = self.standing()
        ended = self.start(self.config(other=other, **compute), quiet=False).wait()
        text = "\n".join(ended.lines)
        if ended.status != 0:
            return [f"the run after it: status {ended.status}, {ended.lines[-12:]!r}"]
        wrong = []
        if not lost:
            if epoch and "fit: up to date" not in text:
                went_on = re.findall(r"resumes from the checkpoint of epoch (\d+)", text)
                # After the last epoch there is nothing to go on with.
                if epoch < EPOCHS and str(epoch) not in went_on:
                    wrong.append(f"epoch {epoch} stood in a checkpoint; went on from {went_on}")
            wrong += [
                f"{stage} was done, and was done again"
                for stage in done
                if f"{stage}: up to date, skipped" not in text
            ]
        return wrong + self.check_complete(other=other)


def _same_inputs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    # The model's fingerprint has the seconds of each epoch in it.
    return all(one["inputs"].get(k) == v for k, v in other["inputs"].items() if k != "work/model")


def _is_zombie(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_ZOMBIE


@contextlib.contextmanager
def small_disk(path: Path, n_byte: int) -> Iterator[Any]:
    """Mount a tmpfs of some size at a directory; gives a function that changes the size.

    Raises
    ------
    PermissionError
        If mounting is not allowed here.
    """
    path.mkdir(parents=True, exist_ok=True)

    def mount(*options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", *options, "disagg-trial", str(path)],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise PermissionError(done.stderr.decode().strip())

    try:
        mount("-o", f"size={n_byte}")
    except FileNotFoundError as error:
        raise PermissionError(str(error)) from error
    try:
        yield lambda size: mount("-o", f"remount,size={size}")
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
