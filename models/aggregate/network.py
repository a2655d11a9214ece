"""A one-hidden-layer network on the bag likelihood (Law et al. 2018, app. B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.aggregate.point_model import PointModel
from models.backend.arrays import like
from models.core.protocol import Arrays, State, Stats, override
from models.training.parameters import Count, NotNegative, Precision


@dataclass(kw_only=True, eq=False, repr=False)
class Network(PointModel):
    """``f = mean + relu(z A + b) c``: fitted to bags, optionally smooth on the data manifold.

    Parameters
    ----------
    n_hidden : int
        Units of the hidden layer.
    weight_decay : float
        Precision of the normal prior on the weights.
    manifold, bag_manifold : float
        Strength of the penalties over pixels, eq. (29), and over bags, eq. (33); 0 is none.
    likelihood, link, area_effect, batch_bags, max_epochs, learning_rate, tolerance, dtype, seed
        As of :class:`models.VBAgg`.
    """

    kind = "network"
    about = "baseline: one hidden layer"
    source = "Law et al. 2018"

    n_hidden: Count = 30
    weight_decay: NotNegative = 1.0
    manifold: NotNegative = 0.0
    bag_manifold: NotNegative = 0.0
    dtype: Precision = "float64"

    @override
    def start_surface(self, z: np.ndarray, rng: np.random.Generator) -> Arrays:
        """He's starting weights, a nearly flat surface."""
        n_dim, n_hidden = z.shape[1], self.n_hidden
        return {
            "inner": rng.normal(size=(n_dim, n_hidden)) * np.sqrt(2.0 / n_dim),
            "bias": 0.1 * rng.normal(size=n_hidden),
            "outer": rng.normal(size=n_hidden) * 0.1 / np.sqrt(n_hidden),
        }

    @override
    def surface(self, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, Any]:
        inner, bias = (like(params[name], z, z.dtype) for name in ("inner", "bias"))
        hidden = np.maximum(z @ inner + bias, 0.0)
        return hidden @ like(params["outer"], z), hidden

    @override
    def surface_backward(
        self, params: Arrays, z: np.ndarray, cache: Any, d_f: np.ndarray
    ) -> Arrays:
        low = d_f.astype(z.dtype, copy=False)
        d_hidden = low[:, None] * like(params["outer"], z, z.dtype)
        d_hidden *= cache > 0
        return {
            "inner": (z.T @ d_hidden).astype(np.float64, copy=False),
            "bias": d_hidden.sum(axis=0, dtype=np.float64),
            "outer": cache.T @ d_f,
        }

    @override
    def objective(self, state: State, stats: Stats, n_bag_total: int) -> tuple[float, Arrays]:
        """Add the normal priors of the weights."""
        value, grad = super().objective(state, stats, n_bag_total)
        prior = 0.0
        for name in ("inner", "outer"):
            weights = state.params[name]
            prior -= 0.5 * self.weight_decay * float((weights**2).sum())
            grad[name] = grad[name] - self.weight_decay * weights
        return value + prior, grad
