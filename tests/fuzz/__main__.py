"""Fuzz the inputs: ``python -m tests.fuzz --minutes 60 --seed 1``.

Each trial spoils a small project by random mutations of the configuration, the table, the
boundaries or the rasters, and runs ``disagg check``, ``ingest`` and ``run`` on it. Exit statuses
are 0 or 2, each error is one line with place, finding and remedy, nothing hangs, crashes or stays
half-written. ``benchmarks/results/fuzz.json`` has the counts and each failure with its seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.project import Project
from tests.fuzz.trial import run_trial
from tests.fuzz.workers import Worker

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("configuration", "table", "boundaries", "raster")


def main() -> int:
    """Run trials until the time is over; return 1 if one ended badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--whole", type=float, default=0.1, help="share of trials that `run`, too")
    parser.add_argument("--only", default="", help="SEED:NUMBER, one trial again")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/fuzz.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="disagg-fuzz-template-") as name:
        template = Path(name)
        Project.make(template)
        if given.only:
            _, _, number = given.only.partition(":")
            trial = run_trial(given.only, template, FAMILIES[int(number) % 4])
            print(json.dumps(asdict(trial), indent=1))
            return int(bool(trial.wrong))
        return _fuzz(given, template)


def _fuzz(given: argparse.Namespace, template: Path) -> int:
    started, number = time.monotonic(), 0
    bad: list[dict[str, Any]] = []
    tally = {family: {"trials": 0, "refused": 0, "accepted": 0, "bad": 0} for family in FAMILIES}
    workers = [Worker(template) for _ in range(given.workers)]
    slowest = 0.0
    try:
        while (running := time.monotonic() - started < 60 * given.minutes) or any(
            worker.busy for worker in workers
        ):
            for worker in workers:
                if worker.busy:
                    trial = worker.result()
                    if trial is None:
                        continue
                    of = tally[worker.family]
                    of["trials"] += 1
                    of["bad"] += bool(trial["wrong"])
                    of["refused"] += 2 in trial["statuses"].values()
                    of["accepted"] += set(trial["statuses"].values()) == {0}
                    slowest = max(slowest, trial["seconds"])
                    if trial["wrong"]:
                        bad.append(trial)
                        print(f"{trial['seed']}: {trial['done']}: {trial['wrong']}", flush=True)
                if running:
                    whole = (number * 7919 % 1000) / 1000 < given.whole
                    worker.begin(f"{given.seed}:{number}", FAMILIES[number % 4], whole)
                    number += 1
            _write(given, started, tally, slowest, bad)
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.stop()
    return int(bool(bad))


def _write(
    given: argparse.Namespace,
    started: float,
    tally: dict[str, dict[str, int]],
    slowest: float,
    bad: list[dict[str, Any]],
) -> None:
    summary = {
        "seed": given.seed,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "workers": given.workers,
        "python": platform.python_version(),
        "trials": sum(of["trials"] for of in tally.values()),
        "by_family": tally,
        "slowest_s": slowest,
        "bad": bad,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    partial = given.out.with_name(f".{given.out.name}.partial")
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(given.out)  # the run may be stopped at any moment


if __name__ == "__main__":
    raise SystemExit(main())
