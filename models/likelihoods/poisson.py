"""Poisson counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import gammaln
from models.core.protocol import override
from models.likelihoods.constant import OneRate
from models.likelihoods.likelihood import Likelihood, Params, Terms, log_and_ratio
from models.likelihoods.negative_binomial import CountRate, draw_counts


class Poisson(Likelihood):
    """``y ~ Poisson(eta)``: ``h = y log eta - eta - log y!``."""

    name = "poisson"
    about = "counts whose variance is their mean, given the area's effect"
    links = ("exp", "square")
    area_effect_by_default = True  # real areas differ by more than Poisson counts do
    bound_form = "logarithmic"

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        log_eta, ratio = log_and_ratio(y, eta)
        value = y * log_eta - eta - gammaln(y + 1.0)
        if order == 1:
            return Terms(value, ratio - 1.0)
        return Terms(value, ratio - 1.0, -ratio / eta, 2.0 * ratio / eta**2)

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        return draw_counts(eta, rng)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return CountRate.fit(y, exposure)
