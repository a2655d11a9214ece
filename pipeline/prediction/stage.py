"""The predict stage: the posterior of the pixels, tile by tile, and of the areas.

The stage writes all files to a hidden directory and moves them at the end, so that readers never
see an incomplete raster and a failed run does not change the previous maps.
"""

from __future__ import annotations

import contextlib
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
from pipeline.config.schema import Config
from pipeline.core.signals import deferred_signals
from pipeline.prediction.area_description import describe_areas
from pipeline.prediction.areas import draw_areas, tabulate_areas, write_areas
from pipeline.prediction.labels import LabelPredictor, tabulate_labels
from pipeline.prediction.preview import render_preview
from pipeline.prediction.products import layers, output_patterns
from pipeline.prediction.raster import predict_raster
from pipeline.prediction.tags import run_tags
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
    tags = run_tags(config, store, model)
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
        describe_areas(config, staging)
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
