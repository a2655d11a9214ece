"""The evaluate stage: scores of the maps.

The stage answers three questions. Does the model fit its training areas? Does it predict held-out
areas, scattered ones and whole regions, better than a constant? If the country is simulated, does
the map agree with the truth? :mod:`pipeline.evaluation.tasks` computes the answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import models
from geo.errors import InputError, Problem
from geo.raster import raster_source
from pipeline.cluster.cluster import open_cluster
from pipeline.cluster.local import block_device, n_thread
from pipeline.config.context import StageContext
from pipeline.config.input_schema import FoldsFile
from pipeline.config.model_factory import model_settings, new_model
from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config
from pipeline.config.size_defaults import settings, sized
from pipeline.core.code import code_inputs
from pipeline.core.json_values import jsonable
from pipeline.evaluation.calibration_run import Calibrator
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.cross_validation import cross_validate
from pipeline.evaluation.folds import block_folds, random_folds, read_folds, stratified_folds
from pipeline.evaluation.leave_out import leave_areas_out, leave_each_out
from pipeline.evaluation.report import render_report
from pipeline.evaluation.tasks import EvaluationTask, compare_held_out, evaluation_task
from pipeline.evaluation.verdict import KEY, verdict
from pipeline.prediction.products import EVALUATION
from pipeline.storage.files import write_text
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import read_balance
from pipeline.store.thinning import thinned_store
from pipeline.training.fit import fit as fit_model
from pipeline.training.warm import start_key


def evaluate_stage(context: StageContext) -> dict[str, Any]:
    """Write ``evaluation.json`` and log its summary: a verdict, and tables.

    Finished folds are kept in ``work/evaluate`` until the data or the model change; an interrupted
    fit resumes from its checkpoint.

    Parameters
    ----------
    context : StageContext
        The configuration's ``output.dir`` holds ``work/`` with the bag store and the fitted model.

    Returns
    -------
    dict
        The headline numbers, and the ``settings`` that ``auto`` stands for.

    Raises
    ------
    InputError
        If the folds file or the truth cannot be used.
    """
    config, progress = context.config, context.progress
    out = Path(config.output.dir)
    work = out / "work"
    whole = BagStore.open(context.place("work/bags.zarr"))
    model = models.load(work / "model")
    config = sized(config, whole.sizes)
    cap, thinned = config.evaluate.area_pixels, context.place("work/thinned-evaluate.zarr")
    store = thinned_store(whole, thinned, cap, config.fit.seed)
    evaluation = evaluation_task(config, store)
    folds = {scheme: _folds(config, store, scheme) for scheme in config.evaluate.schemes}
    source = None if config.truth is None else raster_source(config.truth.path)

    with progress.task("in sample", store.n_bag) as task:
        seen = evaluation.in_sample(model, task.advance)
    report: dict[str, Any] = {
        KEY: None,  # the verdict comes first
        "name": config.name,
        "fingerprint": store.fingerprint,
        "model": model_settings(config, model),
        "response": ResponseWords.of(config).placeholders,
        "n_areas": store.n_bag,
        "n_draws": config.output.draws,
        "in_sample": evaluation.score(seen),
        "held_out": {},
    }
    if store is not whole:
        report["thinned"] = {"area_pixels": cap, "n_pixels": store.n_pix, "of": whole.n_pix}
    for scheme, fold in folds.items():
        report["held_out"][scheme] = _hold_out(
            config, store, evaluation, scheme, fold, work / "evaluate" / scheme, progress, model
        )
    schemes = config.evaluate.schemes or ("area", "block")
    report[KEY] = verdict(report["held_out"], schemes, evaluation.against)
    if source is not None:
        with progress.task("truth", store.n_bag) as task:
            # Every pixel counts alike, or by its people: not those of the sample.
            truth = evaluation_task(config, whole).truth(model, source, task.advance)
        if truth is not None:
            report["truth"] = truth
    report[CALIBRATION] = _calibration(context, config, whole, model)
    balance = read_balance(out, whole)
    if balance is not None:
        report["balance"] = balance
    report["about"] = evaluation.about
    report = jsonable(report)
    write_text(out / EVALUATION.file, json.dumps(report, indent=2, allow_nan=False) + "\n")
    progress.log(render_report(report))
    return {**evaluation.headline(report), "settings": settings(config)}


def _calibration(context: StageContext, config: Config, whole: BagStore, model: Any) -> Any:
    """Refit to data simulated from the map; see :mod:`pipeline.evaluation.calibration`."""
    start = model if config.evaluate.start == "warm" else None
    return Calibrator(
        config,
        context,
        model,
        lambda store, client: _fit_fold(config, store, client, context.progress, start),
        lambda store: _fingerprint(config, store, start),
    ).measure(whole)


def _hold_out(
    config: Config,
    store: BagStore,
    evaluation: EvaluationTask,
    scheme: str,
    fold: np.ndarray,
    directory: Path,
    progress: Any,
    model: Any,
) -> dict[str, Any]:
    """Cross-validate the model and a constant by one scheme; score all folds and each fold."""
    n_fold = int(fold.max()) + 1
    result: dict[str, Any] = {"n_folds": n_fold}
    if n_fold < 2:
        result["skipped"] = "cross-validation needs two areas or more"
        return result
    if config.labels is not None:
        alone = [k for k in range(n_fold) if np.unique(store.y[fold != k]).size < 2]
        if alone:
            result["skipped"] = (
                f"without fold {alone[0]} all areas have the same label; give fewer folds, or "
                "folds that share the positives out"
            )
            progress.log(f"evaluate: held out by {scheme} skipped: {result['skipped']}")
            return result
    with (
        open_cluster(config.compute) as client,
        progress.task(f"hold out by {scheme}", n_fold) as task,
    ):
        start = model if config.evaluate.start == "warm" else None

        def refit(fold: np.ndarray) -> Any:
            return cross_validate(
                fold,
                evaluation.predictor,
                _fit_fold(config, store, client, progress, start),
                directory,
                _fingerprint(config, store, start),
                task.advance,
            )

        if scheme == "area" and config.evaluate.leave_out == "importance":
            n_draws, seed = config.output.draws, config.evaluate.seed
            left = leave_each_out(model, store, n_draws, seed, n_thread(config))
            predictions, fold_of, result["leave_out"] = leave_areas_out(left, fold, refit)
        else:
            predictions, fold_of = refit(fold)
    constant = evaluation.constant(fold)
    # The areas of a region held out whole fail together.
    groups = fold_of if scheme == "block" else None
    result |= compare_held_out(evaluation, predictions, constant, groups)
    result["by_fold"] = []
    for number in range(n_fold):
        in_fold = fold_of == number
        scores = evaluation.fold_row(predictions.select(in_fold), constant.select(in_fold))
        result["by_fold"].append({"fold": number, **scores})
    return result


def _fit_fold(
    config: Config, store: BagStore, client: Any, progress: Any, start: Any
) -> Callable[[np.ndarray, Path], Any]:
    def fit(train: np.ndarray, checkpoint: Path) -> Any:
        model = new_model(config)
        if config.evaluate.epochs != config.fit.max_epochs and "max_epochs" in model.get_params():
            model.set_params(max_epochs=config.evaluate.epochs)
        fit_model(
            model,
            store,
            client,
            bags=train,
            checkpoint=checkpoint,
            progress=progress,
            n_thread=n_thread(config),
            **block_device(config),
            wait=config.compute.wait,
            start=start,
        )
        return model

    return fit


def _fingerprint(config: Config, store: BagStore, start: Any) -> str:
    """Return the fingerprint of everything that predictions depend on, except the fold."""
    parts = {
        "store": store.fingerprint,
        "model": config.model.model_dump(mode="json"),
        "fit": config.fit.model_dump(mode="json"),
        "epochs": config.evaluate.epochs,
        "start": "" if start is None else start_key(start),
        "code": code_inputs(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _folds(config: Config, store: BagStore, scheme: str) -> np.ndarray:
    """Fold of each area, in the store's order."""
    folds, seed = config.evaluate.folds, config.evaluate.seed
    if isinstance(folds, FoldsFile):
        given = read_folds(folds.path, folds.id, folds.fold, list(store.ids))
        if scheme == "area":
            return given
        n_fold = int(given.max()) + 1
    else:
        n_fold = folds
    if scheme == "area" and config.labels is not None:
        return stratified_folds(store.y, n_fold, seed)
    if scheme == "area":
        return random_folds(store.n_bag, n_fold, seed)
    return block_folds(_centres(store), n_fold, seed)


def _centres(store: BagStore) -> np.ndarray:
    """Centre of each area's pixels, (n_bag, n_axis), km."""
    centres = np.empty((store.n_bag, 0))
    for block in store.blocks():
        if block.coords is None:
            raise InputError(
                [
                    Problem(
                        "evaluate.schemes",
                        "'block' needs positions, and the bag store has none",
                        "use schemes: [area]",
                    )
                ]
            )
        if not centres.size:
            centres = np.empty((store.n_bag, block.coords.shape[1]))
        sums = np.add.reduceat(block.coords, block.offsets[:-1], axis=0)
        centres[block.bag] = sums / np.diff(block.offsets)[:, None]
    return centres
