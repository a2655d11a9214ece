"""The fit stage: from the bag store to a saved model."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from models import VBAgg
from pipeline import engine
from pipeline.config import Config
from pipeline.progress import Progress
from pipeline.stages import work_dir
from pipeline.store import BagStore


def new_model(config: Config) -> VBAgg:
    """Build the unfitted model that a configuration describes."""
    spec, fit = config.model, config.fit
    return VBAgg(
        likelihood=spec.likelihood,
        link=spec.link,
        n_inducing=spec.inducing,
        kernel=spec.kernel,
        learn_inducing=spec.learn_inducing,
        batch_bags=fit.batch_areas,
        max_epochs=fit.max_epochs,
        learning_rate=fit.learning_rate,
        seed=fit.seed,
    )


def n_thread(config: Config) -> int | None:
    """Threads for work in this process; None for one a core."""
    workers = config.compute.workers
    return None if workers == "auto" else int(workers)


def fit_stage(config: Config, progress: Progress) -> dict[str, Any]:
    """Fit the configured model to ``work/bags.zarr`` and save it in ``work/model``.

    Parameters
    ----------
    config : Config
    progress : Progress

    Returns
    -------
    dict
        ``bound`` (nats), ``epochs``, ``converged``, ``n_inducing`` and the learnt
        ``hyperparameters`` by name.
    """
    work = work_dir(config)
    store = BagStore.open(work / "bags.zarr")
    model = new_model(config)
    checkpoint = work / "checkpoint"
    with _client(config) as client:
        training = engine.fit(
            model,
            store,
            client,
            checkpoint=checkpoint,
            progress=progress,
            n_thread=n_thread(config),
        )
    model.save(work / "model")
    if model.likelihood == "negative_binomial" and model.link == "exp":
        progress.log(
            "fit: the exp link's bound counts the spread of rates inside an area as noise, and the "
            "negative binomial takes it all up: the map may be nearly flat; model.link: square is "
            "better here"
        )
    shutil.rmtree(checkpoint, ignore_errors=True)
    if not training.converged:
        progress.log(
            f"fit: the bound still rose after {training.epoch} epochs (fit.max_epochs); the maps "
            "are usable, a higher fit.max_epochs makes them better"
        )
    return {
        "bound": model.bound_,
        "epochs": training.epoch,
        "converged": training.converged,
        "n_inducing": int(training.state.params["w"].shape[0]),
        "hyperparameters": _with_covariates(model.named_hyperparameters(), store.covariates),
    }


def _client(config: Config) -> AbstractContextManager[Any]:
    if config.compute.scheduler == "local":
        return nullcontext(None)
    from distributed import Client

    return Client(config.compute.scheduler)


def _with_covariates(values: dict[str, float], covariates: tuple[str, ...]) -> dict[str, float]:
    """Put the covariates' names in the place of their numbers."""
    named = {}
    for name, value in values.items():
        head, bracket, number = name.partition("_x.lengthscale[")
        if bracket:
            name = f"{head}.lengthscale[{covariates[int(number[:-1])]}]"
        named[name] = value
    return named
