"""Exponential responses: positive values of the bags."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.protocol import override
from models.likelihoods.constant import MixedRate, OneRate
from models.likelihoods.likelihood import Likelihood, Params, Terms


class Exponential(Likelihood):
    """``y`` exponential with mean ``eta``: ``h = -log eta - y / eta``."""

    name = "exponential"
    about = "positive values of the areas, such as waiting times"
    links = ("exp", "square")
    counts = False
    area_effect_by_default = True  # values of areas lie nearer to their mean, or further
    bound_form = "harmonic"

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        inverse = 1.0 / eta
        ratio = y * inverse
        value = -namespace(eta).log(eta) - ratio
        d1 = inverse * (ratio - 1.0)
        if order == 1:
            return Terms(value, d1)
        return Terms(value, d1, inverse**2 * (1.0 - 2.0 * ratio), inverse**3 * (6.0 * ratio - 2.0))

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        return eta * rng.standard_exponential(eta.shape)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return PositiveRate.fit(y, exposure)


class PositiveRate(MixedRate):
    """Positive values under one rate: Lomax, exponential where areas do not differ."""

    about = "Lomax (exponential of inverse gamma mean) values around one rate"

    @staticmethod
    @override
    def _alone(y: np.ndarray, exposure: np.ndarray) -> float:
        return max(float(np.mean(y / exposure)), float(np.finfo(np.float64).tiny))

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean = self.rate * exposure
        if not np.isfinite(self.size):
            return np.asarray(-np.log(mean) - y / mean)
        scale = self.size * mean
        return np.asarray(
            np.log1p(self.size) - np.log(scale) - (self.size + 2) * np.log1p(y / scale)
        )

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_draws, exposure.shape[0])
        spread = np.ones(shape)
        if np.isfinite(self.size):
            spread = self.size / rng.gamma(self.size + 1, 1.0, shape)
        expected = self.rate * exposure * spread
        return expected, expected * rng.standard_exponential(shape)
