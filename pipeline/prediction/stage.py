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

import numpy as np
import pandas as pd

import models
from geo.boundary import read_areas
from geo.errors import InputError, Problem
from geo.repair import Repairs
from pipeline.cluster.local import driver_device, n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.config.size_defaults import settings, sized
from pipeline.core.progress import Progress
from pipeline.core.signals import deferred_signals
from pipeline.prediction.area_description import describe_areas
from pipeline.prediction.area_factors import AreaFactors
from pipeline.prediction.areas import (
    AreaDraws,
    draw_areas,
    draw_functions,
    tabulate_areas,
    write_areas,
)
from pipeline.prediction.labels import LabelPredictor, tabulate_labels
from pipeline.prediction.levels import grid_of, predict_levels
from pipeline.prediction.map_result import MapResult
from pipeline.prediction.products import DATA_SUPPORT, Layer, layers, output_patterns
from pipeline.prediction.raster import predict_raster
from pipeline.prediction.support_shares import covariate_range, support_shares, write_support
from pipeline.prediction.tags import run_tags
from pipeline.prediction.totals import explain_difference, fitted_total, mapped_totals
from pipeline.prediction.without_counts import (
    blank_unknown,
    log_without_counts,
    sum_draws,
    sum_labels,
)
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import (
    Balance,
    add_results,
    balance_of,
    render_balance,
    write_balance,
)
from pipeline.store.joined_stores import WITHOUT_COUNTS, JoinedStores, open_without_counts


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
    work = out / "work"
    model = models.load(work / "model")
    store = BagStore.open(context.place("work/bags.zarr"))
    config = sized(config, store.sizes)
    tags = run_tags(config, store, model)
    with _staging(out) as staging:
        n_pix, mapped, support, limits = 0, None, None, None
        others = open_without_counts(store, context.place(WITHOUT_COUNTS))
        areas = JoinedStores([store] if others is None else [store, others])
        functions, factors = None, None
        if config.labels is None:
            functions = draw_functions(model, config.output.draws, config.fit.seed)
        with progress.task("areas", areas.n_bag) as task:
            if functions is None:
                draws, table, uncounted = None, *_label_table(config, model, areas, task.advance)
            else:
                draws, factors = _draw(config, model, areas, functions, task.advance)
                table, uncounted = _table(config, draws, areas)
        cube = context.place("work/grid.zarr")
        if "pixels" in model.predicts:
            wanted = layers(config, store)
            n_pix = predict_raster(
                model,
                cube,
                staging,
                wanted,
                mask=config.output.mask,
                tags=tags,
                progress=progress,
                n_thread=n_thread(config),
                factor=_factor_grid(wanted, factors, areas, cube, staging),
                **driver_device(config),
            )
            (staging / ".factor.npy").unlink(missing_ok=True)
            mapped = mapped_totals(staging, cube, wanted[0].name, n_thread(config))
            if (staging / DATA_SUPPORT.file).is_file():
                limits = covariate_range(store, n_thread(config))
                support = support_shares(
                    staging, cube, limits, store.covariates, config.output.mask, n_thread(config)
                )
        boundaries = _areas(config)
        leveled: dict[str, Any] = {}
        if functions is not None:
            made = MapResult(
                config=config,
                model=model,
                functions=functions,
                cube=cube,
                areas=boundaries,
                table=table,
                limits=covariate_range(store, n_thread(config)) if limits is None else limits,
                directory=staging,
                tags=tags,
                n_thread=n_thread(config),
                factors=factors,
            )
            leveled, rate = predict_levels(made, progress)
            if config.has_cases and draws is not None:
                draws = draws.with_rates(rate.reindex(list(areas.ids)))
                table, uncounted = _table(config, draws, areas)
        log_without_counts(config, uncounted, progress)
        write_areas(boundaries, table, config.areas.id, staging)
        describe_areas(config, staging)
        files = _publish(staging, out)
    balance = _balance(
        config,
        store,
        model,
        mapped,
        draws,
        factors,
        getattr(functions, "clusters", None),
        uncounted,
        progress,
    )
    if balance is not None:
        write_balance(out, store, balance)
    if support is not None:
        write_support(out, store, support)
    if "pixels" not in model.predicts:
        progress.log(
            f"predict: {config.model.kind} predicts areas only, and repeats the labels of the "
            "training areas; see evaluation.json for its scores on others"
        )
    totals = {} if balance is None else {"balance": balance}
    return {
        "n_pix": n_pix,
        "n_areas": len(table),
        **_totals(table[table["in_training"]]),
        **totals,
        **({"areas_without_counts": uncounted} if uncounted else {}),
        **leveled,
        "settings": settings(config),
        "files": files,
    }


def _balance(
    config: Config,
    store: BagStore,
    model: Any,
    mapped: dict[str, float | None] | None,
    draws: AreaDraws | None,
    factors: AreaFactors | None,
    clusters: np.ndarray | None,
    uncounted: dict[str, Any],
    progress: Progress,
) -> Balance | None:
    """Add the fitted and the mapped totals to the balance of ingest, and log it."""
    total = None
    if draws is not None:
        counted = draws.bag < store.n_bag  # areas with a count
        deviations = None
        if factors is not None and mapped is not None and config.has_cases:  # means of the rasters
            deviations = factors.deviations(draws)[:, counted]
        draws = draws.select(counted)
        total = fitted_total(draws, config.output.interval, deviations, clusters)
        why = explain_difference(total, draws, list(store.ids), model)
        if why is not None:
            progress.log(f"predict: warning: {why}")
    balance = balance_of(store)
    if balance is None:
        return None
    add_results(
        balance,
        total,
        mapped,
        uncounted,
        everywhere=config.output.mask == "all",
        tested=config.model.response.needs_trials,
    )
    progress.log(render_balance(balance, f"{config.name}: balance"))
    return balance


def _label_table(
    config: Config, model: Any, areas: JoinedStores, advance: Callable[[int], None]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Predict each area of labels: its table, and the totals of the areas without one."""
    predictor = LabelPredictor(areas, config.output.interval, n_thread(config))
    table = tabulate_labels(predictor.predict(model, advance=advance), list(areas.ids))
    table = table.assign(in_training=areas.in_training)
    return table, sum_labels(table)


def _draw(
    config: Config,
    model: Any,
    areas: JoinedStores,
    functions: Any,
    advance: Callable[[int], None],
) -> tuple[AreaDraws, AreaFactors]:
    """Draw each area; with the draws, what the counts add to the surface."""
    of_draws = np.ones((config.output.draws, areas.n_bag))
    draws = draw_areas(
        model,
        areas,
        config.output.draws,
        config.fit.seed,
        advance=advance,
        n_thread=n_thread(config),
        functions=functions,
        observed=True,
        factors=of_draws,
    )
    return draws, AreaFactors.of(list(areas.ids), of_draws, draws.expected)


def _table(
    config: Config, draws: AreaDraws, areas: JoinedStores
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Tabulate the draws of each area; with the table, the totals of the areas without a count."""
    interval = config.output.interval
    table = tabulate_areas(draws, list(areas.ids), interval, config.output.rate_per)
    table = blank_unknown(table, areas).assign(in_training=areas.in_training)
    return table, sum_draws(draws, areas, interval)


def _factor_grid(
    wanted: list[Layer],
    factors: AreaFactors | None,
    areas: JoinedStores,
    cube: Any,
    directory: Path,
) -> np.ndarray | None:
    """Return the factors of the pixels' totals; None if no raster needs them."""
    if factors is None or not any(layer.product.conditioned for layer in wanted):
        return None
    return factors.of_pixels(areas, grid_of(cube).shape, directory)


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
    spec = config.areas
    repairs = Repairs() if spec.repair else None
    areas = read_areas(
        spec.path, spec.layer, spec.id, "areas", problems, repairs=repairs, encoding=spec.encoding
    )
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
    # The page and the catalogue are of the maps that were here.
    for pattern in output_patterns("report"):
        for path in out.glob(pattern):
            path.unlink()
    for path in out.glob("*.tif.aux.xml"):  # statistics that GIS programs keep of older values
        path.unlink()
