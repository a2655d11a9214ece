"""BLRT: training time, beside plain NumPy and extra trees, and how it grows.

    python -m benchmarks.blrt [PART ...] [--threads 2] [--results DIR]

Musk1 and Protein are in ``mil`` of ``DISAGG_SHARED_DATA``. Extra trees of scikit-learn learn from
the mean, the minimum and the maximum of each feature in each bag. ``python -m benchmarks.mil_papers
blrt`` has the AUC. Writes ``benchmarks/results/blrt.json`` and prints tables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks.mil_baselines import bag_statistics
from benchmarks.mil_data import load_set, require_folder
from benchmarks.plain_trees import grow_plain
from benchmarks.report import RESULTS, read_results, write_results
from models import BLRT, Bags

N_BAGS = (200, 400, 800, 1600, 3200)
COMPILE = """
import time, numpy as np
from models import BLRT, Bags
bags = Bags(np.arange(8.0).reshape(4, 2), [0, 1, 2, 3, 4], [0, 1, 0, 1])
start = time.perf_counter()
BLRT(n_trees=1).fit(bags)
print(time.perf_counter() - start)
"""


def seconds(bags: Bags, repeats: int = 3, n_thread: int = 1, **params: Any) -> float:
    """Return the shortest time of a fit, s."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        BLRT(**params).fit(bags, n_thread=n_thread)
        times.append(time.perf_counter() - start)
    return min(times)


def compile_seconds(*, cached: bool) -> float:
    """Return the time of a first fit in a new process, with and without cached machine code, s."""
    with tempfile.TemporaryDirectory() as kept:
        taken = 0.0
        for _ in range(2 if cached else 1):
            run = subprocess.run(
                [sys.executable, "-c", COMPILE],
                env={**os.environ, "NUMBA_CACHE_DIR": kept},
                capture_output=True,
                text=True,
                check=True,
            )
            taken = float(run.stdout)
    return taken


def simulated(n_bag: int, size: int, n_feat: int, seed: int = 0) -> Bags:
    """Return bags of equal size with random labels: trees grow to their full depth."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_bag * size, n_feat))
    return Bags(x, np.arange(n_bag + 1) * size, np.arange(n_bag) % 2)


def growth(n_trees: int, scale: int = 1) -> dict[str, Any]:
    """Measure how the time grows; ``power`` is the slope of log time from end to end.

    The paper has ``M K T^2 N_I log N_B``: power 2 over T, 1/2 over D (K is its root), 1 over
    instances a bag, and a little more than 1 over bags.
    """
    base = {"n_bag": 100 * scale, "size": 10 * scale, "n_feat": 16}
    grids: dict[str, tuple[str, list[int]]] = {
        "thresholds": ("T", [4, 8, 16, 32]),
        "features": ("n_feat", [4, 16, 64, 256]),
        "instances a bag": ("size", [10 * scale, 20 * scale, 40 * scale, 80 * scale]),
        "bags": ("n_bag", [100 * scale, 200 * scale, 400 * scale, 800 * scale]),
    }
    rows: dict[str, Any] = {}
    for name, (key, grid) in grids.items():
        times = []
        for value in grid:
            shape, thresholds = ({**base, key: value}, 8) if key != "T" else (base, value)
            times.append(seconds(simulated(**shape), n_trees=n_trees, n_thresholds=thresholds))
        power = np.log(times[-1] / times[0]) / np.log(grid[-1] / grid[0])
        rows[name] = {
            "grid": grid,
            "seconds": np.round(times, 4).tolist(),
            "power": round(power, 2),
        }
        print(f"{name:16} {grid} {rows[name]['seconds']} power {power:.2f}")
    return rows


def beside_plain(bags: Bags, n_plain: int, n_ours: int) -> dict[str, float]:
    """Compare seconds a tree with Algorithm 1 in plain NumPy, one thread each."""
    seeds = np.random.SeedSequence(0).generate_state(n_plain, np.uint64)
    n_try = round(np.sqrt(bags.x.shape[1]))
    start = time.perf_counter()
    for seed in seeds:
        grow_plain(bags.x, bags.offsets, bags.y, n_try=n_try, n_value=8, seed=int(seed))
    plain = (time.perf_counter() - start) / n_plain
    ours = seconds(bags, n_trees=n_ours) / n_ours
    return {"plain": plain, "compiled": ours, "times": plain / ours}


def beside_extra_trees(
    n_bags: tuple[int, ...] = N_BAGS, n_trees: int = 50, repeats: int = 3
) -> dict[str, Any]:
    """Compare processor time with extra trees on the same bags, random labels, ten instances a bag.

    The two take turns; the times are the shortest, the ratio is the median of the turns.
    """
    rows = []
    for n_bag in n_bags:
        bags = simulated(n_bag, 10, 16)
        statistics = bag_statistics(bags)
        turns = []
        for _ in range(repeats):
            started = time.process_time()
            ExtraTreesClassifier(n_trees, random_state=0).fit(statistics, bags.y)
            between = time.process_time()
            BLRT(n_trees=n_trees).fit(bags, n_thread=1)
            turns.append((time.process_time() - between, between - started))
        ours, theirs = 1000 * np.min(turns, axis=0) / n_trees
        ratio = float(np.median([own / other for own, other in turns]))
        rows.append((round(ours, 3), round(theirs, 3), round(ratio, 2)))
        print(f"{n_bag:6} bags: {ours:.2f} ms a tree, extra trees {theirs:.2f}, {ratio:.2f} times")
    ours, theirs, times = (list(column) for column in zip(*rows, strict=True))
    span = np.log(n_bags[-1] / n_bags[0])
    return {
        "bags": list(n_bags),
        "milliseconds_a_tree": ours,
        "extra_trees_milliseconds": theirs,
        "times_extra_trees": times,
        "power": round(float(np.log(ours[-1] / ours[0]) / span), 2),
        "extra_trees_power": round(float(np.log(theirs[-1] / theirs[0]) / span), 2),
    }


def training_times(n_thread: int) -> dict[str, float]:
    """Return the time of compiling, and of 500 trees on Musk1, s."""
    musk, _ = load_set("Musk1")
    times = {
        "compiling_s": round(compile_seconds(cached=False), 2),
        "kept_code_s": round(compile_seconds(cached=True), 2),
    }
    seconds(musk, 1, n_trees=2)
    for n in (1, n_thread):
        times[f"musk1_500_trees_{n}_threads_s"] = round(seconds(musk, 5, n, n_trees=500), 3)
    print(times)
    return times


def times_plain() -> dict[str, Any]:
    """Compare with plain NumPy on two sets."""
    found = {}
    for name, n_plain in (("Musk1", 4), ("Protein", 1)):
        row = beside_plain(load_set(name)[0], n_plain, 50)
        found[name] = {key: round(value, 5) for key, value in row.items()}
        print(f"{name}: seconds a tree {found[name]}")
    return found


def main() -> None:
    """Run the requested parts; the others stay in the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {
        "times": lambda: training_times(args.threads),
        "beside_plain": times_plain,
        "growth": lambda: growth(100),
        "beside_extra_trees": beside_extra_trees,
    }
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(parts)}; default: all"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    for name in args.parts:
        if name not in parts:
            parser.error(f"{name} is not one of {', '.join(parts)}")
    require_folder()
    path = args.results / "blrt.json"
    result = read_results(path)
    for name in args.parts or parts:
        result[name] = parts[name]()
        write_results(path, result)


if __name__ == "__main__":
    main()
