"""The posterior of the surface as a value: moments of a block, draws, pack and unpack.

A fit ends with one Gaussian ``q(u)`` at the optimum of the hyperparameters, or with a mixture: some
draws of them ("members"), each with the ``q(u)`` given that draw. Who predicts asks a
:class:`models.aggregate.aggregate_model.Posterior` and does not know which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.aggregate.aggregate_model import learnt_parameters
from models.aggregate.observed_draws import Condition
from models.aggregate.rate_draws import PooledDraws, SurfaceDraws, allocate
from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import solve_lower
from models.backend.blas import in_threads, one_blas_thread
from models.core.protocol import Arrays, State
from models.gp import sparse_gp
from models.gp.averages import averages
from models.gp.draws import N_FEATURE, Surface, draw_functions, feature_share
from models.gp.kernel_model import whitened
from models.gp.kernels import Kernel
from models.gp.linear_part import Coefficient, linear_coefficients, pooled
from models.gp.scaling import named_kernel
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.observation import likelihood_params
from models.likelihoods.prediction import Prediction

WEIGHT = "weight"
PREFIX = "member/"  # of the stacked arrays of a mixture, packed


@dataclass(frozen=True)
class Gaussian:
    """``q(u)`` under one set of hyperparameters.

    Attributes
    ----------
    model : SurfaceModel
        What the numbers belong to.
    params : dict of arrays
        Block parameters, with ``v_mean`` and ``root`` of the whitened ``q``.
    """

    model: SurfaceModel
    params: Arrays

    @property
    def weight(self) -> np.ndarray:
        """One: the only set of hyperparameters."""
        return np.ones(1)

    @property
    def parts(self) -> tuple[Gaussian, ...]:
        """Itself."""
        return (self,)

    @property
    def kernel(self) -> Kernel:
        """The kernel, with its inducing variables."""
        return self.model._kernel(self.params)

    def moments(self, x: np.ndarray, coords: np.ndarray | None) -> Prediction:
        """Return the distribution of each pixel's rate."""
        return self.moments_at(self.model._scaled(self.params, x, coords))

    def moments_at(self, z: np.ndarray) -> Prediction:
        """Return the same at scaled inputs (n_pix, n_dim)."""
        found = self.model._pass(self.params, z, learn=False)
        base = float(self.params["base_rate"][0])
        return Prediction(self.model.link_name, found.m, found.s, base)

    def mean(self, z: np.ndarray) -> np.ndarray:
        """Return the mean of ``f`` at scaled inputs (..., n_dim): (...)."""
        flat, params = z.reshape(-1, z.shape[-1]), self.model.near(self.params, z)
        k = self.model._kernel(params).cross_values(params["theta"], flat, params["w"])
        return np.asarray(params["mean"][0] + (k @ params["alpha"]).reshape(z.shape[:-1]))

    def averages(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and covariance of averages of ``f``; see :mod:`models.gp.averages`."""
        params = self.model.near(self.params, z)
        return averages(self.model._kernel(params), params, z)

    def draws(
        self, n_draws: int, rng: np.random.Generator, n_feature: int = N_FEATURE
    ) -> SurfaceDraws:
        """Draw rate surfaces, from ``n_feature`` random features of each term of the kernel."""
        params, kernel, model = self.params, self.kernel, self.model
        theta, w, q = params["theta"], params["w"], whitened(self.params)
        k_ww, _ = kernel.inducing(theta, w)
        lower = sparse_gp.factor_of(k_ww)
        noise = rng.standard_normal((k_ww.shape[0], n_draws))
        u_white = q.v_mean[:, None] + q.factor() @ noise
        jitter_sd = float(np.sqrt(sparse_gp.JITTER * np.trace(k_ww) / k_ww.shape[0]))
        mean, scale = float(params["mean"][0]), float(params["base_rate"][0])
        surface = Surface(kernel, theta, w, mean, model.link_name, scale)
        away = solve_lower(lower, u_white - q.v_mean[:, None], transposed=True)
        about = np.column_stack([params["alpha"], away])
        precision = model._precision(params)
        functions = draw_functions(
            surface, lower, u_white, about, jitter_sd, rng, n_feature, precision
        )
        condition = Condition(model, lambda: params, away)
        likelihood = model.resolved_likelihood
        own = likelihood_params(likelihood, params)
        return SurfaceDraws(functions, params, likelihood, own, condition)

    def coefficients(self) -> list[Coefficient]:
        """Return the slopes of the kernel's linear part; maybe none."""
        nowhere = self.model.near(self.params, np.zeros((0, self.params["w"].shape[1])))
        theta, w, alpha, q = (nowhere[name] for name in ("theta", "w", "alpha", "q"))
        return linear_coefficients(self.model._kernel(nowhere), theta, w, alpha, q)

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters by name, in the units of the scaled data."""
        own = learnt_parameters(self.model.resolved_likelihood, self.params)
        return {**own, **named_kernel(self.kernel, self.params["theta"], self.params)}

    def pack(self) -> Arrays:
        """Return the arrays that :func:`unpack` makes it of."""
        return self.params


@dataclass(frozen=True)
class Mixture:
    """``q(u)`` under each of some draws of the hyperparameters.

    Attributes
    ----------
    mode : Gaussian
        That at their optimum; no part of the mixture.
    parts : tuple of Gaussian
    weight : (n_part,) float64
        Probabilities, which add up to 1.
    """

    mode: Gaussian
    parts: tuple[Gaussian, ...]
    weight: np.ndarray

    def moments(self, x: np.ndarray, coords: np.ndarray | None) -> MixturePrediction:
        """Return the distribution of each pixel's rate."""
        z = self.mode.model._scaled(self.mode.params, x, coords)
        return MixturePrediction(tuple(part.moments_at(z) for part in self.parts), self.weight)

    def draws(self, n_draws: int, rng: np.random.Generator) -> PooledDraws:
        """Draw rate surfaces, of each part its share."""
        member = allocate(self.weight, n_draws, rng)
        parts = [
            self.parts[k].draws(count, rng, feature_share(count / n_draws))
            for k, count in zip(*np.unique(member, return_counts=True), strict=True)
        ]
        return PooledDraws.of(parts, member)

    def coefficients(self) -> list[Coefficient]:
        """Return the slopes of the kernel's linear part; maybe none."""
        return pooled([part.coefficients() for part in self.parts], self.weight)

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters at the optimum, by name."""
        return self.mode.hyperparameters()

    def pack(self) -> Arrays:
        """Return the optimum's arrays, and ``member/NAME`` (n_part, ...) of what parts change."""
        shared, each = self.mode.params, [part.params for part in self.parts]
        own = {
            PREFIX + name: np.stack([params[name] for params in each])
            for name, array in shared.items()
            if any(params[name] is not array for params in each)
        }
        return {**shared, **own, PREFIX + WEIGHT: np.asarray(self.weight, dtype=np.float64)}


def unpack(model: SurfaceModel, params: Arrays) -> Gaussian | Mixture:
    """Return the posterior that was packed."""
    own = {
        name.removeprefix(PREFIX): array
        for name, array in params.items()
        if name.startswith(PREFIX)
    }
    if not own:
        return Gaussian(model, params)
    weight = own.pop(WEIGHT)
    shared = {name: array for name, array in params.items() if not name.startswith(PREFIX)}
    parts = tuple(
        Gaussian(model, {**shared, **{name: array[k] for name, array in own.items()}})
        for k in range(weight.shape[0])
    )
    return Mixture(Gaussian(model, shared), parts, weight)


def posterior_of(model: SurfaceModel, state: State) -> Gaussian | Mixture:
    """Return the posterior of a learnt state."""
    whitened_q = ("v_mean", "root")
    states = state, *member_states(state)

    def of(number: int) -> Gaussian:
        one = states[number]
        own = {name: one.params[name] for name in whitened_q}
        return Gaussian(model, {**model.block_params(one), **own})

    with one_blas_thread():
        mode, *parts = in_threads(of, range(len(states)), None)
    return Mixture(mode, tuple(parts), state.members[WEIGHT]) if parts else mode


def member_states(state: State) -> list[State]:
    """Return the state of each member, without members; none where there are none."""
    own = {name: array for name, array in state.members.items() if name != WEIGHT}
    return [
        replace(
            state,
            params={**state.params, **{name: array[k] for name, array in own.items()}},
            memory={},
            members={},
        )
        for k in range(len(state.members.get(WEIGHT, ())))
    ]


def tabulated(
    mode: dict[str, float],
    each: Sequence[dict[str, float]],
    weight: np.ndarray,
    told: Sequence[dict[str, float]] = (),
) -> dict[str, dict[str, float]]:
    """Return each parameter's ``mode`` and, of several parts, ``mean`` and 90 % interval.

    Parameters
    ----------
    mode : dict of float
    each : sequence of dict of float
        The same parameters of each part.
    weight : (n_part,) float64
    told : sequence of dict of float, optional
        Lower end, median and upper end by the chain that the parts are of.
    """
    table = {name: {"mode": value} for name, value in mode.items()}
    if weight.size > 1:
        for name, row in table.items():
            value = np.array([member[name] for member in each])
            row["mean"] = float(weight @ value)
            row["lower"], row["upper"] = (weighted_quantile(value, weight, q) for q in (0.05, 0.95))
            if told:
                low, middle, high = (own[name] for own in told)
                # A name may fall where its parameter rises.
                row.update(median=middle, lower=min(low, high), upper=max(low, high))
    return table


def weighted_quantile(value: np.ndarray, weight: np.ndarray, q: float) -> float:
    """Return a quantile of weighted values, by interpolation between the middles of their weights.

    The ends are the smallest and the largest value: few draws tell little of the tails.

    Parameters
    ----------
    value, weight : (n,) float64
    q : float
        In (0, 1).
    """
    order = np.argsort(value, kind="stable")
    share = weight[order] / weight.sum()
    return float(np.interp(q, np.cumsum(share) - 0.5 * share, value[order]))
