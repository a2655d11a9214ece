"""Totals of zones beside counts of some of their areas, against those counts alone and against all.

    python -m benchmarks.zones [--grids 20] [--first 0]

Countries of :mod:`benchmarks.grids` (1,600 pixels, 40 areas whose counts have noise of deviation
.3) in 8 zones; half of the areas, drawn at random, have no count. Arms: the counted areas alone;
with the rest of each zone as one count of its areas without one; every area counted. Scores of the
areas without a count, and of their pixels: of the logarithm of the rate, correlation, CRPS and
coverage of 90 % intervals. ``benchmarks/results/zones.json`` has the figures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from benchmarks.grids import Design, Grid, simulate
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models import VBAgg
from models.backend.blas import one_blas_thread
from models.core.block import Bags
from pipeline.evaluation.scores import crps, pearson

DESIGN = Design("linear", 40, cases=100.0, area_sd=0.3, n_side=40)
KERNEL = "linear + matern32(space)"
N_ZONE, N_DRAWS = 8, 300
ARMS = ("counted", "zones", "all")
PATH = RESULTS / "zones.json"


def fitted(grid: Grid, hidden: np.ndarray, zone: np.ndarray, arm: str) -> Any:
    """Fit an arm; ``hidden`` (n_area,) have no count but in that of all."""
    area = np.repeat(np.arange(hidden.size), np.diff(grid.offsets))
    own = np.arange(hidden.size) if arm == "all" else np.flatnonzero(~hidden)
    rests = [np.flatnonzero(hidden & (zone == k)) for k in range(N_ZONE)] if arm == "zones" else []
    members = [np.array([k]) for k in own] + [each for each in rests if each.size]
    pixels = [np.flatnonzero(np.isin(area, each)) for each in members]
    rows = np.concatenate(pixels)
    source = np.arange(len(members)) >= own.size
    bags = Bags(
        grid.x[rows],
        np.cumsum([0, *(each.size for each in pixels)]),
        np.array([grid.cases[each].sum() for each in members]),
        grid.people[rows],
        grid.coords[rows],
        source=source.astype(np.int64) if arm == "zones" else None,
    )
    of_zones = {"zones": {"likelihood": "poisson", "offset": False, "effect": True}}
    return VBAgg(kernel=KERNEL, sources=of_zones if arm == "zones" else None).fit(bags)


def scored(model: Any, grid: Grid, hidden: np.ndarray) -> dict[str, Any]:
    """Score the areas without a count, and their pixels."""
    drawn = model.sample_functions(N_DRAWS, np.random.default_rng(0)).rate(grid.x, grid.coords)
    first = grid.offsets[:-1]
    people = np.add.reduceat(grid.people, first)
    found: dict[str, Any] = {"converged": bool(model.converged_)}
    inside = np.repeat(hidden, np.diff(grid.offsets))
    of_areas = [
        np.log(np.add.reduceat(rate * grid.people, first, axis=-1) / people)[..., hidden]
        for rate in (drawn, grid.rate)
    ]
    of_pixels = [np.log(rate)[..., inside] for rate in (drawn, grid.rate)]
    for name, (each, truth) in (("areas", of_areas), ("pixels", of_pixels)):
        low, high = np.quantile(each, [0.05, 0.95], axis=0)
        found[name] = {
            "correlation": pearson(each.mean(axis=0), truth),
            "crps": float(crps(each, truth).mean()),
            "coverage": float(((truth >= low) & (truth <= high)).mean()),
        }
    return found


def measure(seed: int) -> list[dict[str, Any]]:
    """Fit and score every arm on one grid."""
    grid, rng = simulate(DESIGN, seed), np.random.default_rng([11, seed])
    hidden = rng.permutation(grid.cases.size) < grid.cases.size // 2
    middle = [np.add.reduceat(c, grid.offsets[:-1]) for c in grid.coords.T]
    middle = np.stack(middle, axis=1) / np.diff(grid.offsets)[:, None]
    zone = KMeans(N_ZONE, random_state=seed, n_init=4).fit_predict(middle)
    records = []
    with one_blas_thread():
        for arm in ARMS:
            scores = scored(fitted(grid, hidden, zone, arm), grid, hidden)
            records.append({"grid": seed, "arm": arm, **scores})
            print(records[-1], flush=True)
    return records


def table(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return mean and standard error of each score, by what is scored and arm."""

    def about(values: list[float]) -> list[float]:
        each = np.array(values)
        return [float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))]

    return {
        of: {
            arm: {
                key: about([r[of][key] for r in records if r["arm"] == arm])
                for key in ("correlation", "crps", "coverage")
            }
            for arm in ARMS
        }
        for of in ("areas", "pixels")
    }


def main() -> None:
    """Measure what is asked for, and write it."""
    asked = parsed(__doc__, grids=20, first=0)
    numbers = range(asked.first, asked.first + asked.grids)
    result = {k: v for k, v in read_results(PATH).items() if k != "code"}
    kept = [r for r in result.get("records", []) if r["grid"] not in numbers]
    records = [*kept, *(r for seed in numbers for r in measure(seed))]
    write_results(PATH, {"records": records, "means": table(records)})


if __name__ == "__main__":
    main()
