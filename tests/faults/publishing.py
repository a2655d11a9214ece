"""Failures of publishing on an object store: killed, two at once, a store that fails.

A trial publishes a prepared run, so that it takes a second or two. It judges what the command told,
that every version is there, whole and once, and what one more, undisturbed command makes of it. A
reader in a process of its own reads the pointer and its version all the time.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml

from pipeline.publishing.version_store import Version
from pipeline.publishing.versions import open_versions
from pipeline.storage.files import write_text
from pipeline.storage.location import Location, Storage
from tests.faults.bench import ROOT, Ended, Processes, Run
from tests.faults.kinds import GO_ON, Trial, fault
from tests.pipeline.publishing.finished import MINIMAL, build, leave_run, report
from tests.pipeline.storage.s3_server import KEYS, Weather, request, stormy

PATH, KEEP = "/faults/my/published", 3
AWAY = r"error: .*(cannot be [a-z ]+ after \d+ attempts|changed while it was read).*"
PASSES, STORM = 75, ("error", "reset", "late_reset", "short")


class Moment(Weather):
    """Harm at one request: a signal to the process before or after it is passed on, or the end."""

    def __init__(self, number: int = -1, *, signal: int = 0, passed: bool = False) -> None:
        super().__init__()
        self.number, self.signal, self.passed = number, signal, passed
        self.run: Run | None = None

    def strike(self, method: str, path: str) -> str:
        """See `Weather`."""
        at = len(self.log)
        self.log.append((method, path, "pass"))
        if self.number < 0 or at < self.number:
            return "pass"
        if not self.signal:
            return "reset"
        if at == self.number:
            while self.run is None:  # it asks before it is known here
                time.sleep(0.001)
            self.run.kill(self.signal)
        return "pass" if self.passed or at > self.number else "reset"


class StoreBench(Processes):
    """A store, publishers with a directory each, and a reader in the background.

    Parameters
    ----------
    directory : Path
        For everything.
    reader : bool
        False where nobody asks what it has read: it never rests.
    """

    def __init__(self, directory: Path, *, reader: bool = True) -> None:
        super().__init__(directory)
        self._reader: subprocess.Popen[str] | None = None
        self._reading = reader
        self.stamp, self.n_request = 0, 0
        self.seen: dict[str, str] = {}  # of every version ever listed: its fingerprint

    def __enter__(self) -> Self:
        """Start the servers and the reader; publish once, to count the requests."""
        super().__enter__()
        self._stack = ExitStack()
        os.environ.update(KEYS)
        self.server = self._stack.enter_context(_program("tests.pipeline.storage.s3_server"))
        assert self.server.stdout is not None
        self.endpoint = self.server.stdout.readline().strip()
        request(self.endpoint, "PUT", "/faults")
        if self._reading:
            reader = _program("tests.faults.reader", self.endpoint, PATH)
            self._reader = self._stack.enter_context(reader)
        for _ in range(KEEP):
            still = Moment()
            with self.publishing("a", still) as run:
                ended = run.wait()
            if ended.status != 0:
                raise RuntimeError("\n".join(["the undisturbed publication failed", *ended.lines]))
        self.n_request = len(still.log)
        self.check(Trial(""))
        return self

    def __exit__(self, *exc: object) -> None:
        """End everything."""
        super().__exit__(*exc)
        self._stack.close()

    def reads(self, least: int = 0) -> dict[str, Any]:
        """Let the reader make a number of reads at least; end it, return what it found."""
        assert self._reader is not None
        out, last = self._reader.stdout, "0"
        assert out is not None
        while int(last) < least:
            last = out.readline()
        rest = self._reader.communicate()[0]
        return dict(json.loads(rest.splitlines()[-1]))

    @contextmanager
    def publishing(
        self,
        name: str,
        weather: Weather,
        command: str = "publish",
        *,
        fresh: bool = True,
        **storage: Any,
    ) -> Iterator[Run]:
        """Start a publisher behind a proxy; with a map that nobody has published, if ``fresh``."""
        home = self.directory / name
        home.mkdir(exist_ok=True)
        publish = {"dir": f"s3:/{PATH}", "keep": KEEP, "compare": False}
        if fresh:
            self.stamp += 1
            config = build(home, publish=publish)
            evaluation = report() | {"stamp": self.stamp}
            leave_run(config, self.stamp / 1e4, evaluation=evaluation)
            (config.output.dir / "run.json").write_text(json.dumps({"stamp": self.stamp}))
        # One configuration, on two machines: what differs comes from their environments.
        mapping = {
            **MINIMAL,
            "publish": publish,
            "output": {"dir": "${PUBLISHER}/out"},
            "storage": {
                "endpoint": "${ENDPOINT}",
                "scratch": "${PUBLISHER}/scratch",
                "retries": 3,
                "timeout": 3,
                **storage,
            },
            "update": {"retries": 0},
        }
        path = self.directory / "disagg.yaml"
        write_text(path, yaml.safe_dump(mapping))
        with stormy(self.endpoint, weather) as endpoint:
            run = self._start(
                role="driver",
                argv=[command, str(path), "--quiet"],
                out=str(home / "out"),
                environ={**KEYS, "PUBLISHER": str(home), "ENDPOINT": endpoint},
            )
            if isinstance(weather, Moment):
                weather.run = run
            yield run

    def again(self, name: str, trial: Trial) -> None:
        """Publish once more, undisturbed: the same map has to be current then, once."""
        with self.publishing(name, Moment(), fresh=False) as run:
            ended = run.wait()
        if ended.status != 0 or ended.lines:
            trial.wrong.append(f"the command after it: status {ended.status}, {ended.lines!r}")
        self.check(trial, current=name)

    def check(self, trial: Trial, current: str = "") -> list[Version]:
        """Check that every version is whole, none is lost, and no map came twice in a row."""
        where = Location(f"s3:/{PATH}", Storage(self.endpoint, retries=0))
        store = open_versions(where)
        every, now = store.all(), store.current()
        trial.wrong += [f"{v.name}: {v.trouble}" for v in every if v.trouble]
        trial.wrong += [fault for v in every if not v.trouble for fault in v.faults()]
        numbers = [v.number for v in every]
        if numbers != sorted(set(numbers)) or now is None:
            trial.wrong.append(f"versions {numbers}, current {now}")
            return every
        for version in every:
            known = self.seen.setdefault(version.name, version.fingerprint)
            if known != version.fingerprint:
                trial.wrong.append(f"{version.name} is another map than before")
        newest = sorted(self.seen, key=lambda name: int(name[1:]))[-2:]
        lost = [name for name in newest if name not in {v.name for v in every}]
        trial.wrong += [f"{name} was published and is lost" for name in lost]
        # After another's it is a new version, as on a disk: counts that are taken back.
        maps = [v.fingerprint for v in every]
        if any(one == other for one, other in itertools.pairwise(maps)):
            trial.wrong.append("a map was published twice in a row")
        if current:
            own = (self.directory / current / "out/areas.csv").read_bytes()
            if (now.path / "areas.csv").read() != own:
                trial.wrong.append(f"current is {now.name}, not the map of {current}")
        return every


@contextmanager
def _program(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=quiet, text=True
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def _judge(bench: StoreBench, trial: Trial, ended: Ended, statuses: dict[int, str]) -> None:
    """Check status and line of a command that did not succeed, and that nothing is lost."""
    if ended.status == 0:
        if ended.lines:
            trial.wrong.append(f"told {ended.lines!r}")
    elif ended.status == -signal.SIGKILL and ended.status in statuses:
        trial.wrong += [f"told {ended.lines!r}"] if ended.lines else []
    else:
        told = statuses.get(ended.status or 0, "")
        trial.wrong += bench.check_told(ended, tuple(statuses), told=told)
    bench.check(trial)


@fault("publisher killed", 30)
def kill_publisher(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """SIGKILL at one request, which reaches the store or does not."""
    at = Moment(
        int(rng.integers(bench.n_request)), signal=signal.SIGKILL, passed=bool(rng.integers(2))
    )
    with bench.publishing("a", at) as run:
        ended = run.wait()
    trial.moment = f"request {at.number}, {'passed on' if at.passed else 'dropped'}"
    _judge(bench, trial, ended, {-signal.SIGKILL: ""})
    bench.again("a", trial)


@fault("publisher terminated", 12)
def terminate_publisher(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """SIGTERM at one request."""
    at = Moment(int(rng.integers(bench.n_request)), signal=signal.SIGTERM, passed=True)
    with bench.publishing("a", at) as run:
        ended = run.wait()
    trial.moment = f"request {at.number}"
    _judge(bench, trial, ended, {143: f"terminated{GO_ON}"})
    bench.again("a", trial)


@fault("two publishers", 24)
def two_publishers(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """Two at once, one a little later."""
    later = float(rng.uniform(0, 0.4))
    before = {v.name for v in bench.check(trial)}
    with bench.publishing("a", Moment()) as first:
        time.sleep(later)
        with bench.publishing("b", Moment()) as second:
            both = [first.wait(), second.wait()]
    trial.moment = f"{later:.3f} s apart"
    for ended in both:
        if ended.status != 0 or ended.lines:
            trial.wrong.append(f"status {ended.status}, {ended.lines!r}")
    after = bench.check(trial)
    if len({v.name for v in after} - before) != 2:
        trial.wrong.append(f"two maps made {[v.name for v in after]} of {sorted(before)}")


@fault("two publishers, one killed", 14)
def two_and_a_kill(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """The one that lives must publish, whatever the other left."""
    at = Moment(
        int(rng.integers(bench.n_request)), signal=signal.SIGKILL, passed=bool(rng.integers(2))
    )
    with bench.publishing("a", at) as first, bench.publishing("b", Moment()) as second:
        ended, other = first.wait(), second.wait()
    trial.moment = f"request {at.number} of the first"
    if other.status != 0 or other.lines:
        trial.wrong.append(f"the other: status {other.status}, {other.lines!r}")
    _judge(bench, trial, ended, {-signal.SIGKILL: ""})
    bench.again("a", trial)


@fault("requests dropped", 30)
def drop_requests(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """Errors, resets before and after the deed, half answers; the answer to the pointer's write."""
    kind, share = str(rng.choice(STORM)), float(rng.uniform(0.02, 0.5))
    weather = Weather(seed=int(rng.integers(1 << 30)), **{kind: share})
    if rng.random() < 0.3:
        kind, share = "late_reset", 1.0
        most = int(rng.integers(1, 6))  # more than are tried again, or fewer

        def pointer(method: str, path: str) -> bool:
            return method == "PUT" and "current.json" in path and weather.count(kind) < most

        weather = Weather(late_reset=1.0, only=pointer)
    with bench.publishing("a", weather) as run:
        ended = run.wait()
    if weather.count(kind):
        trial.moment = f"{kind} of {weather.count(kind)} of {len(weather.log)} requests"
    _judge(bench, trial, ended, {PASSES: AWAY})
    bench.again("a", trial)


@fault("requests delayed", 12)
def delay_requests(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """Two publishers, half of whose requests take longer."""
    seconds = float(rng.uniform(0.02, 0.2))
    slow = [Weather(slow=0.5, slow_seconds=seconds, seed=int(rng.integers(1 << 30))) for _ in "ab"]
    with bench.publishing("a", slow[0]) as first, bench.publishing("b", slow[1]) as second:
        both = [first.wait(), second.wait()]
    trial.moment = f"{seconds:.3f} s each"
    trial.wrong += [f"status {e.status}, {e.lines!r}" for e in both if e.status != 0 or e.lines]
    bench.check(trial)


@fault("requests later than their sender", 8)
def overdue_requests(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """The write of the pointer comes after the time limit: it is repeated, and both arrive."""

    def first_write(method: str, path: str) -> bool:
        return method == "PUT" and "current.json" in path and not weather.count("slow")

    weather = Weather(slow=1.0, slow_seconds=float(rng.uniform(1.1, 3.0)), only=first_write)
    with bench.publishing("a", weather, timeout=1) as run:
        ended = run.wait()
    trial.moment = f"{weather.slow_seconds:.2f} s late"
    _judge(bench, trial, ended, {PASSES: AWAY})
    bench.again("a", trial)


@fault("store gone", 12)
def lose_store(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """From one request on nothing answers."""
    at = Moment(int(rng.integers(bench.n_request)))
    with bench.publishing("a", at, retries=1) as run:
        ended = run.wait()
    trial.moment = f"from request {at.number} on"
    _judge(bench, trial, ended, {PASSES: AWAY})
    bench.again("a", trial)


@fault("rollback beside a publisher", 12)
def roll_back_beside(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """Somebody takes back a map while another is published: both are done, in one order."""
    later = float(rng.uniform(0, 0.5))
    with bench.publishing("a", Moment()) as first:
        time.sleep(later)
        with bench.publishing("b", Moment(), "rollback", fresh=False) as second:
            both = [first.wait(), second.wait()]
    trial.moment = f"{later:.3f} s apart"
    trial.wrong += [f"status {e.status}, {e.lines!r}" for e in both if e.status != 0 or e.lines]
    every = bench.check(trial)
    own = (bench.directory / "a/out/areas.csv").read_bytes()
    if not any((v.path / "areas.csv").read() == own for v in every):
        trial.wrong.append("the published map is lost")


@fault("store without conditions", 4)
def no_conditions(bench: StoreBench, rng: np.random.Generator, trial: Trial) -> None:
    """A store that takes no notice of conditions is refused, and nothing is written."""
    before = [v.name for v in bench.check(trial)]
    with bench.publishing("a", Weather(deaf=True)) as run:
        ended = run.wait()
    trial.moment = "all the time"
    told = r"error: publish\.dir: .*the store does not honour conditional writes; .*"
    _judge(bench, trial, ended, {2: told})
    if [v.name for v in bench.check(trial)] != before or ended.status != 2:
        trial.wrong.append("it was published all the same")
