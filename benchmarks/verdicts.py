"""Verdicts: how many maps of noise, and how many of three true strengths, are published.

    python -m benchmarks.verdicts [--maps 100] [--workers N] [--records DIR] [--results DIR]

Countries of 900 pixels and 60 areas (:mod:`benchmarks.grids`): the logarithm of the true rate is
that of a linear grid times a strength, 30 cases an area. Under ``shuffled`` the rates of areas that
were counted are dealt out to other areas: what is left is noise. Each is fitted with the defaults
and evaluated by the stage; the default gate decides. Beside it stands the rule before: any gain
above 0, by area and by region. Each map leaves a line in ``DIR``; the same command goes on where it
ended. Writes ``benchmarks/results/verdicts.json``.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.grids import Design, simulate
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models import Bags
from models.backend.blas import one_blas_thread
from pipeline.config.context import StageContext
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.core.sources import code_hashes
from pipeline.evaluation.stage import evaluate_stage
from pipeline.evaluation.verdict import KEY
from pipeline.publishing.gates import check_gates
from pipeline.store.bag_store import NewBags, PixelRows, write_bags

STRENGTHS = {"shuffled": 1.0, "weak": 0.25, "middle": 0.5, "strong": 1.0}
DESIGN = Design("linear", 60, 30.0, area_sd=0.2, n_side=30)
RECORDS = Path(__file__).parents[1] / "build/verdicts"


def counted(kind: str, seed: int) -> Bags:
    """Draw a country of some strength."""
    grid, rng = simulate(DESIGN, seed), np.random.default_rng([7, seed])
    rate = (grid.rate / np.exp(np.log(grid.rate).mean())) ** STRENGTHS[kind]
    mean = np.add.reduceat(grid.people * rate, grid.offsets[:-1])
    factor = np.exp(DESIGN.area_sd * rng.standard_normal(mean.size))
    cases = rng.poisson(mean * factor * DESIGN.cases * mean.size / mean.sum())
    if kind == "shuffled":
        people = np.add.reduceat(grid.people, grid.offsets[:-1])
        dealt = rng.permutation(cases / people) * people
        cases = np.floor(dealt + rng.random(people.size))
    return Bags(grid.x, grid.offsets, cases.astype(float), weight=grid.people, coords=grid.coords)


def write_country(bags: Bags, path: Path, seed: int) -> None:
    """Write a bag store of a simulated country."""

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        spans = zip(bags.offsets[bag] + start, bags.offsets[bag] + stop, strict=True)
        at = np.concatenate([np.arange(*span) for span in spans])
        return PixelRows(bags.x[at], bags.weight[at], bags.coords[at], at)

    new = NewBags(
        sizes=np.diff(bags.offsets), rows=rows, y=bags.y,
        ids=[str(k) for k in range(bags.n_bag)],
        covariates=[f"x{k}" for k in range(bags.x.shape[1])],
    )  # fmt: skip
    write_bags(path, new, seed=seed)


def judge(seed: int, kind: str) -> dict[str, Any]:
    """Fit and evaluate one country; say what both rules decide."""
    bags = counted(kind, seed)
    names = [f"x{k}" for k in range(bags.x.shape[1])]
    with TemporaryDirectory() as directory, one_blas_thread():
        data = {
            "name": kind,
            "areas": {"path": "areas.gpkg", "id": "id"},
            "counts": {"path": "counts.csv", "id": "id", "value": "cases"},
            "population": {"path": "people.tif"},
            "covariates": {name: {"path": f"{name}.tif"} for name in names},
            "evaluate": {"calibration": "none", "seed": seed},
            "output": {"dir": directory, "draws": 500},
        }
        config = Config.model_validate(data, context={"base": Path(directory)})
        work = Path(directory) / "work"
        work.mkdir()
        write_country(bags, work / "bags.zarr", seed)
        model = new_model(sized(config, np.diff(bags.offsets)))
        model.fit(bags, n_thread=1).save(work / "model")
        evaluate_stage(StageContext(config))
        found = json.loads((Path(directory) / "evaluation.json").read_text())[KEY]
        passed = all(each.passed for each in check_gates(config, None))
    return {
        "kind": kind,
        "area": found["area"],
        "block": found["block"],
        "published": passed,
        "published_before": bool(found["area"]["better"] and found["block"]["better"]),
    }


def main() -> None:
    """Judge the maps that no record has, and print how many of each kind are published."""
    options = parsed(__doc__, maps=100, workers=1, records=RECORDS, results=RESULTS)
    result: dict[str, Any] = {}
    for kind in STRENGTHS:
        settings = hash_settings(kind, DESIGN, code=str(code_hashes()))
        path = options.records / f"{kind}.jsonl"
        one = functools.partial(judge, kind=kind)
        found = run_missing(one, range(options.maps), path, settings, options.workers)
        result[kind] = {"maps": len(found)} | {
            rule: sum(each[rule] for each in found) for rule in ("published", "published_before")
        }
        for scheme in ("area", "block"):
            said = [each[scheme]["answer"] for each in found]
            result[kind][scheme] = {word: said.count(word) for word in ("yes", "unclear", "no")}
        print(kind, result[kind], flush=True)
    write_results(options.results / "verdicts.json", result)


if __name__ == "__main__":
    main()
