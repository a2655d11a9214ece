"""Normal responses: values of the bags, of either sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import namespace, segment_sum
from models.core.protocol import Summary, override
from models.likelihoods.likelihood import Likelihood, Parameter, Terms

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
    def terms(
        self, y: Any, eta: Any, params: Mapping[str, float], bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        variance = xp.broadcast_to(np.exp(params["log_noise"]) * bag_data, eta.shape)
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
        self, eta: np.ndarray, params: Mapping[str, float], bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        sd = np.sqrt(np.exp(params["log_noise"]) * bag_data)
        return eta + sd * rng.standard_normal(eta.shape)
