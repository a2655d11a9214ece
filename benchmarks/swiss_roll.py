"""The swiss roll of the VBAgg paper: both experiments of Figure 1, Tables 4-7, Figures 4-5.

    python -m benchmarks.swiss_roll [--repetitions 5] [--bags 100 150 ...] [--results DIR]

Points of a swiss roll are rotated into 18 dimensions and cut along one axis into bags of random
size. The colour is the rate of a Poisson count, known by bag alone. Scores on the training points:
mean negative log-likelihood of their own counts under the predicted rate, squared error of the
rate, and the share of true rates inside central intervals. Writes
``benchmarks/results/swiss_roll.json``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import wilcoxon
from sklearn.datasets import make_swiss_roll

from benchmarks.report import RESULTS, write_results
from models import BagPixel, Bags, Constant, Network, Nystrom, VBAgg
from models.training.estimator import Estimator

N_DIM = 18
LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
BAG_NUMBERS = (100, 150, 200, 250, 300, 350)
BAG_SIZES = (100, 200, 300)
N_BAG_BY_SIZE = 600
OURS = ("VBAgg-Sq", "VBAgg-Exp (Lemma 1)", "VBAgg-Exp (log-normal)")
ORDER = ("VBAgg-Sq", "Nystrom-Exp", "NN-Exp", "Bag-pixel")


def make_roll(n_bag: int, size: float, sd: float, seed: int) -> tuple[Bags, np.ndarray, np.ndarray]:
    """Simulate bags, and the rate and count of each point.

    Parameters
    ----------
    n_bag : int
    size, sd : float
        Mean and standard deviation of the negative binomial bag sizes.
    seed : int
    """
    rng = np.random.default_rng([seed, n_bag, int(size)])
    shape = size**2 / (sd**2 - size)
    sizes = np.maximum(rng.negative_binomial(shape, shape / (shape + size), n_bag), 1)
    n = int(sizes.sum())
    place, colour = make_swiss_roll(n, random_state=int(rng.integers(2**31)))
    order = np.argsort(place[:, 2], kind="stable")
    place, colour = place[order], colour[order]
    # The colour runs from 1.5 pi to 4.5 pi. The paper prints no scale, but the scores of a
    # constant: mean squared error 0.85 and NLL 2.22 to 2.23. Hence this variance and this mean.
    rate = 0.339 * colour + 1.3
    rotation = np.linalg.qr(rng.normal(size=(N_DIM, N_DIM)))[0]
    x = np.concatenate([place, np.zeros((n, N_DIM - 3))], axis=1) @ rotation
    count = rng.poisson(rate)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    y = np.add.reduceat(count, offsets[:-1]).astype(float)
    return Bags(x, offsets, y), rate, count


def models(n_inducing: int, seed: int, epochs: int) -> dict[str, Estimator]:
    """Return the models to compare, unfitted."""
    common: dict[str, Any] = {"n_inducing": n_inducing, "kernel": "rbf", "seed": seed}
    # As in the paper: inducing points are fixed, and there are neither priors nor noise of bags.
    common |= {"max_epochs": epochs, "learn_inducing": False, "area_effect": False}
    bayes = {**common, "priors": "none"}
    return {
        "Constant": Constant(link="exp", area_effect=False, seed=seed),
        "VBAgg-Sq": VBAgg(link="square", **bayes),
        "VBAgg-Exp (Lemma 1)": VBAgg(link="exp", estimator="bound", **bayes),
        "VBAgg-Exp (log-normal)": VBAgg(link="exp", estimator="log_normal", **bayes),
        "Nystrom-Exp": Nystrom(link="exp", **common),
        "NN-Exp": Network(
            link="exp",
            area_effect=False,
            n_hidden=30,
            max_epochs=epochs,
            learning_rate=0.01,
            seed=seed,
        ),
        "Bag-pixel": BagPixel(link="exp", **bayes),
    }


def score(model: Any, bags: Bags, rate: np.ndarray, count: np.ndarray) -> dict[str, Any]:
    """Score the predictions of a fitted model for the points of its training bags."""
    predicted = model.predict_pixels(bags.x)
    mean = np.asarray(predicted.mean)
    result: dict[str, Any] = {
        "nll": float((mean - count * np.log(mean) + gammaln(count + 1)).mean()),
        "mse": float(((mean - rate) ** 2).mean()),
    }
    if (predicted.s > 0).all():
        below = 1.0 - np.asarray(predicted.exceed(rate))
        result["coverage"] = {
            f"{level:g}": float((np.abs(below - 0.5) <= 0.5 * level).mean()) for level in LEVELS
        }
    return result


def measure(
    numbers: tuple[int, ...] = BAG_NUMBERS,
    sizes: tuple[int, ...] = BAG_SIZES,
    repetitions: int = 5,
    n_bag_by_size: int = N_BAG_BY_SIZE,
    n_inducing: int = 100,
    epochs: int = 150,
) -> dict[str, Any]:
    """Run both experiments."""
    plan = [("bags", n, 150.0, 50.0) for n in numbers]
    plan += [("sizes", n_bag_by_size, float(size), size / 2) for size in sizes]
    runs = []
    for experiment, n_bag, size, sd in plan:
        for repetition in range(repetitions):
            bags, rate, count = make_roll(n_bag, size, sd, repetition)
            # The rate of each point's own bag: no model of bags alone can do better.
            for name, model in models(n_inducing, repetition, epochs).items():
                if experiment == "sizes" and name == "Bag-pixel":
                    continue  # as the paper
                started = time.perf_counter()
                model.fit(bags)
                runs.append(
                    {
                        "experiment": experiment,
                        "n_bag": n_bag,
                        "size": size,
                        "repetition": repetition,
                        "model": name,
                        "seconds": round(time.perf_counter() - started, 2),
                        "converged": model.converged_,
                        **score(model, bags, rate, count),
                    }
                )
    return {"runs": runs, **summarise(runs)}


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Average over repetitions, and compare by signed-rank tests."""
    summary: dict[str, Any] = {}
    for experiment in sorted({run["experiment"] for run in runs}):
        chosen = [run for run in runs if run["experiment"] == experiment]
        names = list(dict.fromkeys(run["model"] for run in chosen))
        by = {name: [run for run in chosen if run["model"] == name] for name in names}
        table = {}
        for name, own in by.items():
            row: dict[str, Any] = {
                key: float(np.mean([run[key] for run in own])) for key in ("nll", "mse", "seconds")
            }
            if "coverage" in own[0]:
                row["coverage"] = {
                    level: float(np.mean([run["coverage"][level] for run in own]))
                    for level in own[0]["coverage"]
                }
            table[name] = row
        tests = {}
        for ours in OURS:
            for theirs in ("NN-Exp", "Nystrom-Exp"):
                for key in ("nll", "mse"):
                    off = [a[key] - b[key] for a, b in zip(by[ours], by[theirs], strict=True)]
                    p = wilcoxon(off, alternative="less").pvalue
                    tests[f"{ours} better than {theirs}, {key}"] = float(p)
        summary[experiment] = {"models": table, "wilcoxon_p": tests}
    return {"summary": summary}


def main() -> None:
    """Measure, write the JSON and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--bags", type=int, nargs="*", default=BAG_NUMBERS)
    parser.add_argument("--sizes", type=int, nargs="*", default=BAG_SIZES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = measure(tuple(options.bags), tuple(options.sizes), options.repetitions)
    write_results(options.results / "swiss_roll.json", result)
    for experiment, found in result["summary"].items():
        levels = " ".join(f"{level:>5g}" for level in LEVELS)
        print(f"\n{'varying ' + experiment:24} {'NLL':>7} {'MSE':>7} {'s':>6}  cover {levels}")
        for name, row in found["models"].items():
            cover = " ".join(f"{100 * c:5.1f}" for c in row.get("coverage", {}).values())
            figures = f"{row['nll']:7.4f} {row['mse']:7.4f} {row['seconds']:6.1f}"
            print(f"{name:24} {figures}        {cover}")
        for name, p in found["wilcoxon_p"].items():
            print(f"  {name:52} p = {p:.2g}")


if __name__ == "__main__":
    main()
