"""The predict stage: the posterior over the whole grid, tile by tile, and over the areas.

Everything is written into a hidden directory beside the results and moved over at the end, file by
file, so that a reader never sees half a raster and a run that dies leaves the last maps standing.
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
            f"predict: {config.model.kind} labels areas alone, and repeats the labels of those it "
            "has seen: evaluation.json says how it does on others"
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
    """Give a hidden, empty directory in ``out``, gone afterwards whatever happens."""
    staging = out / ".predict.partial"
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> list[str]:
    """Move every file to where users look, and drop maps that are no longer asked for."""
    names = sorted(path.name for path in staging.iterdir() if path.is_file())
    # run.json vouches for the maps beside it: it goes before the first of them changes, and comes
    # back when the run has ended well. Where it is not, maps of two runs may stand side by side.
    (out / "run.json").unlink(missing_ok=True)
    with deferred_signals():
        _move(staging, out, names)
    return names


def _move(staging: Path, out: Path, names: list[str]) -> None:
    for name in names:
        (staging / name).replace(out / name)
    # A threshold taken out of the configuration, or another kind of model, must not leave the map
    # of an older fit behind.
    for pattern in output_patterns("predict"):
        for path in out.glob(pattern):
            if path.name not in names:
                path.unlink()
    for path in out.glob("*.tif.aux.xml"):  # statistics that GIS programs keep of older values
        path.unlink()
