"""Cross-validation: fit without a fold's counts, predict them, keep finished folds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from pipeline.core.errors import StoreError
from pipeline.core.processes import in_processes
from pipeline.core.progress import Progress, Silent
from pipeline.products.areas import AreaDraws, draw_areas
from pipeline.products.arrays import AreaArrays
from pipeline.storage.mirror import keep

FitFold = Callable[[np.ndarray, Path, Progress], Any]


P = TypeVar("P", bound=AreaArrays)
P_co = TypeVar("P_co", bound=AreaArrays, covariant=True)


class Predictor(Protocol[P_co]):
    """Predicts areas by a model."""

    @property
    def kind(self) -> type[P_co]:
        """Type of the predictions."""

    @property
    def key(self) -> str:
        """Everything that the predictions depend on besides the model and the areas."""

    def predict(self, model: Any, keep: np.ndarray, number: int) -> P_co:
        """Predict the areas where ``keep`` is true, for fold ``number``."""


@dataclass(frozen=True)
class CountPredictor:
    """Predicts joint draws of the counts of areas.

    Attributes
    ----------
    store : BagStore
    n_draws, seed : int
        Functions drawn for a fold, and their seed.
    """

    store: Any
    n_draws: int
    seed: int
    kind: type[AreaDraws] = AreaDraws

    @property
    def key(self) -> str:
        """Everything that the predictions depend on besides the model and the areas."""
        return f"{self.n_draws} {self.seed}"

    def predict(self, model: Any, keep: np.ndarray, number: int) -> AreaDraws:
        """Predict the areas where ``keep`` is true, for fold ``number``."""
        seed = self.seed + 1000 * (number + 1)
        return draw_areas(model, self.store, self.n_draws, seed, keep)


def cross_validate(
    fold: np.ndarray,
    predictor: Predictor[P],
    fit_fold: FitFold,
    directory: Path,
    fingerprint: str,
    advance: Callable[[int], None] | None = None,
    unseen: np.ndarray | None = None,
    progress: Progress | None = None,
    n_process: int = 1,
) -> tuple[P, np.ndarray]:
    """Predict each area by a model that was fitted without it.

    The predictions of each fold are saved in ``directory`` under the fingerprint of everything that
    they depend on, so that an interrupted evaluation resumes. Those of other fingerprints are
    removed.

    Parameters
    ----------
    fold : (n_bag,) int array
        Fold of each area, in the store's order; -1 trains always.
    predictor : Predictor
    fit_fold : callable
        Given the training areas, (n_bag,) bool, a directory for checkpoints and what to report to,
        returns a model that has not seen the responses of the others.
    directory : Path
        Directory of finished folds.
    fingerprint : str
        Of the data, the model and its training.
    advance : callable, optional
        Called with 1 after each fold.
    unseen : (n_fold, n_bag) bool array, optional
        Areas that each fold is fitted without: those held out, if not given. Folds without areas
        are not fitted.
    progress : Progress, optional
        Of the fits.
    n_process : int
        Folds fitted at once, each in a process of its own; 1 fits here.

    Returns
    -------
    predictions
        Of the held-out areas, fold after fold.
    fold_of : (n,) int64 array
        Fold of each of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for number in np.unique(fold[fold >= 0]).tolist():
        text = f"{fingerprint} {predictor.key} {number} ".encode()
        without = fold == number if unseen is None else unseen[number]
        key = hashlib.sha256(text + (fold == number).tobytes() + without.tobytes())
        wanted[number] = directory / f"fold-{number}-{key.hexdigest()[:16]}.npz"
    for old in directory.iterdir():
        if old.with_suffix(".npz") in wanted.values():
            continue
        if old.suffix == ".checkpoint":
            shutil.rmtree(old)
        elif old.suffix in {".npz", ".partial"}:
            old.unlink()

    def fitted(number: int, told: Progress) -> None:
        path, held_out = wanted[number], fold == number
        train = ~(held_out if unseen is None else unseen[number])
        model = fit_fold(train, path.with_suffix(".checkpoint"), told)
        predictor.predict(model, held_out, number).save(path)

    found = {number: _finished(predictor, path) for number, path in wanted.items()}
    missing = [number for number, part in found.items() if part is None]
    for number in found.keys() - missing:
        shutil.rmtree(wanted[number].with_suffix(".checkpoint"), ignore_errors=True)
    if advance and len(missing) < len(wanted):
        advance(len(wanted) - len(missing))
    calls = [partial(fitted, number) for number in missing]
    made = in_processes(calls, n_process, progress or Silent())
    for number, _ in zip(missing, made, strict=True):
        found[number] = predictor.kind.load(wanted[number])
        shutil.rmtree(wanted[number].with_suffix(".checkpoint"), ignore_errors=True)
        keep(directory)
        if advance:
            advance(1)
    parts = [part for part in found.values() if part is not None]
    fold_of = np.repeat(list(wanted), [part.bag.shape[0] for part in parts])
    return predictor.kind.concatenate(parts), fold_of.astype(np.int64)


def _finished(predictor: Predictor[P], path: Path) -> P | None:
    """Read the predictions of a finished fold; None if it is unfinished or damaged."""
    if not path.is_file():
        return None
    try:
        return predictor.kind.load(path)
    except StoreError:
        return None
