"""Estimates of ``disagg plan`` against real runs, as users start them.

    python -m benchmarks.plan [--runs grid60 demo ...] [--work build/plan]

Each run is planned, and its stages are run by the installed ``disagg``, one after the other, with
the settings of the configuration: whole fits, on the workers that a user gets. Compared are bytes
on disk, the clock of each stage, and memory: what all processes of a stage hold at the same time,
looked at five times a second, memory that they share counted once. The machine has to be quiet.
Writes ``benchmarks/results/plan.json``, where other runs are kept, and the tables of
``docs/plan.md``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.performance import DESIGNS, prepared
from benchmarks.report import RESULTS, parsed, write_results
from pipeline.demo.country import simulate_country

DISAGG = Path(sys.executable).with_name("disagg")
PAGE = Path(__file__).parents[1] / "docs/plan.md"
STAGES = ("ingest", "fit", "predict", "evaluate", "report")
PERIOD_S = 0.2
BEGIN, END = "<!-- plan: runs -->", "<!-- plan: end runs -->"


@dataclass(frozen=True)
class Run:
    """A run: a design of :mod:`benchmarks.performance`, or months, with other settings.

    Attributes
    ----------
    words : str
        As the table calls it.
    design : str
    months : int
        Of ``disagg demo --months``, instead of the design.
    edits : dict of str to str
        From what the configuration says to what it says instead.
    """

    words: str
    design: str = "grid60"
    months: int = 0
    edits: Mapping[str, str] | None = None


POISSON = "likelihood: poisson, area_effect: true, link: exp"
#: Few inducing variables: a fit of minutes.
FEW = {
    "inducing: 60": "inducing: 30",
    "options: {n_season: 9}": "options: {n_moving: 9, n_season: 4}",
}
RUNS = {
    "grid60": Run("60 x 60 pixels, 50 areas"),
    "fixed": Run(
        "the same, `kernel: matern32(space)`",
        edits={POISSON: f'{POISSON}, kernel: "matern32(space)"'},
    ),
    "negative": Run(
        "the same, `negative_binomial`", edits={POISSON: "likelihood: negative_binomial"}
    ),
    "demo": Run("small demo", "demo"),
    "madagascar": Run("Madagascar", "madagascar"),
    "grid200": Run("200 x 200, 300 areas", "grid200"),
    "months6": Run("six months, 40 areas", months=6, edits=FEW),
    "months24": Run("24 months, 40 areas", months=24, edits=FEW),
    "country": Run("a million pixels, 957 areas", "country"),
}


def make(name: str, folder: Path) -> Path:
    """Return the configuration of a run, whose inputs are simulated where they are not there."""
    run, config = RUNS[name], folder / "disagg.yaml"
    if config.is_file():
        return config
    if run.months:
        command = [DISAGG, "demo", folder, "--months", str(run.months), "--quiet"]
        subprocess.run(command, check=True)
    elif (spec := DESIGNS[run.design].spec) is not None:
        simulate_country(folder, spec, DESIGNS[run.design].seed)
    else:
        prepared(run.design, folder)
    text = config.read_text(encoding="utf-8")
    for given, instead in (run.edits or {}).items():
        if given not in text:
            raise SystemExit(f"{config}: has no {given!r} that {name} could replace")
        text = text.replace(given, instead)
    config.write_text(text, encoding="utf-8")
    return config


def memory(processes: Iterable[psutil.Process]) -> int:
    """Return the bytes that processes hold together; what they share is counted once.

    Each has its part of the memory that it shares with others; of files that are mapped, which
    hold code, the largest of them counts.
    """
    total, files = 0, 0
    for process in processes:
        try:
            text = "".join(
                Path(f"/proc/{process.pid}/{name}").read_text(encoding="ascii")
                for name in ("smaps_rollup", "status")
            )
        except OSError:  # it has ended
            continue
        held = {name: 1024 * int(kb) for name, kb in re.findall(r"(\w+):\s+(\d+) kB", text)}
        total += held.get("Pss_Anon", 0) + held.get("Pss_Shmem", 0)
        files = max(files, held.get("RssFile", 0))
    return total + files


def run_stage(stage: str, config: Path) -> dict[str, float]:
    """Run a stage; return the clock of its process and the most memory of all its processes."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started, most = time.perf_counter(), 0
    process = psutil.Popen([DISAGG, stage, str(config), "--quiet"], env=env)
    ended = threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(PERIOD_S):
            try:
                most = max(most, memory([process, *process.children(recursive=True)]))
            except psutil.NoSuchProcess:
                return

    looking = threading.Thread(target=look)
    looking.start()
    status = process.wait()
    clock = time.perf_counter() - started
    ended.set()
    looking.join()
    if status:
        raise SystemExit(f"disagg {stage} {config} ended with status {status}")
    return {"clock": clock, "peak_bytes": most}


def compare(config: Path) -> dict[str, Any]:
    """Plan a run, run it, and set estimates beside measurements."""
    planned = subprocess.run(
        [DISAGG, "plan", str(config), "--json"], check=True, capture_output=True
    )
    plan = json.loads(planned.stdout)
    out = config.parent / "out"
    shutil.rmtree(out, ignore_errors=True)  # stages that are up to date would be skipped
    found = {stage: run_stage(stage, config) for stage in STAGES}
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))["stages"]
    disk = {store: _size((out / "work" / store).rglob("*")) for store in ("bags.zarr", "grid.zarr")}
    disk["grid.zarr"] += _size((out / "work/periods").rglob("grid.zarr/**/*"))
    disk["maps"] = _size(out.rglob("*.tif"))
    summary, workers = record["ingest"]["summary"], str(plan["workers"])
    rows = {
        "pixels": (plan["pixels_in_areas"], summary["n_pixels"]),
        **{f"bytes of {key}": (plan["bytes"][key], size) for key, size in disk.items()},
    }
    for stage, got in found.items():
        foreseen = plan["stages"][stage]
        # Imports are foreseen in the first stage of a run.
        seconds = got["clock"] if stage == STAGES[0] else record[stage]["seconds"]
        rows[f"seconds of {stage}"] = (foreseen["seconds"][workers], round(seconds, 2))
        rows[f"memory of {stage}"] = (foreseen["peak_bytes"], got["peak_bytes"])
    return {
        "workers": plan["workers"],
        "rows": {
            key: {"foreseen": a, "found": b, "ratio": round(a / b, 3)}
            for key, (a, b) in rows.items()
        },
    }


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def ratios(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return estimate over measurement: of the largest memory of a stage, and of a whole run."""

    def over(what: str, most: Any) -> float:
        own = [rows[f"{what} of {stage}"] for stage in STAGES]
        return float(most(row["foreseen"] for row in own) / most(row["found"] for row in own))

    return {"memory": over("memory", max), "seconds": over("seconds", sum)}


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of ``docs/plan.md``: memory of stages, and their clock."""
    shown = {"memory": ("fit", "predict", "evaluate"), "seconds": STAGES}
    heads = {"memory": "the largest stage, ratio", "seconds": "a run, ratio"}
    scale, lines = {"memory": 2.0**30, "seconds": 1.0}, []
    for what, stages in shown.items():
        unit = "GiB of all processes of a stage together" if what == "memory" else "s by the clock"
        lines += [
            f"Estimated, measured, in {unit}:",
            "",
            f"| | {' | '.join(stages)} | {heads[what]} |",
            f"|{'---|' * (len(stages) + 2)}",
        ]
        for name, run in RUNS.items():
            if name not in runs:
                continue
            rows = runs[name]["rows"]
            cells = [
                ", ".join(
                    f"{rows[f'{what} of {stage}'][key] / scale[what]:.3g}"
                    for key in ("foreseen", "found")
                )
                for stage in stages
            ]
            lines.append(f"| {run.words} | {' | '.join(cells)} | {ratios(rows)[what]:.2f} |")
        lines.append("")
    return "\n".join(lines)


def write_page(runs: Mapping[str, Mapping[str, Any]], page: Path = PAGE) -> None:
    """Write the tables between their marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{table(runs)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Compare, and write the JSON and the page."""
    os.environ.setdefault("DISAGG_SHARED_DATA", str(PAGE.parents[2] / "shared/data"))
    options = parsed(
        __doc__, runs=list(RUNS), results=RESULTS, work=PAGE.parents[1] / "build/plan", page=PAGE
    )
    path = options.results / "plan.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
    runs = {name: of for name, of in runs.items() if name in RUNS and "rows" in of}
    write_page(runs, options.page)  # where it lacks its marks, better now than after hours
    for name in options.runs:
        print(name, flush=True)
        runs[name] = compare(make(name, options.work.resolve() / name))
        print({key: round(value, 2) for key, value in ratios(runs[name]["rows"]).items()})
        write_results(path, {"runs": runs})
        write_page(runs, options.page)


if __name__ == "__main__":
    main()
