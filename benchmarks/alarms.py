"""Alarms: known changes of counts, how often a comparison of two months finds them.

    python -m benchmarks.alarms [--pairs 100] [--workers N] [--records DIR] [--results DIR]

Countries of 900 pixels and 60 areas (:mod:`benchmarks.grids`), 200 cases an area, noise between
areas of .2, fitted with the defaults. The second month has counts drawn anew from the same rates
(``none``), from all rates times 0.3 (``fall``), from the rates of three areas times 3 (``three``),
or from these under a noise between areas that is drawn anew too (``noisy``). The change is that of
``disagg compare``: areas that changed by more than chance (``told``), beside the probabilities of
the maps' rates, and the totals, held against the sums of both tables. ``found`` counts changed
areas that were told, ``false`` told ones that did not change. Each pair leaves a line in ``DIR``;
the same command goes on where it ended. Writes ``benchmarks/results/alarms.json``.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.grids import Design, Grid, simulate
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.verdicts import write_country
from models import VBAgg
from models.aggregate.paired import draw_pair, what_differs
from models.backend.blas import one_blas_thread
from models.core.block import Bags
from models.likelihoods.registry import LIKELIHOODS
from pipeline.comparison.alarms import find_changes
from pipeline.comparison.areas import as_published, change_by_draws, draw_area_rates
from pipeline.comparison.report import moments
from pipeline.core.sources import code_hashes
from pipeline.products.areas import draw_areas, tabulate_areas
from pipeline.responses.registry import response_of
from pipeline.responses.response import Given
from pipeline.store.bag_store import BagStore

DESIGN = Design("linear", 60, 200.0, area_sd=0.2, n_side=30)
KINDS = ("none", "fall", "three", "noisy")
RULES = ("told", "change_probability", "change_probability_independent")
N_DRAWS, SURE, N_CHANGED = 500, 0.95, 3
RECORDS = Path(__file__).parents[1] / "build/alarms"
CASES = response_of(Given("counts", "cases", LIKELIHOODS["poisson"]))


def months(seed: int) -> tuple[Grid, dict[str, np.ndarray], np.ndarray]:
    """Draw the counts of the first month, and those of each kind of second one."""
    grid, rng = simulate(DESIGN, seed), np.random.default_rng([8, seed])
    mean = np.add.reduceat(grid.people * grid.rate, grid.offsets[:-1])
    mean *= DESIGN.cases * mean.size / mean.sum()
    noise = np.exp(DESIGN.area_sd * rng.standard_normal((2, mean.size)))
    mean *= noise[0]
    changed = rng.choice(mean.size, N_CHANGED, replace=False)
    three = np.ones(mean.size)
    three[changed] = 3.0
    factors = {"first": 1.0, "none": 1.0, "fall": 0.3, "three": three}
    factors["noisy"] = three * noise[1] / noise[0]
    counts = {name: rng.poisson(mean * factor).astype(float) for name, factor in factors.items()}
    return grid, counts, changed


def fitted(grid: Grid, y: np.ndarray, areas: BagStore, seed: int) -> tuple[Any, pd.DataFrame]:
    """Fit one month; return the model and its table of areas, in the order of the store."""
    bags = Bags(grid.x, grid.offsets, y, weight=grid.people, coords=grid.coords)
    model = VBAgg(seed=seed).fit(bags, n_thread=1)
    own = areas.with_responses(y[stored(areas)])
    draws = draw_areas(model, own, N_DRAWS, seed, n_thread=1, observed=True)
    return model, tabulate_areas(draws, list(areas.ids), 0.9, 1000)


def stored(areas: BagStore) -> np.ndarray:
    """Return the number of each area of the store in the country, (n_bag,) int."""
    return np.array(areas.ids, np.int64)


def compared(seed: int) -> dict[str, Any]:
    """Compare the first month with each kind of second one."""
    grid, counts, changed = months(seed)
    found: dict[str, Any] = {}
    with TemporaryDirectory() as directory, one_blas_thread():
        bags = Bags(grid.x, grid.offsets, counts["first"], grid.people, grid.coords)
        write_country(bags, Path(directory) / "bags.zarr", seed)
        areas = BagStore.open(Path(directory) / "bags.zarr")
        ids = list(areas.ids)
        runs = {name: fitted(grid, y, areas, seed) for name, y in counts.items()}
        for kind in KINDS:
            one, other = runs["first"], runs[kind]
            paired = what_differs(one[0], other[0]) is None
            drawn = draw_pair(one[0], other[0], N_DRAWS, seed, paired=paired)
            rates = [
                draw_area_rates(model, draws, areas, table, 1)
                for (model, table), draws in zip((one, other), drawn, strict=True)
            ]
            change = change_by_draws(
                (rates[0], ids), (rates[1], ids), rate_per=1000, interval=0.9, paired=paired
            )
            tables = [
                moments(each[1], CASES).assign(observed=each[1]["observed"])
                for each in (one, other)
            ]
            published = as_published(change, (rates[0], rates[1]), *tables, scale=1, rate_per=1000)
            sums = [float(each[1]["fitted"].sum()) for each in (one, other)]
            total = {} if published is None else published.total["expected"]
            row = {"paired": paired, "published": published is not None, "sums": sums,
                   "total": [total.get("a"), total.get("b")],
                   "rise": change.total["expected"]["change_probability"]}  # fmt: skip
            truth = np.zeros(len(ids), int)
            truth[changed] = kind in ("three", "noisy")
            truth = np.full(len(ids), -1) if kind == "fall" else truth[stored(areas)]
            for table, name in zip(tables, ("first", kind), strict=True):
                np.testing.assert_array_equal(table["observed"], counts[name][stored(areas)])
            told = find_changes(tables[0], tables[1], "counts")[0]["told"].to_numpy()
            for name in RULES:
                if name == "told":
                    said = (told == "rose").astype(int) - (told == "fell").astype(int)
                else:
                    p = change.table[name].reindex(ids).to_numpy()
                    said = (p >= SURE).astype(int) - (p <= 1 - SURE).astype(int)
                row[name] = {
                    "found": int(((said == truth) & (truth != 0)).sum()),
                    "changed": int((truth != 0).sum()),
                    "false": int(((said != 0) & (said != truth)).sum()),
                    "same": int((truth == 0).sum()),
                }
            found[kind] = row
    return found


def main() -> None:
    """Compare the pairs that no record has; print and write how many changes were found."""
    options = parsed(__doc__, pairs=100, workers=1, records=RECORDS, results=RESULTS)
    settings = hash_settings(DESIGN, N_DRAWS, code=str(code_hashes()))
    path = options.records / "pairs.jsonl"
    rows = run_missing(compared, range(options.pairs), path, settings, options.workers)
    result: dict[str, Any] = {"pairs": len(rows)}
    for kind in KINDS:
        each = [row[kind] for row in rows]
        result[kind] = {
            "paired": sum(row["paired"] for row in each),
            "published": sum(row["published"] for row in each),
            "total_told_is_the_sum": sum(
                bool(np.allclose(row["total"], row["sums"])) for row in each if row["published"]
            ),
            "total_rose": sum(row["rise"] >= SURE for row in each),
            "total_fell": sum(row["rise"] <= 1 - SURE for row in each),
        }
        for name in RULES:
            keys = ("found", "changed", "false", "same")
            result[kind][name] = {k: sum(row[name][k] for row in each) for k in keys}
            result[kind][name]["pairs_with_a_false_alarm"] = sum(
                row[name]["false"] > 0 for row in each
            )
        print(kind, result[kind], flush=True)
    write_results(options.results / "alarms.json", result)


if __name__ == "__main__":
    main()
