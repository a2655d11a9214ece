"""One process of a trial: ``disagg`` itself, a scheduler or a worker, with a moment built in.

A moment at a *place* is the n-th time that the process is about to open a file for writing, rename
or remove one there: Python's audit events tell of each before it happens, so that a signal at that
moment is one between two system calls, and the same seed finds the same one again. What GDAL and
SQLite write in C is not told; moments by time reach those.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

PLACES = ("ingest", "checkpoint", "model", "predict", "publish", "evaluate", "record")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
BLOCKS = {"block_pixels": 150, "chunk_pixels": 64, "shard_pixels": 512}  # a tiny store has several


def place_of(event: str, path: str, out: str) -> str | None:
    """Say which part of a run a change of a file belongs to; None for one elsewhere."""
    if not path.startswith(out + "/"):
        return None
    name = path[len(out) + 1 :]
    if "stages.json" in name or "run.json" in name:
        return "record"
    if name.startswith(("work/evaluate", ".evaluation", "evaluation")):
        return "evaluate"
    if name.startswith("work/checkpoint"):
        return "checkpoint"
    if name.startswith(("work/model", "work/.model")):
        return "model"
    if name.startswith(".predict"):
        # A file that moves from the staging directory to where users look.
        moves = event == "os.rename" and name.count("/") == 1 and "/." not in name
        return "publish" if moves else "predict"
    if name.startswith(("work/bags", "work/.bags", "work/grid", "work/.grid")):
        return "ingest"
    return None


class Watch:
    """Counts changes of files by place, and sends this process a signal at one of them."""

    def __init__(self, out: str, at: dict[str, Any] | None) -> None:
        self.out, self.at = out, at
        self.counts = dict.fromkeys(PLACES, 0)
        self._lock = threading.Lock()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(args[0], str) or not (args[2] or 0) & _WRITES:
                return
        elif event not in _CHANGES:
            return
        try:
            path = os.fsdecode(args[0])
        except TypeError:  # an open file
            return
        place = place_of(event, path, self.out)
        if place is None:
            return
        with self._lock:
            number = self.counts[place]
            self.counts[place] += 1
        if self.at and (place, number) == (self.at["place"], self.at["number"]):
            os.kill(os.getpid(), self.at["signal"])


def perform(request: dict[str, Any]) -> int:
    """Be the process that a request describes; return its exit status."""
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(request.get("environ", {}))
    if request["role"] == "scheduler":
        return asyncio.run(_scheduler(request["port"]))
    if request["role"] == "worker":
        return asyncio.run(_worker(request))
    if request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], resource.RLIM_INFINITY))
    watch = Watch(request["out"], request.get("at"))
    sys.addaudithook(watch)
    import functools

    from pipeline.cli import main as cli
    from pipeline.ingest import prepare as ingest
    from pipeline.store.bag_store import StoreLayout
    from pipeline.training import dask_executor as executor

    layout = StoreLayout(**BLOCKS)
    ingest.write_bags = functools.partial(ingest.write_bags, layout=layout)
    executor.LOOK_SECONDS = 0.5
    started = time.monotonic()
    status = cli.main(request["argv"])
    if request.get("report"):
        told = {"counts": watch.counts, "seconds": time.monotonic() - started}
        Path(request["report"]).write_text(json.dumps(told))
    return status


async def _scheduler(port: int) -> int:
    from distributed import Scheduler

    async with Scheduler(
        host="127.0.0.1", port=port, dashboard=False, dashboard_address=None
    ) as scheduler:
        await scheduler.finished()
    return 0


async def _worker(request: dict[str, Any]) -> int:
    from distributed import Worker

    async with Worker(
        request["scheduler"], nthreads=1, host="127.0.0.1", local_directory=request["scratch"],
        dashboard=False, dashboard_address=None, port=request.get("port", 0),
        death_timeout=30,
    ) as worker:  # fmt: skip
        await worker.finished()
    return 0


def serve() -> None:
    """Fork a process for each request on standard input: imports are paid for once.

    Answers are lines of JSON. Nothing here may start a thread, for forks would lack it.
    """
    import tests.preloaded  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "poll":
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                sys.stdin = open(os.devnull)  # noqa: SIM115 (while the process lives)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                status = perform(request)
                sys.stdout.flush()
                sys.exit(status)  # as the console script does: threads and exit handlers count
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        sys.exit(perform(json.loads(sys.argv[1])))
