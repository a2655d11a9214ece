"""Estimates of ``disagg plan`` against real runs.

    python -m benchmarks.plan [DIRECTORY] [--runs small country waves months]

The benchmark simulates countries (``small`` and ``country`` like ``disagg demo``, ``waves`` like
:mod:`benchmarks.big_country`; these two have a million pixels and 18 covariates; ``months`` like
``disagg demo monthly --months 6``, with few inducing variables, fitted to its optimum), plans them,
and runs each stage in a process of its own, with one worker, a few epochs of the fit and fewer
draws of the areas. It compares bytes with the files on disk, and seconds with processor time,
because on a machine with other work the clock also counts that work (clock times are in the JSON
too). Writes ``benchmarks/results/plan.json``, where other runs are kept, and prints a table.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, parsed, wait_with_usage, write_results
from pipeline.plan.estimate import START_S

DRAWS = 100  # draws of areas; the 500 of a run would take most of its time
EPOCHS = {"small": 5, "country": 1, "waves": 1, "months": 50}
MONTHS = ["--months", "6"]
FEW = {
    "inducing: 60": "inducing: 30",
    "options: {n_season: 9}": "options: {n_moving: 9, n_season: 4}",
}
CALL = "import sys; from pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"
# The process reports its own peak: from outside, the memory of its parent would count too.
PEAK = (
    "import sys; from pathlib import Path; from pipeline.cli.main import main;"
    " status = main(sys.argv[2:]);"
    " Path(sys.argv[1]).write_text(Path('/proc/self/status').read_text()); sys.exit(status)"
)


def make(name: str, directory: Path) -> Path:
    """Simulate a country; return its configuration, with few epochs and one worker."""
    if name == "waves":
        from benchmarks.big_country import make_country

        config = make_country(directory, 1000)
    else:
        size = MONTHS if name == "months" else ["--size", name]
        command = [sys.executable, "-c", CALL, "demo", str(directory), *size, "--quiet"]
        subprocess.run(command, check=True)
        config = directory / "disagg.yaml"
    text = re.sub(r"max_epochs: \d+", f"max_epochs: {EPOCHS[name]}", config.read_text())
    text = re.sub(r"workers: \w+", "workers: 1", text)
    text = re.sub(
        r"output:( *)\{dir: out(, [^}]*)?\}", f"output: {{dir: out, draws: {DRAWS}}}", text
    )
    text = re.sub(r"schemes: \[[^]]*\]", "schemes: []", text)
    if name == "months":
        for given, few in FEW.items():
            text = text.replace(given, few)
        text += f"compute: {{workers: 1}}\nfit: {{max_epochs: {EPOCHS[name]}}}\n"
    config.write_text(text)
    return config


def run(stage: str, config: Path) -> dict[str, float]:
    """Run a stage; return its clock seconds, its processor seconds and its peak memory."""
    status_file = config.parent / ".status"
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", PEAK, str(status_file), stage, str(config), "--quiet"]
    )
    usage = wait_with_usage(process)
    if process.returncode:
        raise SystemExit(f"disagg {stage} {config} failed")
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", status_file.read_text())
    return {
        "clock": round(time.perf_counter() - started, 2),
        "seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_bytes": 1024 * int(peak),
    }


def compare(name: str, directory: Path) -> dict[str, Any]:
    """Plan a run, run it, and set estimates beside measurements."""
    config = make(name, directory)
    command = [sys.executable, "-c", CALL, "plan", str(config), "--workers", "1", "--json"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    found = {stage: run(stage, config) for stage in ("ingest", "fit", "predict", "evaluate")}
    out = directory / "out"
    record = json.loads((out / "run.json").read_text())["stages"]
    summary = record["ingest"]["summary"]
    disk = {store: _size((out / "work" / store).rglob("*")) for store in ("bags.zarr", "grid.zarr")}
    disk["grid.zarr"] += _size((out / "work/periods").rglob("grid.zarr/**/*"))
    disk["maps"] = _size(out.rglob("*.tif"))
    covered = summary["left_out"]["of_pixels"]
    rows = {
        "pixels in areas": (plan["pixels_in_areas"], covered),
        "pixels kept": (plan["pixels_in_areas"], summary["n_pixels"]),
        "blocks": (plan["blocks"], summary["n_blocks"]),
        **{f"bytes of {key}": (plan["bytes"][key], size) for key, size in disk.items()},
    }
    for stage, got in found.items():
        foreseen = plan["stages"][stage]
        imports = 0.0 if stage == "ingest" else START_S  # ingest's have them
        rows[f"seconds of {stage}"] = (foreseen["seconds"]["1"] + imports, got["seconds"])
        rows[f"memory of {stage}"] = (foreseen["peak_bytes"], got["peak_bytes"])
    return {
        "epochs": EPOCHS[name],
        "clock_seconds": {stage: got["clock"] for stage, got in found.items()},
        "foreseen_over_found": {
            key: {"foreseen": a, "found": b, "ratio": round(a / b, 3)}
            for key, (a, b) in rows.items()
        },
    }


def _size(paths: Any) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    """Compare, write the JSON and print the table."""
    options = parsed(__doc__, "directory?", runs=list(EPOCHS), results=RESULTS)
    path = options.results / "plan.json"
    kept = json.loads(path.read_text())["runs"] if path.is_file() else {}
    result: dict[str, Any] = {"note": "the machine had other work meanwhile", "runs": kept}
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.runs:
            directory = (options.directory or Path(temporary)) / name
            result["runs"][name] = compare(name, directory)
            write_results(path, result)
    for name, run_of in result["runs"].items():
        for key, row in run_of["foreseen_over_found"].items():
            print(
                f"{name:8} {key:22} {row['foreseen']:>14,} {row['found']:>14,} {row['ratio']:6.2f}"
            )


if __name__ == "__main__":
    main()
