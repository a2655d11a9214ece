"""Exponential responses: positive values of the bags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.protocol import override
from models.likelihoods.likelihood import Likelihood, Terms


class Exponential(Likelihood):
    """``y`` exponential with mean ``eta``: ``h = -log eta - y / eta``."""

    name = "exponential"
    about = "positive values of the areas, such as waiting times"
    links = ("exp", "square")
    counts = False
    bound_form = "harmonic"

    @override
    def terms(
        self, y: Any, eta: Any, params: Mapping[str, float], bag_data: Any, order: int = 1
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
        self, eta: np.ndarray, params: Mapping[str, float], bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        return eta * rng.standard_exponential(eta.shape)
