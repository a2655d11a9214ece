"""Workers, schedulers and whole hosts that go away."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import psutil

from tests.faults.bench import Bench, Run
from tests.faults.country import EPOCHS
from tests.faults.driver import BLOCKS
from tests.faults.kinds import Trial, fault, wait_for
from tests.servers import free_port

assert BLOCKS  # workers read the blocks that ingest cut
CLUSTER = r"error: (tcp://[\d.:]+|compute\.scheduler): .+; .+"
WAIT_SECONDS = 3


@dataclass
class Cluster:
    """A scheduler and workers that stand by themselves, as on other hosts."""

    bench: Bench
    port: int
    scheduler: Run
    workers: list[Run] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return f"tcp://127.0.0.1:{self.port}"

    def add(self, n: int, port: int = 0) -> None:
        """Start workers."""
        self.workers += [self.bench.start_worker(self.address, port) for _ in range(n)]

    def lose(self, n: int) -> None:
        """Kill the workers that have been there longest."""
        for worker in self.workers[:n]:
            worker.kill()
            worker.wait()
        del self.workers[:n]


@contextlib.contextmanager
def standing_cluster(bench: Bench, n_worker: int) -> Iterator[Cluster]:
    """Start a cluster, and end it whatever happened to it."""
    port = free_port()
    cluster = Cluster(bench, port, bench.start_scheduler(port))
    try:
        cluster.add(n_worker)
        yield cluster
    finally:
        for run in (*cluster.workers, cluster.scheduler):
            run.kill()
            run.wait()


def _start_fit(bench: Bench, trial: Trial, rng: np.random.Generator, scheduler: str) -> Run | None:
    """Start a fit and come back at a moment in one of its epochs; None where it ended first."""
    bench.clear("ingested")
    config = bench.config(scheduler=scheduler, wait=WAIT_SECONDS)
    run = bench.start(config, "fit")
    epoch, after = int(rng.integers(0, EPOCHS - 1)), float(rng.uniform(0, 0.04))
    name = f"work/checkpoint/epoch-{epoch:06d}-*.npz"
    if epoch and not wait_for(lambda: any(bench.out.glob(name)), run):
        trial.wrong += [f"the fit ended early: {run.wait()}"] if run.wait().status else []
        return None
    if not epoch:
        after = float(rng.uniform(0, 3))  # while it connects, or starts
    time.sleep(after)
    trial.moment = f"{after:.3f} s into epoch {epoch + 1}"
    return run


def _judge_finished(bench: Bench, trial: Trial, run: Run) -> None:
    """Check a run that had to go on as if nothing had happened."""
    ended = run.wait()
    if ended.status != 0 or ended.lines:
        trial.wrong.append(f"status {ended.status}, told {ended.lines[:12]!r}")
    trial.wrong += bench.check_visible((False,))


@fault("worker killed", 10)
def kill_worker(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """One of two workers dies in the middle of an epoch; now and then another comes."""
    with standing_cluster(bench, 2) as cluster:
        run = _start_fit(bench, trial, rng, cluster.address)
        if run is None:
            return
        cluster.lose(1)
        if rng.integers(2):
            time.sleep(float(rng.uniform(0, 0.5)))
            cluster.add(1)
        _judge_finished(bench, trial, run)
    trial.wrong += bench.recover()


@fault("local worker killed", 2)
def kill_local_worker(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """The same where ``scheduler: processes`` watches over its workers."""
    run = _start_fit(bench, trial, rng, "processes")
    if run is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = [
            child
            for child in psutil.Process(run.pid).children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline())
        ]
        if workers:
            chosen = workers[int(rng.integers(len(workers)))]
            chosen.kill()
            trial.moment += f", worker {workers.index(chosen)} of {len(workers)}"
    _judge_finished(bench, trial, run)
    trial.wrong += bench.recover()


@fault("all workers gone, others come", 4)
def replace_workers(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A host with all workers goes; a second later others join."""
    with standing_cluster(bench, 2) as cluster:
        run = _start_fit(bench, trial, rng, cluster.address)
        if run is None:
            return
        cluster.lose(2)
        time.sleep(float(rng.uniform(0, 1)))
        cluster.add(1)
        _judge_finished(bench, trial, run)
    trial.wrong += bench.recover()


@fault("all workers gone", 3)
def lose_workers(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """And nobody comes: told after a wait."""
    with standing_cluster(bench, 2) as cluster:
        run = _start_fit(bench, trial, rng, cluster.address)
        if run is None:
            return
        cluster.lose(2)
        ended = run.wait()
        if ended.status == 0:  # it was over before
            trial.moment = ""
            return
        trial.wrong += bench.check_told(ended, (75,), told=CLUSTER)
        trial.wrong += bench.check_visible((False,))
        cluster.add(1)
        trial.wrong += bench.recover(scheduler=cluster.address, wait=30)


@fault("scheduler gone", 4)
def lose_scheduler(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Killed, or told to end."""
    with standing_cluster(bench, 1) as cluster:
        run = _start_fit(bench, trial, rng, cluster.address)
        if run is None:
            return
        number = signal.SIGKILL if rng.integers(2) else signal.SIGTERM
        cluster.scheduler.kill(number)
        trial.moment += f", by {signal.Signals(number).name}"
        ended = run.wait()
        if ended.status == 0:
            trial.moment = ""
            return
        trial.wrong += bench.check_told(ended, (75,), told=CLUSTER)
        trial.wrong += bench.check_visible((False,))
    trial.wrong += bench.recover()


@fault("driver killed with its workers", 2)
def kill_driver_of_cluster(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """The driver of ``scheduler: processes`` dies: its workers must go too."""
    run = _start_fit(bench, trial, rng, "processes")
    if run is None:
        return
    number = signal.SIGKILL if rng.integers(2) else signal.SIGTERM
    group = number == signal.SIGTERM and bool(rng.integers(2))  # as systemd and Slurm send it
    run.kill(number, group=group)
    trial.moment += f", {signal.Signals(number).name}" + (" to all" if group else "")
    ended = run.wait()
    if ended.status == 0:
        trial.moment = ""
        return
    if number == signal.SIGTERM:
        trial.wrong += bench.check_told(ended, (143,), told="terminated.*")
    trial.wrong += bench.check_visible((False,))
    trial.wrong += bench.check_processes()
    trial.wrong += bench.recover()
