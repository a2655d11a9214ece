"""Processor time of ingest beside exactextract's on the same country.

    python -m benchmarks.ingest [--size country] [--results DIR]

Each is measured in a process of its own, imports included in none: ``ingest`` (grid, balance,
profile, bag store); ``pairs``, exactextract's cells and fractions of all areas on the population
raster; ``means``, exactextract's mean of every raster over every area, which is what a zonal
statistic of the same inputs costs. Writes ``benchmarks/results/ingest.json``, with the largest
relative difference of an area's people: those of a bag store of the same inputs without covariates
beside exactextract's sum. More than ``AGREES`` ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import exactextract
import geopandas as gpd
import numpy as np
import rasterio

from benchmarks.report import RESULTS, write_results
from benchmarks.speed import refused
from pipeline.cli.main import main as disagg
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.ingest.stage import ingest
from pipeline.store.bag_store import BagStore

#: Largest relative difference of an area's people, by the single precision of rasters and store.
AGREES = 1e-5


def _extract(areas: gpd.GeoDataFrame, path: str, what: list[str]) -> int:
    with rasterio.open(path) as file:
        moved = areas.to_crs(file.crs)
    table = exactextract.exact_extract(path, moved, what, output="pandas")
    return sum(map(len, table["cell_id"])) if "cell_id" in table else len(table)


def difference(config: Config) -> tuple[float, int]:
    """Return the largest difference of an area's people from exactextract's, and the areas."""
    assert config.population is not None
    areas = gpd.read_file(config.areas.path, layer=config.areas.layer)
    with rasterio.open(config.population.path) as file:
        moved = areas.to_crs(file.crs)
    table = exactextract.exact_extract(
        config.population.path, moved, ["sum"], include_cols=[config.areas.id], output="pandas"
    )
    output = config.output.model_copy(update={"dir": config.output.dir / "without-covariates"})
    bare = config.model_copy(update={"covariates": {}, "output": output})
    ingest(StageContext(bare))  # pixels that lack a covariate would leave people out
    store = BagStore.open(output.dir / "work/bags.zarr")
    theirs = table.set_index(table[config.areas.id].astype(str))["sum"].reindex(store.ids)
    off = np.asarray(store.bag_weight) / theirs.to_numpy() - 1.0
    return float(np.abs(off).max()), off.size


def part(name: str, config: Config) -> dict[str, float]:
    """Run one of the three; return its processor seconds and its number of pairs, if any."""
    areas = gpd.read_file(config.areas.path, layer=config.areas.layer)
    assert config.population is not None
    rasters = [config.population.path, *(each.path for each in config.covariates.values())]
    n = 0
    started = time.process_time()
    if name == "ingest":
        n = ingest(StageContext(config))["n_pixels"]
    elif name == "pairs":
        n = _extract(areas, rasters[0], ["cell_id", "coverage"])
    else:
        for path in rasters:
            n = _extract(areas, path, ["mean"])
    return {"seconds": round(time.process_time() - started, 2), "n": n}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--size", default="country", choices=["small", "country"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--part", nargs=2, metavar=("NAME", "CONFIG"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(part(given.part[0], load_config(given.part[1]))))
        return
    with tempfile.TemporaryDirectory() as name:
        disagg(["demo", name, "--size", given.size, "--quiet"])
        found = {}
        for each in ("pairs", "means", "ingest"):
            command = [sys.executable, "-m", "benchmarks.ingest", "--part", each]
            done = subprocess.run(
                [*command, f"{name}/disagg.yaml"], check=True, stdout=subprocess.PIPE, text=True
            )
            found[each] = json.loads(done.stdout.splitlines()[-1])
        worst, n_area = difference(load_config(f"{name}/disagg.yaml"))
        n_raster = 1 + len(load_config(f"{name}/disagg.yaml").covariates)
    seconds = {key: value["seconds"] for key, value in found.items()}
    result = {
        "size": given.size,
        "rasters": n_raster,
        "pairs": found["pairs"]["n"],
        "largest_difference": worst,
        "areas_compared": n_area,
        "processor_seconds": seconds,
        "ingest_over_pairs": round(seconds["ingest"] / seconds["pairs"], 2),
        "ingest_over_means": round(seconds["ingest"] / seconds["means"], 2),
    }
    print(json.dumps(result, indent=1))
    refused("people of an area", worst, AGREES, "differ from exactextract's")
    write_results(given.results / "ingest.json", result)


if __name__ == "__main__":
    main()
