"""Gamma responses: positive values of the bags, of any dispersion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import digamma, gammaln, namespace
from models.core.errors import BagsError
from models.core.protocol import Summary, override
from models.likelihoods.exponential import Exponential
from models.likelihoods.likelihood import TINY, Likelihood, Parameter, Params, Terms, exponential
from models.likelihoods.normal import deviation

NOISE_SHARE = 0.25  # of the squared coefficient of variation of the responses, at the start


class Gamma(Likelihood):
    """``y`` gamma of mean ``eta`` and coefficient of variation ``k^-1/2``; ``log_shape = log k``.

    The exponential law is that of ``k = 1``. The shape is learnt: it holds all by which areas of
    equal covariates differ, and takes no area effect besides.
    """

    name = "gamma"
    about = "positive values of the areas, such as yields"
    links = Exponential.links
    parameters: Mapping[str, Parameter] = {
        "log_shape": Parameter(float(-np.log(NOISE_SHARE)), -0.5, in_units=True)
    }
    counts = False
    takes_area_effect = False

    @override
    def units(self, sample: Summary) -> dict[str, float]:
        """Of the shape: that under which values vary as the responses do."""
        used = sample.weight > 0
        mean = float((sample.y[used] / sample.weight[used]).mean())
        return {"log_shape": -2.0 * float(np.log(deviation(sample) / mean))}

    @override
    def check_responses(self, sample: Summary) -> None:
        super().check_responses(sample)
        if (sample.y <= 0).any():
            bag = int(np.argmin(sample.y))
            msg = (
                f"y of training bag {bag} is {sample.y[bag]:g}, and a response of the {self} "
                "likelihood is above 0; correct it, or use normal or exponential"
            )
            raise BagsError(msg)

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        k = exponential(params["log_shape"], eta)
        log_k = np.log(k)
        inverse = 1.0 / eta
        ratio = y * inverse
        log_ratio = xp.log(xp.maximum(y, TINY)) - xp.log(eta)
        value = k * (log_k + log_ratio - ratio) - gammaln(k) - xp.log(xp.maximum(y, TINY))
        d1 = k * inverse * (ratio - 1.0)
        by = {"log_shape": k * (log_k + 1.0 - digamma(k) + log_ratio - ratio)}
        if order == 1:
            return Terms(value, d1, by=by)
        d2 = k * inverse**2 * (1.0 - 2.0 * ratio)
        d3 = k * inverse**3 * (6.0 * ratio - 2.0)
        return Terms(value, d1, d2, d3, by, {"log_shape": d2})

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        k = exponential(params["log_shape"], eta)
        return eta / k * rng.standard_gamma(np.broadcast_to(k, eta.shape))
