"""Suppressed counts on simulated areas: as intervals, left out, or replaced by a number.

    python -m benchmarks.censored [--seeds 6] [--people 80] [--results DIR]

Half of the counts below 5 are suppressed, in countries of so many people an area (4 to 5 cases for
80). The counts of a second year of the same rates, known
everywhere, are predicted. Writes ``benchmarks/results/censored.json``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.area_effect import Country, simulate
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models import Bags, VBAgg
from pipeline.evaluation.scores import crps, pit_bounds, pit_coverage

N_AREA, TAU = 50, 0.3
LIMIT = 5  # counts below are suppressed, half of them
WAYS = ("all known", "intervals", "left out", "as 2", "as 0")
N_DRAWS = 500


def given(country: Country, way: str, hidden: np.ndarray) -> Bags:
    """Return the bags as one way has them, those that it leaves out dropped."""
    bags, y, margin = country.bags, country.bags.y.copy(), np.zeros(N_AREA)
    keep = np.ones(N_AREA, bool)
    if way == "intervals":
        y[hidden], margin[hidden] = 0.5 * (LIMIT - 1), 0.5 * (LIMIT - 1)
    elif way == "left out":
        keep = ~hidden
    elif way != "all known":
        y[hidden] = float(way.removeprefix("as "))
    own = bags.at(np.flatnonzero(keep))
    return Bags(own.x, own.offsets, y[keep], own.weight, own.coords, margin=margin[keep])


def measure(seed: int, people: float) -> dict[str, Any]:
    """Fit one country in every way."""
    country = simulate(N_AREA, TAU, seed, people)
    rng = np.random.default_rng([seed, 1])
    small = country.bags.y < LIMIT
    hidden = small & (rng.random(N_AREA) < 0.5)
    found: dict[str, Any] = {"small": int(small.sum()), "hidden": int(hidden.sum())}
    for way in WAYS:
        model = VBAgg(area_effect=True, link="exp", n_inducing=40, max_epochs=200, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(given(country, way, hidden))
        drawn = model.predict_bags(country.bags, n_draws=N_DRAWS)
        counts = drawn.observed(np.random.default_rng([seed, 2])).draws
        low, high = pit_bounds(counts, country.again)
        logs = np.log(drawn.mean) - np.log(country.expected)
        found[way] = {
            "covers": float(pit_coverage(low, high, 0.9).mean()),
            "covers_hidden": float(pit_coverage(low, high, 0.9)[hidden].mean()),
            "crps": float(crps(counts, country.again).mean()),
            "bias": float(drawn.mean[hidden].sum() / country.expected[hidden].sum()),
            "rmse_log": float(np.sqrt((logs**2).mean())),
        }
    return found


def main() -> None:
    """Run all seeds and write the results."""
    arguments = parsed(__doc__, seeds=6, people=80.0, results=RESULTS)
    each = [measure(seed, arguments.people) for seed in range(arguments.seeds)]
    mean = {
        way: {name: float(np.mean([own[way][name] for own in each])) for name in each[0][way]}
        for way in WAYS
    }
    for way, row in mean.items():
        print(f"{way:10}", *(f"{name} {value:.3f}" for name, value in row.items()))
    path = arguments.results / "censored.json"
    found = read_results(path)
    write_results(path, {**found, f"{arguments.people:g}": {"mean": mean, "each": each}})


if __name__ == "__main__":
    main()
