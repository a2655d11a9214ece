"""Responses, weights and likelihood of some bags: the input of every estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import namespace, segment_sum, spread
from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.likelihoods.censored import of_block
from models.likelihoods.likelihood import Likelihood, Terms
from models.likelihoods.links import Link


@dataclass(frozen=True)
class Observation:
    """Responses of some bags, and all that their log density needs besides the latent values.

    Attributes
    ----------
    likelihood, link : Likelihood, Link
    params : dict of float
        The likelihood's parameters, logarithms.
    y : (n_bag,) float64
    p : (n_pix,) float64
        Weights of the aggregate.
    offsets : (n_bag + 1,) int
    bag : (n_bag,) int
        Numbers of the bags in the data set.
    bag_data : (..., n_bag)
        Data of each bag that the likelihood needs besides its aggregate.
    """

    likelihood: Likelihood
    link: Link
    params: Mapping[str, float]
    y: np.ndarray
    p: Any
    offsets: Any
    bag: Any
    bag_data: Any

    @classmethod
    def of(cls, likelihood: Likelihood, link: Link, params: Arrays, block: BagBlock) -> Observation:
        """Take the bags of a block, under the ``params`` that :meth:`block_params` made."""
        likelihood, bag_data = of_block(likelihood, block)
        return cls(
            likelihood,
            link,
            likelihood_params(likelihood, params),
            block.y,
            bag_weights(likelihood, block.weight, block.offsets, float(params["base_rate"][0])),
            block.offsets,
            block.bag,
            bag_data,
        )

    def terms(
        self, eta: np.ndarray, order: int = 1, params: Mapping[str, float] | None = None
    ) -> Terms:
        """Evaluate the log density at aggregates ``eta`` (..., n_bag)."""
        own = self.params if params is None else params
        return self.likelihood.terms(self.y, eta, own, self.bag_data, order)


def bag_weights(likelihood: Likelihood, weight: Any, offsets: Any, base: float) -> Any:
    """Return the weights ``p`` of the aggregate: (n_pix,) float64."""
    xp = namespace(weight)
    p = base * weight.astype(xp.float64, copy=False)
    if likelihood.averages:
        total = segment_sum(p, offsets)
        p = p / spread(xp.where(total > 0, total, 1.0), offsets)
    return p


def likelihood_params(likelihood: Likelihood, params: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the likelihood's parameters (logarithms) among those of a model."""
    return {name: float(params[name][0]) for name in likelihood.parameters}
