"""Whole rate surfaces drawn from a fitted VBAgg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from models.aggregate.observed_draws import observed_factors
from models.backend.arrays import solve_lower
from models.core.block import BagBlock
from models.core.protocol import Arrays, State, override
from models.gp import sparse_gp
from models.gp.draws import FunctionDraws, Surface, draw_functions
from models.gp.kernel_model import exactly, whitened
from models.gp.scaling import scaled_inputs
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import find_link
from models.likelihoods.observation import bag_weights, likelihood_params


class VBAggDraws:
    """Rate surfaces drawn from a fitted :class:`models.VBAgg`: the same whatever the tiles.

    Attributes
    ----------
    n_draws : int
    params : dict of float
        The likelihood's parameters, logarithms.
    clusters : (n_draws, 2) int64
        Draw of the hyperparameters, here the only one, and group of random features of each draw:
        see :func:`models.gp.draws.draw_functions`.
    """

    def __init__(
        self,
        functions: FunctionDraws,
        fixed: Arrays,
        likelihood: Likelihood,
        params: dict[str, float],
        condition: Callable[[BagBlock, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._functions = functions
        self.clusters = np.stack([np.zeros_like(functions.group), functions.group], axis=1)
        self._condition = condition
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

    @override
    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        return np.ones_like(drawn) if self._condition is None else self._condition(bags, drawn)


def draw_rates(
    model: Any, state: State, n_draws: int, rng: np.random.Generator, n_feature: int
) -> VBAggDraws:
    """Draw rate surfaces under one set of hyperparameters.

    Parameters
    ----------
    model : VBAgg
    state : State
    n_draws : int
    rng : numpy Generator
    n_feature : int
        Random features of each term of the kernel.
    """
    params, kernel = state.params, model._kernel(state.fixed)
    theta, w = params["theta"], params["w"]
    k_ww, _ = kernel.inducing(theta, w)
    q = whitened(params)
    fac = sparse_gp.factorise(k_ww, q)
    noise = rng.standard_normal((k_ww.shape[0], n_draws))
    u_white = q.v_mean[:, None] + q.factor() @ noise
    jitter_sd = float(np.sqrt(sparse_gp.JITTER * np.trace(k_ww) / k_ww.shape[0]))
    mean, scale = float(params["mean"][0]), float(state.fixed["base_rate"][0])
    surface = Surface(kernel, theta, w, mean, model.link_name, scale)
    functions = draw_functions(surface, fac.lower, u_white, jitter_sd, rng, n_feature)
    likelihood = model.resolved_likelihood
    own = likelihood_params(likelihood, params)
    away = solve_lower(fac.lower, u_white - q.v_mean[:, None], transposed=True)
    block_params = exactly(model.block_params(state))

    def condition(bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        return observed_factors(model, block_params, away, bags, drawn)

    return VBAggDraws(functions, state.fixed, likelihood, own, condition)
