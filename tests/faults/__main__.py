"""The long run: ``python -m tests.faults --count 200``.

Writes ``benchmarks/results/faults.json``: of each kind how many were provoked, how many ended well,
and what was wrong with the others, with the seed that provokes each again (``--only KIND:SEED``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.bench import ROOT, Bench
from tests.faults.kinds import Kind, NotPossibleError, load_kinds, run_trial
from tests.faults.publishing import StoreBench

GROUPS = ("driver", "cluster", "publishing")


def main() -> int:
    """Run trials; return 1 where one ended badly."""
    kinds = load_kinds()
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin none after so many")
    parser.add_argument("--only", default="", help="KIND, or KIND:SEED for one trial again")
    parser.add_argument("--group", choices=GROUPS, help="some of the kinds")
    parser.add_argument("--reverse", action="store_true", help="the last of them first")
    parser.add_argument("--merge", nargs="+", type=Path, help="make one summary of several")
    parser.add_argument("--reads", type=int, default=0, help="of what is published, at least")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    name = "publishing_faults.json" if given.group == "publishing" else "faults.json"
    given.out = given.out or ROOT / "benchmarks/results" / name
    if given.merge:
        return _merge(given.merge, given.out)
    # Those of publishing need no country and no fit: they are a run of their own.
    publishing = "publishing" in (given.group, *_group(kinds, given.only))
    kinds = {n: k for n, k in kinds.items() if (k.group == "publishing") == publishing}
    plan = _plan(given.count, given.seed, given.only, {k.name: k.weight for k in kinds.values()})
    if given.group:
        plan = [(kind, number) for kind, number in plan if kinds[kind].group == given.group]
    plan = plan[::-1] if given.reverse else plan
    started = time.monotonic()
    trials: list[dict[str, Any]] = []
    reads: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="disagg-faults-"))
    try:
        with (StoreBench if publishing else Bench)(directory) as bench:
            setup = time.monotonic() - started
            for number, (kind, seed) in enumerate(plan):
                if time.monotonic() - started > 60 * given.minutes:
                    break
                try:
                    trial = run_trial(bench, kind, [given.seed, seed])
                except NotPossibleError as error:
                    trials.append({"kind": kind, "seed": seed, "skipped": str(error)})
                    continue
                trials.append({"seed": seed, **trial.__dict__})
                said = "; ".join(trial.wrong) or ("ok" if trial.moment else "moment never came")
                print(
                    f"{number + 1}/{len(plan)} {kind}:{seed} {trial.moment}: {said} "
                    f"({trial.seconds:.1f} s)",
                    flush=True,
                )
                _write(given.out, given.seed, setup, time.monotonic() - started, trials)
            if isinstance(bench, StoreBench):
                reads = bench.reads(given.reads)
                print(f"reads of the pointer and its version: {reads}")
                trials_seconds = time.monotonic() - started
                _write(given.out, given.seed, setup, trials_seconds, trials, reads)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return int(bool(reads.get("wrong")) or any(trial.get("wrong") for trial in trials))


def _group(kinds: dict[str, Kind], only: str) -> tuple[str, ...]:
    kind = kinds.get(only.partition(":")[0])
    return () if kind is None else (kind.group,)


def _merge(parts: list[Path], out: Path) -> int:
    """Make one summary of runs of one seed that were made side by side."""
    told = [json.loads(part.read_text()) for part in parts]
    # Made from both ends, some may have been made twice: all count as wrong where one is.
    once = {(t["kind"], t["seed"]): t for each in told for t in each["trials"]}
    once |= {(t["kind"], t["seed"]): t for each in told for t in each["trials"] if t.get("wrong")}
    trials = list(once.values())
    seconds, setup = (sum(each[k] for each in told) for k in ("seconds", "setup_seconds"))
    _write(out, told[0]["seed"], setup, seconds, trials)
    return int(any(trial.get("wrong") for trial in trials))


def _plan(count: int, seed: int, only: str, weights: dict[str, int]) -> list[tuple[str, int]]:
    """Say which trials: kinds in proportion to their weights, in a random order."""
    kind, _, number = only.partition(":")
    if number:
        return [(kind, int(number))]
    if kind:
        return [(kind, k) for k in range(count)]
    total = sum(weights.values())
    shares = {k: max(1, round(count * weight / total)) for k, weight in weights.items()}
    listed = [(name, k) for name, n in shares.items() for k in range(n)]
    order = np.random.default_rng(seed).permutation(len(listed))
    return [listed[k] for k in order]


def _write(
    path: Path,
    seed: int,
    setup: float,
    seconds: float,
    trials: list[dict[str, Any]],
    reads: dict[str, Any] | None = None,
) -> None:
    summary: dict[str, dict[str, Any]] = {}
    for trial in trials:
        row = summary.setdefault(
            trial["kind"],
            {"provoked": 0, "well": 0, "wrong": 0, "never_came": 0, "skipped": 0, "seconds": 0.0},
        )
        row["skipped"] += "skipped" in trial
        if "skipped" in trial:
            continue
        row["never_came"] += not trial["moment"] and not trial["wrong"]
        row["wrong"] += bool(trial["wrong"])
        row["well"] += bool(trial["moment"]) and not trial["wrong"]
        row["provoked"] += bool(trial["moment"])
        row["seconds"] = round(row["seconds"] + trial["seconds"], 1)
    names = ("provoked", "well", "wrong")
    told = {
        "command": " ".join(["python -m tests.faults", *sys.argv[1:]]),
        "seed": seed,
        **{name: sum(row[name] for row in summary.values()) for name in names},
        **({} if reads is None else {"reads": reads}),
        "seconds": round(seconds, 1),
        "setup_seconds": round(setup, 1),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "note": "the machine was shared with other work",
        },
        "by_kind": dict(sorted(summary.items())),
        "wrong_trials": [trial for trial in trials if trial.get("wrong")],
        "trials": trials,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
