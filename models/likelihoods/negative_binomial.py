"""Negative binomial counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import digamma, gammaln, namespace
from models.core.protocol import override
from models.likelihoods.likelihood import Likelihood, Parameter, Terms, log_and_ratio


class NegativeBinomial(Likelihood):
    """Counts of mean ``eta`` and variance ``eta + eta^2 / r``; ``log_size = log r`` is learnt."""

    name = "negative_binomial"
    about = "counts with more spread than Poisson's"
    links = ("exp", "square")
    # At the start areas differ by a third.
    parameters: Mapping[str, Parameter] = {"log_size": Parameter(float(np.log(10.0)), -0.5)}
    bound_form = "logarithmic"

    @override
    def terms(
        self, y: Any, eta: Any, params: Mapping[str, float], bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        r = float(np.exp(params["log_size"]))
        log_eta, ratio = log_and_ratio(y, eta)
        up = eta + r
        share = (y + r) / up
        value = (
            y * log_eta
            - (y + r) * xp.log(up)
            + r * np.log(r)
            + gammaln(y + r)
            - float(gammaln(r))
            - gammaln(y + 1.0)
        )
        d_r = np.log(r) + 1.0 - xp.log(up) - share + digamma(y + r) - float(digamma(r))
        if order == 1:
            return Terms(value, ratio - share, by={"log_size": r * d_r})
        return Terms(
            value,
            ratio - share,
            share / up - ratio / eta,
            2.0 * ratio / eta**2 - 2.0 * share / up**2,
            {"log_size": r * d_r},
            {"log_size": r * (1.0 / up**2 - 2.0 * share / up**2)},
        )

    @override
    def draw(
        self, eta: np.ndarray, params: Mapping[str, float], bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        # Poisson counts of gamma mean.
        r = float(np.exp(params["log_size"]))
        return rng.poisson(eta * rng.gamma(r, 1.0 / r, eta.shape)).astype(np.float64)
