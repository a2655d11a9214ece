"""A map from labels of areas alone, against the truth of the pixels: `disagg demo --labels`.

    python -m benchmarks.labels [--country]

The models learn of each district only whether the risk is high somewhere in it or nowhere. G-VGPMIL
(the demo's default) and PG-VGPMIL map three small countries (and with ``--country`` one of 957
areas and 1,044,683 pixels). The score is the AUC over pixels, beside that of giving each pixel the
label of its district. Writes ``benchmarks/results/labels.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, write_results
from pipeline.cli.main import main as disagg

DENSITIES = {"G": "gamma", "PG": "hyperbolic_secant"}


def run(directory: Path, size: str, seed: int, density: str) -> dict[str, Any]:
    """Map one country; return the scores of its pixels."""
    config = directory / "disagg.yaml"
    if not config.exists():
        disagg(["demo", str(directory), "--labels", "--size", size, "--seed", str(seed), "-q"])
        text = config.read_text().replace("schemes: [area, block]", "schemes: []")
        config.write_text(text)
    text = config.read_text()
    own = directory / f"{density}.yaml"
    own.write_text(text.replace("density: gamma", f"density: {density}"))
    started = time.perf_counter()
    status = disagg(["run", str(own), "-q"])
    seconds = time.perf_counter() - started
    if status:
        message = f"disagg run ended with {status}"
        raise RuntimeError(message)
    report = json.loads((directory / "out/evaluation.json").read_text())
    stages = json.loads((directory / "out/run.json").read_text())["stages"]
    truth = report["truth"]
    return {
        "size": size,
        "seed": seed,
        "n_areas": report["n_areas"],
        "n_pix": truth["n_pix"],
        "share_positive": truth["pixels"]["positive"],
        "auc": truth["pixels"]["auc"],
        "auc_of_area_labels": truth["area_label"]["auc"],
        "auc_in_positive_areas": truth["positive_areas"]["auc"],
        "calibration_error": truth["pixels"]["calibration"]["error"],
        "fit_seconds": stages["fit"]["seconds"],
        "seconds": seconds,
    }


def main() -> None:
    """Run the countries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--country", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    cases = [("small", seed) for seed in (1, 2, 3)]
    if options.country:
        cases.append(("country", 1))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in DENSITIES}
    for size, seed in cases:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "demo"
            for name, density in DENSITIES.items():
                each = run(directory, size, seed, density)
                found[name].append(each)
                print(
                    f"{name:3} {size} {seed}: AUC {each['auc']:.3f}, of areas' labels "
                    f"{each['auc_of_area_labels']:.3f}, fit {each['fit_seconds']:.1f} s",
                    flush=True,
                )
    write_results(options.results / "labels.json", found)


if __name__ == "__main__":
    main()
