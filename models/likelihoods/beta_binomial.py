r"""Beta-binomial counts: positives among a number tested, whose probability varies by area.

``y ~ Binomial(n, pi)``, ``pi ~ Beta(eta s, (1 - eta) s)``: areas differ by more than their
covariates and the number tested explain, around a mean that stays ``eta``. With ``a = eta s``,
``b = (1 - eta) s``, the binomial coefficient ``C`` and the gamma function ``G`` (Skellam 1948),

    h = log C + log G(y + a) / G(a) + log G(n - y + b) / G(b) - log G(n + s) / G(s)

The parameter is the overdispersion ``d = 1 / s``. The variance of ``y`` is ``n eta (1 - eta)``
times ``1 + (n - 1) rho`` with the intraclass correlation ``rho = d / (1 + d)``; the limit ``d = 0``
is the binomial distribution. ``h`` is concave in ``eta``, for trigamma functions fall.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.backend.arrays import digamma, gammaln, namespace, polygamma
from models.core.protocol import Summary, override
from models.likelihoods.binomial import Binomial
from models.likelihoods.likelihood import TINY, Parameter, Params, Terms

START = 0.01  # overdispersion: half of the variance of 100 tested is between areas
LARGEST = 1e10  # of s; beyond, log gamma functions of s would cancel to rounding
NEAREST = 1e-12  # of a drawn beta distribution's mean to 0 or 1


class BetaBinomial(Binomial):
    """``y`` positives of ``trials``, of mean ``trials * eta``; ``log_overdispersion`` is learnt.

    The square root of the overdispersion is the deviation of an area's probability in units of
    ``sqrt(eta (1 - eta))``, while it is small; the weak priors shrink it to 0.
    """

    name = "beta_binomial"
    about = "positives among a number tested, with more spread than binomial ones"
    parameters: Mapping[str, Parameter] = {
        "log_overdispersion": Parameter(
            float(np.log(START)),
            0.5,
            tells="People of one area are alike beyond the map; at 0 they would not be.",
        )
    }

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        base_rate, level, _ = super().starting_scale(sample)
        return base_rate, level, self.start()

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        s = xp.asarray(_size(params))
        a, b = xp.maximum(eta * s, TINY), xp.maximum((1.0 - eta) * s, TINY)
        rest = bag_data - y

        def rise(k: int, of: Any, start: Any) -> Any:
            """Return the k-th derivative of ``log G`` at ``start + of`` less that at ``start``."""
            # Nothing of an infinite derivative is left where nobody was counted.
            up = gammaln if k == 0 else digamma if k == 1 else lambda x: polygamma(k - 1, x)
            counted = xp.broadcast_to(of > 0, start.shape)
            safe = xp.where(counted, start, 1.0)
            return xp.where(counted, up(safe + of) - up(safe), 0.0)

        level = xp.broadcast_to(s, eta.shape)
        value = rise(0, y, a) + rise(0, rest, b) - rise(0, bag_data, level)
        value += gammaln(bag_data + 1.0) - gammaln(y + 1.0) - gammaln(rest + 1.0)
        up1, down1 = rise(1, y, a), rise(1, rest, b)
        by_s = eta * up1 + (1.0 - eta) * down1 - rise(1, bag_data, level)
        name = "log_overdispersion"
        if order == 1:
            return Terms(value, s * (up1 - down1), by={name: -s * by_s})
        up2, down2 = rise(2, y, a), rise(2, rest, b)
        up3, down3 = rise(3, y, a), rise(3, rest, b)
        curve_by_s = 2.0 * s * (up2 + down2) + s**2 * (eta * up3 + (1.0 - eta) * down3)
        return Terms(
            value,
            s * (up1 - down1),
            s**2 * (up2 + down2),
            s**3 * (up3 - down3),
            {name: -s * by_s},
            {name: -s * curve_by_s},
            {name: -s * (up1 - down1 + s * (eta * up2 - (1.0 - eta) * down2))},
        )

    @override
    def factor_deviation(self, sd: Any, mean: Any) -> Any:
        # Var pi = rho eta (1 - eta), with the intraclass correlation rho = d / (1 + d).
        odds = (1.0 - mean) / np.maximum(mean, TINY)
        return np.sqrt(sd**2 / (1.0 + sd**2) * np.maximum(odds, 0.0))

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        mean = np.clip(eta, NEAREST, 1.0 - NEAREST)
        s = _size(params)
        return super().draw(rng.beta(mean * s, (1.0 - mean) * s), params, bag_data, rng)


def _size(params: Mapping[str, Any]) -> Any:
    """Return ``s``, a number or one a draw (n_draws, 1)."""
    return np.minimum(np.exp(-np.asarray(params["log_overdispersion"])), LARGEST)
