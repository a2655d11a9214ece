"""Flipped bits: in a store, a checkpoint, a model, a result, and the record of what was done."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np

from tests.faults.bench import Bench
from tests.faults.kinds import Trial, fault, wait_for

DAMAGED = r"error: .+(damaged|bytes instead of|not a saved model|missing|expected).*; .+"


def flip(path: Path, rng: np.random.Generator) -> str:
    """Flip one bit of a file, at random; say which."""
    raw = bytearray(path.read_bytes())
    at, bit = int(rng.integers(len(raw))), int(rng.integers(8))
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"bit {bit} of byte {at} of {path.name}"


def _files(out: Path, pattern: str) -> list[Path]:
    return sorted(path for path in out.glob(pattern) if path.is_file() and path.stat().st_size)


def _results_differ(bench: Bench, path: Path) -> list[str]:
    """Check all but the damaged file, and the records, which say what the damaged one held."""
    harmed = (path.relative_to(bench.out).as_posix(), "run.json", "work/stages.json")
    return [wrong for wrong in bench.check_complete() if not wrong.startswith(harmed)]


def _flip_finished(
    bench: Bench, rng: np.random.Generator, trial: Trial, pattern: str, command: str
) -> None:
    """Damage a finished run; a command may refuse, ``run`` mends, and neither is ever wrong."""
    bench.clear("finished-False")
    path = _files(bench.out, pattern)[int(rng.integers(len(_files(bench.out, pattern))))]
    trial.moment = f"{flip(path, rng)} ({path.relative_to(bench.out)}), then {command}"
    if command != "run":
        if command == "evaluate":  # or nothing is evaluated: its result is up to date
            (bench.out / "evaluation.json").unlink()
        ended = bench.start(bench.config(), command).wait()
        if ended.status == 0:
            trial.wrong += _results_differ(bench, path)
        else:
            trial.wrong += bench.check_told(ended, (2,), told=DAMAGED)
    trial.wrong += bench.recover(lost=True)


@fault("bit flipped in the store", 6)
def flip_store(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Any file of the bag store."""
    command = str(rng.choice(["run", "fit", "predict", "evaluate"]))
    _flip_finished(bench, rng, trial, "work/bags.zarr/**/*", command)


@fault("bit flipped in the grid", 4)
def flip_grid(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Any file of the aligned grid."""
    command = str(rng.choice(["run", "predict"]))
    _flip_finished(bench, rng, trial, "work/grid.zarr/**/*", command)


@fault("bit flipped in the model", 4)
def flip_model(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Either file of the saved model."""
    command = str(rng.choice(["run", "predict", "evaluate"]))
    _flip_finished(bench, rng, trial, "work/model/*", command)


@fault("bit flipped in a result", 4)
def flip_result(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A map, a table, the evaluation: what a later run compares with its fingerprint."""
    pattern = str(rng.choice(["*.tif", "areas.*", "evaluation.json", "preview.png"]))
    _flip_finished(bench, rng, trial, pattern, "run")


@fault("bit flipped in the record", 3)
def flip_record(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """The fingerprints by which finished stages are skipped."""
    _flip_finished(bench, rng, trial, "work/stages.json", "run")


@fault("bit flipped in a fold", 3)
def flip_fold(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A finished fold that an evaluation would take up."""
    _flip_finished(bench, rng, trial, "work/evaluate/*/fold-*.npz", "evaluate")
    # A flip that no reader sees (a time in the archive) stays: the numbers are the same.
    trial.wrong = [
        wrong
        for wrong in trial.wrong
        if not (wrong.startswith("work/evaluate/") and wrong.endswith(" differs"))
        or not _reads_the_same(bench, wrong.removesuffix(" differs"))
    ]


def _reads_the_same(bench: Bench, name: str) -> bool:
    """Return whether a damaged archive has the arrays that a new one has."""
    with np.load(bench.out / name) as left:
        arrays = {key: left[key] for key in left.files}
    (bench.out / name).unlink()
    (bench.out / "evaluation.json").unlink()
    if bench.start(bench.config(), "evaluate").wait().status != 0:
        return False
    with np.load(bench.out / name) as right:
        return set(right.files) == set(arrays) and all(
            np.array_equal(arrays[key], right[key], equal_nan=True) for key in right.files
        )


@fault("bit flipped in a checkpoint", 6)
def flip_checkpoint(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """Kill a fit, damage its newest checkpoint: the one before it serves."""
    bench.clear("ingested")
    number = int(rng.integers(bench.counts["checkpoint"] // 3, bench.counts["checkpoint"]))
    at = {"place": "checkpoint", "number": number, "signal": signal.SIGKILL}
    if bench.start(bench.config(), at=at).wait().status == 0:
        return
    found = sorted((bench.out / "work/checkpoint").glob("epoch-*.npz"))
    if not found:
        return
    trial.moment = f"change {number} of checkpoint, {flip(found[-1], rng)}"
    # A flip that no reader sees (a time in the archive) costs nothing; any other, one epoch.
    trial.wrong += bench.recover()


@fault("bit flipped under a running fit", 2)
def flip_while_fitting(bench: Bench, rng: np.random.Generator, trial: Trial) -> None:
    """A chunk of the store goes bad while it is fitted to: read before, or told."""
    bench.clear("ingested")
    run = bench.start(bench.config())
    if not wait_for(lambda: any((bench.out / "work").glob("checkpoint/epoch-*")), run):
        run.wait()
        return
    run.kill(signal.SIGSTOP)
    chunks = _files(bench.out, "work/bags.zarr/*/c/**/*")
    path = chunks[int(rng.integers(len(chunks)))]
    trial.moment = f"{flip(path, rng)} ({path.relative_to(bench.out)}) during the fit"
    run.kill(signal.SIGCONT)
    ended = run.wait()
    if ended.status == 0:
        trial.wrong += _results_differ(bench, path)
    else:
        trial.wrong += bench.check_told(ended, (2,), told=DAMAGED)
    trial.wrong += bench.recover(lost=True)
