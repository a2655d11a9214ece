"""Normal responses: values of the bags, of either sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are imported when first used: optimize starts slowly

from models.backend.arrays import namespace, segment_sum
from models.core.protocol import Summary, override
from models.likelihoods.constant import OneRate
from models.likelihoods.likelihood import Likelihood, Parameter, Params, Terms, exponential

LOG_2PI = float(np.log(2 * np.pi))
NOISE_SHARE = 0.25  # of the responses' variance, that the noise starts at


class Normal(Likelihood):
    """``y ~ N(eta, tau sum_i w_i^2)``; ``log_noise = log tau`` is learnt.

    That is independent noise of pixels, which averages out over many of them.
    """

    name = "normal"
    about = "values of the areas, of either sign"
    links = ("identity",)
    parameters: Mapping[str, Parameter] = {
        "log_noise": Parameter(float(np.log(NOISE_SHARE)), 0.5, in_units=True)
    }
    responses = (-np.inf, np.inf)
    aggregates = (-np.inf, np.inf)
    counts = False
    area_effect_by_default = True  # what differs between areas of equal covariates
    quadratic = True

    @override
    def with_area_effect(self) -> Likelihood:
        return NormalAreas()

    @override
    def units(self, sample: Summary) -> dict[str, float]:
        """Of the noise: that with which an area of typical size varies as the responses do."""
        log_base = float(np.log(deviation(sample)))
        return {
            "log_noise": 2.0 * log_base
            + float(np.log((sample.n_all or sample.n_pix) / sample.n_bag))
        }

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        # omega_a = sum_i w_i^2, of all pixels: those that stand for many have larger weights.
        return segment_sum(weight * weight, offsets) if squares is None else squares

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        self.check_responses(sample)
        total_y, total_weight = float(sample.y.sum()), float(sample.weight.sum())
        base = deviation(sample)
        return base, total_y / total_weight / base, self.start(sample)

    def variances(self, eta: np.ndarray, params: Params, bag_data: Any) -> dict[str, Any]:
        """Return the parts of the variance of a response, by the parameter that each follows."""
        return {"log_noise": exponential(params["log_noise"], eta) * bag_data}

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        parts = self.variances(eta, params, bag_data)
        variance = xp.broadcast_to(sum(parts.values()), eta.shape)
        off = y - eta
        square = off * off / variance
        value = -0.5 * (square + xp.log(variance) + LOG_2PI)
        # Of each parameter: half the slope of the variance's logarithm.
        own = {
            name: self.parameters[name].excess_power * part / variance
            for name, part in parts.items()
        }
        by = {name: half * (square - 1.0) for name, half in own.items()}
        if order == 1:
            return Terms(value, off / variance, by=by)
        by_d2 = {name: 2.0 * half / variance for name, half in own.items()}
        return Terms(value, off / variance, -1.0 / variance, xp.zeros_like(eta), by, by_d2)

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        variance = sum(self.variances(eta, params, bag_data).values())
        return eta + np.sqrt(variance) * rng.standard_normal(eta.shape)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return ValueRate.fit(y, exposure, bag_data)


class NormalAreas(Normal):
    """Normal with noise between areas: ``y ~ N(eta, tau sum_i w_i^2 + s^2 (sum_i w_i)^2)``.

    ``log_area_noise = log s`` is learnt as well: the deviation, per unit of weight, by which areas
    of equal covariates differ, however many pixels they have. Where ``sum w^2 / (sum w)^2`` is the
    same in all areas the two cannot be told apart, and their priors share the noise out.
    """

    parameters: Mapping[str, Parameter] = {
        "log_noise": Parameter(float(np.log(0.5 * NOISE_SHARE)), 0.5, in_units=True),
        "log_area_noise": Parameter(
            float(0.5 * np.log(0.5 * NOISE_SHARE)),
            1.0,
            in_units=True,
            tells="Areas of equal covariates differ by about {value} per unit of weight.",
        ),
    }

    def __str__(self) -> str:
        """Return the base's name and its own."""
        return f"{self.name}+area_effect"

    @override
    def units(self, sample: Summary) -> dict[str, float]:
        """Of the noise between areas: the responses' deviation."""
        return {**super().units(sample), "log_area_noise": float(np.log(deviation(sample)))}

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        total = segment_sum(weight, offsets)
        squares = super().bag_data(weight, offsets, trials, squares)
        return namespace(weight).stack([squares, total * total])

    @override
    def variances(self, eta: np.ndarray, params: Params, bag_data: Any) -> dict[str, Any]:
        s = exponential(params["log_area_noise"], eta)
        return {
            **super().variances(eta, params, bag_data[0]),
            "log_area_noise": s * s * bag_data[1],
        }


def deviation(sample: Summary) -> float:
    """Return the standard deviation of the responses per unit of weight, 1 where they are equal."""
    used = sample.weight > 0
    return float((sample.y[used] / sample.weight[used]).std()) or 1.0


def _of_pixels(noise: np.ndarray) -> np.ndarray:
    """Return ``sum w^2`` out of what ``bag_data`` of either likelihood is."""
    return noise if noise.ndim == 1 else noise[0]


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
        noise = _of_pixels(noise)
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
        found = scipy.optimize.minimize_scalar(
            lambda share: at(float(share))[0],
            bounds=(low, high),
            method="bounded",
            options={"xatol": 1e-9},
        )
        ends = (float(found.x), float(grid[near]))
        return min((at(share) for share in ends), key=lambda pair: pair[0])[1]

    def _variance(self, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.noise * _of_pixels(noise) + self.spread * exposure**2

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        from scipy.stats import norm  # starts slowly

        sd = np.sqrt(self._variance(exposure, noise))
        return np.asarray(norm.logpdf(y, self.rate * exposure, sd))

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        first, second = rng.standard_normal((2, n_draws, exposure.shape[0]))
        expected = self.rate * exposure + np.sqrt(self.spread) * exposure * first
        return expected, expected + np.sqrt(self.noise * _of_pixels(noise)) * second
