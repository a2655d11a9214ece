"""A country of a hundred million pixels: each stage in a process of its own, its time and memory.

    python -m benchmarks.hundred_million [DIRECTORY] [--side 10000] [--keep]

A simulated country (:mod:`benchmarks.big_country`): 18 covariates as GeoTIFFs of ``side`` squared
pixels, about a thousand pixels an area (about 100,000 areas). ``disagg ingest`` and ``disagg fit``
(one epoch of VBAgg, 200 inducing points, single precision) run as for a user, with fingerprints of
all files. Then mean and standard deviation of the rate are written as cloud-optimised GeoTIFFs.
10,000 pixels a side need 45 GB of disk; no automatic run includes this benchmark. Writes
``benchmarks/results/hundred_million.json`` after each stage, so that finished stages are not lost.

On a shared machine other work disturbs the figures: comparing ``cpu_seconds`` with ``seconds``
shows how much of the time the stage waited for others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed, wait_with_usage, write_results

STAGES = ("simulate", "ingest", "fit", "predict")
N_WINDOW, WINDOW = 16, 256  # squares of pixels in which the map is compared with the truth


def stage(name: str, directory: Path, side: int, workers: int) -> dict[str, Any]:
    """Do one stage in this process; return its figures."""
    config_path = directory / "disagg.yaml"
    if name == "simulate":
        from benchmarks.big_country import make_country

        make_country(directory, side, workers=workers)
        return {"gigabytes": _gigabytes(directory.glob("*.*"))}
    from pipeline.config.reader import load_config
    from pipeline.config.schema import work_dir
    from pipeline.core.progress import Silent
    from pipeline.prediction.raster import predict_raster
    from pipeline.products.products import layers
    from pipeline.run.runner import run_stages

    config = load_config(config_path)
    work = work_dir(config)
    if name in ("ingest", "fit"):
        (result,) = run_stages(config, [name], Silent())
        if name == "fit":
            return {"bound": result.summary["bound"], "epochs": result.summary["epochs"]}
        told = {key: result.summary[key] for key in ("n_areas", "n_pixels", "n_blocks")}
        stores = {f"{k}_gigabytes": _gigabytes((work / k).rglob("*")) for k in _STORES}
        return {**told, **stores}
    import models

    maps = directory / "out"
    model = models.load(work / "model")
    wanted = layers(config)[:2]
    n_pix = predict_raster(model, work / "grid.zarr", maps, wanted, n_thread=workers)
    files = [maps / f"{layer.name}.tif" for layer in wanted]
    return {"n_pixels": n_pix, "gigabytes": _gigabytes(files), **_against_truth(directory, maps)}


_STORES = ("grid.zarr", "bags.zarr")


def _gigabytes(paths: Any) -> float:
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / 1e9, 3)


def _against_truth(directory: Path, maps: Path) -> dict[str, float]:
    """Compare the mapped mean with the rate that the counts were drawn from, in a few squares."""
    import rasterio
    from rasterio.windows import Window

    from benchmarks.big_country import log_rate

    rng = np.random.default_rng(0)
    truth, mapped = [], []
    with rasterio.open(maps / "rate_mean.tif") as mean:
        for _ in range(N_WINDOW):
            at = [int(rng.integers(max(1, n - WINDOW))) for n in mean.shape]
            window = Window(at[1], at[0], WINDOW, WINDOW)
            covariates = []
            for number in range(4):
                with rasterio.open(directory / f"x{number:02d}.tif") as file:
                    covariates.append(file.read(1, window=window))
            truth.append(log_rate(covariates).ravel())
            mapped.append(np.log(mean.read(1, window=window)).ravel())
    found = np.corrcoef(np.concatenate(truth), np.concatenate(mapped))[0, 1]
    return {"correlation_of_log_rate_with_truth": round(float(found), 4)}


def run(name: str, directory: Path, side: int, workers: int) -> dict[str, Any]:
    """Run a stage in a process of its own; return its times, peak memory and figures."""
    report = directory / f".{name}.json"
    command = [sys.executable, "-m", "benchmarks.hundred_million", str(directory)]
    command += ["--side", str(side), "--workers", str(workers), "--stage", name]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--report", str(report)])
    usage = wait_with_usage(process)
    if process.returncode:
        raise SystemExit(f"{name} failed")
    told = json.loads(report.read_text())
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        **told,
    }


def _peak_gib() -> float:
    """Return the peak resident memory of this process, GiB."""
    status = Path("/proc/self/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(peak) / 2**20, 2)


def main() -> None:
    """Run all stages, write the JSON and print the table; or, with ``--stage``, one of them."""
    options = parsed(
        __doc__,
        "directory?",
        side=(10_000, "pixels a side"),
        workers=len(os.sched_getaffinity(0)),
        keep=(False, "keep rasters, stores and maps"),
        results=RESULTS,
        name=("hundred_million", "name of the JSON file"),
        stage={"choices": STAGES, "help": argparse.SUPPRESS},
        report={"type": Path, "help": argparse.SUPPRESS},
    )
    if options.stage:
        told = stage(options.stage, options.directory, options.side, options.workers)
        options.report.write_text(json.dumps({"peak_gib": _peak_gib(), **told}))
        return
    directory = options.directory or Path(tempfile.mkdtemp(prefix="hundred-million-"))
    directory.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "command": f"python -m benchmarks.hundred_million --side {options.side}",
        "n_pixels_of_grid": options.side**2,
        "n_covariates": 18,
        "landmarks": 200,
        "workers": options.workers,
        "note": "the machine had other work meanwhile",
        "stages": {},
    }
    print(f"{'stage':10} {'seconds':>8} {'processor s':>12} {'peak GiB':>9}", flush=True)
    try:
        for name in STAGES:
            told = run(name, directory, options.side, options.workers)
            result["stages"][name] = told
            result["load_average"] = os.getloadavg()[2]
            write_results(options.results / f"{options.name}.json", result)
            figures = told["seconds"], told["cpu_seconds"], told["peak_gib"]
            print("{:10} {:8.1f} {:12.1f} {:9.2f}".format(name, *figures), flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
