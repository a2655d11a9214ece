"""A map from labels of areas alone, against the truth of the pixels: `disagg demo --labels`.

    python -m benchmarks.labels [--seeds 6] [--country] [--models NAME ...]

The models learn of each district only whether the risk is high somewhere in it or nowhere: the
demo's default (`pooled_gp`, noisy-or), G-VGPMIL and PG-VGPMIL. They map small countries (and with
``--country`` one of 957 areas and 1,044,683 pixels). Scores over pixels: the AUC, beside that of
giving each pixel the label of its district; the calibration error and the log loss, beside that of
the share of positive pixels, which no model is told. Writes ``benchmarks/results/labels.json``;
countries and models that were not asked for keep their figures.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from scipy.special import entr

from benchmarks.report import (
    RESULTS,
    marked_as_older,
    parsed,
    read_results,
    write_results,
)
from pipeline.cli.main import main as disagg

MODELS = {
    "noisy-or": "",
    "G": "kind: psi_vgpmil, options: {density: gamma}",
    "PG": "kind: psi_vgpmil",
}


def run(directory: Path, size: str, seed: int, name: str) -> dict[str, Any]:
    """Map one country; return the scores of its pixels."""
    config = directory / "disagg.yaml"
    if not config.exists():
        disagg(["demo", str(directory), "--labels", "--size", size, "--seed", str(seed), "-q"])
        text = config.read_text().replace("schemes: [area, block]", "schemes: []")
        config.write_text(text)
    text = config.read_text().replace("dir: out", f"dir: out-{name}")  # a folder is of one map
    out = directory / f"out-{name}"
    if MODELS[name]:
        text = re.sub(r"(?m)^model:.*$", f"model:       {{{MODELS[name]}}}", text)
    own = directory / f"{name}.yaml"
    own.write_text(text)
    status = disagg(["run", str(own), "-q"])
    if status:
        message = f"disagg run ended with {status}"
        raise RuntimeError(message)
    report = json.loads((out / "evaluation.json").read_text())
    stages = json.loads((out / "run.json").read_text())["stages"]
    truth = report["truth"]
    pixels, share = truth["pixels"], truth["pixels"]["positive"]
    return {
        "size": size,
        "seed": seed,
        "n_areas": report["n_areas"],
        "n_pix": truth["n_pix"],
        "share_positive": share,
        "auc": pixels["auc"],
        "auc_of_area_labels": truth["area_label"]["auc"],
        "auc_in_positive_areas": truth["positive_areas"]["auc"],
        "calibration_error": pixels["calibration"]["error"],
        "log_loss": pixels["log_loss"],
        "log_loss_of_share": float(entr(share) + entr(1.0 - share)),
        "fit_seconds": stages["fit"]["seconds"],
    }


def joined(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of both; of the same country those of ``now``."""
    rows = {(row["size"], row["seed"]): row for row in (*before, *now)}
    return [rows[key] for key in sorted(rows, key=lambda key: (key[0] != "small", key[1]))]


def main() -> None:
    """Run the countries."""
    options = parsed(
        __doc__,
        seeds=6,
        country=(False, "PG-VGPMIL takes hours there"),
        models=list(MODELS),
        results=RESULTS,
    )
    cases = [("small", seed) for seed in range(1, options.seeds + 1)]
    if options.country:
        cases.append(("country", 1))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.models}
    for size, seed in cases:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "demo"
            for name in options.models:
                each = run(directory, size, seed, name)
                found[name].append(each)
                print(
                    f"{name:8} {size} {seed}: AUC {each['auc']:.3f}, of areas' labels "
                    f"{each['auc_of_area_labels']:.3f}; calibration error "
                    f"{each['calibration_error']:.3f}; log loss {each['log_loss']:.3f}, of the "
                    f"share {each['log_loss_of_share']:.3f}; fit {each['fit_seconds']:.1f} s",
                    flush=True,
                )
    path = options.results / "labels.json"
    before = read_results(path)
    marked_as_older((row for rows in before.values() for row in rows), path)
    write_results(
        path, {name: joined(before.get(name, []), found.get(name, [])) for name in MODELS}
    )


if __name__ == "__main__":
    main()
