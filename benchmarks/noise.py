"""Noisy counts: what the defaults' intervals cover where areas differ by more than chance.

    python -m benchmarks.noise [--worlds TEXT] [--grids 10] [--first 30] [--label LABEL]
                               [--workers N]
    python -m benchmarks.noise --exact [--worlds TEXT] [--grids 3]
    python -m benchmarks.noise --table

A world is a truth (linear, bent), a number of areas (20, 100, 300), a deviation of the noise
between areas (0, .2, .45, .8) and its law (log-normal factors, or gamma factors, which make
negative binomial counts), on the grids of :mod:`benchmarks.grids` with 60 cases an area. Fits and
scores are those of :mod:`benchmarks.designs`; a fit that ends with an error is a record as well.
``benchmarks/results/noise.json`` has one record a grid; a command goes on where it ended.
``--exact`` scores what :mod:`benchmarks.exact_areas` says of linear worlds of up to 100 areas:
integrated, and at the true hyperparameters. ``--table`` computes nothing: it writes the table of
``docs/calibration.md``, and says how many figures of the defaults are of other code than this.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import designs
from benchmarks.designs import Record, Task
from benchmarks.exact_areas import ExactAreas
from benchmarks.grids import FIELD_SD, Design, simulate
from benchmarks.report import RESULTS, parsed
from models.backend.blas import one_blas_thread
from pipeline.core.sources import code_hash

CASES = 60.0
NOISE = (0.0, 0.2, 0.45, 0.8)
WORLDS: dict[str, Design] = {
    f"{truth}-{n_area}-{law}-{sd:g}": Design(truth, n_area, CASES, sd, law=law)
    for truth, n_area, sd, law in product(
        ("linear", "bent"), (20, 100, 300), NOISE, ("log_normal", "gamma")
    )
    if sd > 0 or law == "log_normal"
}
LINEAR, TRUE = "linear, exact", "true hyperparameters"
LEAST_NOISE = 0.01
FIRST = 30  # priors were chosen on the grids 0 to 7 and 20 to 23
PATH = RESULTS / "noise.json"
PAGE = Path(__file__).parents[1] / "docs/calibration.md"
BEGIN, END = "<!-- noise: worlds -->", "<!-- noise: end worlds -->"


def measure(task: Task) -> Record:
    """Do as :func:`benchmarks.designs.measure`; an error is a record."""
    try:
        return {**designs.measure(task, WORLDS[task.design]), "code": code()}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {
            "label": task.label,
            "design": task.design,
            "grid": task.grid,
            "model": dict(task.model),
            "code": code(),
            "error": f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",
        }


def measure_exact(task: Task) -> Record:
    """Score the yardstick, integrated or at the true hyperparameters."""
    design = WORLDS[task.design]
    with one_blas_thread():
        grid = simulate(design, task.grid)
        known = (FIELD_SD, grid.length, max(design.area_sd, LEAST_NOISE))
        started = time.process_time()
        exact = ExactAreas(grid, known if task.label == TRUE else None)
    return {
        "label": task.label,
        "design": task.design,
        "grid": task.grid,
        "model": {},
        "code": code_hash("benchmarks.exact_areas", packages=("benchmarks",)),
        "seconds": {"fit": time.process_time() - started},
        "pixels": exact.scores(),
    }


def code() -> str:
    """Return a hash of the code that decides a fit."""
    return code_hash("models.aggregate.vbagg")


def table(records: Iterable[Record]) -> str:
    """Return one row a world and label: grids, errors, and means with standard errors."""
    rows: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        rows.setdefault((record["design"], record["label"]), []).append(record)
    order = {name: number for number, name in enumerate(WORLDS)}
    lines = [
        "| world | code | grids | errors | pixels | people | correlation | log width | CRPS |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for world, label in sorted(rows, key=lambda key: (order[key[0]], key[1])):
        own = rows[world, label]
        done = [each["pixels"] for each in own if "error" not in each]
        figures = [
            [each["coverage"]["0.9"] for each in done],
            [each["coverage_people"]["0.9"] for each in done],
            [each["correlation"] for each in done],
            [each["width"] for each in done],
            [each["crps"] for each in done if "crps" in each],
        ]
        cells = " | ".join(map(_mean, figures))
        lines.append(f"| {world} | {label} | {len(own)} | {len(own) - len(done)} | {cells} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def main() -> None:
    """Measure what is asked for, or write the page."""
    options = parsed(
        __doc__,
        worlds=("", "those whose names hold this text"),
        grids=10,
        first=(FIRST, "grid"),
        exact=(False, "the yardstick, not the model"),
        label="now",
        kernel=(None, "instead of the default"),
        workers=1,
        results=PATH,
        table=False,
    )
    records = designs.read_records(options.results)
    if not options.table:
        labels, one = (options.label,), measure
        if options.exact:
            labels, one = (LINEAR, TRUE), measure_exact
        changes = () if options.kernel is None else (("kernel", options.kernel),)
        tasks = [
            Task(label, world, grid, changes)
            for grid in range(options.first, options.first + options.grids)
            for world, design in WORLDS.items()
            for label in labels
            if options.worlds in world
            and not (options.exact and (design.truth != "linear" or design.n_area > 100))
        ]
        left = designs.missing(tasks, records)
        designs.run(left, options.results, options.workers, one)
        return
    now = [each["code"] for key, each in records.items() if key[0] == "now"]
    old = sum(each != code() for each in now)
    note = f"\n\n{old} of the {len(now)} records of `now` are of earlier code." if old else ""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(records.values())}{note}\n{END}{after}")


if __name__ == "__main__":
    main()
