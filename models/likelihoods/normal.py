"""Normal responses: values of the bags, of either sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from models.backend.arrays import namespace, segment_sum
from models.core.protocol import Summary, override
from models.likelihoods.constant import OneRate
from models.likelihoods.likelihood import Likelihood, Parameter, Params, Terms, exponential

LOG_2PI = float(np.log(2 * np.pi))
NOISE_SHARE = 0.25  # of the responses' variance, that the noise starts at


class Normal(Likelihood):
    """``y ~ N(eta, tau sum_i w_i^2)``; ``log_noise = log tau`` is learnt."""

    name = "normal"
    about = "values of the areas, of either sign"
    links = ("identity",)
    parameters: Mapping[str, Parameter] = {"log_noise": Parameter(0.0)}
    responses = (-np.inf, np.inf)
    aggregates = (-np.inf, np.inf)
    counts = False
    takes_area_effect = False
    quadratic = True

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any) -> Any:
        return segment_sum(weight * weight, offsets)  # omega_a = sum_i w_i^2

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        self.check_responses(sample)
        total_y, total_weight = float(sample.y.sum()), float(sample.weight.sum())
        used = sample.weight > 0
        each = sample.y[used] / sample.weight[used]
        base = float(each.std()) or 1.0
        log_noise = float(np.log(NOISE_SHARE * base**2 * sample.n_pix / sample.n_bag))
        return base, total_y / total_weight / base, {"log_noise": log_noise}

    @override
    def terms(self, y: Any, eta: Any, params: Params, bag_data: Any, order: int = 1) -> Terms:
        xp = namespace(eta)
        variance = xp.broadcast_to(exponential(params["log_noise"], eta) * bag_data, eta.shape)
        off = y - eta
        square = off * off / variance
        value = -0.5 * (square + xp.log(variance) + LOG_2PI)
        by = {"log_noise": 0.5 * (square - 1.0)}
        if order == 1:
            return Terms(value, off / variance, by=by)
        curve = -1.0 / variance
        return Terms(
            value, off / variance, curve, xp.zeros_like(eta), by, {"log_noise": 1.0 / variance}
        )

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        sd = np.sqrt(exponential(params["log_noise"], eta) * bag_data)
        return eta + sd * rng.standard_normal(eta.shape)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return ValueRate.fit(y, exposure, bag_data)


@dataclass(frozen=True)
class ValueRate(OneRate):
    """Values of either sign under one rate: normal.

    Attributes
    ----------
    rate : float
    noise, spread : float
        Variance ``noise * bag_data + spread * exposure^2``: the likelihood's own, and that of
        areas whose rates differ.
    """

    rate: float
    noise: float
    spread: float
    about = "normal values around one rate"

    @classmethod
    def fit(cls, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> ValueRate:
        """Return the maximum likelihood estimate: given the share of the spread, closed."""
        used = (exposure > 0) & (noise > 0)
        y, exposure, noise = y[used], exposure[used], noise[used]
        if not used.any():
            return cls(0.0, 1.0, 0.0)
        pooled = float(y.sum() / exposure.sum())
        if np.abs(y - pooled * exposure).max() <= 1e-9 * np.abs(y).max():
            # Equal rates tell nothing of a spread: take one as large as the rate.
            return cls(pooled, 0.0, pooled**2 or 1.0)
        scale = float(noise.mean() / (exposure**2).mean())

        def at(share: float) -> tuple[float, ValueRate]:
            shape = (1 - share) * noise + share * scale * exposure**2
            rate = float((exposure * y / shape).sum() / (exposure**2 / shape).sum())
            level = float(((y - rate * exposure) ** 2 / shape).mean())
            loss = 0.5 * float(np.log(level * shape).sum())
            return loss, cls(rate, level * (1 - share), level * share * scale)

        grid = np.linspace(0.0, 1.0, 41)
        near = int(np.argmin([at(float(share))[0] for share in grid]))
        low, high = grid[max(near - 1, 0)], grid[min(near + 1, grid.size - 1)]
        found = minimize_scalar(
            lambda share: at(float(share))[0],
            bounds=(low, high),
            method="bounded",
            options={"xatol": 1e-9},
        )
        ends = (float(found.x), float(grid[near]))
        return min((at(share) for share in ends), key=lambda pair: pair[0])[1]

    def _variance(self, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.noise * noise + self.spread * exposure**2

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        sd = np.sqrt(self._variance(exposure, noise))
        return np.asarray(norm.logpdf(y, self.rate * exposure, sd))

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        first, second = rng.standard_normal((2, n_draws, exposure.shape[0]))
        expected = self.rate * exposure + np.sqrt(self.spread) * exposure * first
        return expected, expected + np.sqrt(self.noise * noise) * second
