"""Binomial counts: positives among a number tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from models.backend.arrays import gammaln, namespace
from models.core.errors import ParameterError
from models.core.protocol import Summary, override
from models.likelihoods.constant import MixedRate, OneRate
from models.likelihoods.likelihood import TINY, Likelihood, Params, Terms, log_and_ratio

EPS = float(np.finfo(np.float64).eps)


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
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
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
    def cases_at_one(self, sample: Summary, base: float) -> float | None:
        return None if sample.trials is None else float(sample.trials.sum())

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        # Rates of a bag may all round to 0 or 1: its terms stay finite.
        eta = namespace(eta).clip(eta, TINY, 1.0 - EPS)
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
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        tested = np.rint(bag_data).astype(np.int64)
        return rng.binomial(tested, np.clip(eta, 0, 1)).astype(np.float64)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return ProportionRate.fit(y, exposure)


class ProportionRate(MixedRate):
    """Positives among people tested: beta-binomial, binomial where areas do not differ."""

    about = "beta-binomial positives among those tested, around one rate"

    @staticmethod
    @override
    def _alone(y: np.ndarray, exposure: np.ndarray) -> float:
        tested = float(exposure.sum())
        return float(np.clip(y.sum(), 0.5, tested - 0.5 if tested > 1 else 0.5)) / max(tested, 1.0)

    @staticmethod
    @override
    def _scale() -> tuple[Callable[[float], float], Callable[[float], float]]:
        return lambda rate: float(special.logit(rate)), lambda u: float(special.expit(u))

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        rest = exposure - y
        choose = special.gammaln(exposure + 1) - special.gammaln(y + 1) - special.gammaln(rest + 1)
        if not np.isfinite(self.size):
            return np.asarray(choose + y * np.log(self.rate) + rest * np.log1p(-self.rate))
        a, b = self.size * self.rate, self.size * (1 - self.rate)
        if not (a > 0 and b > 0):
            return np.full(y.shape, -np.inf)
        return np.asarray(choose + special.betaln(y + a, rest + b) - special.betaln(a, b))

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_draws, exposure.shape[0])
        rate = np.full(shape, self.rate)
        if np.isfinite(self.size):
            rate = rng.beta(self.size * self.rate, self.size * (1 - self.rate), shape)
        tested = np.rint(exposure).astype(np.int64)
        return rate * exposure, rng.binomial(tested, rate).astype(np.float64)
