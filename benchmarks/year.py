"""A year of monthly updates of a tiny simulated country, replayed on a real Prefect server.

    python -m benchmarks.year [DIRECTORY]

Counts arrive month after month as ``cases_YYYY-MM.csv``. `flows.watch` detects them, and a worker
runs `flows.update.update_map`. The first delivery for May has a word instead of a number, the one
for September has six times the cases. Both are held back and arrive again, corrected. Readers poll
throughout: each opens the current version and checks every file of it. At the end the last month
runs again with nothing changed, and once more with another unit of the maps. Writes
``benchmarks/results/year.json``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.report import RESULTS, parsed, write_results
from flows.processes import ChildProcess, end_on_signals, wait_for_url
from pipeline.demo.country import LAYERS, CountrySpec, simulate_country
from pipeline.publishing.versions import current_version, list_versions

SIZE = CountrySpec((48, 54), 1 / 6, 1300, 24, 12, 2e6, covariates=tuple(LAYERS)[:3], n_inducing=30)
STAGES = ("ingest", "fit", "predict", "evaluate")
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
CORRUPT, WRONG = "2025-05", "2025-09"
N_READER = 2


class Api:
    """The part of Prefect's REST interface that the replay needs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a GET request, or POST a body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        for pause in (0.5, 1, 2, 4, 0):  # 503: SQLite is locked; Prefect's own clients also wait
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not pause:
                    raise
                time.sleep(pause)
        return None

    def runs(self) -> list[dict[str, Any]]:
        """List the updates, the earliest first."""
        body = {"flows": {"name": {"any_": ["update-map"]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = self.call("/flow_runs/filter", body)
        return found

    def wait_for_run(self, n: int, seconds: float = 600) -> dict[str, Any]:
        """Wait for the end of the n-th update, from 0."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runs = self.runs()
            if len(runs) > n and runs[n]["state"]["type"] in ENDED:
                return runs[n]
            time.sleep(0.3)
        msg = f"update {n} did not end in {seconds} s"
        raise SystemExit(msg)


class Readers:
    """Readers of the map: each takes the current version and checks all of it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.over = directory, threading.Event()
        self.n_read, self.mixed, self.seen = 0, 0, []
        self._threads = [threading.Thread(target=self._poll) for _ in range(N_READER)]

    def __enter__(self) -> Readers:
        """Start to read."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all readers."""
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _poll(self) -> None:
        while not self.over.wait(0.2):
            version = current_version(self.directory)
            if version is None:
                continue
            whole = all(
                hashlib.sha256((version.path / name).read_bytes()).hexdigest() == digest
                for name, digest in version.about["files"].items()
            )
            self.n_read += 1
            self.mixed += not whole
            if version.name not in self.seen:
                self.seen.append(version.name)


def prepare(directory: Path) -> tuple[Path, list[tuple[str, list[list[str]]]]]:
    """Simulate the country and its deliveries of a year: (period, rows) in order of arrival."""
    simulate_country(directory, size=SIZE, seed=3)
    config = directory / "disagg.yaml"
    data = yaml.safe_load(config.read_text())
    data |= {
        "name": "tiny-year",
        "counts": {**data["counts"], "path": "cases_{period}.csv"},
        "evaluate": {"folds": 4, "schemes": ["area"], "seed": 1},
        "gates": {
            "converged": True,
            "better_than_constant": False,  # 24 areas cannot tell, and it is no matter here
            "min_gain": 0.0,
            "coverage": [0.5, 1.0],
            "max_change": 0.6,
        },
        "update": {"settle_s": 0.5},
        "metrics": {"textfile": "metrics"},
    }
    data["output"] |= {"draws": 200}
    data.pop("truth")
    config.write_text(yaml.safe_dump(data), encoding="utf-8")
    with (directory / "cases.csv").open(newline="") as file:
        head, *rows = list(csv.reader(file))
    (directory / "cases.csv").unlink()
    rng = np.random.default_rng(11)
    deliveries = []
    for month in range(12):
        period = f"2025-{month + 1:02d}"
        season = (1 + 0.4 * np.sin(2 * np.pi * month / 12)) / 4
        drawn = [[*row[:-1], str(rng.poisson(season * int(row[-1])))] for row in rows]
        if period == CORRUPT:
            bad = [list(row) for row in drawn]
            bad[6][-1] = "lots"
            deliveries.append((period, [head, *bad]))
        if period == WRONG:
            six = [[*row[:-1], str(6 * int(row[-1]))] for row in drawn]
            deliveries.append((period, [head, *six]))
        deliveries.append((period, [head, *drawn]))
    return config, deliveries


def deliver(path: Path, rows: list[list[str]]) -> None:
    """Write counts atomically: under another name, then renamed."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    partial.replace(path)


def describe(api: Api, run: dict[str, Any], what: str, out: Path) -> dict[str, Any]:
    """Split the wall time of a run, from its trigger to its end, into stages and the rest."""
    body = {"flow_runs": {"id": {"any_": [run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    tasks = api.call("/task_runs/filter", body)
    record = json.loads((out / "work" / "stages.json").read_text())
    stages = {}
    cached = []
    for task in tasks:
        name = task["name"].split("-")[0]
        if task["state_name"] == "Cached":
            cached.append(name)
        elif name in STAGES and task["state_name"] == "Completed":
            stages[name] = record[name]["seconds"]
    created, ended = (datetime.fromisoformat(run[key]) for key in ("created", "end_time"))
    wall = (ended - created).total_seconds()
    tried = sum(task["total_run_time"] for task in tasks if task["state_name"] == "Failed")
    work = sum(stages.values()) + tried
    return {
        "what": what,
        "state": run["state"]["name"],
        "message": run["state"]["message"].replace(f"{out.parent}/", ""),
        "wall_s": round(wall, 2),
        "stages_s": round(work, 2),
        "overhead_s": round(wall - work, 2),
        "in_flow_s": round(run["total_run_time"], 2),
        "stages": stages,
        "cached": cached,
    }


def replay(directory: Path, stay_s: float = 0) -> dict[str, Any]:
    """Replay the year in a directory; return the content of the JSON."""
    config, deliveries = prepare(directory / "map")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(
        {
            "PREFECT_HOME": str(directory / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        }
    )
    api, out = Api(os.environ["PREFECT_API_URL"]), directory / "map" / "out"
    prefect = [sys.executable, "-m", "prefect"]
    runs = []
    with ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--port", port]
        stack.enter_context(ChildProcess("server", [*prefect, "server", "start", *where]))
        wait_for_url(f"{api.url}/health")
        from flows.deploy import deploy

        name = deploy(str(config))
        stack.enter_context(ChildProcess("worker", [*prefect, "worker", "start", "--pool", "maps"]))
        watch = [sys.executable, "-m", "flows.watch", str(config), "--every", "1"]
        readers = stack.enter_context(Readers(out / "published"))
        start = time.perf_counter()
        for n, (period, rows) in enumerate(deliveries):
            deliver(config.with_name(f"cases_{period}.csv"), rows)
            if n == 0:
                stack.enter_context(ChildProcess("watch", watch))
            runs.append(describe(api, api.wait_for_run(n), period, out))
            print(line(runs[-1]), flush=True)
        found = api.call(f"/deployments/name/{name}")["id"]
        for what, changes in (("again", {}), ("other unit", {"output": {"rate_per": 100}})):
            body = {"parameters": {"changes": changes}, "state": {"type": "SCHEDULED"}}
            api.call(f"/deployments/{found}/create_flow_run", body)
            runs.append(describe(api, api.wait_for_run(len(runs)), what, out))
            print(line(runs[-1]), flush=True)
        seconds = time.perf_counter() - start
        time.sleep(stay_s)  # leaves time to look at it in the browser
    year = runs[: len(deliveries)]
    good = [run for run in year if run["state"] == "Completed"]
    return {
        "note": "other work ran on the machine at the same time",
        "load": [round(load, 1) for load in os.getloadavg()],
        "seconds": round(seconds, 1),
        "versions": [
            {"version": version.name, "period": version.period}
            for version in list_versions(out / "published")
        ],
        "published": len(good),
        "held_back": [
            {key: run[key] for key in ("what", "state", "message")}
            for run in year
            if run["state"] != "Completed"
        ],
        "readers": {"reads": readers.n_read, "mixed": readers.mixed, "seen": readers.seen},
        "overhead_s": {
            "median": round(float(np.median([run["overhead_s"] for run in runs])), 2),
            "max": max(run["overhead_s"] for run in runs),
        },
        "runs": runs,
    }


def line(run: dict[str, Any]) -> str:
    """Format a run as a line of the table."""
    return (
        f"{run['what']:12} {run['state']:30} {run['wall_s']:7.1f} {run['stages_s']:8.1f} "
        f"{run['overhead_s']:9.1f}  {', '.join(run['cached']) or '-'}"
    )


def main() -> None:
    """Replay, write the JSON and print the table."""
    options = parsed(
        __doc__,
        "directory?",
        stay=(0.0, "seconds for which the server stays up at the end"),
        results=RESULTS,
    )
    end_on_signals()
    print(f"{'counts of':12} {'state':30} {'wall s':>7} {'stages s':>8} {'overhead s':>9}  cached")
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        result = replay(directory.resolve(), options.stay)
    write_results(options.results / "year.json", result)
    print(f"published {result['published']}, held back {len(result['held_back'])}, ", end="")
    print(f"readers: {result['readers']['reads']} reads, {result['readers']['mixed']} mixed")
    held_back = {each["what"] for each in result["held_back"]}
    if result["published"] != 12 or held_back != {CORRUPT, WRONG} or result["readers"]["mixed"]:
        raise SystemExit("a year is twelve versions, two deliveries held back, and no mixture")


if __name__ == "__main__":
    main()
