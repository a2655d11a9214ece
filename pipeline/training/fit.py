"""Fit a model to a bag store, on threads or on a Dask cluster, resumable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.training.device import Wanted
from models.training.estimator import Estimator
from models.training.loop import Training
from pipeline.core.progress import Progress, Silent
from pipeline.store.bag_store import BagStore
from pipeline.store.point_store import PointStore
from pipeline.store.series_source import SeriesSource
from pipeline.training.dask_executor import WAIT_SECONDS
from pipeline.training.part import Part

if TYPE_CHECKING:
    from distributed import Client


def fit(
    model: Estimator,
    store: BagStore | SeriesSource,
    client: Client | None = None,
    *,
    bags: np.ndarray | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    n_thread: int | None = None,
    device: Wanted = "cpu",
    device_memory: int | None = None,
    wait: float = WAIT_SECONDS,
    start: Estimator | None = None,
    points: PointStore | None = None,
) -> Training:
    """Fit a model to the bags of a store.

    Parameters
    ----------
    model : Estimator
        Its fitted attributes are set in place.
    store : BagStore or SeriesSource
        The bags of one period, or of several.
    client : distributed.Client, optional
        Cluster that computes the blocks; threads of this process if not given.
    bags : (n_bag,) bool array, optional
        Training bags; all that have a response if not given. They alone determine the scaling of
        the covariates.
    checkpoint : path-like, optional
        Directory of checkpoints, one an epoch. If it has one of the same data and model, the fit
        resumes from it, with the same result as without the interruption.
    progress : Progress, optional
    n_thread : int, optional
        Threads without a client; one for each core if not given. Results do not depend on it.
    device : {"cpu", "gpu", "auto"}
        Device of the blocks, here or on each worker. GPUs compute several blocks as one, so that
        results differ from those of a CPU by rounding and by the blocks of each step.
    device_memory : int, optional
        Bytes of a GPU's memory to use.
    wait : float, optional
        Seconds to wait for a worker if the client's cluster has none left.
    start : Estimator, optional
        A fitted VBAgg at whose kernel, noise and inducing points the fit begins, see
        :func:`pipeline.training.warm.warm_training`.
    points : PointStore, optional
        Points beside the areas; those of areas that are not among ``bags`` are left out.

    Returns
    -------
    Training
        Its ``converged`` is a status, not an exception.
    """
    part = Part(
        store, client, progress or Silent(), n_thread, device, device_memory, wait, start, points
    )
    directory = None if checkpoint is None else Path(checkpoint)
    if model.responses == "labels" and model.sweep != "single":  # type: ignore[attr-defined]
        # Classifiers bring scikit-learn along, half a second that fits to counts do not need.
        from pipeline.training.inner_fits import fit_labels

        return fit_labels(model, part, bags, directory)
    return part.fit(model, bags, directory)
