"""GPMIL beside its paper (Kim & De la Torre 2010): the line, Musk1 and Elephant.

    python -m benchmarks.gpmil [--only line musk1 elephant] [--repetitions 5] [--softmax]

The line: a function is drawn at 1,000 points, its signs are the labels of the instances, and 100
bags are formed 20 times. The fit has to find the length-scale 3 again (paper: 3.05 +- 0.21 witness,
3.20 +- 0.27 soft-max). Musk1 and Elephant: errors on the official 5 x 10 folds (paper: 10.53 % and
16.20 % witness, 11.48 % and 17.13 % soft-max). In each fold the evidence of the training bags
chooses the scaling. Writes ``benchmarks/results/gpmil.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, write_results
from models import Bags
from models.mil.gpmil import GPMIL

DATA = Path(os.environ.get("DISAGG_SHARED_DATA", "../shared/data")) / "mil"
LENGTHSCALE, HALF_WIDTH, N_POOL, N_BAG, LARGEST = 3.0, 30.0, 1000, 100, 10
TEMPERATURES = (1.0, 3.0, 10.0)
LIKELIHOODS = ("witness", "softmax")
# The evidence prefers the inverse temperature 1 on these sets (Musk1: -35.4 nats, against -37.4
# at 3 and -38.4 at 10): the scale of the latent values sharpens the shares.
CANDIDATES = [{"scaling": scaling, "coldest": 1.0} for scaling in ("deviation", "range")]


def make_pool(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw points and latent values of the line: (1000,), (1000,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-HALF_WIDTH, HALF_WIDTH, N_POOL)
    k = np.exp(-0.5 * ((x[:, None] - x) / LENGTHSCALE) ** 2)
    return x, np.linalg.cholesky(k + 1e-8 * np.eye(N_POOL)) @ rng.normal(size=N_POOL)


def sign_changes(x: np.ndarray, f: np.ndarray) -> int:
    """Count the sign changes along the line."""
    return int((np.diff(np.sign(f[np.argsort(x)])) != 0).sum())


def form_bags(x: np.ndarray, f: np.ndarray, seed: list[int]) -> Bags:
    """Form 100 bags as in section 4.1 of the paper."""
    rng = np.random.default_rng(seed)
    positive, negative = np.flatnonzero(f > 0), np.flatnonzero(f <= 0)
    rows, y = [], []
    for _ in range(N_BAG):
        label, size = int(rng.integers(2)), int(rng.integers(1, LARGEST + 1))
        tenths = int(rng.integers(1, 11)) if label else 0
        n_positive = -(-tenths * size // 10)  # rounded up: a positive bag has at least one
        rows.append(rng.choice(positive, n_positive, replace=False))
        rows.append(rng.choice(negative, size - n_positive, replace=False))
        y.append((label, size))
    offsets = np.concatenate([[0], np.cumsum([size for _, size in y])])
    return Bags(x[np.concatenate(rows)][:, None], offsets, [label for label, _ in y])


def find_lengthscale(bags: Bags, likelihood: str) -> float:
    """Learn the length-scale from 1, all else known: unit variance, zero mean.

    The evidence chooses the last temperature of the witnesses.
    """
    sd = float(bags.x.std())
    found = []
    for coldest in TEMPERATURES if likelihood == "witness" else (1.0,):
        model = GPMIL(
            likelihood=likelihood,  # type: ignore[arg-type]
            learn_variance=False,
            learn_mean=False,
            priors="none",
            coldest=coldest,
        )
        model.fit(bags, start=np.array([0.0, np.log(1.0 / sd)]))
        found.append((model.bound_, model.named_hyperparameters()["rbf_x.lengthscale"] * sd))
    return max(found)[1]


def run_line(n_trial: int, n_pool: int) -> dict[str, Any]:
    """Find the length-scale again, on a typical function and on others."""
    # Labels show of a length-scale only how often the sign changes: 60 / (3 pi) = 6.4 times on
    # average. The first pool with six represents the paper's; others would mislead any method.
    expected = round(2 * HALF_WIDTH / (np.pi * LENGTHSCALE))
    typical = next(s for s in range(1000) if sign_changes(*make_pool(s)) == expected)
    x, f = make_pool(typical)
    out: dict[str, Any] = {"pool": typical, "sign_changes": expected, "trials": n_trial}
    for likelihood in LIKELIHOODS:
        started = time.perf_counter()
        found = [
            find_lengthscale(form_bags(x, f, [typical, t, 7]), likelihood) for t in range(n_trial)
        ]
        out[likelihood] = {
            "mean": float(np.mean(found)),
            "sd": float(np.std(found, ddof=1)),
            "found": found,
            "seconds": time.perf_counter() - started,
        }
        print(likelihood, out[likelihood]["mean"], out[likelihood]["sd"], flush=True)
    others = []
    for seed in range(n_pool):
        x, f = make_pool(seed)
        row: dict[str, Any] = {"pool": seed, "sign_changes": sign_changes(x, f)}
        for likelihood in LIKELIHOODS:
            found = [find_lengthscale(form_bags(x, f, [seed, t, 7]), likelihood) for t in range(3)]
            row[likelihood] = float(np.median(found))
        others.append(row)
        print(row, flush=True)
    out["other_pools"] = others
    return out


def load_bags(name: str) -> tuple[Bags, np.ndarray]:
    """Read a data set and its training masks (5, 10, n_bag)."""
    with np.load(DATA / f"{name}.npz") as file:
        order = np.argsort(file["bag"], kind="stable")
        sizes = np.bincount(file["bag"])
        x, y, masks = file["X"][order].astype(np.float64), file["y"], file["train_mask"]
    return Bags(x, np.concatenate([[0], np.cumsum(sizes)]), y), masks


def run_folds(name: str, repetitions: int, likelihood: str) -> dict[str, Any]:
    """Cross-validate: each fold uses the candidate with the best evidence on its training bags."""
    bags, masks = load_bags(name)
    candidates = CANDIDATES if likelihood == "witness" else [{"scaling": "range"}]
    starts: list[Any] = [None] * len(candidates)
    errors: list[float] = []
    each = np.zeros((len(candidates), repetitions))
    evidence: list[list[float]] = []
    chosen = [0] * len(candidates)
    started = time.perf_counter()
    for repetition in range(repetitions):
        wrong = 0
        for train in masks[repetition]:
            test = bags.select(~train)
            bounds, misses = [], []
            for number, candidate in enumerate(candidates):
                model = GPMIL(likelihood=likelihood, tolerance=0.05, **candidate)  # type: ignore[arg-type]
                model.fit(bags.select(train), start=starts[number])
                if starts[number] is None:  # later folds start where the first one ended
                    params = model.params_
                    starts[number] = np.append(params["theta"], params["mean"])
                bounds.append(model.bound_)
                misses.append(int(((model.predict_bag_modes(test) > 0.5) != test.y).sum()))
            best = int(np.argmax(bounds))
            chosen[best] += 1
            wrong += misses[best]
            each[:, repetition] += misses
            evidence.append(bounds)
        errors.append(100.0 * wrong / bags.n_bag)
        print(name, likelihood, repetition, errors[-1], chosen, each[:, repetition], flush=True)
    return {
        "error": float(np.mean(errors)),
        "by_repetition": errors,
        "chosen": chosen,
        "candidates": [
            {
                **candidate,
                "error": 100.0 * float(each[number].mean()) / bags.n_bag,
                "evidence": float(np.mean([row[number] for row in evidence])),
            }
            for number, candidate in enumerate(candidates)
        ],
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["line", "musk1", "elephant"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument(
        "--softmax", action="store_true", help="soft-max likelihood on the folds too"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    path = args.results / "gpmil.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result.pop("machine", None)
    if "line" in args.only:
        result["line"] = run_line(args.trials, args.pools)
        write_results(path, result)
    for name in ("Musk1", "Elephant"):
        if name.lower() not in args.only:
            continue
        for likelihood in LIKELIHOODS if args.softmax else ("witness",):
            found = run_folds(name, args.repetitions, likelihood)
            result.setdefault(name, {})[likelihood] = found
            write_results(path, result)


if __name__ == "__main__":
    main()
