"""What each stage needs, what this machine could do, and what the stage takes: one page.

    python -m benchmarks.performance [--designs demo grid60 grid200 madagascar country]
        [--work build/performance] [--again] [--page docs/performance.md]

Every stage runs in a process of its own and becomes a row of ``benchmarks/results/
performance.json`` when it ends. A command that was stopped goes on where it ended; rows of other
code are measured anew, and ``--again`` measures all. The machine's rates are measured beside each
design. For each part of a stage the row has flops and exponentials, counted from shapes
(:mod:`benchmarks.counting`), bytes read and written, the seconds that these take at the machine's
rates (the floor) and the seconds that the part took. ``docs/performance.md`` is made of these rows
and of ``speed.json``; the command ends with an error where a part is below a third of its floor and
:data:`WHY` does not say why, or above its floor.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.counting import KEYS, counted
from benchmarks.guard import io_bytes
from benchmarks.performance_page import page, parts_without_reason
from benchmarks.rates import machine_rates
from benchmarks.records import hash_settings
from benchmarks.report import RESULTS, code, machine, parsed, read_results, wait_with_usage
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.demo.country_spec import LAYERS, SIZES

ROOT = Path(__file__).parents[1]
STAGES = ("ingest", "fit", "predict", "evaluate", "report")
#: Parts of stages: functions and methods whose time is taken, by stage. Nothing is in two parts.
PARTS = {
    "fit": {
        "climb": ("models.aggregate.refinement:Climb.step",),
        "curvature": ("models.aggregate.refinement:Curvature.step",),
        "integration": ("models.aggregate.refinement:Members.step",),
    },
    "predict": {
        "areas with draws": ("pipeline.prediction.one_map:_all_tables",),
        "prediction with draws": ("pipeline.prediction.one_map:_run",),
        "levels": ("pipeline.prediction.one_map:_Maps.write_levels",),
    },
}


@dataclass(frozen=True)
class Design:
    """A map: a simulated country, or a configuration whose inputs are there."""

    spec: CountrySpec | None
    seed: int = 1
    whole: bool = True  # whether `disagg run` is timed as well as each stage


def _grid(side: int, n_area: int) -> CountrySpec:
    """Return a country of as many pixels as a square has; as in the demo, half of the map is it."""
    of_map = round(1.41 * side)
    return CountrySpec(
        (of_map, of_map), 8.0 / of_map, side * side, n_area, 36, 9e6, tuple(LAYERS)[:6]
    )


DESIGNS = {
    "demo": Design(SIZES["small"]),
    "grid60": Design(_grid(60, 50)),
    "grid200": Design(_grid(200, 300)),
    "madagascar": Design(None),
    "country": Design(SIZES["country"], whole=False),
}


class Tally:
    """Counts that this process and all that it forks add to."""

    def __init__(self) -> None:
        self._held = multiprocessing.get_context("fork").Array("d", len(KEYS))

    def add(self, key: str, number: float) -> None:
        """Add to a count."""
        with self._held.get_lock():
            self._held[KEYS.index(key)] += number

    def now(self) -> dict[str, float]:
        """Return all counts; bytes and processor time of this process with them."""
        read, written = io_bytes()
        usage = os.times()
        cpu = usage.user + usage.system + usage.children_user + usage.children_system
        counts = dict(zip(KEYS, list(self._held), strict=True))
        return {**counts, "read": read, "written": written, "cpu_seconds": cpu}


@contextmanager
def timed(parts: dict[str, tuple[str, ...]], tally: Tally, rows: dict[str, Any]) -> Iterator[None]:
    """Add time and counts of parts to rows, by name; calls within a part belong to it."""
    inside: list[str] = []

    def of(name: str, function: Any) -> Any:
        def timing(*args: Any, **named: Any) -> Any:
            if inside:
                return function(*args, **named)
            inside.append(name)
            started, before = time.perf_counter(), tally.now()
            try:
                return function(*args, **named)
            finally:
                inside.pop()
                _add(rows.setdefault(name, {}), time.perf_counter() - started, before, tally.now())

        return timing

    with ExitStack() as stack:
        for name, places in parts.items():
            for place in places:
                module, _, attribute = place.partition(":")
                *owner, work = attribute.split(".")
                holder: Any = importlib.import_module(module)
                for each in owner:
                    holder = getattr(holder, each)
                stack.enter_context(patch.object(holder, work, of(name, getattr(holder, work))))
        yield


def _add(
    row: dict[str, Any], seconds: float, before: dict[str, float], now: dict[str, float]
) -> None:
    row["seconds"] = row.get("seconds", 0.0) + seconds
    for key, value in now.items():
        row[key] = row.get(key, 0.0) + value - before[key]


def run_stage(stage: str, path: Path, out: Path | None, mode_alone: bool) -> dict[str, Any]:
    """Run a stage in this process; return the rows of the whole and of its parts."""
    from models import VBAgg
    from pipeline.config.reader import load_config
    from pipeline.core.progress import Silent
    from pipeline.run.runner import run_stages

    config, tally, parts = load_config(path), Tally(), dict[str, Any]()
    if out is not None:
        config = config.model_copy(update={"output": config.output.model_copy(update={"dir": out})})
    unpacked = VBAgg.unpacked

    def mode(self: Any, params: Any) -> Any:
        found = unpacked(self, params)
        return getattr(found, "mode", found)

    started = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(counted(tally.add))
        stack.enter_context(timed(PARTS.get(stage, {}), tally, parts))
        if mode_alone:
            stack.enter_context(patch.object(VBAgg, "unpacked", mode))
        before = tally.now()
        run_stages(config, (stage,), Silent(), force=True)
        whole: dict[str, Any] = {}
        _add(whole, time.perf_counter() - started, before, tally.now())
    return {"whole": whole, "parts": parts}


def child(*arguments: str, root: Path = ROOT) -> tuple[dict[str, Any], str]:
    """Run a command of this Python on a tree; return its clock and processor time, and memory.

    Its output is returned with them.
    """
    env = {**os.environ, "PYTHONPATH": str(root)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what users run is compiled once
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, cwd=root,
        env=env,
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.read()
    usage = wait_with_usage(process)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with status {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    about = {"clock_seconds": time.perf_counter() - started, "process_cpu_seconds": cpu}
    return {**about, "peak_gib": usage.ru_maxrss / 2**20}, said


def prepared(name: str, folder: Path) -> Path:
    """Return the configuration of a design, whose inputs are there."""
    config, design = folder / "disagg.yaml", DESIGNS[name]
    if config.is_file():
        return config
    if design.spec is not None:
        return simulate_country(folder, design.spec, design.seed)
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "examples/madagascar/disagg.yaml", config)
    return config


def measure(name: str, work: Path, results: Path, again: bool) -> None:
    """Measure what has no row yet of a design; each row is kept as it is made."""
    rows = Rows(results, again)
    folder, design = work / name, DESIGNS[name]
    config = prepared(name, folder)
    out = folder / "out"

    rows.make(name, "machine", lambda: machine_rates(folder, os.cpu_count() or 1))
    if design.whole:
        rows.make(name, "run", lambda: _whole(config, out))
    for stage in STAGES:
        rows.make(name, stage, partial(_stage, stage, config))
    rows.make(name, "answers", lambda: _answers(out))
    rows.make(name, "mode alone", lambda: _mode_alone(config, folder / "mode"))
    rows.make(name, "unchanged", lambda: child("pipeline.cli", "run", str(config), "--quiet")[0])
    rows.make(name, "check", lambda: child("pipeline.cli", "check", str(config), "--json")[0])


def _answers(out: Path) -> dict[str, Any]:
    """Return how right the map is that was timed, where the truth is known, and its fit."""
    fit = json.loads((out / "run.json").read_text(encoding="utf-8"))["stages"]["fit"]["summary"]
    found = {"bound": fit["bound"], "converged": fit["converged"], **fit["convergence"]}
    truth = json.loads((out / "evaluation.json").read_text(encoding="utf-8")).get("truth")
    if truth is not None:
        pixels = truth["pixels"]
        found |= {name: pixels["log_rate"][name] for name in ("correlation", "rmse")}
        found["covers_90"] = pixels["coverage"]["0.9"]
        found["covers_90_people"] = truth["people"]["coverage"]["0.9"]
    return found


def _whole(config: Path, out: Path) -> dict[str, Any]:
    shutil.rmtree(out, ignore_errors=True)
    return child("pipeline.cli", "run", str(config), "--quiet")[0]


def _stage(stage: str, config: Path, *more: str) -> dict[str, Any]:
    about, said = child("benchmarks.performance", "--stage", stage, "--config", str(config), *more)
    size = {} if stage != "predict" else _raster_bytes(config.parent / "out")
    return {**about, **json.loads(said.splitlines()[-1]), **size}


def _raster_bytes(out: Path) -> dict[str, Any]:
    """Return the bytes of all rasters before compression, overviews included."""
    import rasterio

    total = 0.0
    for path in out.glob("*.tif"):
        with rasterio.open(path) as raster:
            total += raster.width * raster.height * 4 * raster.count * 4 / 3
    return {"raster_bytes": total}


def _mode_alone(config: Path, copy: Path) -> dict[str, Any]:
    """Predict without the draws of the hyperparameters, from links to the same stores."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(config.parent / "out", copy, copy_function=os.link)
    return _stage("predict", config, "--mode-alone", "--out", str(copy))


class Rows:
    """Rows by design and name, in a file that is written after each."""

    def __init__(self, path: Path, again: bool) -> None:
        self._path, self._again = path, again
        self.settings = hash_settings(json.dumps(code()["rooms"], sort_keys=True))
        self.found: dict[str, dict[str, Any]] = {}
        self._code: Any = None
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.found, self._code = kept["designs"], kept["code"]

    def make(self, design: str, name: str, measured: Any) -> None:
        """Measure a row, unless there is one of this code."""
        own = self.found.setdefault(design, {})
        if not self._again and own.get(name, {}).get("settings") == self.settings:
            return
        print(f"{design}: {name}", flush=True)
        own[name] = {"settings": self.settings, **measured()}
        # Of the whole file only where no row is of other code; until then it is the earlier one's.
        rows = [row for of_design in self.found.values() for row in of_design.values()]
        if self._code is None or all(row.get("settings") == self.settings for row in rows):
            self._code = code()
        about = {"machine": machine(), "code": self._code, "designs": self.found}
        new = self._path.with_suffix(".partial")
        new.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        new.replace(self._path)


def made_page(results: Path = RESULTS / "performance.json") -> str:
    """Return the page of all files of figures that it shows."""
    others = (
        read_results(results.with_name(name))
        for name in ("speed.json", "before.json", "ingest.json")
    )
    return page(json.loads(results.read_text(encoding="utf-8")), *others)


def main() -> None:
    """Measure, and write the page."""
    os.environ.setdefault("DISAGG_SHARED_DATA", str(ROOT.parent / "shared/data"))
    options = parsed(
        __doc__,
        designs=list(DESIGNS),
        work=ROOT / "build/performance",
        results=RESULTS / "performance.json",
        page=ROOT / "docs/performance.md",
        again=False,
        stage=({"choices": STAGES, "help": "one stage in this process, for the command itself"}),
        config=Path,
        out=Path,
        mode_alone=False,
    )
    if options.stage:
        print(json.dumps(run_stage(options.stage, options.config, options.out, options.mode_alone)))
        return
    for name in options.designs:
        measure(name, options.work.resolve(), options.results, options.again)
    options.page.write_text(made_page(options.results), encoding="utf-8")
    told = json.loads(options.results.read_text(encoding="utf-8"))
    if lines := parts_without_reason(told["designs"]):
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
