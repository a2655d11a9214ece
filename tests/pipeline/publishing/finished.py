"""What a finished run leaves, as small as it can be."""

from __future__ import annotations

import hashlib
import json
import time

import numpy as np
import rasterio

from pipeline.config.schema import Config
from pipeline.evaluation.verdict import paired_gain
from pipeline.run.fingerprints import output_fingerprint
from tests.bands import write

SURE = np.arange(9.0)  # log densities of nine areas under a map


def report(gain=1.0, correlation=0.8, coverage=0.9):
    model = {
        "nll": 5.0 - gain,
        "rates": {"correlation": correlation},
        "intervals": {"0.9": {"coverage": coverage}},
    }
    return {
        "better_than_constant": dict.fromkeys(("area", "block"), paired_gain(SURE, SURE - 1.0)),
        "held_out": {"area": {"model": model, "constant": {"nll": 5.0}}},
    }


def leave_run(config, rate, converged=True, evaluation=None):
    """Leave what a finished run leaves, as small as it can be."""
    out = config.output.dir
    (out / "work").mkdir(parents=True, exist_ok=True)
    values = np.broadcast_to(np.asarray(rate, np.float32), (4, 5))
    place = {"crs": "EPSG:32738", "transform": rasterio.Affine(1000, 0, 0, 0, -1000, 0)}
    write(out / "rate_mean.tif", values, nodata=np.nan, **place)
    (out / "areas.csv").write_text(f"id,rate\na,{float(np.nanmean(values))!r}\n")
    (out / "evaluation.json").write_text(json.dumps(evaluation or report()))
    (out / "run.json").write_text(json.dumps({"written": time.time()}))
    shown = {
        "ingest": (),
        "fit": (),
        "predict": ("rate_mean.tif", "areas.csv"),
        "evaluate": ("evaluation.json",),
    }
    model = hashlib.sha256(values.tobytes()).hexdigest()
    record = {
        name: {
            "seconds": 1.0,
            "inputs": {"work/model": model} if name in ("predict", "evaluate") else {},
            "outputs": {"work/model": model}
            if name == "fit"
            else {file: output_fingerprint(out / file) for file in files},
            "summary": {"converged": converged},
        }
        for name, files in shown.items()
    }
    (out / "work" / "stages.json").write_text(json.dumps(record))


MINIMAL = {
    "areas": {"path": "areas.gpkg", "id": "id"},
    "counts": {"path": "cases.csv", "value": "cases"},
    "population": {"path": "population.tif"},
    "covariates": {"rain": {"path": "rain.tif"}},
}


def build(directory, period=None, **sections):
    data = {**MINIMAL, "period": period, **sections}
    return Config.model_validate(data, context={"base": directory})
