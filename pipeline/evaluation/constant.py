"""One rate for the whole country, held out as the model is: what a map must beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.likelihoods.censored import censored, with_margin
from models.likelihoods.constant import OneRate
from models.likelihoods.labels import LabelRate
from models.likelihoods.likelihood import Likelihood
from pipeline.prediction.labels import LabelPredictions
from pipeline.products.areas import AreaDraws, observed_of


@dataclass(frozen=True)
class Areas:
    """What one rate needs to know of areas.

    Attributes
    ----------
    y : (n_bag,) float64 array
        Responses.
    people : (n_bag,) float64 array
        People at risk, or km2 without a population.
    tested : (n_bag,) float64 array
        Numbers tested; NaN under a likelihood without trials.
    noise : (..., n_bag) float64 array
        What the likelihood's ``bag_data`` returns; with a last row of margins, where there are.
    margin : (n_bag,) float64 array or None
        Of suppressed counts: see :class:`models.core.block.BagBlock`.
    """

    y: np.ndarray
    people: np.ndarray
    tested: np.ndarray
    noise: np.ndarray
    margin: np.ndarray | None = None

    @classmethod
    def of(cls, store: Any, likelihood: Likelihood) -> Areas:
        """Collect them from a store; reads its pixels only if the likelihood's noise needs them."""
        people = np.asarray(store.bag_weight, dtype=np.float64)
        tested = np.full(people.shape, np.nan)
        noise = np.ones(people.shape)
        if likelihood.needs_trials:
            tested = noise = np.asarray(store.trials, dtype=np.float64)
        elif type(likelihood).bag_data is not Likelihood.bag_data:
            for block in store.blocks():
                weight = block.weight.astype(np.float64)
                own = likelihood.bag_data(weight, block.offsets, None, block.squares)
                if own.ndim > noise.ndim:
                    noise = np.ones((*own.shape[:-1], people.size))
                noise[..., block.bag] = own
        margin = store.margin
        if margin is not None:
            noise = with_margin(noise, margin)
        return cls(np.asarray(store.y, dtype=np.float64), people, tested, noise, margin)

    @property
    def exposure(self) -> np.ndarray:
        """The numbers tested where there are any, else the people: (n_bag,)."""
        return np.where(np.isfinite(self.tested), self.tested, self.people)

    def fit(self, likelihood: Likelihood, train: np.ndarray) -> OneRate:
        """Fit one rate to the areas where ``train`` (n_bag,) is true."""
        likelihood = likelihood if self.margin is None else censored(likelihood)
        return likelihood.constant(self.y[train], self.exposure[train], self.noise[..., train])


def hold_out_constant(
    likelihood: Likelihood,
    areas: Areas,
    fold: np.ndarray,
    n_draws: int,
    seed: int,
    unseen: np.ndarray | None = None,
) -> AreaDraws:
    """Predict each fold by one rate, fitted to the other areas under the map's own likelihood.

    Parameters
    ----------
    likelihood : Likelihood
        Of the map; says how responses vary around one rate
        (:meth:`models.likelihoods.likelihood.Likelihood.constant`).
    areas : Areas
    fold : (n_bag,) int array
        Fold of each area; -1 trains always.
    n_draws, seed : int
        Draws of the responses, and their seed.
    unseen : (n_fold, n_bag) bool array, optional
        Areas that each fold is fitted without: those held out, if not given.

    Returns
    -------
    AreaDraws
        In the order of :func:`pipeline.evaluation.cross_validation.cross_validate`.
    """
    parts = []
    exposure = areas.exposure
    for number, held_out in _folds(fold):
        one = areas.fit(likelihood, ~(held_out if unseen is None else unseen[number]))
        at, noise = exposure[held_out], areas.noise[..., held_out]
        rng = np.random.default_rng([seed, 3, number])
        expected, responses = one.draw(at, noise, n_draws, rng)
        y, margin = areas.y[held_out], areas.margin
        parts.append(
            AreaDraws(
                bag=np.flatnonzero(held_out),
                **observed_of(y, None if margin is None else margin[held_out]),
                people=areas.people[held_out],
                mean=one.mean(at),
                expected=expected,
                counts=responses,
                log_density=one.log_density(y, at, noise),
                tested=areas.tested[held_out],
            )
        )
    return AreaDraws.concatenate(parts)


def hold_out_share(
    fold: np.ndarray, y: np.ndarray, unseen: np.ndarray | None = None
) -> LabelPredictions:
    """Predict each fold's labels by the share of positives among the other areas.

    Parameters
    ----------
    fold : (n_bag,) int array
        Fold of each area; -1 trains always.
    y : (n_bag,) array
        Labels, 0 or 1.
    unseen : (n_fold, n_bag) bool array, optional
        Areas that each fold is fitted without: those held out, if not given.

    Returns
    -------
    LabelPredictions
        In the order of :func:`pipeline.evaluation.cross_validation.cross_validate`.
    """
    parts = []
    for number, held_out in _folds(fold):
        train = ~(held_out if unseen is None else unseen[number])
        share = LabelRate.fit(y[train]).mean(np.ones(int(held_out.sum())))
        nothing = np.zeros(share.shape)
        bag = np.flatnonzero(held_out)
        parts.append(LabelPredictions(bag, y[held_out], share, nothing, share, share))
    return LabelPredictions.concatenate(parts)


def _folds(fold: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((number, fold == number) for number in range(int(fold.max()) + 1))
