"""Fixed designs: what the defaults' intervals cover on simulated grids whose truth is known.

    python -m benchmarks.designs [--designs NAME ...] [--grids N] [--label LABEL] [--only-missing]
                                 [--workers N] [--kernel TEXT] [--inducing N] [--integrate WHAT]
    python -m benchmarks.designs --table [--merge FILE ...]

Each grid (:mod:`benchmarks.grids`) is fitted with what ``disagg run`` would take for it, and scored
(:mod:`benchmarks.grid_scores`). ``benchmarks/results/designs.json`` has one record a grid, written
as soon as the grid is done: after an interruption, the same command with ``--only-missing`` does
the rest. Figures of two versions of the code stand side by side under labels (``before``, ``now``).
``--table`` computes nothing: it takes in records that were made elsewhere, draws
``docs/figures/designs.png`` and writes the tables of ``docs/calibration.md``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grid_scores import convergence, score
from benchmarks.grids import AREA_SD, WEAK, Design, Grid, simulate
from benchmarks.report import RESULTS, code, machine, parsed
from models.backend.blas import one_blas_thread
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.core.sources import code_hashes

DESIGNS: dict[str, Design] = {
    "linear-20": Design("linear", 20),
    "linear-50": Design("linear", 50),
    "linear-200": Design("linear", 200),
    "linear-1000": Design("linear", 1000),
    "linear-50-weak": Design("linear", 50, cases=WEAK),
    "linear-50-noise": Design("linear", 50, area_sd=AREA_SD),
    "linear-200-noise": Design("linear", 200, area_sd=AREA_SD),
    "rough-50": Design("rough", 50),
    "rough-100": Design("rough", 100),
    "bent-20": Design("bent", 20),
    "bent-50": Design("bent", 50),
    "bent-100": Design("bent", 100),
    "bent-200": Design("bent", 200),
    "bent-1000": Design("bent", 1000),
    "bent-100-weak": Design("bent", 100, cases=WEAK),
    "bent-100-noise": Design("bent", 100, area_sd=AREA_SD),
}
N_GRID = 20

Record = dict[str, Any]
Key = tuple[str, str, int]  # label, design, grid


@dataclass(frozen=True)
class Task:
    """One grid to fit: the name of its design, its seed, the label, and what is not default."""

    label: str
    design: str
    grid: int
    model: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> Key:
        """What names the record."""
        return self.label, self.design, self.grid


def default_model(grid: Grid, changes: Mapping[str, Any]) -> Any:
    """Return the unfitted model that ``disagg run`` would fit to data of this size.

    Parameters
    ----------
    grid : Grid
    changes : mapping
        Keys of the configuration's section ``model`` that differ from the defaults.
    """
    names = [f"x{k}" for k in range(grid.x.shape[1])]
    config = Config.model_validate(
        {
            "areas": {"path": "areas.gpkg", "id": "id"},
            "counts": {"path": "counts.csv", "id": "id", "value": "cases"},
            "population": {"path": "people.tif"},
            "covariates": {name: {"path": f"{name}.tif"} for name in names},
            "model": dict(changes),
        },
        context={"base": Path.cwd()},
    )
    return new_model(sized(config, np.diff(grid.offsets)))


def measure(task: Task, design: Design | None = None) -> Record:
    """Simulate a grid, fit it, score it; a pure function of the task but for the seconds."""
    with one_blas_thread():
        grid = simulate(design or DESIGNS[task.design], task.grid)
        model = default_model(grid, dict(task.model))
        started = time.process_time()
        model.fit(grid.bags(), n_thread=1)
        fitted = time.process_time()
        scores = score(model, grid, np.random.default_rng([4, task.grid]))
    return {
        "label": task.label,
        "design": task.design,
        "grid": task.grid,
        "model": dict(task.model),
        "code": code_hashes()["models"],
        "seconds": {"fit": fitted - started, "scores": time.process_time() - fitted},
        "true_range_km": grid.length,
        "fit": convergence(model),
        **scores,
    }


def read_records(path: Path) -> dict[Key, Record]:
    """Return the records of a file, none where there is no file."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())["records"]
    return {(each["label"], each["design"], each["grid"]): each for each in found}


def write_records(
    path: Path, records: Mapping[Key, Record], measured_with: dict[str, Any] | None = None
) -> None:
    """Write records, a line each and in a fixed order; the file is whole at any moment.

    The file tells the code of its newest record.
    """
    order = {name: number for number, name in enumerate(DESIGNS)}
    keys = sorted(records, key=lambda key: (key[0], order.get(key[1], len(order)), *key[1:]))
    lines = ",\n".join(json.dumps(_rounded(records[key])) for key in keys)
    told = json.loads(path.read_text()).get("code") if path.is_file() else None
    known = {} if (measured := measured_with or told) is None else {"code": measured}
    about = {"machine": machine(), **known, "designs": {k: asdict(v) for k, v in DESIGNS.items()}}
    head = json.dumps(about, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(f'{head},\n "records": [\n{lines}\n]}}\n')
    part.replace(path)


def add_record(path: Path, record: Record) -> None:
    """Write a record beside those that the file has by now."""
    key = (record["label"], record["design"], record["grid"])
    write_records(path, {**read_records(path), key: record}, code())


def missing(tasks: Iterable[Task], records: Mapping[Key, Record]) -> list[Task]:
    """Return the tasks without a record, or with one of another model under the same label.

    Raises
    ------
    ValueError
        If a label would hold two models.
    """
    tasks = list(tasks)
    for task in tasks:
        for (label, *_), record in records.items():
            if label == task.label and record["model"] != dict(task.model):
                found = f"label {label!r} holds figures of model: {record['model']}"
                raise ValueError(f"--label: {found}, not of {dict(task.model)}; give another label")
    return [task for task in tasks if task.key not in records]


def run(
    tasks: list[Task], path: Path, n_worker: int = 1, one: Callable[[Task], Record] = measure
) -> None:
    """Measure grids and write each as soon as it is done."""
    for number, record in enumerate(_results(tasks, n_worker, one), 1):
        add_record(path, record)
        name = f"{number}/{len(tasks)} {record['label']} {record['design']} {record['grid']}"
        if "error" in record:
            print(f"{name}: {record['error']}", flush=True)
            continue
        pixels, spent = record["pixels"], record["seconds"]["fit"]
        print(
            f"{name}: 90 % cover {pixels['coverage']['0.9']:.3f}, "
            f"correlation {pixels['correlation']:.3f}, {spent:.0f} s",
            flush=True,
        )


def _results(tasks: list[Task], n_worker: int, one: Callable[[Task], Record]) -> Iterator[Record]:
    if n_worker == 1:
        yield from map(one, tasks)
        return
    with ProcessPoolExecutor(n_worker, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(one, task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()


def _rounded(value: Any) -> Any:
    """Round numbers to six digits: what is beyond is noise, and the file is read by people."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def main() -> None:
    """Measure what is asked for, then write tables and figure."""
    from benchmarks.design_tables import FIGURE, PAGE, draw, write_page

    options = parsed(
        __doc__,
        designs=list(DESIGNS),
        grids=(N_GRID, "grids of each design"),
        label="now",
        only_missing=False,
        workers=1,
        kernel=(None, "instead of the default"),
        inducing=int,
        integrate=(None, "auto, none or a number of members"),
        results=RESULTS / "designs.json",
        merge={"type": Path, "nargs": "+", "default": [], "help": "files of other machines"},
        table=(False, "tables and figure alone"),
    )
    path = options.results
    if options.merge:
        merged = read_records(path)
        for other in options.merge:
            merged |= read_records(other)
        write_records(path, merged)
    if not options.table:
        named = {key: getattr(options, key) for key in ("kernel", "inducing", "integrate")}
        if named["integrate"] and named["integrate"].isdigit():
            named["integrate"] = int(named["integrate"])
        changes = tuple((key, value) for key, value in named.items() if value is not None)
        tasks = [
            Task(options.label, design, grid, changes)
            # Grid by grid: an interrupted run has some of every design.
            for grid in range(options.grids)
            for design in options.designs
        ]
        try:
            left = missing(tasks, read_records(path))
        except ValueError as error:
            sys.exit(f"error: {error}")
        run(left if options.only_missing else tasks, path, options.workers)
    records = read_records(path)
    if records and path == RESULTS / "designs.json":
        draw(records, FIGURE)
        write_page(records, PAGE)


if __name__ == "__main__":
    main()
