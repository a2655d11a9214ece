"""Folds of multiple-instance sets, measured once: a record for each set, contestant and fold."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.mil_contestants import Predicted, find_contestant
from benchmarks.mil_data import load_labelled, set_hash
from benchmarks.mil_scores import repetition_scores, summarise
from benchmarks.records import Record, hash_settings, read_records, run_missing

RECORDS = Path(__file__).parents[1] / "build/mil_sets"
LIMIT_S = 900.0


def measure_fold(model: str, name: str, limit_s: float, number: int) -> Record:
    """Learn from the training bags of a fold and predict the others; the fold is the seed.

    Returns
    -------
    dict
        ``y``, ``p`` of the held-out bags, ``seconds`` of processor time, where labels of instances
        are known and the model predicts any their ``instance_auc``; or ``error``.
    """
    data = load_labelled(name)
    keep = data.train[divmod(number, data.train.shape[1])]
    training, test = data.bags.select(keep), data.bags.select(~keep)
    started = time.process_time()
    try:
        with _ProcessorLimit(limit_s):
            told = find_contestant(model).predict(training, test, number)
    except Exception as error:  # the table says what failed, and the others go on
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    seconds = time.process_time() - started
    told = told if isinstance(told, Predicted) else Predicted(told)
    if told.bags.shape != test.y.shape or not ((told.bags >= 0) & (told.bags <= 1)).all():
        return {"error": "predictions are no probabilities"}
    record = {"y": test.y.astype(int).tolist(), "p": told.bags.tolist()}
    if data.hot is not None and told.instances is not None:
        hot = data.hot[np.repeat(~keep, np.diff(data.bags.offsets))]
        record["instance_auc"] = float(roc_auc_score(hot, told.instances))
    return {**record, "seconds": round(seconds, 3)}


class _ProcessorLimit:
    """Raises TimeoutError once this process has used ``limit_s`` seconds of processor time more."""

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


def settings_of(name: str, model: str) -> str:
    """Return the hash of all that decides a contestant's records on a set."""
    return hash_settings("mil_sets", model, set_hash(name), code=find_contestant(model).code)


def record_path(records: Path, name: str, model: str) -> Path:
    """Return the file of a contestant's records on a set."""
    return records / f"{name}-{model}.jsonl".replace(" ", "_")


def measure(
    pairs: list[tuple[str, str]],
    repetitions: int,
    records: Path,
    *,
    jobs: int = 1,
    limit_s: float = LIMIT_S,
) -> None:
    """Measure the folds without a record of pairs (set, contestant).

    All of one repetition comes before the next. A contestant that fails on a set is not tried on
    its other folds.
    """
    shapes = {name: load_labelled(name).train.shape for name in {name for name, _ in pairs}}
    for repetition in range(repetitions):
        for name, model in pairs:
            n_repetition, n_fold, _ = shapes[name]
            if repetition >= n_repetition:
                continue
            numbers = range(repetition * n_fold, (repetition + 1) * n_fold)
            settings, path = settings_of(name, model), record_path(records, name, model)
            if any("error" in record for record in read_records(path, settings).values()):
                continue
            fold = partial(measure_fold, model, name, limit_s)
            first = run_missing(fold, numbers[:1], path, settings)
            if "error" not in first[0]:
                run_missing(fold, numbers, path, settings, jobs)


def score_records(pairs: list[tuple[str, str]], records: Path) -> dict[str, dict[str, Any]]:
    """Return the scores of all whole repetitions with a record, by set and contestant."""
    found: dict[str, dict[str, Any]] = {}
    for name, model in pairs:
        settings = settings_of(name, model)
        folds = read_records(record_path(records, name, model), settings)
        row = _score(folds, *load_labelled(name).train.shape[:2]) if folds else {}
        if row:
            found.setdefault(name, {})[model] = {"code": settings, **row}
    return found


def _score(folds: dict[int, Record], n_repetition: int, n_fold: int) -> dict[str, Any]:
    errors = [record["error"] for record in folds.values() if "error" in record]
    if errors:
        return {"error": errors[0]}
    whole = []
    for repetition in range(n_repetition):
        numbers = range(repetition * n_fold, (repetition + 1) * n_fold)
        if all(number in folds for number in numbers):
            pairs = [(np.array(folds[n]["y"]), np.array(folds[n]["p"])) for n in numbers]
            scores = repetition_scores(pairs)
            instance = [folds[n]["instance_auc"] for n in numbers if "instance_auc" in folds[n]]
            if instance:
                scores["instance_auc"] = float(np.mean(instance))
            whole.append(scores)
    if not whole:
        return {}
    seconds = float(np.median([record["seconds"] for record in folds.values()]))
    return {"repetitions": len(whole), **summarise(whole), "seconds": round(seconds, 3)}
