"""The swiss roll of the VBAgg paper: Poisson and normal responses, figures 1 to 5 and 8 to 11.

    python -m benchmarks.swiss_roll [--likelihoods poisson normal] [--experiments bags sizes]
                                    [--repetitions 5] [--workers 1] [--records DIR]

Points of a swiss roll are rotated into 18 dimensions and cut along one axis into bags of random
size. The colour of a point is its rate (or mean); responses are known by bag alone. Experiments:
100 to 350 training bags of 150 points, and 600 bags of 100 and 200. As in the paper, bags are dealt
into training, early stopping, comparing candidates and 500 test bags; VBAgg takes its candidate by
the bound, the others by held-out bags. Scores of training points: negative log-likelihood of their
own responses, squared error of the rate, share of true rates inside central intervals; of test
bags: squared error of the response, per point. VBAgg with our defaults, kernel included, stands
beside, on the first roll of up to 200 bags. Each roll leaves a line in ``DIR``: the same
command goes on where it ended. Writes ``benchmarks/results/swiss_roll.json`` and, from it alone,
``docs/vbagg-paper.md`` and its picture (:mod:`benchmarks.swiss_roll_page`).
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm, poisson, wilcoxon
from sklearn.datasets import make_swiss_roll

from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models import BagPixel, Bags, Network, Nystrom, VBAgg
from models.backend.blas import one_blas_thread
from models.training.estimator import Estimator
from models.tuning import Split, four_way_split, tune

RECORDS = Path(__file__).parents[1] / "build/swiss_roll"
N_DIM = 18
LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
#: Number, mean size and its standard deviation of the bags of each point of an experiment.
EXPERIMENTS = {
    "bags": [(n_bag, 150.0, 50.0) for n_bag in (100, 150, 200, 250, 300, 350)],
    "sizes": [(600, size, size / 2) for size in (100.0, 200.0)],
}
N_LANDMARK, N_EPOCH, N_TEST = 100, 150, 500
N_START = 5  # of the network: its ends differ by where it starts
N_WATCHED = {"bags": 0, "sizes": 150}  # bags to stop by and to compare by; 0: as many as train
OURS, MOST_OURS = "VBAgg, our defaults", 200  # bags: its kernel takes minutes in 18 dimensions
#: Rate per unit of the colour, which runs from 1.5 pi to 4.5 pi. The paper's text has no scale, but
#: scores of what gives each point its bag's mean response: squared error .85 and negative
#: log-likelihood 2.23 (Poisson), squared error .039 to .04 (normal). Hence these.
SCALES = {"poisson": 0.489, "normal": 0.107}
NOISE = 0.1  # variance of a normal response about its mean


def make_roll(
    likelihood: str, n_bag: int, size: float, sd: float, seed: int
) -> tuple[Bags, np.ndarray, np.ndarray]:
    """Simulate bags, and the rate and the response of each point.

    Parameters
    ----------
    likelihood : str
        ``poisson`` or ``normal``.
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
    rate = SCALES[likelihood] * colour
    rotation = np.linalg.qr(rng.normal(size=(N_DIM, N_DIM)))[0]
    x = np.concatenate([place, np.zeros((n, N_DIM - 3))], axis=1) @ rotation
    response = rng.poisson(rate) if likelihood == "poisson" else rng.normal(rate, np.sqrt(NOISE))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Bags(x, offsets, np.add.reduceat(response.astype(float), offsets[:-1])), rate, response


def candidates(likelihood: str, seed: int) -> dict[str, list[Estimator]]:
    """Return the models to compare, each with the candidates of its tuning, all unfitted."""
    plain: dict[str, Any] = {"likelihood": likelihood, "area_effect": False, "seed": seed}
    short = {**plain, "max_epochs": N_EPOCH}
    kernel = {**short, "n_inducing": N_LANDMARK, "kernel": "rbf"}
    bayes = {**kernel, "priors": "none", "integrate": "none"}
    maps: dict[str, list[Estimator]] = {
        "Nystrom": [Nystrom(**kernel, prior_sd=sd) for sd in (0.1, 0.3, 1.0)],
        "NN": [
            Network(**short, n_hidden=30, learning_rate=rate, weight_decay=decay)
            for rate in (0.01, 0.05)
            for decay in (0.1, 1.0)
        ],
    }
    if likelihood == "normal":
        return {"VBAgg": [VBAgg(**bayes)], **maps}
    return {
        "VBAgg-Sq": [VBAgg(link="square", **bayes)],
        "VBAgg-Exp": [VBAgg(estimator="bound", **bayes)],
        "VBAgg-Exp, log-normal": [VBAgg(**bayes)],
        **maps,
        "Bag-pixel": [BagPixel(**bayes)],
    }


def score(
    likelihood: str, model: Any, bags: Bags, rate: np.ndarray, response: np.ndarray, split: Split
) -> dict[str, Any]:
    """Score points of the training bags, and the test bags."""
    train, test = (np.repeat(part, np.diff(bags.offsets)) for part in (split.train, split.test))
    predicted = model.predict_pixels(bags.x[train])
    mean, sd = np.asarray(predicted.mean), np.asarray(predicted.sd)
    if likelihood == "poisson":
        nll = -poisson.logpmf(response[train], mean)
    else:
        spread = np.sqrt(model.named_hyperparameters()["noise"] + sd**2)
        nll = -norm.logpdf(response[train], mean, spread)
    found = {"nll": float(nll.mean()), "mse": float(((mean - rate[train]) ** 2).mean())}
    held, means = bags.select(split.test), np.asarray(model.predict_pixels(bags.x[test]).mean)
    off = np.add.reduceat(means, held.offsets[:-1]) - held.y
    found["bag_mse"] = float(((off / np.diff(held.offsets)) ** 2).mean())
    if (sd > 0).all():
        below = 1.0 - np.asarray(predicted.exceed(rate[train]))
        held_by = {f"{level:g}": np.abs(below - 0.5) <= 0.5 * level for level in LEVELS}
        return {**found, "coverage": {name: float(each.mean()) for name, each in held_by.items()}}
    return found


def constant_score(
    likelihood: str, bags: Bags, rate: np.ndarray, response: np.ndarray, split: Split
) -> dict[str, Any]:
    """Score what gives each point of the training bags its bag's mean response."""
    train = np.repeat(split.train, np.diff(bags.offsets))
    mean = np.repeat(bags.y / np.diff(bags.offsets), np.diff(bags.offsets))[train]
    found = {"mse": float(((mean - rate[train]) ** 2).mean()), "seconds": 0.0, "converged": True}
    if likelihood == "poisson":
        found["nll"] = float(-poisson.logpmf(response[train], mean).mean())
    return found


def measure(
    likelihood: str, experiment: str, point: tuple[int, float, float], repetition: int
) -> dict[str, Any]:
    """Tune and fit all models on a roll; return their scores."""
    n_bag, size, sd = point
    sizes = (n_bag, N_WATCHED[experiment] or n_bag, N_WATCHED[experiment] or n_bag, N_TEST)
    bags, rate, response = make_roll(likelihood, sum(sizes), size, sd, repetition)
    split = four_way_split(bags.n_bag, sizes, repetition)
    compared = candidates(likelihood, repetition)
    if experiment == "sizes":
        compared.pop("Bag-pixel", None)  # as in the paper
    elif repetition == 0 and n_bag <= MOST_OURS:
        compared[OURS] = [VBAgg(likelihood=likelihood)]
    scores = {"Constant in a bag": constant_score(likelihood, bags, rate, response, split)}
    for name, models in compared.items():
        started = time.process_time()
        how: Any = "validation" if len(models) > 1 or name == "Bag-pixel" else "objective"
        with one_blas_thread():
            starts = N_START if name == "NN" else 1
            model = tune(models, bags, how, split=split, n_starts=starts, n_thread=1).model
            found = score(likelihood, model, bags, rate, response, split)
        seconds = round(time.process_time() - started, 2)
        scores[name] = {**found, "seconds": seconds, "converged": bool(model.converged_)}
    return {"scores": scores}


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means and standard errors of the models' scores over rolls of one kind."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for record in records for name in record["scores"]):
        rows = [record["scores"][name] for record in records if name in record["scores"]]
        own: dict[str, Any] = {"rolls": len(rows)}
        for key in ("nll", "mse", "bag_mse", "seconds"):
            values = [row[key] for row in rows if key in row]
            if values:
                own[key] = float(np.mean(values))
                if len(values) > 1:
                    own[f"{key}_se"] = float(np.std(values, ddof=1) / np.sqrt(len(values)))
        if "coverage" in rows[0]:
            own["coverage"] = {
                level: float(np.mean([row["coverage"][level] for row in rows]))
                for level in rows[0]["coverage"]
            }
        own["not_converged"] = sum(not row["converged"] for row in rows)
        found[name] = own
    return found


def tested(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return p of one-sided signed-rank tests over all rolls: ours better than the others."""
    names = [name for name in records[0]["scores"] if name.startswith("VBAgg") and name != OURS]
    return {
        f"{name}, {other}": {
            key: float(wilcoxon(_off(records, name, other, key), alternative="less").pvalue)
            for key in ("nll", "mse")
        }
        for name in names
        for other in ("NN", "Nystrom")
    }


def _off(records: list[dict[str, Any]], name: str, other: str, key: str) -> list[float]:
    return [record["scores"][name][key] - record["scores"][other][key] for record in records]


def run(
    likelihoods: list[str], experiments: list[str], repetitions: int, records: Path, workers: int
) -> dict[str, Any]:
    """Measure what has no record yet; return the figures by likelihood and experiment."""
    found: dict[str, Any] = {}
    for likelihood in likelihoods:
        for experiment in experiments:
            points: list[dict[str, Any]] = []
            every: list[dict[str, Any]] = []
            for point in EXPERIMENTS[experiment]:
                rolls = run_missing(
                    functools.partial(measure, likelihood, experiment, point),
                    range(repetitions),
                    records / f"{likelihood}-{experiment}-{point[0]}-{point[1]:g}.jsonl",
                    hash_settings(likelihood, experiment, point, N_LANDMARK, N_EPOCH, N_TEST),
                    workers,
                )
                points.append({"n_bag": point[0], "size": point[1], "models": summarise(rolls)})
                every.extend(rolls)
            found.setdefault(likelihood, {})[experiment] = {
                "points": points,
                "p": tested(every) if len(every) > 1 else {},
            }
    return found


def main() -> None:
    """Measure; write the file, the page and the picture."""
    args = parsed(
        __doc__,
        likelihoods=["poisson", "normal"],
        experiments=list(EXPERIMENTS),
        repetitions=5,
        workers=1,
        records=RECORDS,
        results=RESULTS,
    )
    found = run(args.likelihoods, args.experiments, args.repetitions, args.records, args.workers)
    path = args.results / "swiss_roll.json"
    write_results(path, found)
    if args.results == RESULTS:
        from benchmarks.swiss_roll_page import write_page

        write_page(path)


if __name__ == "__main__":
    main()
