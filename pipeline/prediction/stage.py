"""The predict stage: the posterior of the pixels, tile by tile, and of the areas.

The stage writes all files to a hidden directory and moves them at the end, so that readers never
see an incomplete raster and a failed run does not change the previous maps.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import models
from geo.boundary import read_areas
from geo.errors import InputError, Problem
from pipeline.cluster.local import driver_device, n_thread
from pipeline.config.context import StageContext
from pipeline.config.model_factory import model_settings
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.core.code import installed_version
from pipeline.core.signals import deferred_signals
from pipeline.prediction.areas import draw_areas, tabulate_areas, write_areas
from pipeline.prediction.labels import LabelPredictor, tabulate_labels
from pipeline.prediction.preview import render_preview
from pipeline.prediction.products import layers, output_patterns
from pipeline.prediction.raster import predict_raster
from pipeline.store.bag_store import BagStore


def predict_stage(context: StageContext) -> dict[str, Any]:
    """Write the maps, the table of areas and the preview.

    Parameters
    ----------
    context : StageContext
        The configuration's ``output.dir`` holds ``work/`` with the aligned grid, the bag store and
        the fitted model.

    Returns
    -------
    dict
        ``n_pix`` predicted, ``files`` written, total of observed and fitted counts, and the share
        of areas inside their predictive interval.

    Raises
    ------
    InputError
        If the areas can no longer be read.
    StoreError
        If the bag store is absent or damaged.
    """
    config, progress = context.config, context.progress
    out = Path(config.output.dir)
    work = out / "work"
    model = models.load(work / "model")
    store = BagStore.open(context.place("work/bags.zarr"))
    config = sized(config, store.sizes)
    tags = _tags(config, store, model)
    with _staging(out) as staging:
        n_pix = 0
        if "pixels" in model.predicts:
            n_pix = predict_raster(
                model,
                context.place("work/grid.zarr"),
                staging,
                layers(config, store),
                mask=config.output.mask,
                tags=tags,
                progress=progress,
                n_thread=n_thread(config),
                **driver_device(config),
            )
        with progress.task("areas", store.n_bag) as task:
            table = _table(config, model, store, task.advance)
        write_areas(_areas(config), table, config.areas.id, staging)
        render_preview(config, staging)
        files = _publish(staging, out)
    if "pixels" not in model.predicts:
        progress.log(
            f"predict: {config.model.kind} predicts areas only, and repeats the labels of the "
            "training areas; see evaluation.json for its scores on others"
        )
    return {"n_pix": n_pix, "n_areas": len(table), **_totals(table), "files": files}


def _table(
    config: Config, model: Any, store: BagStore, advance: Callable[[int], None]
) -> pd.DataFrame:
    """Predict each area."""
    interval, ids = config.output.interval, list(store.ids)
    if config.labels is not None:
        predictions = LabelPredictor(store, interval, n_thread(config)).predict(
            model, advance=advance
        )
        return tabulate_labels(predictions, ids)
    draws = draw_areas(
        model,
        store,
        config.output.draws,
        config.fit.seed,
        advance=advance,
        n_thread=n_thread(config),
    )
    return tabulate_areas(draws, ids, interval, config.output.rate_per)


def _totals(table: pd.DataFrame) -> dict[str, float]:
    observed = table["observed"]
    if "probability" in table:
        return {
            "observed_positive": float(observed.sum()),
            "expected_positive": float(table["probability"].sum()),
        }
    inside = (table["count_lower"] <= observed) & (observed <= table["count_upper"])
    return {
        "observed_total": float(observed.sum()),
        "fitted_total": float(table["fitted"].sum()),
        "share_inside_interval": float(inside.mean()),
    }


def _tags(config: Config, store: BagStore, model: Any) -> dict[str, str]:
    """Describe the run, for the rasters' tags."""
    own = {}
    if config.labels is None:
        own = {
            "likelihood": config.model.likelihood,
            "link": config.model.link,
            "rate_per": f"{config.output.rate_per:g}",
            "area_pixels": str(config.fit.area_pixels),
        }
    return {
        "TIFFTAG_SOFTWARE": f"disagg {installed_version('disagg')}",
        "name": config.name,
        "model": config.model.kind,
        "model_parameters": json.dumps(model_settings(config, model), sort_keys=True),
        "interval": f"{config.output.interval:g}",
        "fingerprint": store.fingerprint,
        **own,
    }


def _areas(config: Config) -> Any:
    problems: list[Problem] = []
    areas = read_areas(config.areas.path, config.areas.layer, config.areas.id, "areas", problems)
    if areas is None:
        raise InputError(problems)
    return areas


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Create a hidden, empty directory in ``out``, and delete it afterwards."""
    staging = out / ".predict.partial"
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> list[str]:
    """Move every file to ``out``, and delete maps that are no longer requested."""
    names = sorted(path.name for path in staging.iterdir() if path.is_file())
    # run.json certifies the maps of a finished run. It is deleted before the first map changes:
    # without it, the directory may have maps of two runs.
    (out / "run.json").unlink(missing_ok=True)
    with deferred_signals():
        _move(staging, out, names)
    return names


def _move(staging: Path, out: Path, names: list[str]) -> None:
    for name in names:
        (staging / name).replace(out / name)
    # Maps of a removed threshold, or of another kind of model, are of an older fit.
    for pattern in output_patterns("predict"):
        for path in out.glob(pattern):
            if path.name not in names:
                path.unlink()
    for path in out.glob("*.tif.aux.xml"):  # statistics that GIS programs keep of older values
        path.unlink()
