"""Areas that were split after a year and a half: what their counts of before are worth.

    python -m benchmarks.area_changes [--countries 3] [--lines LINES]

Countries of :mod:`benchmarks.months` (80 areas, 24 months, 6 cases an area and month). Until month
18 neighbours are one area, two and two, whose counts are known together. Four fits to the same
cases: as if areas had always been those of today (no one has that); the counts of before as those
of unions (``areas.changes``); shared out between the halves by people, as tables on harmonised
boundaries do; and left out. Scores: of pixels in month 6 and in the last month, the correlation of
the log rate, its CRPS and the coverage of 90 % intervals; of areas, the CRPS of one to three months
ahead. The harmonised table is the reference of the others: the JSON has differences by country.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.months import AHEAD, MONTHS, N_AREA, World, covered, crps, pixel_scores, simulate
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models import Period, SpaceTime
from models.core.block import BagBlock
from models.core.unions import OWN, union_bags

SPLIT, EARLY = 18, 6  # months with the areas of before; the month of them that is looked at
ARMS = ("today", "unions", "shared", "left_out")
N_DRAWS = 400


def pairs(world: World) -> np.ndarray:
    """Return the number of each area's union, (N_AREA,): nearest areas, two and two."""
    bags = world.whole[0]
    assert bags.coords is not None
    mass = np.add.reduceat(bags.weight, bags.offsets[:-1])
    centre = np.stack(
        [np.add.reduceat(bags.weight * axis, bags.offsets[:-1]) / mass for axis in bags.coords.T],
        axis=1,
    )
    away = ((centre[:, None] - centre) ** 2).sum(axis=2)
    union, free = np.full(N_AREA, OWN), set(range(N_AREA))
    for number in range(N_AREA // 2):
        first = max(free, key=lambda k: min(away[k, j] for j in free if j != k))  # corners first
        other = min(free - {first}, key=lambda k: away[first, k])
        union[[first, other]] = number
        free -= {first, other}
    return union


def arm(world: World, union: np.ndarray, name: str) -> list[Period]:
    """Return the periods as one of :data:`ARMS` has them."""
    area, found = np.arange(N_AREA), []
    for t in range(MONTHS):
        bags, gone = world.whole[t], world.missing[t]
        # Of a pair whose half has no count nothing is known of both.
        lost = gone | (np.isin(union, union[gone]) if t < SPLIT else False)
        keep = np.flatnonzero(~lost)
        own: BagBlock = bags.at(keep)
        if t < SPLIT and name == "unions":
            own = union_bags(own, union[keep], area[keep])
        elif t < SPLIT and name == "shared":
            people = np.add.reduceat(own.weight, own.offsets[:-1])
            y = np.bincount(union[keep], own.y, N_AREA)[union[keep]]
            whole = np.bincount(union[keep], people, N_AREA)[union[keep]]
            own = _with_counts(own, np.rint(y * people / whole))
        elif t < SPLIT and name == "left_out":
            found.append(Period(float(t), None))
            continue
        found.append(Period(float(t), own, own.bag))
    return found


def _with_counts(bags: BagBlock, y: np.ndarray) -> BagBlock:
    return BagBlock(bags.x, bags.weight, bags.coords, bags.offsets, y, bags.bag)


def scores(model: SpaceTime, world: World, seed: int) -> dict[str, float]:
    """Return the scores of a fit."""
    rng, found = np.random.default_rng([seed, 5]), dict[str, float]()
    area = np.repeat(np.arange(N_AREA), np.diff(world.whole[0].offsets))
    for name, t in (("early", EARLY), ("last", MONTHS - 1)):
        bags = world.whole[t]
        there = model.predict_pixels(bags.x, bags.coords, float(t), area)
        own = pixel_scores(there, world.f[t], bags.weight)
        drawn = np.log(np.stack([there.quantile(q) for q in (np.arange(50) + 0.5) / 50]))
        own["crps"] = float(crps(drawn, world.f[t]).mean())
        found |= {f"{name}.{key}": value for key, value in own.items()}
    ahead = [float(t) for t in range(MONTHS, MONTHS + AHEAD)]
    draws = model.sample_functions(N_DRAWS, rng, ahead)
    counts = [
        model.predict_bags(world.whole[int(t)], period=t, draws=draws).observed(rng).draws
        for t in ahead
    ]
    y = [world.whole[int(t)].y for t in ahead]
    found["ahead.crps"] = float(
        np.mean([crps(a, b).mean() for a, b in zip(counts, y, strict=True)])
    )
    found["ahead.covers"] = float(
        np.mean([covered(a, b, rng) for a, b in zip(counts, y, strict=True)])
    )
    return found


def one_country(seed: int) -> dict[str, Any]:
    """Return the scores of all arms in a country."""
    world = simulate(seed)
    union, found = pairs(world), dict[str, Any]()
    for name in ARMS:
        periods, started = arm(world, union, name), time.process_time()
        if name == "unions":
            _check(world, periods)
        model = SpaceTime().fit(periods, n_thread=1)
        found[name] = {"seconds": time.process_time() - started, **scores(model, world, seed)}
    return found


def _check(world: World, periods: list[Period]) -> None:
    """Refuse unions that are not the same cases and people."""
    for t, period in enumerate(periods):
        assert period.bags is not None
        whole = world.whole[t].at(np.unique(period.bags.area) if t < SPLIT else period.areas)
        for mine, all_of in ((period.bags.y, whole.y), (period.bags.weight, whole.weight)):
            if not np.isclose(mine.sum(), all_of.sum(), rtol=1e-12):
                message = f"month {t}: unions have {mine.sum()} of {all_of.sum()}"
                raise RuntimeError(message)


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean of each score by arm, and its difference from ``shared`` by country."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in ARMS:
        found[name] = {}
        for key in rows[0][name]:
            values = np.array([row[name][key] for row in rows])
            apart = values - np.array([row["shared"][key] for row in rows])
            error = apart.std(ddof=1) / np.sqrt(apart.size) if apart.size > 1 else np.nan
            found[name][key] = {
                "mean": float(values.mean()),
                "less_shared": float(apart.mean()),
                "standard_error": float(error),
            }
    return found


def main() -> None:
    """Run what has no record yet, and write the table."""
    given = parsed(
        __doc__, countries=3, workers=1, lines=Path("build/area_changes.jsonl"),
        out=RESULTS / "area_changes.json",
    )  # fmt: skip
    key = hash_settings("area_changes", SPLIT, EARLY, N_DRAWS)
    rows = run_missing(
        functools.partial(one_country), range(given.countries), given.lines, key, given.workers
    )
    write_results(given.out, {"summary": summary(rows), "rows": rows})
    for name, own in summary(rows).items():
        told = (f"{key} {each['mean']:.3f}" for key, each in own.items())
        print(f"{name}: {', '.join(told)}")


if __name__ == "__main__":
    main()
