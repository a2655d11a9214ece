"""Cross-validation: fit without a fold's counts, predict them, keep finished folds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from pipeline.core.errors import StoreError
from pipeline.evaluation.scores import count_log_density
from pipeline.prediction.areas import AreaDraws, draw_areas
from pipeline.prediction.arrays import AreaArrays
from pipeline.storage.mirror import keep

FitFold = Callable[[np.ndarray, Path], Any]


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
        Given the training areas, (n_bag,) bool, and a directory for checkpoints, returns a fitted
        model; the scaling of covariates must be from the training areas alone.
    directory : Path
        Directory of finished folds.
    fingerprint : str
        Of the data, the model and its training.
    advance : callable, optional
        Called with 1 after each fold.

    Returns
    -------
    predictions
        Of the held-out areas, fold after fold.
    fold_of : (n,) int64 array
        Fold of each of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for number in range(int(fold.max()) + 1):
        text = f"{fingerprint} {predictor.key} {number} ".encode()
        key = hashlib.sha256(text + (fold == number).tobytes() + (fold >= 0).tobytes())
        wanted[number] = directory / f"fold-{number}-{key.hexdigest()[:16]}.npz"
    for old in directory.iterdir():
        if old.with_suffix(".npz") in wanted.values():
            continue
        if old.suffix == ".checkpoint":
            shutil.rmtree(old)
        elif old.suffix in {".npz", ".partial"}:
            old.unlink()
    parts = []
    for number, path in wanted.items():
        checkpoint = directory / f"{path.stem}.checkpoint"
        part = _finished(predictor, path)
        if part is None:
            held_out = fold == number
            model = fit_fold(~held_out, checkpoint)
            predictor.predict(model, held_out, number).save(path)
            part = predictor.kind.load(path)
        shutil.rmtree(checkpoint, ignore_errors=True)
        keep(directory)
        parts.append(part)
        if advance:
            advance(1)
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


def hold_out_constant(
    fold: np.ndarray, y: np.ndarray, people: np.ndarray, n_draws: int, seed: int
) -> AreaDraws:
    """Predict each fold by the overall rate of the training areas, with their overdispersion.

    The counts are negative binomial with mean ``rate x people`` and a common size, its maximum
    likelihood estimate: a baseline whose intervals reflect the differences between areas. Without
    overdispersion the size is infinite and the counts are Poisson.

    Parameters
    ----------
    fold : (n_bag,) int array
        Fold of each area; -1 trains always.
    y, people : (n_bag,) float64 arrays
        Counts and exposures, in the order of the bags.
    n_draws, seed : int
        Draws of the counts, and their seed.

    Returns
    -------
    AreaDraws
        In the same order as :func:`cross_validate`.
    """
    parts = []
    for number in range(int(fold.max()) + 1):
        held_out = fold == number
        train = ~held_out
        total = float(people[train].sum())
        rate = float(y[train].sum()) / total if total > 0 else 0.0
        # A rate of zero would make any case impossible: assume half a case.
        rate = max(rate, 0.5 / total if total > 0 else 1.0)
        size = negative_binomial_size(y[train], rate * people[train])
        mean = rate * people[held_out]
        rng = np.random.default_rng([seed, 3, number])
        shape = (n_draws, mean.shape[0])
        spread = rng.gamma(size, 1 / size, shape) if np.isfinite(size) else np.ones(shape)
        expected = mean * spread
        parts.append(
            AreaDraws(
                bag=np.flatnonzero(held_out),
                y=y[held_out],
                people=people[held_out],
                mean=mean,
                expected=expected,
                counts=rng.poisson(expected).astype(np.float64),
                log_density=count_log_density(y[held_out], mean, size),
            )
        )
    return AreaDraws.concatenate(parts)


def hold_out_mean(
    fold: np.ndarray, y: np.ndarray, people: np.ndarray, n_draws: int, seed: int
) -> AreaDraws:
    """Predict each fold by the overall rate of the training areas, for values other than counts.

    An area's value is its exposure times a normal rate with the mean and the variance of the
    training areas' rates. Arguments and result are those of :func:`hold_out_constant`.
    """
    parts = []
    for number in range(int(fold.max()) + 1):
        held_out = fold == number
        used = ~held_out & (people > 0)
        rate = float(y[used].sum() / people[used].sum())
        spread = float(np.std(y[used] / people[used])) or 1.0
        mean, sd = rate * people[held_out], spread * people[held_out]
        noise = np.random.default_rng([seed, 3, number]).standard_normal((n_draws, mean.shape[0]))
        parts.append(
            AreaDraws(
                bag=np.flatnonzero(held_out),
                y=y[held_out],
                people=people[held_out],
                mean=mean,
                expected=np.tile(mean, (n_draws, 1)),
                counts=mean + sd * noise,
                log_density=norm.logpdf(y[held_out], mean, sd),
            )
        )
    return AreaDraws.concatenate(parts)


def negative_binomial_size(y: np.ndarray, mean: np.ndarray) -> float:
    """Return the maximum likelihood size given the means; infinite if Poisson fits as well."""
    use = mean > 0
    y, mean = y[use], mean[use]
    if y.shape[0] < 2:
        return float("inf")

    def loss(log_size: float) -> float:
        return -float(count_log_density(y, mean, float(np.exp(log_size))).sum())

    found = minimize_scalar(loss, bounds=(-7.0, 16.0), method="bounded")
    poisson_loss = -float(count_log_density(y, mean, float("inf")).sum())
    return float(np.exp(found.x)) if found.fun < poisson_loss - 1e-6 else float("inf")
