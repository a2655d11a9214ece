"""One pass over the areas: what every part of an evaluation needs of the posterior's draws.

Functions are drawn once and summed over each area once. The scores in sample, the areas and regions
left out by weights, and the predictive checks all read the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp

from models.aggregate.aggregate_model import RateDraws
from models.likelihoods.censored import of_block
from models.likelihoods.likelihood import TINY, Likelihood
from models.likelihoods.prediction import BagPrediction
from pipeline.evaluation.folds import block_centres
from pipeline.products.areas import AreaDraws, block_draws, draw_functions, predict_areas


@dataclass(frozen=True)
class PosteriorDraws(AreaDraws):
    """Draws of areas, with the log density of each response under each draw.

    Attributes
    ----------
    log_lik : (n_draws, n_bag) float64 array
        ``log p(y_a | f_s)``, nats.
    bag_data : (..., n_bag) float64 array
        Data of each area that the likelihood needs.
    centre : (n_axis, n_bag) float64 array
        Centre of each area's pixels, km; no rows where pixels have no positions.
    """

    log_lik: np.ndarray = field(kw_only=True)
    bag_data: np.ndarray = field(kw_only=True)
    centre: np.ndarray = field(kw_only=True)


@dataclass(frozen=True)
class Posterior:
    """The posterior's draws of every area of a store.

    Attributes
    ----------
    areas : PosteriorDraws
        In the order of the store.
    likelihood : Likelihood
        Of a response around its aggregate.
    params : mapping
        Its parameters (logarithms): numbers, or (n_draws, 1) arrays where each draw has its own.
    functions : RateDraws
        What ``sample_functions`` returned.
    """

    areas: PosteriorDraws
    likelihood: Likelihood
    params: Mapping[str, Any]
    functions: RateDraws

    @property
    def n_draws(self) -> int:
        """Number of functions drawn."""
        return int(self.areas.log_lik.shape[0])

    @property
    def member(self) -> np.ndarray:
        """Draw of the hyperparameters that each draw of the function has: (n_draws,) int64."""
        return np.asarray(self.functions.clusters[:, 0])

    def respond(
        self, chosen: np.ndarray, areas: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw responses of some areas from chosen draws.

        Parameters
        ----------
        chosen : (n, n_area) int array
            Draw to use for each response.
        areas : (n_area,) int array
            Areas, by their place in the store.
        rng : numpy Generator

        Returns
        -------
        expected, counts : (n, n_area) float64 arrays
        """
        found = self.areas
        tested = found.tested[areas] if self.likelihood.needs_trials else 1.0
        drawn = BagPrediction(
            found.expected[:, areas] / tested,
            self.likelihood,
            self.params,
            found.bag_data[..., areas],
        ).rearranged(chosen)
        counts = drawn.observed(rng).draws
        return drawn.draws * tested, np.asarray(counts, dtype=np.float64)


def draw_posterior(
    model: Any,
    store: Any,
    n_draws: int,
    seed: int,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
    expected: np.ndarray | None = None,
) -> Posterior:
    """Draw the posterior of every area in one pass over a store.

    Parameters
    ----------
    model : fitted model
        With ``sample_functions`` and ``predict_bags``.
    store : BagStore
        Areas with a response.
    n_draws, seed : int
        Functions drawn, and the seed of them and of the noise: the draws are those of
        :func:`pipeline.products.areas.draw_areas` with the same seed and ``observed``.
    advance : callable, optional
        Called with the number of areas done after each block.
    n_thread : int, optional
        Blocks drawn at the same time, one a core if not given; results do not depend on it.
    expected : (n_draws, n_bag) float64 array, optional
        Expected responses by the same functions, where they are drawn already.
    """
    functions = draw_functions(model, n_draws, seed)
    law: dict[str, Any] = {}

    def draw(number: int, part: Any) -> PosteriorDraws:
        if expected is None:
            found = predict_areas(model, part, functions, observed=True)
        else:
            found = _found(model, part, functions, expected)
        likelihood = found.likelihood
        law["likelihood"], law["params"] = likelihood, found.params  # of every block the same
        y = np.asarray(part.y, dtype=np.float64)
        eta = np.maximum(found.draws, TINY) if likelihood.positive else found.draws
        each = np.asarray(likelihood.terms(y, eta, found.params, found.bag_data).value)
        log_density = np.asarray(logsumexp(each, axis=0) - np.log(each.shape[0]))
        return PosteriorDraws(
            **vars(block_draws(part, found, log_density, (seed, number))),
            log_lik=each,
            bag_data=np.array(found.bag_data, np.float64),
            centre=block_centres(part).T,
        )

    areas = PosteriorDraws.of_blocks(store, draw, None, advance, n_thread)
    return Posterior(areas, law["likelihood"], law["params"], functions)


def _found(model: Any, part: Any, functions: Any, expected: np.ndarray) -> BagPrediction:
    """Return the prediction of a block from what was drawn of it before."""
    likelihood, bag_data = of_block(model.resolved_likelihood, part)
    # Counts of positives are expected from the tested; the likelihood's aggregate is their share.
    tested = np.maximum(part.trials, 1.0) if likelihood.needs_trials else 1.0
    return BagPrediction(expected[:, part.bag] / tested, likelihood, functions.params, bag_data)
