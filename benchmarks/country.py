"""Time and peak memory of each stage on a simulated country of the size in the VBAgg paper.

    python -m benchmarks.country [DIRECTORY] [--epochs N] [--months N]

957 areas, 1,044,683 pixels, 18 covariates, 576 inducing points. Each stage runs in a process of its
own, so that its peak memory is measured alone. With months, the country is counted in each of them,
and one more arrives for an update. Writes ``benchmarks/results/country.json`` and
prints a table.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import RESULTS, parsed, wait_with_usage, write_results


def run(*arguments: str) -> dict[str, float]:
    """Run one ``disagg`` command; return its seconds, and its processes' peak memory, GiB."""
    code = "import sys; from pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    usage = wait_with_usage(process)
    if process.returncode:
        raise SystemExit(f"disagg {' '.join(arguments)} failed")
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss / 2**20, 2),
    }


def measure(directory: Path, size: str, epochs: int, months: int) -> dict[str, object]:
    """Run every stage on a new country in ``directory``."""
    config = directory / "disagg.yaml"
    monthly = ["--months", str(months + 1), "--later", "1"] if months else []
    stages = {"demo": run("demo", str(directory), "--size", size, *monthly, "--quiet")}
    text = re.sub(r"max_epochs: \d+", f"max_epochs: {epochs}", config.read_text())
    config.write_text(text)
    for stage in ("ingest", "fit", "predict", *(() if months else ("evaluate",))):
        stages[stage] = run(stage, str(config), "--quiet")
        print(stage, stages[stage], flush=True)
    if months:
        (later,) = (directory / "later").glob("????-??")
        for file in later.iterdir():
            shutil.copy(file, directory)
        stages["update"] = run("update", str(config), "--quiet")
    record = json.loads((directory / "out/run.json").read_text())["stages"]
    return {
        "size": size,
        "months": months,
        "stages": stages,
        "summaries": {name: entry["summary"] for name, entry in record.items()},
    }


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(
        __doc__,
        "directory?",
        epochs=200,
        months=0,
        size={"choices": ["small", "country"], "default": "country"},
        results=RESULTS,
    )
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary) / "country"
        result = measure(directory, options.size, options.epochs, options.months)
    suffix = "_months" if options.months else ""
    path = options.results / f"{options.size}{suffix}.json"
    write_results(path, result)
    print(f"{'stage':22} {'seconds':>8} {'peak GiB':>9}")
    for name, figures in result["stages"].items():
        print(f"{name:22} {figures['seconds']:8.1f} {figures['peak_gib']:9.2f}")


if __name__ == "__main__":
    main()
