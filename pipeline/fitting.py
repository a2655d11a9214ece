"""The fit stage: from the bag store to a saved model."""

from __future__ import annotations

import re
import shutil
from typing import Any

from dask.utils import parse_bytes

from pipeline import engine
from pipeline.cluster import open_cluster
from pipeline.config import Config
from pipeline.kinds import new_model
from pipeline.machine import threads_here
from pipeline.progress import Progress
from pipeline.stages import work_dir
from pipeline.store import BagStore

_PER_COVARIATE = re.compile(r"(\w+)_x(?:_\d+)?(\.\w+)\[(\d+)\]")


def n_thread(config: Config) -> int | None:
    """Threads for work in this process; None for one a core."""
    return threads_here(config.compute)


def where(config: Config) -> dict[str, Any]:
    """Return what computes blocks, and how much of a GPU's memory they may fill."""
    memory = config.compute.device_memory
    return {
        "device": config.compute.device,
        "device_memory": None if memory == "auto" else int(parse_bytes(memory)),
    }


def where_here(config: Config) -> dict[str, Any]:
    """Return the same for the driver's own work: a cluster's GPUs are not this machine's."""
    found = where(config)
    if config.compute.scheduler not in ("local", "processes") and found["device"] == "gpu":
        found["device"] = "auto"
    return found


def fit_stage(config: Config, progress: Progress) -> dict[str, Any]:
    """Fit the configured model to ``work/bags.zarr`` and save it in ``work/model``.

    Parameters
    ----------
    config : Config
    progress : Progress

    Returns
    -------
    dict
        ``bound`` (nats), ``epochs``, ``converged``, the learnt ``hyperparameters`` by name, and
        the ``coefficients`` of the kernel's linear part with their posterior deviations.
    """
    work = work_dir(config)
    store = BagStore.open(work / "bags.zarr")
    model = new_model(config)
    checkpoint = work / "checkpoint"
    with open_cluster(config.compute) as client:
        training = engine.fit(
            model,
            store,
            client,
            checkpoint=checkpoint,
            progress=progress,
            n_thread=n_thread(config),
            **where(config),
            wait=config.compute.wait,
        )
    model.save(work / "model")
    shutil.rmtree(checkpoint, ignore_errors=True)
    if training.stopped:
        progress.log(f"fit: stopped before it converged: {training.stopped}")
    elif not training.converged:
        progress.log(
            f"fit: the bound still rose after {training.epoch} epochs (fit.max_epochs); the maps "
            "are usable, a higher fit.max_epochs makes them better"
        )
    slopes = _coefficients(model, store.covariates)
    if slopes:
        told = ", ".join(
            f"{n} {each['mean']:.2f} +- {each['sd']:.2f}" for n, each in slopes.items()
        )
        progress.log(f"fit: slopes for a standard deviation of each covariate: {told}")
    return {
        "bound": model.bound_,
        "epochs": training.epoch,
        "converged": training.converged,
        "hyperparameters": _with_covariates(model.named_hyperparameters(), store.covariates),
        "coefficients": slopes,
    }


def _coefficients(model: Any, covariates: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return slopes of the linear part by covariate, for a standard deviation of it."""
    names = (*covariates, "east", "north")
    return {
        names[each.column]: {"mean": each.mean, "sd": each.sd}
        for each in getattr(model, "coefficients_", [])
    }


def _with_covariates(values: dict[str, float], covariates: tuple[str, ...]) -> dict[str, float]:
    """Put the covariates' names in the place of their numbers."""
    named = {}
    for name, value in values.items():
        found = _PER_COVARIATE.fullmatch(name)
        if found:
            name = f"{found[1]}{found[2]}[{covariates[int(found[3])]}]"
        named[name] = value
    return named
