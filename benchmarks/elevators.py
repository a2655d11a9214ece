"""The elevators data of the VBAgg paper's Table 10: a normal likelihood on bags of about 30.

    python -m benchmarks.elevators [--repetitions 10] [--results DIR]

The data are in ``elevators/elevators_raw.npz`` of ``DISAGG_SHARED_DATA``: 16 features, rows sorted
by one of them and cut into bags of negative binomial size (mean 30, standard deviation 15). The
response of a bag is the sum over its rows. 225 bags train, 33 stop early, 33 compare candidates, 33
test; ARD kernel. Individuals are scored on the training bags, bags on the test bags. Writes
``benchmarks/results/elevators.json`` and prints a table beside the paper's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.report import RESULTS, parsed, write_results
from models import Bags, Network, Nystrom, VBAgg
from models.training.estimator import Estimator
from models.tuning import Split, four_way_split, tune

SIZES = (225, 33, 33, 33)
DROPPED, SORTED_BY = (14, 16), 7
CONSTANT_MSE = 0.010  # of individuals under a constant, in the paper
PAPER = {
    "VBAgg": {"nll": -1.69, "mse": 0.0018, "bag_mse": 0.052},
    "VBAgg-Obj": {"nll": -1.71, "mse": 0.0018, "bag_mse": 0.052},
    "Nystrom": {"nll": -1.57, "mse": 0.0024, "bag_mse": 0.041},
    "Network": {"nll": -1.64, "mse": 0.0021, "bag_mse": 0.041},
}


def make_bags(raw: Path, seed: int) -> tuple[Bags, np.ndarray]:
    """Cut the rows into bags; return the bags and the responses of the rows."""
    with np.load(raw) as data:
        x, y = data["X"].astype(float), 100.0 * data["y"].astype(float)
    order = np.argsort(-x[:, SORTED_BY], kind="stable")
    x, y = np.delete(x[order], DROPPED, axis=1), (0.1 * y[order] - 0.12) / 0.66
    rng = np.random.default_rng([seed, 17])
    shape = 30.0**2 / (15.0**2 - 30.0)
    edges = np.cumsum(np.maximum(rng.negative_binomial(shape, shape / (shape + 30.0), len(y)), 1))
    edges = np.concatenate([[0], edges[edges <= len(y)]])
    # The rows fill more bags than the paper uses: take its number of bags, at random.
    bags = np.sort(rng.permutation(len(edges) - 1)[: sum(SIZES)])
    rows = np.concatenate([np.arange(edges[bag], edges[bag + 1]) for bag in bags])
    offsets = np.concatenate([[0], np.cumsum(np.diff(edges)[bags])])
    return Bags(x[rows], offsets, np.add.reduceat(y[rows], offsets[:-1])), y[rows]


def candidates(seed: int) -> dict[str, list[Estimator]]:
    """Return the models to compare, each with the candidates of its tuning."""
    common: dict[str, Any] = {"likelihood": "normal", "seed": seed, "max_epochs": 300}
    common["area_effect"] = False  # as in the paper: noise of the rows alone
    gp: dict[str, Any] = {**common, "kernel": "ard", "n_inducing": 100, "batch_bags": 64}
    return {
        "VBAgg": [VBAgg(**gp, priors="weak", tolerance=0.002)],
        "Nystrom": [Nystrom(**gp, prior_sd=sd) for sd in (0.3, 1.0, 3.0)],
        "Network": [
            Network(
                **common, n_hidden=30, learning_rate=0.01, weight_decay=decay, manifold=manifold
            )
            for decay in (0.1, 1.0)
            for manifold in (0.0, 1.0)
        ],
    }


def score(model: Any, bags: Bags, y: np.ndarray, split: Split) -> dict[str, float]:
    """Score individuals of the training bags, and the test bags."""
    train = np.repeat(split.train, np.diff(bags.offsets))
    predicted = model.predict_pixels(bags.x)
    noise = model.named_hyperparameters()["noise"]
    off = y[train] - predicted.mean[train]
    sd = np.sqrt(predicted.sd[train] ** 2 + noise)
    test = bags.select(split.test)
    rate = bags.y[split.train].sum() / train.sum()
    said = model.predict_bags(test, n_draws=1000).mean
    return {
        "nll": float(-norm.logpdf(off, scale=sd).mean()),
        "mse": float((off**2).mean()),
        "bag_mse": float(((said - test.y) ** 2).mean()),
        "bag_mse_of_a_constant": float(((rate * np.diff(test.offsets) - test.y) ** 2).mean()),
        "noise": float(noise),
    }


def measure(raw: Path, repetitions: int) -> dict[str, Any]:
    """Repeat with other bags and other splits."""
    runs: dict[str, list[dict[str, float]]] = {}
    for repetition in range(repetitions):
        bags, y = make_bags(raw, repetition)
        split = four_way_split(bags.n_bag, SIZES, repetition)
        for name, models in candidates(repetition).items():
            started = time.perf_counter()
            how = "objective" if len(models) == 1 else "validation"
            found = tune(models, bags, how, split=split)
            seconds = time.perf_counter() - started
            scores = score(found.model, bags, y, split)
            runs.setdefault(name, []).append({**scores, "seconds": round(seconds, 2)})
    mean = {
        name: {key: float(np.mean([run[key] for run in own])) for key in own[0]}
        for name, own in runs.items()
    }
    return {"paper": PAPER, "mean": mean, "runs": runs}


def data_path() -> Path:
    """Return the expected location of the data."""
    shared = Path(os.environ.get("DISAGG_SHARED_DATA", Path(__file__).parents[2] / "shared/data"))
    return shared / "elevators/elevators_raw.npz"


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(__doc__, repetitions=10, results=RESULTS)
    if not data_path().is_file():
        raise SystemExit(f"error: {data_path()}: no such file; set DISAGG_SHARED_DATA")
    result = measure(data_path(), options.repetitions)
    write_results(options.results / "elevators.json", result)
    print(f"{'':10} {'indiv NLL':>10} {'indiv MSE':>10} {'bag MSE':>9} {'seconds':>8}")
    for name, row in result["mean"].items():
        figures = f"{row['nll']:10.3f} {row['mse']:10.5f} {row['bag_mse']:9.5f}"
        print(f"{name:10} {figures} {row['seconds']:8.1f}")


if __name__ == "__main__":
    main()
