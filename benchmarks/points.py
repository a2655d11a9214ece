"""Survey clusters beside counts of areas, in one posterior, against either alone.

    python -m benchmarks.points [--grids 5] [--first 0] [--reach 1]
    python -m benchmarks.points --mixture

Countries of :mod:`benchmarks.grids` (1,600 pixels of 1 km, 40 areas whose counts have noise of
deviation .3) with 60 survey clusters beside: 25 people tested where people live, positives with
probability ``1 - exp(-kappa rate)`` of about .2, clusters differ by a factor of deviation .2. Each
is reported up to 2 km (half of them) or 5 km away, times ``--reach``, by a random angle and
distance. Arms: areas alone; points alone, at their reported places; both, displacement known; both,
a cluster taken for the average around it; both, reported places taken for true ones; both, true
places known. Scores of pixels: of the logarithm of the rate, correlation; of its deviation from the
mean over all pixels (points alone do not know the level of the counts), CRPS and coverage of 90 %
intervals.
``benchmarks/results/points.json`` has the figures.

``--mixture`` compares, on quadrature, what one cluster says of two candidate pixels under the mean
of their probabilities and under the mixture of their likelihoods.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.grids import Design, Grid, simulate
from benchmarks.report import RESULTS, parsed, read_results, write_results
from geo.grids.displacement import displacements
from models import VBAgg
from models.backend.blas import one_blas_thread
from models.core.block import Bags
from pipeline.evaluation.scores import crps, pearson

DESIGN = Design("linear", 40, cases=100.0, area_sd=0.3, n_side=40)
N_POINT, TESTED, PREVALENCE, CLUSTER_SD = 60, 25, 0.2, 0.2
RADII = (2.0, 5.0)
KERNEL = "linear + matern32(space)"
N_DRAWS = 200
PATH = RESULTS / "points.json"


def survey(grid: Grid, seed: int, reach: float) -> dict[str, np.ndarray]:
    """Draw clusters: true and reported pixel (places in the grid's order), positives, radius."""
    rng = np.random.default_rng([7, seed])
    true = rng.choice(grid.people.size, N_POINT, p=grid.people / grid.people.sum())
    kappa = -np.log1p(-PREVALENCE) / float(grid.people @ grid.rate / grid.people.sum())
    factor = np.exp(CLUSTER_SD * rng.standard_normal(N_POINT) - CLUSTER_SD**2 / 2)
    y = rng.binomial(TESTED, -np.expm1(-kappa * grid.rate[true] * factor)).astype(np.float64)
    radius = reach * np.where(np.arange(N_POINT) < N_POINT // 2, *RADII)
    place, n = grid.coords[true] + rng.uniform(-0.5, 0.5, (N_POINT, 2)), DESIGN.n_side
    reported = place.copy()
    for k in range(N_POINT):  # the country's border is not crossed
        while True:
            angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0, radius[k])
            reported[k] = place[k] + distance * np.array([np.sin(angle), np.cos(angle)])
            if (reported[k] > 0).all() and (reported[k] < n).all():
                break
    return {"true": true, "reported": reported, "y": y, "radius": radius}


def points(grid: Grid, found: dict[str, np.ndarray], how: str) -> tuple[np.ndarray, ...]:
    """Return offsets, pixels and weights of the clusters' bags."""
    n = DESIGN.n_side
    place_of = np.empty(n * n, np.int64)
    place_of[grid.pixel] = np.arange(n * n)
    sizes, pixels, weights = [], [], []
    for true, at, radius in zip(found["true"], found["reported"], found["radius"], strict=True):
        if how == "true":
            own, weight = np.array([true]), np.ones(1)
        else:
            angle, distance, mass = displacements(((radius, 1.0),))
            distance = distance * (how == "displaced")
            x = at[0] + distance * np.sin(np.radians(angle))
            y = at[1] + distance * np.cos(np.radians(angle))
            inside = (x >= 0) & (y >= 0) & (x < n) & (y < n)
            number = np.floor(y[inside]).astype(int) * n + np.floor(x[inside]).astype(int)
            own, which = np.unique(place_of[number], return_inverse=True)
            weight = np.bincount(which, mass[inside], own.size) * grid.people[own]
        sizes.append(own.size)
        pixels.append(own)
        weights.append(weight / weight.sum())
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return offsets, np.concatenate(pixels), np.concatenate(weights)


def fitted(grid: Grid, found: dict[str, np.ndarray], arm: str) -> Any:
    """Fit an arm."""
    if arm == "areas":
        return VBAgg(kernel=KERNEL).fit(grid.bags())
    how = {"points": "reported", "reported": "reported", "true": "true"}.get(arm, "displaced")
    offsets, pixel, weight = points(grid, found, how)
    x, coords, tested = grid.x[pixel], grid.coords[pixel], np.full(N_POINT, float(TESTED))
    if arm == "points":
        bags = Bags(x, offsets, found["y"], weight, coords, tested)
        return VBAgg(kernel=KERNEL, likelihood="beta_binomial").fit(bags)
    n_area = grid.cases.size
    both = Bags(
        np.concatenate([grid.x, x]),
        np.concatenate([grid.offsets, grid.offsets[-1] + offsets[1:]]),
        np.concatenate([grid.cases, found["y"]]),
        np.concatenate([grid.people, weight]),
        np.concatenate([grid.coords, coords]),
        np.concatenate([np.full(n_area, np.nan), tested]),
        source=np.repeat([0, 1], [n_area, N_POINT]),
    )
    return VBAgg(kernel=KERNEL, sources={"survey": {"displaced": arm != "average"}}).fit(both)


def scored(model: Any, grid: Grid, *, proportions: bool) -> dict[str, Any]:
    """Score the pattern of the rate."""
    rng = np.random.default_rng(0)
    drawn = model.sample_functions(N_DRAWS, rng).rate(grid.x, grid.coords)
    drawn = np.log(-np.log1p(-np.minimum(drawn, 1 - 1e-12)) if proportions else drawn)
    truth = np.log(grid.rate)
    drawn, truth = drawn - drawn.mean(axis=1, keepdims=True), truth - truth.mean()
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    table = model.hyperparameter_table()
    return {
        "correlation": pearson(drawn.mean(axis=0), truth),
        "crps": float(crps(drawn, truth).mean()),
        "coverage": float(((truth >= low) & (truth <= high)).mean()),
        "width": float((high - low).mean()),
        "converged": bool(model.converged_),
        "hyperparameters": {name: row["mode"] for name, row in table.items()},
    }


ARMS = ("areas", "points", "both", "average", "reported", "true")


def measure(seed: int, reach: float) -> list[dict[str, Any]]:
    """Fit and score every arm on one grid."""
    records = []
    with one_blas_thread():
        grid = simulate(DESIGN, seed)
        found = survey(grid, seed, reach)
        for arm in ARMS:
            started = time.process_time()
            scores = scored(fitted(grid, found, arm), grid, proportions=arm == "points")
            seconds = time.process_time() - started
            records.append({"grid": seed, "reach": reach, "arm": arm, **scores, "cpu_s": seconds})
            print({k: v for k, v in records[-1].items() if k != "hyperparameters"}, flush=True)
    return records


def mixture() -> list[dict[str, float]]:
    """Compare posteriors of two candidate pixels' log rates, on a grid of their values.

    The pixels are independent a priori, log rates of deviation ``sd`` around a prevalence of .2;
    the cluster has 25 tested and is as probably in one as in the other.
    """
    rows = []
    for sd in (0.2, 0.5, 1.0):
        f = np.linspace(-4.5 * sd, 4.5 * sd, 241)
        prior = stats.norm.pdf(f, 0, sd)
        a, b = np.meshgrid(f, f, indexing="ij")
        chance = [-np.expm1(np.log1p(-PREVALENCE) * np.exp(each)) for each in (a, b)]
        for y in (1, 5, 12):
            each = [stats.binom.pmf(y, TESTED, p) for p in chance]
            exact = (each[0] + each[1]) / 2
            plain = stats.binom.pmf(y, TESTED, (chance[0] + chance[1]) / 2)
            # With a factor of the cluster of the deviation that the pixels have between them.
            row: dict[str, float] = {"sd": sd, "y": y}
            for name, weight in (("mixture", exact), ("mean", plain)):
                joint = weight * prior[:, None] * prior
                joint /= joint.sum()
                half = (joint * (a + b)).sum() / 2
                row[f"{name}_mean"] = float(half)
                row[f"{name}_sd"] = float(np.sqrt((joint * ((a + b) / 2 - half) ** 2).sum()))
            nodes, weights = np.polynomial.hermite_e.hermegauss(24)
            spread = sd / np.sqrt(2)
            mean = (np.exp(a) + np.exp(b)) / 2
            wide = sum(
                w / weights.sum() * stats.binom.pmf(
                    y, TESTED, -np.expm1(
                        np.log1p(-PREVALENCE) * mean * np.exp(spread * z - spread**2 / 2)
                    )
                )
                for z, w in zip(nodes, weights, strict=True)
            )  # fmt: skip
            joint = wide * prior[:, None] * prior
            joint /= joint.sum()
            half = (joint * (a + b)).sum() / 2
            row["factor_mean"] = float(half)
            row["factor_sd"] = float(np.sqrt((joint * ((a + b) / 2 - half) ** 2).sum()))
            rows.append(row)
    return rows


def table(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean of each score by reach and arm."""
    keys = ("correlation", "crps", "coverage", "width", "cpu_s")
    return {
        f"{reach:g}": {
            arm: {key: float(np.mean([r[key] for r in own if r["arm"] == arm])) for key in keys}
            for arm in ARMS
        }
        for reach in sorted({r["reach"] for r in records})
        for own in [[r for r in records if r["reach"] == reach]]
    }


def main() -> None:
    """Measure what is asked for, and write it."""
    asked = parsed(__doc__, grids=5, first=0, reach=1.0, mixture=False)
    result = read_results(PATH)
    if asked.mixture:
        result["mixture"] = mixture()
    else:
        numbers = range(asked.first, asked.first + asked.grids)
        kept = [
            r
            for r in result.get("records", [])
            if not (r["grid"] in numbers and r["reach"] == asked.reach)
        ]
        records = [*kept, *(r for seed in numbers for r in measure(seed, asked.reach))]
        result |= {"records": records, "means": table(records)}
    write_results(PATH, result)


if __name__ == "__main__":
    main()
