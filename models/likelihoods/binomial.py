"""Binomial counts: positives among a number tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import gammaln
from models.core.errors import ParameterError
from models.core.protocol import Summary, override
from models.likelihoods.likelihood import Likelihood, Terms, log_and_ratio


class Binomial(Likelihood):
    """``y`` positives of ``trials`` tested, each with probability ``eta``, a mean over the bag."""

    name = "binomial"
    about = "positives among a number tested"
    links = ("probit",)
    aggregates = (0.0, 1.0)
    averages = True
    needs_trials = True
    takes_area_effect = False

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any) -> Any:
        if trials is None:
            msg = "likelihood: binomial needs the number tested in each bag; give trials (n_bag,)"
            raise ParameterError(msg)
        return trials

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        self.check_responses(sample)
        tested = 0.0 if sample.trials is None else float(sample.trials.sum())
        return 1.0, (float(sample.y.sum()) + 0.5) / (tested + 1.0), {}

    @override
    def terms(
        self, y: Any, eta: Any, params: Mapping[str, float], bag_data: Any, order: int = 1
    ) -> Terms:
        log_eta, ratio = log_and_ratio(y, eta)
        rest = bag_data - y
        log_rest, ratio_rest = log_and_ratio(rest, 1.0 - eta)
        log_choose = gammaln(bag_data + 1.0) - gammaln(y + 1.0) - gammaln(rest + 1.0)
        value = y * log_eta + rest * log_rest + log_choose
        if order == 1:
            return Terms(value, ratio - ratio_rest)
        return Terms(
            value,
            ratio - ratio_rest,
            -ratio / eta - ratio_rest / (1.0 - eta),
            2.0 * ratio / eta**2 - 2.0 * ratio_rest / (1.0 - eta) ** 2,
        )

    @override
    def draw(
        self, eta: np.ndarray, params: Mapping[str, float], bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        tested = np.rint(bag_data).astype(np.int64)
        return rng.binomial(tested, np.clip(eta, 0, 1)).astype(np.float64)
