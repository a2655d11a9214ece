"""Fits that only score: of folds, and of simulated counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from models.aggregate.refinement import MOST_CHAINED
from models.gp.kept_kernels import BUDGET
from models.temporal.periods import Period
from models.training.device import find_device
from pipeline.cluster.local import block_device, memory, n_thread
from pipeline.config.catalogue import model_class
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config, work_dir
from pipeline.core.code import code_inputs
from pipeline.core.processes import shares
from pipeline.core.progress import Progress
from pipeline.evaluation.cross_validation import FitFold
from pipeline.store.block_source import StoreBlockSource
from pipeline.store.point_store import open_points
from pipeline.training.fit import fit as fit_model
from pipeline.training.warm import lighten, start_key

#: Pixels of a store, and numbers of their covariates, from which a fit fills all cores by itself.
FILLS = 2_000_000, 20_000_000
#: Bytes that a fit may fill: the kernel matrices that it keeps, and as much for its passes.
FIT_BYTES = 2 * BUDGET


def most_at_once(n_pix: int, n_covariate: int) -> int:
    """Return how many fits to a store may run at the same time: 1 of a large one.

    Half of the memory is for them.
    """
    if n_pix > FILLS[0] or n_pix * n_covariate > FILLS[1]:
        return 1
    return max(1, memory() // 2 // FIT_BYTES)


def fits_begin_warm(config: Config) -> bool:
    """Return whether fits that only score begin at the map's own, whichever areas they leave out.

    Parameters
    ----------
    config : Config
        Sized.
    """
    return config.evaluate.start == "warm" or config.series is not None


def fits_at_once(config: Config, store: Any, client: Any) -> int:
    """Return how many fits to the areas of a store are made at the same time, in processes.

    1 where others compute: workers, a GPU.

    Parameters
    ----------
    config : Config
    store : BagStore
    client : dask client or None
    """
    if client is not None or find_device(config.compute.device) is not None:
        return 1
    return shares(most_at_once(store.n_pix, len(store.covariates)), n_thread(config))


def fit_areas(
    config: Config, store: Any, client: Any, start: Any
) -> Callable[[np.ndarray, Path, Progress], Any]:
    """Return what fits a new model to some areas of a store, as the evaluation does.

    Parameters
    ----------
    config : Config
        Sized.
    store : BagStore
        Or another with its interface.
    client : dask client or None
    start : fitted model or None
        Where the fit begins.

    Returns
    -------
    callable
        From the areas to learn from, (n_bag,) bool, the place of its checkpoint and what it reports
        to, to the model.
    """
    if config.series is not None:
        return partial(_without, start, store)
    points = open_points(work_dir(config)) if config.point_sources else None

    def fit(train: np.ndarray, checkpoint: Path, progress: Progress) -> Any:
        model = new_model(config)
        if start is not None:
            lighten(model)
        epochs = config.evaluate.epochs
        if epochs != config.fit.max_epochs and "max_epochs" in model.get_params():
            model.set_params(max_epochs=epochs)
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
            points=points,
        )
        return model

    return fit


def _without(
    start: Any, store: Any, train: np.ndarray, checkpoint: Path, progress: Progress
) -> Any:
    """Return the model of a period that knows some of its areas alone, its hyperparameters held.

    Other periods keep all of theirs: what is scored is what an area's own past says of it.
    """
    del checkpoint, progress
    bags = StoreBlockSource(store, train).read_all()
    known = Period(start.time, bags, store.numbers[bags.bag])
    return start.whole.with_periods(known).at(start.time)


def fit_fingerprint(config: Config, store: Any, start: Any) -> str:
    """Return the fingerprint of everything that a fit depends on, except which areas it reads."""
    parts = {
        "store": store.fingerprint,
        "model": config.model.model_dump(mode="json"),
        "fit": config.fit.model_dump(mode="json"),
        "epochs": config.evaluate.epochs,
        "start": "" if start is None else start_key(start),
        "code": code_inputs(HELD_OUT, [model_class(config.model.kind)]),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


HELD_OUT = "pipeline.evaluation.held_out"  # what predicts folds is a part of their fingerprint


@dataclass(frozen=True)
class FoldFits:
    """How a model is fitted without each fold.

    Attributes
    ----------
    how : {"refit", "regression"}
        By fits of the model, or by regression between areas around the one that there is
        (:mod:`models.aggregate.area_refit`).
    fit : callable
        See :func:`fit_areas`.
    fingerprint : str
        Of everything that a fit depends on, except which areas it reads.
    at_once : int
        Fits to make at the same time, in processes.
    """

    how: Literal["refit", "regression"]
    fit: FitFold
    fingerprint: str
    at_once: int


def fold_fits(config: Config, store: Any, client: Any, model: Any, areas: Any) -> FoldFits:
    """Return how a model is fitted without each fold.

    Parameters
    ----------
    config : Config
        Sized.
    store : BagStore
    client : dask client or None
    model : fitted model
    areas : AreaRefits or None
        Of :func:`area_refits`.
    """
    start = model if fits_begin_warm(config) else None
    fit = fit_areas(config, store, client, start)
    key = fit_fingerprint(config, store, start)
    if areas is None:
        return FoldFits("refit", fit, key, fits_at_once(config, store, client))
    seed = config.evaluate.seed

    def regress(train: np.ndarray, checkpoint: Path, progress: Progress) -> Any:
        found = areas.without(~train, seed)
        if found is None:
            progress.log("evaluate: a fold is fitted anew, for the other areas tell too little")
            return fit(train, checkpoint, progress)
        return found

    key = hashlib.sha256(f"{key} regression {seed}".encode()).hexdigest()
    return FoldFits("regression", regress, key, fits_at_once(config, store, client))


def may_regress(config: Config, n_bag: int) -> bool:
    """Return whether folds are regressed, if the fit's chain agreed with its bound.

    Parameters
    ----------
    config : Config
        Sized.
    n_bag : int
        Areas.
    """
    evaluate, alone = config.evaluate, config.series is None and not config.point_sources
    weighed = (evaluate.start, evaluate.leave_out) == ("warm", "importance")
    if not (alone and weighed and n_bag <= MOST_CHAINED):
        return False
    model: Any = new_model(config)
    return model.by_terms and model.n_member > 0 and model.priors == "weak"


def area_refits(config: Config, store: Any, model: Any) -> Any:
    """Return what fits a model without some areas by regression between them; None where it cannot.

    Parameters
    ----------
    config : Config
        Sized; where it asks for fits of the model, there is none.
    store : BagStore
    model : fitted model
    """
    if not may_regress(config, store.n_bag):
        return None
    return model.area_refits(store.blocks(), store.n_bag)
