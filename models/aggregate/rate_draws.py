"""Whole rate surfaces drawn from a fitted VBAgg."""

from __future__ import annotations

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays, override
from models.gp.draws import FunctionDraws
from models.gp.scaling import scaled_inputs
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import find_link
from models.likelihoods.observation import bag_weights


class VBAggDraws:
    """Rate surfaces drawn from a fitted :class:`models.VBAgg`: the same whatever the tiles.

    Attributes
    ----------
    n_draws : int
    params : dict of float
        The likelihood's parameters, logarithms.
    """

    def __init__(
        self,
        functions: FunctionDraws,
        fixed: Arrays,
        likelihood: Likelihood,
        params: dict[str, float],
    ) -> None:
        self._functions = functions
        self._fixed = fixed
        self._likelihood = likelihood
        self.n_draws = functions.n_draws
        self.params = params

    @override
    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        z = scaled_inputs(self._fixed, x, coords, np.float64)
        f = self._functions.latent(z)
        return self._functions.surface.scale * find_link(self._functions.surface.link).value(f).T

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        z = scaled_inputs(self._fixed, bags.x, bags.coords, np.float64)
        p = bag_weights(self._likelihood, bags.weight, bags.offsets, 1.0)
        return self._functions.bag_sums(z, p, bags.offsets)
