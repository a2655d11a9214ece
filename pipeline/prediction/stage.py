"""The predict stage: the posterior of the pixels, tile by tile, and of the areas.

The stage writes all files to a hidden directory and moves them at the end, so that readers never
see an incomplete raster and a failed run does not change the previous maps.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config, work_dir
from pipeline.config.size_defaults import settings
from pipeline.core.signals import deferred_signals
from pipeline.prediction.cube import CUBE
from pipeline.prediction.one_map import MadeMap, MapInputs, make_map
from pipeline.prediction.points import told_points
from pipeline.prediction.series import predict_series
from pipeline.prediction.support_shares import covariate_range, write_support
from pipeline.products.area_draws import write_area_draws
from pipeline.products.periods import PERIODS, WINDOWS
from pipeline.products.products import output_patterns
from pipeline.products.suppressed import ends_of, is_suppressed
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import write_balance
from pipeline.store.level_areas import training_areas
from pipeline.store.point_store import open_points
from pipeline.training.series import open_map


def predict_stage(context: StageContext) -> dict[str, Any]:
    """Write the maps and the table of areas.

    Parameters
    ----------
    context : StageContext
        The configuration's ``output.dir`` holds ``work/`` with the aligned grid, the bag store and
        the fitted model.

    Returns
    -------
    dict
        ``n_pix`` predicted, ``files`` written, total of observed and fitted counts, the share of
        areas inside their predictive interval, and the areas without a count.

    Raises
    ------
    InputError
        If the areas can no longer be read.
    StoreError
        If the bag store is absent or damaged.
    """
    config, progress = context.config, context.progress
    out = Path(config.output.dir)
    boundaries, revised = training_areas(config), list[str]()
    with _staging(out) as staging:
        if config.series is None:
            areas, sized_to, made = _single(context, boundaries, staging)
        else:
            found = predict_series(context, boundaries, staging)
            areas, sized_to, made, revised = found.areas, found.config, found.made, found.revised
        files = _publish(staging, out)
    store = areas.training
    if made.balance is not None:
        write_balance(out, store, made.balance)
    if made.support is not None:
        write_support(out, store, made.support)
    if made.draws is not None and config.series is None:
        write_area_draws(out, store, made.draws, list(areas.ids), config.fit.seed)
    if not made.n_pix:
        progress.log(
            f"predict: {config.model.kind} predicts areas only, and repeats the labels of the "
            "training areas; see evaluation.json for its scores on others"
        )
    for line in told_points(made.points):
        progress.log(f"predict: {line}")
    totals = {} if made.balance is None else {"balance": made.balance}
    return {
        "n_pix": made.n_pix,
        "n_areas": len(made.table),
        **_totals(made.table[made.table["in_training"]]),
        **totals,
        **({"areas_without_counts": made.uncounted} if made.uncounted else {}),
        **made.leveled,
        **({"points": made.points} if made.points else {}),
        **({"revised": revised} if revised else {}),
        "settings": settings(sized_to),
        "files": files,
    }


def _single(
    context: StageContext, boundaries: Any, staging: Path
) -> tuple[BagStore, Config, MadeMap]:
    """Make the map of a configuration of one period."""
    found, out = open_map(context), work_dir(context.config)
    config, areas = found.config, found.areas
    given = MapInputs(
        config,
        found.model,
        areas,
        boundaries,
        partial(covariate_range, areas.training, n_thread(config)),
        context.place("work/grid.zarr"),
        points=open_points(out) if config.point_sources else None,
    )
    return areas, config, make_map(given, staging, context.progress)


def _totals(table: pd.DataFrame) -> dict[str, float]:
    observed = table["observed"]
    if "probability" in table:
        return {
            "observed_positive": float(observed.sum()),
            "expected_positive": float(table["probability"].sum()),
        }
    least, most = ends_of(table)
    inside = (table["count_lower"] <= most) & (least <= table["count_upper"])
    hidden = int(is_suppressed(table).sum())
    return {
        "observed_total": float(observed.sum()),
        **({"n_suppressed": hidden, "observed_most": float(most.sum())} if hidden else {}),
        "fitted_total": float(table["fitted"].sum()),
        "share_inside_interval": float(inside.mean()),
    }


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
    folders = staging / PERIODS, staging / WINDOWS
    below = [path for each in folders for path in each.rglob("*") if path.is_file()]
    # run.json certifies the maps of a finished run. It is deleted before the first map changes:
    # without it, the directory may have maps of two runs.
    (out / "run.json").unlink(missing_ok=True)
    with deferred_signals():
        _move(staging, out, names)
    return [*names, *sorted(path.relative_to(staging).as_posix() for path in below)]


def _move(staging: Path, out: Path, names: list[str]) -> None:
    for name in names:
        (staging / name).replace(out / name)
    for name in (PERIODS, WINDOWS, CUBE):
        shutil.rmtree(out / name, ignore_errors=True)  # of an older fit
        if (staging / name).is_dir():
            (staging / name).replace(out / name)
    # Maps of a removed threshold, or of another kind of model, are of an older fit.
    for pattern in output_patterns("predict"):
        for path in out.glob(pattern):
            if path.name not in names:
                path.unlink()
    # The page and the catalogue are of the maps that were here.
    for pattern in output_patterns("report"):
        for path in out.glob(pattern):
            path.unlink()
    for path in out.glob("*.tif.aux.xml"):  # statistics that GIS programs keep of older values
        path.unlink()
