"""The fit stage: from the bag store to a saved model."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from typing import Any

from models.training.loop import Training
from pipeline.cluster.cluster import open_cluster
from pipeline.cluster.local import block_device, n_thread
from pipeline.config.context import StageContext
from pipeline.config.model_factory import new_model
from pipeline.config.no_spread import spread_caution
from pipeline.config.schema import Config, work_dir
from pipeline.config.size_defaults import settings, sized
from pipeline.core.plurals import count_text
from pipeline.store.bag_store import BagStore
from pipeline.store.point_store import PointStore, open_points
from pipeline.store.series_source import SeriesSource
from pipeline.store.thinning import thinned_store
from pipeline.training.fit import fit
from pipeline.training.modes import KEY as OVERDISPERSION
from pipeline.training.modes import told_modes
from pipeline.training.series import open_series, read_series, sized_series
from pipeline.training.told_model import told_model
from pipeline.training.update import update_model


def fit_stage(context: StageContext) -> dict[str, Any]:
    """Fit the configured model to ``work/bags.zarr`` and save it in ``work/model``.

    Parameters
    ----------
    context : StageContext

    Returns
    -------
    dict
        ``bound`` (nats), ``epochs``, ``converged``, ``stopped`` (why before, else empty), the
        ``convergence`` (:func:`convergence_of`), the fitted ``hyperparameters`` by name, and
        ``hyperparameter_intervals`` where they are integrated (``mean``, ``median``, and
        ``lower`` and ``upper`` of the central 90 %), with ``hyperparameter_draws``, how sure these
        are; the ``coefficients`` of the kernel's linear part with their posterior
        standard deviations, and the ``effects`` of the covariates
        (:func:`pipeline.training.effects.told_effects`); which explanation of ``overdispersion``
        the data preferred, where the model knows (:func:`pipeline.training.modes.overdispersion`);
        ``no_uncertainty``, what to beware of where the model has none, else empty;
        ``n_pixels`` fitted to, and the ``settings`` that ``auto`` stands for.
    """
    progress = context.progress
    work = work_dir(context.config)
    known = read_series(context.config)
    if context.update and known:
        updated = update_model(context, known)
        if updated is not None:
            return updated
    found = _single(context) if context.config.series is None else _series(context)
    config, source, store = found.config, found.source, found.store
    if found.n_pix < found.n_all:
        progress.log(
            f"fit: {found.n_pix:,} of {found.n_all:,} pixels, {config.fit.area_pixels:,} an area "
            "at most, bear the exposure of all (fit.area_pixels)"
        )
    model: Any = new_model(config)
    checkpoint = work / "checkpoint"
    with open_cluster(config.compute) as client:
        training = fit(
            model,
            source,
            client,
            checkpoint=checkpoint,
            progress=progress,
            n_thread=n_thread(config),
            **block_device(config),
            wait=config.compute.wait,
            points=found.points,
        )
    model.save(work / "model")
    shutil.rmtree(checkpoint, ignore_errors=True)
    convergence = convergence_of(training)
    progress.log(f"fit: {_told(training, convergence)}")
    caution = spread_caution(config)
    if caution:
        progress.log(f"fit: warning: {caution}")
    told = told_model(model, store, found.ids, config)
    slopes = told["coefficients"]
    if slopes:
        listed = ", ".join(
            f"{n} {each['mean']:.2f} +- {each['sd']:.2f}" for n, each in slopes.items()
        )
        progress.log(
            "fit: slopes of the kernel's linear part, for a standard deviation of each covariate: "
            f"{listed}"
        )
    modes = told_modes(model, config)
    if modes:
        progress.log(f"fit: {modes[OVERDISPERSION]['sentence']}")
    return {
        "bound": model.bound_,
        "epochs": training.epoch,
        "converged": training.converged,
        "stopped": training.stopped,
        "convergence": convergence,
        **told,
        "hyperparameter_draws": getattr(model, "hyperparameter_draws_", {}),
        **modes,
        "no_uncertainty": caution,
        "n_pixels": found.n_pix,
        "settings": settings(config),
        **({"series": known} if known else {}),
    }


@dataclass(frozen=True)
class _Data:
    """What a fit reads.

    Attributes
    ----------
    config : Config
        Settled for the size.
    source : BagStore or SeriesSource
    store : BagStore
        Of the period that the fit is told of.
    n_pix, n_all : int
        Pixels that are read, and that they stand for.
    ids : tuple of str
        Areas in the order of their numbers.
    points : PointStore or None
        Beside the areas.
    """

    config: Config
    source: BagStore | SeriesSource
    store: BagStore
    n_pix: int
    n_all: int
    ids: tuple[str, ...]
    points: PointStore | None = None


def _single(context: StageContext) -> _Data:
    whole = BagStore.open(context.place("work/bags.zarr")).training
    config = sized(context.config, whole.sizes)
    place = context.place("work/thinned-fit.zarr")
    store = thinned_store(whole, place, config.fit.area_pixels, config.fit.seed)
    points = open_points(work_dir(config)) if config.point_sources else None
    return _Data(config, store, store, store.n_pix, whole.n_pix, whole.ids, points)


def _series(context: StageContext) -> _Data:
    series = open_series(context)
    config = sized_series(context.config, series)
    place = context.place("work/thinned-fit.zarr")
    stores = series.thinned(place, config.fit.area_pixels, config.fit.seed)
    source = series.source(stores)
    last = next(store for store in reversed(stores) if store.in_training.any())
    return _Data(config, source, last, source.n_pix, series.n_pix, series.ids)


def convergence_of(training: Training) -> dict[str, float | None]:
    """Return how near a fit is to its optimum; empty of models that do not tell.

    Parameters
    ----------
    training : Training

    Returns
    -------
    dict
        ``nats_left``, that the bound may be below its optimum; ``gradient``, the largest slope of
        the bound by a hyperparameter, nats a unit of its logarithm; ``passes`` over all areas. None
        where it was not found.
    """
    rows = [row for row in training.history if "nats_left" in row]
    if not rows:
        return {}
    last = {key: rows[-1][key] for key in ("nats_left", "gradient")}
    known = {key: value if math.isfinite(value) else None for key, value in last.items()}
    return {**known, "passes": sum(row["passes"] for row in rows)}


def _told(training: Training, convergence: dict[str, float | None]) -> str:
    """Return what users read of the end of a fit."""
    left, epochs = convergence.get("nats_left"), count_text(training.epoch, "epoch")
    passes = f" after {convergence['passes']:.0f} passes" if convergence else ""
    if training.stopped:
        return f"stopped before it converged{passes}: {training.stopped}"
    if training.converged:
        near = "" if left is None else f", {left:.2g} nats below its optimum by the last step"
        return f"converged{passes or f' after {epochs}'}{near}"
    remedy = "the maps are usable, but a higher fit.max_epochs improves them"
    if convergence:
        most = "an unknown number of" if left is None else f"{left:.2g}"
        return (
            f"not at its optimum{passes}: {most} nats may be left to gain, or draws of the "
            f"hyperparameters be missing, at step {training.epoch} (fit.max_epochs); {remedy}"
        )
    return f"the bound still rose after {epochs} (fit.max_epochs); {remedy}"
