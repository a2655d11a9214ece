"""All classifiers with their defaults on eight multiple-instance sets, beside scikit-learn.

    python -m benchmarks.mil_sets [--models NAME ...] [--sets SET ...] [--repetitions 5]
                                  [--jobs 1] [--records DIR] [--from-records]

The sets are in ``mil`` of ``DISAGG_SHARED_DATA``; each has 5 repetitions of 10 folds. Each fold has
a record in DIR, which stays valid until the model's code or the set changes: run it again to go on.
A model that fails on the first fold of a set, or takes more than ``--limit`` seconds of processor
time for it, is not tried on the others. Writes ``benchmarks/results/mil_sets.json`` and, from it
alone, ``docs/mil-benchmarks.md``; figures of earlier runs stay until there are newer ones.
``benchmarks/mil_scores.py`` defines the scores.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.mil_contestants import Contestant, contestants
from benchmarks.mil_data import SETS, load_set, require_folder, set_hash
from benchmarks.mil_page import PAGE, summary_lines, write_page
from benchmarks.mil_scores import repetition_scores, summarise
from benchmarks.records import Record, hash_settings, read_records, run_missing
from benchmarks.report import RESULTS, write_results

RECORDS = Path(__file__).parents[1] / "build/mil_sets"
N_REPETITION, N_FOLD = 5, 10
LIMIT_S = 900


def measure_fold(model: str, name: str, limit_s: float, number: int) -> Record:
    """Learn from the training bags of a fold and predict the others; the fold is the seed.

    Returns
    -------
    dict
        ``y``, ``p`` of the held-out bags, ``seconds`` of processor time; or ``error``.
    """
    bags, masks = load_set(name)
    keep = masks[divmod(number, masks.shape[1])]
    training, test = bags.select(keep), bags.select(~keep)
    started = time.process_time()
    try:
        with _processor_limit(limit_s):
            p = contestants()[model].predict(training, test, number)
    except Exception as error:  # the table says what failed, and the others go on
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    if p.shape != test.y.shape or not ((p >= 0) & (p <= 1)).all():
        return {"error": "predictions are no probabilities"}
    seconds = time.process_time() - started
    return {"y": test.y.astype(int).tolist(), "p": p.tolist(), "seconds": round(seconds, 3)}


class _processor_limit:
    """Raise TimeoutError once this process has used ``limit_s`` seconds of processor time more."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        msg = f"more than {self.limit_s:g} s of processor time a fold"
        raise TimeoutError(msg)


def settings_of(contestant: Contestant, name: str) -> str:
    """Return the hash of all that decides a contestant's records on a set."""
    return hash_settings("mil_sets", contestant.name, set_hash(name), code=contestant.code)


def measure(
    models: list[str], sets: list[str], repetitions: int, jobs: int, records: Path, limit_s: float
) -> None:
    """Measure the folds without a record, all of one repetition before the next."""
    known = contestants()
    for repetition in range(repetitions):
        numbers = range(repetition * N_FOLD, (repetition + 1) * N_FOLD)
        for name in sets:
            for model in models:
                settings = settings_of(known[model], name)
                path = records / f"{name}-{model}.jsonl"
                found = list(read_records(path, settings).values())
                if any("error" in record for record in found):
                    continue
                fold = partial(measure_fold, model, name, limit_s)
                first = run_missing(fold, numbers[:1], path, settings)
                if "error" not in first[0]:
                    run_missing(fold, numbers, path, settings, jobs)


def score_records(records: Path) -> dict[str, dict[str, Any]]:
    """Return the scores of all whole repetitions with a record, by set and model."""
    found: dict[str, dict[str, Any]] = {}
    for name in SETS:
        for model, contestant in contestants().items():
            settings = settings_of(contestant, name)
            folds = read_records(records / f"{name}-{model}.jsonl", settings)
            if folds:
                row = {"code": settings, **_score(folds)}
                if "auc" in row or "error" in row:
                    found.setdefault(name, {})[model] = row
    return found


def _score(folds: dict[int, Record]) -> dict[str, Any]:
    errors = [record["error"] for record in folds.values() if "error" in record]
    if errors:
        return {"error": errors[0]}
    whole = []
    for repetition in range(N_REPETITION):
        numbers = range(repetition * N_FOLD, (repetition + 1) * N_FOLD)
        if all(number in folds for number in numbers):
            pairs = [(np.array(folds[n]["y"]), np.array(folds[n]["p"])) for n in numbers]
            whole.append(repetition_scores(pairs))
    if not whole:
        return {}
    seconds = float(np.median([record["seconds"] for record in folds.values()]))
    return {"repetitions": len(whole), **summarise(whole), "seconds": round(seconds, 3)}


def merged(
    before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]], models: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the figures of both; newer code wins, and of the same code more repetitions."""
    found: dict[str, dict[str, Any]] = {}
    for name in SETS:
        for model in models:
            old, new = (each.get(name, {}).get(model) for each in (before, now))
            if old and new and old["code"] == new["code"]:
                new = max(old, new, key=lambda row: row.get("repetitions", 0))
            if new or old:
                found.setdefault(name, {})[model] = new or old
    return found


def describe(name: str) -> dict[str, Any]:
    """Return a set's size and its share of positive bags."""
    bags, _ = load_set(name)
    return {
        "bags": bags.n_bag,
        "instances": bags.n_pix,
        "features": bags.x.shape[1],
        "positive": round(float(bags.y.mean()), 3),
    }


def main() -> None:
    known = contestants()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names: Callable[..., str] = ", ".join
    parser.add_argument("--models", nargs="+", metavar="NAME", choices=known, default=list(known),
                        help=f"default: all of {names(known)}")  # fmt: skip
    parser.add_argument("--sets", nargs="+", metavar="SET", choices=SETS, default=list(SETS),
                        help=f"default: all of {names(SETS)}")  # fmt: skip
    parser.add_argument("--repetitions", type=int, choices=range(1, 6), default=N_REPETITION)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help="processor time of a fold (default: %(default)s)")  # fmt: skip
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    parser.add_argument("--from-records", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="write the page here; default: docs/mil-benchmarks.md with the "
                        "default --results, else none")  # fmt: skip
    args = parser.parse_args()
    require_folder()
    if not args.from_records:
        measure(args.models, args.sets, args.repetitions, args.jobs, args.records, args.limit)
    path = args.results / "mil_sets.json"
    before = json.loads(path.read_text()) if path.is_file() else {}
    result = {
        "models": {name: each.about for name, each in known.items()},
        "sets": {name: describe(name) for name in SETS},
        "scores": merged(before.get("scores", {}), score_records(args.records), list(known)),
    }
    write_results(path, result)
    print("\n".join(summary_lines(result)))
    if args.page or args.results == RESULTS:
        write_page(path, args.page or PAGE)


if __name__ == "__main__":
    main()
