"""One rate for all pixels: the yardstick that every model must pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.point import PointModel
from models.protocol import Arrays


class Constant(PointModel):
    """One rate, by maximum likelihood, with the law's own parameters.

    Parameters
    ----------
    likelihood, link, area_effect, batch_bags, max_epochs, learning_rate, tolerance, seed
        As of :class:`models.VBAgg`; it starts at the optimum of its rate and takes small steps.
    """

    def __init__(
        self,
        *,
        likelihood: str = "poisson",
        link: str = "auto",
        area_effect: bool = False,
        batch_bags: int = 32,
        max_epochs: int = 300,
        learning_rate: float = 0.01,
        tolerance: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.likelihood = likelihood
        self.link = link
        self.area_effect = area_effect
        self.batch_bags = batch_bags
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.tolerance = tolerance
        self.seed = seed

    def surface(self, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, Any]:
        """See :class:`models.point.PointModel`: flat."""
        del params
        return np.zeros(z.shape[0]), None

    def surface_backward(
        self, params: Arrays, z: np.ndarray, cache: Any, d_f: np.ndarray
    ) -> Arrays:
        """See :class:`models.point.PointModel`: nothing but the mean is learnt."""
        del params, z, cache, d_f
        return {}
