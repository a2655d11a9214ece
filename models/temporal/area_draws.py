"""Drawn functions with an effect of each area, which a pixel reads from a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.gp.area_kernel import AreaFeatures
from models.gp.random_features import Features


@dataclass(frozen=True)
class OwnEffects:
    """The term of areas' effects among the features of a drawn function.

    Attributes
    ----------
    number : int
        Of the part of the features.
    shared : (n_feature - n_area - 1,) int64
        Rows of the weights of all other parts.
    own : slice
        Rows of its own: one for each area, and one for no area.
    sd, whole_sd : float
        Deviation of an effect, and of it with the noise of its inducing value.
    column : int
        Of the inputs that has the number of the area.
    """

    number: int
    shared: np.ndarray
    own: slice
    sd: float
    whole_sd: float
    column: int

    @classmethod
    def of(cls, features: Features, whole_sd: float) -> OwnEffects:
        """Find it."""
        first = 0
        for number, part in enumerate(features.parts):
            own = slice(first, first + part.n_feature)
            if isinstance(part, AreaFeatures):
                rest = np.delete(np.arange(features.n_feature), own)
                assert part.amplitude is not None
                return cls(number, rest, own, part.amplitude, whole_sd, part.column)
            first = own.stop
        msg = "the features have no effects of areas"
        raise ValueError(msg)

    def others(self, features: Features) -> list[Features | None]:
        """Return the features of all other terms, and None at its place."""
        parts: list[Features | None] = list(features.parts)
        parts[self.number] = None
        return parts

    def table(self, weight: np.ndarray, u_white: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the drawn effects by Matheron's rule: (n_area + 1, n_draws), of no area last.

        Parameters
        ----------
        weight : (n_feature, n_draws) float64
        u_white, noise : (n_area, n_draws) float64
            Whitened inducing values, and what the prior's carry of noise.
        """
        table = self.sd * weight[self.own]
        off = u_white - (table[:-1] + noise) / self.whole_sd
        table[:-1] += self.sd**2 * off / self.whole_sd
        return table
