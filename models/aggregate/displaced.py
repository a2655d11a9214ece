r"""Bags that are of one of their pixels, unknown which: survey clusters that were displaced.

The rate of such a bag is ``P Psi(f_I)``, ``I`` with probability ``p_i / P``, ``P = sum_i p_i``. Its
mean is that of the average, ``c = sum_i p_i E Psi(f_i)``; its variance is not,

    V = P sum_i p_i E Psi(f_i)^2 - c^2,

how much pixels differ from each other included. What of it is not linear in ``f`` is integrated out
of the response (:func:`models.aggregate.moment_matching.marginal`), so that a bag whose pixels
differ much tells little: the mixture over its pixels to second order. An average of all of them
would have to have the spread of one (``docs/design/points.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import namespace, segment_sum, spread
from models.likelihoods.observation import Observation


@dataclass(frozen=True)
class Displaced:
    """Variances of the rates of displaced bags.

    Attributes
    ----------
    bags : (n_bag,) bool
        Which are displaced.
    value : (n_bag,) float64
        ``V``; anything of other bags.
    """

    bags: Any
    value: Any
    _mean: Any
    _weight: Any
    _by_m: Any
    _by_s: Any

    @classmethod
    def of(cls, seen: Observation, m: Any, s: Any, mean: Any) -> Displaced | None:
        """Compute them under ``f_i ~ N(m_i, s_i)``; None where no bag is displaced."""
        bags = seen.likelihood.displaced(seen.bag_data)
        if bags is None:
            return None
        square, by_m, by_s = seen.link.square(m, s)
        weight = spread(segment_sum(seen.p, seen.offsets), seen.offsets) * seen.p
        value = segment_sum(weight * square, seen.offsets) - mean**2
        return cls(bags, namespace(mean).maximum(value, 0.0), mean, weight, by_m, by_s)

    def instead_of(self, value: Any) -> Any:
        """Return variances of all bags, given those of the averages."""
        return namespace(value).where(self.bags, self.value, value)

    def by_mean(self, slope: Any, by_variance: Any) -> Any:
        """Return slopes by ``c``, through ``V`` as well."""
        return slope - 2.0 * self._mean * by_variance * self.bags

    def backward(self, by_variance: Any, offsets: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return slopes by ``m`` and ``s`` through the squares: (n_pix,) each."""
        by = spread(by_variance * self.bags, offsets) * self._weight
        return by * self._by_m, by * self._by_s
