"""The evaluate stage: how far the maps can be trusted, in numbers.

Three questions: does the model fit the counts it saw; does it predict the counts of areas it did
not see (scattered ones, and whole regions), better than one constant rate does; and, where the
country is simulated, does the map agree with the truth inside the areas.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import models
from geo.errors import InputError, Problem
from geo.raster import RasterSource
from pipeline import engine
from pipeline.areas import AreaDraws, draw_areas
from pipeline.config import Config, FoldsFile
from pipeline.crossval import cross_validate, hold_out_constant
from pipeline.fitting import n_thread
from pipeline.folds import block_folds, random_folds, read_folds
from pipeline.kinds import new_model
from pipeline.predict import software_version
from pipeline.scorecard import render_scorecard
from pipeline.scores import (
    LEVELS,
    moment_log_density,
    pit_histogram,
    point_scores,
    predictive_scores,
)
from pipeline.store import BagStore
from pipeline.truth import compare_with_truth

ABOUT = {
    "counts": "cases of an area; expected counts are means over joint draws",
    "rates": "cases per unit of exposure (person, or km2 without a population)",
    "log_counts": "natural logarithms of counts and expectations plus one half",
    "nll": "minus the log predictive density of a count, mean over areas, nats",
    "nll_moments": "the same for counts whose expectation has a gamma distribution with the mean "
    "and variance of the draws: not ruled by the one draw nearest to an outlying count",
    "coverage": "share of observations inside central predictive intervals, by the randomised "
    "probability integral transform averaged over its randomisation: nominal for a calibrated "
    "prediction however small the counts; `closed` is the share inside the closed interval, which "
    "covers too much where counts are small",
    "constant": "one rate for all training areas, negative binomial counts around it",
    "area": "areas held out at random, or by the folds file",
    "block": "compact regions held out whole (k-means of the areas' centres)",
}


def evaluate_stage(config: Config, progress: Any) -> dict[str, Any]:
    """Write ``evaluation.json`` and log its summary as a table.

    A fold that has been predicted is kept in ``work/evaluate`` and not fitted again while neither
    data nor model change; an interrupted fit goes on from its checkpoint.

    Parameters
    ----------
    config : Config
        Its ``output.dir`` holds ``work/`` with the bag store and the fitted model.
    progress : Progress
        Told of folds and areas as they are done, and of the table.

    Returns
    -------
    dict
        The headline numbers.

    Raises
    ------
    InputError
        If the folds file or the truth cannot be used.
    """
    out = Path(config.output.dir)
    work = out / "work"
    store = BagStore.open(work / "bags.zarr")
    model = models.load(work / "model")
    levels = sorted({*LEVELS, config.output.interval})
    folds = {scheme: _folds(config, store, scheme) for scheme in config.evaluate.schemes}
    source = _truth(config)

    with progress.task("in sample", store.n_bag) as task:
        seen = draw_areas(model, store, config.output.draws, config.fit.seed, advance=task.advance)
    report: dict[str, Any] = {
        "name": config.name,
        "fingerprint": store.fingerprint,
        "model": config.model.model_dump(mode="json"),
        "n_areas": store.n_bag,
        "n_draws": config.output.draws,
        "in_sample": score(seen, levels),
        "held_out": {},
    }
    for scheme, fold in folds.items():
        report["held_out"][scheme] = _hold_out(
            config, store, scheme, fold, levels, work / "evaluate" / scheme, progress
        )
    if source is not None:
        with progress.task("truth", store.n_bag) as task:
            report["truth"] = compare_with_truth(model, store, source, levels, advance=task.advance)
    report["about"] = ABOUT
    report = jsonable(report)
    partial = out / ".evaluation.json.partial"
    partial.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(out / "evaluation.json")
    progress.log(render_scorecard(report))
    return summarise(report)


def score(draws: AreaDraws, levels: list[float]) -> dict[str, Any]:
    """Return every score of areas' predictions, as :mod:`pipeline.scores` names them."""
    return {
        "n_areas": int(draws.y.shape[0]),
        **point_scores(draws.y, draws.mean, draws.people),
        **predictive_scores(draws.y, draws.counts, draws.log_density, levels),
        "nll_moments": float(-moment_log_density(draws.y, draws.expected).mean()),
        "pit_histogram": pit_histogram(draws.counts, draws.y),
    }


def _hold_out(
    config: Config,
    store: BagStore,
    scheme: str,
    fold: np.ndarray,
    levels: list[float],
    directory: Path,
    progress: Any,
) -> dict[str, Any]:
    """Cross-validate by one scheme; beside it the constant rate, and each fold by itself."""
    n_fold = int(fold.max()) + 1
    seed = config.evaluate.seed
    result: dict[str, Any] = {"n_folds": n_fold}
    if n_fold < 2:
        result["skipped"] = "there are not two areas to hold out in turn"
        return result
    with progress.task(f"hold out by {scheme}", n_fold) as task:
        draws, fold_of = cross_validate(
            fold,
            store,
            _fit_fold(config, store, progress),
            config.output.draws,
            seed,
            directory,
            _fingerprint(config, store),
            task.advance,
        )
    constant = hold_out_constant(
        fold, store.y, np.asarray(store.bag_weight), config.output.draws, seed
    )
    result["model"] = score(draws, levels)
    result["constant"] = score(constant, levels)
    result["by_fold"] = []
    for number in range(n_fold):
        part, flat = draws.select(fold_of == number), constant.select(fold_of == number)
        own = score(part, [config.output.interval])
        result["by_fold"].append(
            {
                "fold": number,
                "n_areas": own["n_areas"],
                "nll": own["nll"],
                "nll_constant": float(-flat.log_density.mean()),
                "rates_rmse": own["rates"]["rmse"],
                "rates_correlation": own["rates"]["correlation"],
                "coverage": own["intervals"][f"{config.output.interval:g}"]["coverage"],
            }
        )
    return result


def _fit_fold(config: Config, store: BagStore, progress: Any) -> Callable[[np.ndarray, Path], Any]:
    def fit(train: np.ndarray, checkpoint: Path) -> Any:
        model = new_model(config)
        engine.fit(
            model,
            store,
            bags=train,
            checkpoint=checkpoint,
            progress=progress,
            n_thread=n_thread(config),
        )
        return model

    return fit


def _fingerprint(config: Config, store: BagStore) -> str:
    """Fingerprint of all that a fold's predictions depend on but the fold itself."""
    parts = {
        "store": store.fingerprint,
        "model": config.model.model_dump(mode="json"),
        "fit": config.fit.model_dump(mode="json"),
        "version": software_version(),
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
    if scheme == "area":
        return random_folds(store.n_bag, n_fold, seed)
    return block_folds(_centres(store), n_fold, seed)


def _centres(store: BagStore) -> np.ndarray:
    """Centre of each area's pixels, (n_bag, 2), km."""
    centres = np.empty((store.n_bag, 2))
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
        sums = np.add.reduceat(block.coords, block.offsets[:-1], axis=0)
        centres[block.bag] = sums / np.diff(block.offsets)[:, None]
    return centres


def _truth(config: Config) -> RasterSource | None:
    return None if config.truth is None else RasterSource(config.truth.path)


def jsonable(value: Any) -> Any:
    """Return the value with numbers that JSON lacks (NaN, infinities) as None."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def summarise(report: dict[str, Any]) -> dict[str, Any]:
    """Pick the headline numbers of a report."""
    result = {
        "n_areas": report["n_areas"],
        "in_sample_rate_correlation": report["in_sample"]["rates"]["correlation"],
    }
    for scheme, held_out in report["held_out"].items():
        if "model" in held_out:
            result[f"{scheme}_nll"] = held_out["model"]["nll"]
            result[f"{scheme}_nll_constant"] = held_out["constant"]["nll"]
            result[f"{scheme}_rate_correlation"] = held_out["model"]["rates"]["correlation"]
            result[f"{scheme}_coverage_90"] = held_out["model"]["intervals"]["0.9"]["coverage"]
    if "truth" in report:
        pixels = report["truth"]["pixels"]
        result["truth_log_rate_correlation"] = pixels["log_rate"]["correlation"]
        result["truth_log_rate_rmse"] = pixels["log_rate"]["rmse"]
        result["truth_coverage_90"] = pixels["coverage"]["0.9"]
    return result
