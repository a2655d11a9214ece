"""Choosing between candidates: by the training bound or by held-out bags (Law et al. 2018).

The paper splits the bags four ways: trained on, watched to stop early, compared candidates on, and
tested on. Its ``Obj`` variants need no comparison set: the bound on the training bags chooses.
Only its baselines stop early; VBAgg ignores that set, as its bound already pays for complexity.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from models.aggregate.bag_pixel import BagPixel, Dasymetric
from models.aggregate.point_model import PointModel
from models.core.block import BagBlock
from models.core.errors import NumericalError, ParameterError
from models.training.estimator import Estimator
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import Training, start_training, train

PATIENCE = 10  # epochs without a better score on the watched bags, after which a fit stops
STOP_EARLY = (PointModel, BagPixel, Dasymetric)


@dataclass(frozen=True)
class Split:
    """Which bags do what, (n_bag,) bool each; every bag is in exactly one."""

    train: np.ndarray
    early_stop: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def four_way_split(
    n_bag: int, sizes: Sequence[float], seed: int, *, balance: np.ndarray | None = None
) -> Split:
    """Deal the bags at random into training, early-stop, validation and test sets.

    Parameters
    ----------
    n_bag : int
    sizes : four numbers
        Their numbers of bags, which add up to ``n_bag``, or their shares, which add up to 1.
    seed : int
    balance : (n_bag,), optional
        Deal so that this (the responses, or their rates) is spread alike in the four sets.

    Raises
    ------
    ParameterError
        If they do not add up.
    """
    counts = _counts(n_bag, np.asarray(sizes, dtype=np.float64))
    if counts is None:
        msg = f"sizes: {tuple(sizes)} are not four parts of {n_bag} bags, nor shares of 1"
        raise ParameterError(msg)
    rng = np.random.default_rng([seed, 41])
    order = rng.permutation(n_bag)
    dealt = np.repeat(np.arange(4), counts)
    if balance is not None:
        order = order[np.argsort(np.asarray(balance)[order], kind="stable")]
        # Each set at even distances along the sorted bags, from a random start.
        place = [(np.arange(n) + rng.random()) / n for n in counts if n > 0]
        dealt = dealt[np.argsort(np.concatenate(place), kind="stable")]
    part = np.empty(n_bag, dtype=np.int64)
    part[order] = dealt
    return Split(*(part == k for k in range(4)))


def _counts(n_bag: int, sizes: np.ndarray) -> np.ndarray | None:
    """Return numbers of bags from numbers or shares, by largest remainder; None if impossible."""
    if sizes.shape != (4,) or not (sizes >= 0).all():
        return None
    if sizes.sum() == n_bag and (sizes == np.floor(sizes)).all():
        return sizes.astype(np.int64)
    if abs(sizes.sum() - 1.0) > 1e-9:
        return None
    exact = sizes * n_bag
    counts = np.floor(exact + 1e-9).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n_bag - counts.sum()]] += 1
    return counts


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes
    ----------
    model : Estimator
        The best, fitted.
    scores : list of float
        Of each candidate (the best of its starts), higher being better: the bound, nats, or the
        mean log predictive density of a validation bag.
    best : int
        Number of the chosen candidate.
    """

    model: Any
    scores: list[float]
    best: int


def tune(
    candidates: Sequence[Estimator],
    bags: BagBlock,
    how: Literal["objective", "validation"] = "objective",
    *,
    split: Split | None = None,
    n_starts: int = 1,
    n_thread: int | None = None,
) -> Tuned:
    """Fit every candidate from several starts and keep the best.

    Of the starts of one candidate the training bound chooses; between candidates the bound
    (``objective``) or the log predictive density of the validation bags does. Under ``validation``
    the baselines stop early, on a set of their own.

    Parameters
    ----------
    candidates : sequence of Estimator
        Unfitted; left as they are.
    bags : BagBlock
    how : {"objective", "validation"}
        Bounds can be compared between models of one likelihood alone.
    split : Split, optional
        Training bags, and those watched and compared on; needed for ``validation``. All bags are
        trained on where not given.
    n_starts : int
        Fits of each candidate, seeds one after the other.
    n_thread : int, optional
        As of ``fit``.

    Raises
    ------
    ParameterError
        If there is no candidate, or no validation set to choose by.
    """
    if not candidates or n_starts < 1:
        msg = "candidates: give at least one, and at least one start"
        raise ParameterError(msg)
    if how == "validation" and (split is None or not split.validation.any()):
        msg = "how: validation needs a split with validation bags; give four_way_split(...)"
        raise ParameterError(msg)
    training = bags if split is None else bags.select(split.train)
    watched = None
    if split is not None and how == "validation" and split.early_stop.any():
        watched = bags.select(split.early_stop)
    fitted, scores = [], []
    for candidate in candidates:
        own = watched if isinstance(candidate, STOP_EARLY) else None
        starts = [
            fit_watched(_with_seed(candidate, k), training, own, n_thread=n_thread)
            for k in range(n_starts)
        ]
        best = max(starts, key=lambda model: model.bound_)
        fitted.append(best)
        if how == "objective" or split is None:
            scores.append(best.bound_)
        else:
            scores.append(log_score(best, bags.select(split.validation)))
    chosen = int(np.argmax(scores))
    return Tuned(fitted[chosen], scores, chosen)


def log_score(model: Any, bags: BagBlock) -> float:
    """Return the mean log predictive density of the bags' responses, nats."""
    return float(model.predict_bags(bags, n_draws=200).log_density(bags.y).mean())


def fit_watched(
    model: Any, bags: BagBlock, watched: BagBlock | None, *, n_thread: int | None = None
) -> Any:
    """Fit, and stop once other bags are predicted worse again; keep the best epoch.

    Parameters
    ----------
    model : Estimator
    bags, watched : BagBlock
        Trained on; watched after each epoch. Without the latter it is a plain fit.

    Raises
    ------
    NumericalError
        If no epoch gives the watched bags a finite density.
    """
    if watched is None:
        return model.fit(bags, n_thread=n_thread)
    source = BagsSource(bags, model.seed)
    training = start_training(model, source, **model.loop_params("start"))
    best: dict[str, Any] = {"score": -np.inf, "epoch": 0, "state": training.state}

    def watch(now: Training) -> None:
        score = log_score(model.adopt(now), watched)
        if score > best["score"]:
            best.update(score=score, epoch=now.epoch, state=now.state)
        elif now.epoch - best["epoch"] >= PATIENCE:
            now.converged = True

    with ThreadExecutor(model, source, n_thread or os.cpu_count() or 1) as executor:
        train(model, source, executor, training, on_epoch=watch, **model.loop_params("train"))
    if best["epoch"] == 0:
        msg = "early stopping: no epoch gives the watched bags a finite density; check their weight"
        raise NumericalError(msg)
    training.state = best["state"]
    training.history = training.history[: best["epoch"]]
    return model.adopt(training)


def _with_seed(model: Estimator, start: int) -> Estimator:
    params = model.get_params()
    return type(model)(**{**params, "seed": params["seed"] + start})
