"""Fits to labels of a store: of all bags, and of inner folds that settings are chosen on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from models.core.block import BagBlock, check_labels
from models.mil.data.calibration import mean_logit
from models.mil.data.classifier import Classifier
from models.mil.data.inner_folds import fit_with_inner_folds
from models.training.loop import Training
from pipeline.core.progress import Silent
from pipeline.core.threads import map_in_order
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.inner_progress import InnerProgress
from pipeline.training.part import Part


def fit_labels(model: Any, part: Part, bags: np.ndarray | None, directory: Path | None) -> Training:
    """Fit a classifier and what it chooses by inner folds; see :class:`StoreFitter`."""
    fitter = StoreFitter(part, cast(BagStore, part.store), bags, directory)
    check_labels(fitter.y)
    final = fit_with_inner_folds(model, fitter)
    training = fitter.whole[id(final)]
    training.state = model.state_
    return training


class StoreFitter:
    """Fits classifiers to bags of a store, and predicts others (see :class:`Fitter`).

    Parameters
    ----------
    part : Part
    store : BagStore
    bags : (n_bag,) bool array, optional
        The data set: bags that are trained on or held out in turn; all that have a response if not
        given.
    directory : Path, optional
        Of checkpoints, one inside it for each fit.
    """

    def __init__(
        self, part: Part, store: BagStore, bags: np.ndarray | None, directory: Path | None
    ) -> None:
        self._part, self._store, self._directory = part, store, directory
        self._bags = store.in_training if bags is None else np.asarray(bags, bool)
        self.y = store.y[self._bags]
        self.sizes = store.sizes[self._bags]
        self.whole: dict[int, Training] = {}
        self._within: InnerProgress | None = None

    def fit(self, model: Classifier, keep: np.ndarray | None, name: str) -> None:
        """See :class:`Fitter`."""
        directory, part = self._directory, self._part
        if name != "all":
            directory = None if directory is None else directory / name
            if self._within is not None:
                self._within.name = name
            part = replace(part, progress=self._within or Silent())
        training = part.fit(model, self._kept(keep), directory)
        if keep is None:
            self.whole[id(model)] = training

    @contextmanager
    def counted(self, n_step: int, n_fit: int = 1) -> Iterator[Callable[[], None]]:
        """See :class:`Fitter`."""
        with self._part.progress.task("inner folds", n_step) as task:
            self._within = InnerProgress(self._part.progress, task, n_fit)
            try:
                yield self._within.finish
            finally:
                self._within = None

    def logits(self, model: Classifier, keep: np.ndarray) -> np.ndarray:
        """See :class:`Fitter`."""
        return self._by_block(keep, lambda block: mean_logit(model.predict_bags(block)))

    def left_out(self, model: Classifier) -> np.ndarray:
        """See :class:`Fitter`."""
        return self._by_block(None, model.left_out_log_probability)

    def _by_block(
        self, keep: np.ndarray | None, predict: Callable[[BagBlock], np.ndarray]
    ) -> np.ndarray:
        source = StoreBlockSource(self._store, self._kept(keep))
        blocks = np.flatnonzero(source.block_bags).tolist()
        found = map_in_order(lambda n: predict(source.read(n)), blocks, self._part.n_thread)
        return np.concatenate(list(found))

    def _kept(self, keep: np.ndarray | None) -> np.ndarray:
        if keep is None:
            return self._bags
        out = np.zeros(self._bags.shape, bool)
        out[np.flatnonzero(self._bags)[keep]] = True
        return out
