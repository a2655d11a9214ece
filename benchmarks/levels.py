"""Areas of every level: what intervals and targeting curves cover, and what they cost.

    python -m benchmarks.levels [--grids N] [--designs plain noise] [--workers N] [--records DIR]
    python -m benchmarks.levels --cost [--size small|country] [--directory DIR]

Coverage: grids of :mod:`benchmarks.grids` are fitted to the counts of 50 districts with the
defaults. 90 % intervals of the rate are compared with the truth at three levels: communes, which
cross the borders of the districts and have no counts, districts, and provinces. Beside the
intervals from joint draws stand two sums of the pixels' marginals: as if pixels were independent,
and as if all were high at once. Draws are evaluated on all pixels at once; the tests hold the
streamed pass of the predict stage against that. Each grid leaves a line in ``DIR``; the same
command goes on where it ended.

Cost: the predict stage of a simulated country (957 areas, 1,044,683 pixels; or 120 and 23,439) with
three levels and 500 draws, in processes of their own: without the levels, with them, and with
reconciled maps. Both parts write ``benchmarks/results/levels.json``.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from benchmarks.designs import default_model
from benchmarks.grids import AREA_SD, Design, Grid, simulate, voronoi
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, marked_as_older, read_results, wait_with_usage, write_results
from models.backend.blas import one_blas_thread
from pipeline.levels.targeting import Curve, area_curve

#: Counts that vary as Poisson counts do, and more, by a log-normal factor of each district. The
#: default likelihood has such a factor.
DESIGNS = {"plain": Design("linear", 50), "noise": Design("linear", 50, area_sd=AREA_SD)}
N_GRID, N_DRAWS, INTERVAL = 40, 500, 0.9
N_COMMUNE, N_PROVINCE = 200, 8
SHARES = np.array([0.05, 0.1, 0.2, 0.3, 0.5])
Z = 1.6448536269514722  # of a central 90 % interval
JOINT, INDEPENDENT, SUMMED = "joint draws", "independent pixels", "sums of ends"
RECORDS = Path(__file__).parents[1] / "build/levels"
MODES = ("plain", "levels", "reconciled")


def levels_of(grid: Grid, number: int) -> dict[str, np.ndarray]:
    """Return the area of each pixel at each level, (n_pix,) by name."""
    rng = np.random.default_rng([7, number])
    district = np.repeat(np.arange(grid.offsets.size - 1), np.diff(grid.offsets))
    n = np.bincount(district)
    centre = np.stack([np.bincount(district, c) / n for c in grid.coords.T], axis=1)
    seeds = rng.choice(centre.shape[0], N_PROVINCE, replace=False)
    apart = np.linalg.norm(centre[:, None] - centre[seeds], axis=2)
    return {
        "communes": voronoi(grid.coords, N_COMMUNE, rng),
        "districts": district,
        "provinces": apart.argmin(axis=1)[district],
    }


def measure(design: str, number: int) -> dict[str, Any]:
    """Fit one grid of a design and count what its intervals cover."""
    with one_blas_thread():
        grid = simulate(DESIGNS[design], number)
        model = default_model(grid, {})
        started = time.process_time()
        model.fit(grid.bags(), n_thread=1)
        fitted = time.process_time()
        pixels = model.predict_pixels(grid.x, grid.coords)
        draws = model.sample_functions(N_DRAWS, np.random.default_rng([8, number]))
        bags = grid.bags()
        of_areas = draws.observed_factors(bags, draws.bag_counts(bags))
        # As the predict stage has it: cases have what the counts of the districts add.
        rate = draws.rate(grid.x, grid.coords) * np.repeat(of_areas, np.diff(grid.offsets), axis=1)
        levels = levels_of(grid, number)
        covered = {name: coverage(area, grid, pixels, rate) for name, area in levels.items()}
        curves = {"pixels": pixel_curve(grid, pixels.mean, rate)}
        for name, area in levels.items():
            curves[name] = areas_curve(area, grid, pixels.mean, rate)
    return {
        "areas": covered,
        "targeting": curves,
        "seconds": {"fit": fitted - started, "rest": time.process_time() - fitted},
    }


def coverage(area: np.ndarray, grid: Grid, pixels: Any, rate: np.ndarray) -> dict[str, Any]:
    """Return the share of areas whose true cases each kind of interval covers."""

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(area, values)

    drawn = np.stack([total(grid.people * each) for each in rate])
    tails = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
    mean, sd = total(grid.people * pixels.mean), np.sqrt(total((grid.people * pixels.sd) ** 2))
    intervals = {
        JOINT: np.quantile(drawn, tails, axis=0),
        INDEPENDENT: np.stack([mean - Z * sd, mean + Z * sd]),
        SUMMED: np.stack([total(grid.people * pixels.quantile(q)) for q in tails]),
    }
    truth = total(grid.people * grid.rate)
    return {
        name: {
            "covered": float(((low <= truth) & (truth <= high)).mean()),
            "width": float(((high - low) / truth).mean()),
        }
        for name, (low, high) in intervals.items()
    }


def _covers(order_curve: Curve, true_curve: Curve) -> dict[str, list[Any]]:
    drawn, truth = order_curve.reached(SHARES), true_curve.reached(SHARES)[0]
    lower, upper = np.quantile(drawn, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)
    return {
        "covered": [bool(v) for v in (lower <= truth) & (truth <= upper)],
        "error": [float(v) for v in drawn.mean(axis=0) - truth],
        "width": [float(v) for v in upper - lower],
    }


def pixel_curve(grid: Grid, mean: np.ndarray, rate: np.ndarray) -> dict[str, list[Any]]:
    """Return whether the curve of pixels covers the true one at each share of people."""
    return areas_curve(np.arange(grid.people.size), grid, mean, rate)


def areas_curve(
    area: np.ndarray, grid: Grid, mean: np.ndarray, rate: np.ndarray
) -> dict[str, list[Any]]:
    """Return the same of the areas of a level."""
    people = np.bincount(area, grid.people)
    own = np.bincount(area, grid.people * mean) / people

    def curve(rates: np.ndarray) -> Curve:
        cases = np.stack([np.bincount(area, grid.people * r) for r in rates])
        return _known(area_curve(own, people, cases)[1])

    return _covers(curve(rate), curve(grid.rate[None]))


def _known(curve: Curve | None) -> Curve:
    if curve is None:
        raise ValueError("a simulated country without cases; simulate another")
    return curve


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over grids, with standard errors between grids."""

    def mean(values: list[float]) -> dict[str, float]:
        each = np.asarray(values, dtype=np.float64)
        error = each.std(ddof=1) / np.sqrt(each.size) if each.size > 1 else np.nan
        return {"mean": round(float(each.mean()), 4), "se": round(float(error), 4)}

    areas = {
        level: {
            kind: {key: mean([r["areas"][level][kind][key] for r in records]) for key in found}
            for kind, found in kinds.items()
        }
        for level, kinds in records[0]["areas"].items()
    }
    targeting = {
        level: {
            f"{100 * share:.0f} % of people": {
                key: mean([float(r["targeting"][level][key][n]) for r in records])
                for key in ("covered", "error", "width")
            }
            for n, share in enumerate(SHARES)
        }
        for level in records[0]["targeting"]
    }
    seconds = mean([sum(r["seconds"].values()) for r in records])
    return {"n_grid": len(records), "areas": areas, "targeting": targeting, "seconds": seconds}


# -- the cost of a country -------------------------------------------------------------------


def add_levels(directory: Path) -> None:
    """Write provinces (of whole areas) and communes (quarters of areas), and the keys for them."""
    areas = gpd.read_file(directory / "areas.gpkg")
    bounds = areas.geometry.bounds
    x, y = (bounds["minx"] + bounds["maxx"]) / 2, (bounds["miny"] + bounds["maxy"]) / 2
    cell = [np.searchsorted(np.quantile(v, [0.25, 0.5, 0.75]), v) for v in (x, y)]
    provinces = areas.assign(province=[f"P{a}{b}" for a, b in zip(*cell, strict=True)])
    provinces = provinces.dissolve("province").reset_index()[["province", "geometry"]]
    provinces.to_file(directory / "provinces.gpkg")
    quarters, names = [], []
    for code, shape in zip(areas["area_id"], areas.geometry, strict=True):
        left, bottom, right, top = shape.bounds
        middle = (left + right) / 2, (bottom + top) / 2
        for k in range(4):
            west, south = k % 2 == 0, k < 2
            part = shapely.box(
                left if west else middle[0],
                bottom if south else middle[1],
                middle[0] if west else right,
                middle[1] if south else top,
            )
            piece = shapely.intersection(shape, part)
            if piece.area > 0:
                quarters.append(piece)
                names.append(f"{code}-{k}")
    frame = gpd.GeoDataFrame({"commune": names}, geometry=quarters, crs=areas.crs)
    frame.explode().dissolve("commune").reset_index().to_file(directory / "communes.gpkg")


def write_config(directory: Path, mode: str) -> Path:
    """Write the configuration of one mode."""
    text = (directory / "disagg.yaml").read_text()
    keys = (
        "areas: [{path: provinces.gpkg, id: province, level: province}, "
        "{path: communes.gpkg, id: commune, level: commune}], "
    )
    if mode == "reconciled":
        keys += "reconcile: {to: counts, levels: [training, province]}, "
    path = directory / f"{mode}.yaml"
    path.write_text(re.sub(r"output:(\s*)\{", rf"output:\1{{{keys}", text, count=1))
    return path


def predict(config: str, mode: str) -> None:
    """Run the predict stage in this process; ``plain`` leaves the levels out."""
    from pipeline.config.context import StageContext
    from pipeline.config.reader import load_config
    from pipeline.prediction import stage

    if mode == "plain":
        stage.predict_levels = lambda *_: ({}, pd.Series(dtype=np.float64))
    stage.predict_stage(StageContext(load_config(config)))


def cost(directory: Path, size: str) -> dict[str, Any]:
    """Measure the predict stage of a country in each mode."""
    if not (directory / "disagg.yaml").is_file():
        for command in (["demo", str(directory), "--size", size], ["ingest"], ["fit"]):
            where = [] if command[0] == "demo" else [str(directory / "disagg.yaml")]
            subprocess.run([sys.executable, "-m", "pipeline.cli", *command, *where], check=True)
    add_levels(directory)
    found: dict[str, Any] = {}
    for mode in MODES:
        path = write_config(directory, mode)
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.levels", "--predict", mode, str(path)]
        )
        usage = wait_with_usage(process)
        if process.returncode:
            raise SystemExit(f"the predict stage failed ({mode})")
        found[mode] = {
            "seconds": round(time.perf_counter() - started, 1),
            "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_gib": round(usage.ru_maxrss / 2**20, 2),
        }
    plain = found["plain"]["processor_seconds"]
    for mode in MODES[1:]:
        found[mode]["over_plain"] = round(found[mode]["processor_seconds"] / plain, 2)
    return {"size": size, **found}


def main() -> None:
    """Measure what is asked for, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--grids", type=int, default=N_GRID)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--designs", nargs="+", choices=list(DESIGNS), default=list(DESIGNS))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--size", choices=["small", "country"], default="country")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--predict", nargs=2, metavar=("MODE", "CONFIG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.predict:
        predict(options.predict[1], options.predict[0])
        return
    path = options.results / "levels.json"
    result = read_results(path)
    marked_as_older((own for parts in result.values() for own in parts.values()), path)
    if options.cost:
        with tempfile.TemporaryDirectory() as temporary:
            directory = options.directory or Path(temporary) / "country"
            result.setdefault("cost", {})[options.size] = cost(directory, options.size)
        print(json.dumps(result["cost"], indent=1))
    else:
        for name in options.designs:
            settings = hash_settings(
                DESIGNS[name], N_DRAWS, INTERVAL, N_COMMUNE, N_PROVINCE, list(SHARES)
            )
            one = functools.partial(measure, name)
            lines = options.records / f"levels-{name}.jsonl"
            records = run_missing(one, range(options.grids), lines, settings, options.workers)
            result.setdefault("coverage", {})[name] = summarise(records)
            print(name, json.dumps(result["coverage"][name]["areas"], indent=1))
    write_results(path, result)


if __name__ == "__main__":
    main()
