"""The kernel of an effect of each area, independent between areas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.protocol import override
from models.gp.kernels import OneVariance, Pairs
from models.gp.random_features import FeatureAdjoint, Features


@dataclass(frozen=True)
class AreaFeatures(Features):
    """One exact feature for each area, and one for all places in no area.

    ``frequency`` is (n_column, n_area + 1), of its shape alone; ``amplitude`` the effects'
    deviation.
    """

    column: int = 0

    @property
    @override
    def is_waves(self) -> bool:
        return False

    @property
    @override
    def n_feature(self) -> int:
        return int(self.frequency.shape[1])

    @override
    def __call__(self, z: Any) -> Any:
        xp = namespace(z)
        phi = xp.zeros((z.shape[0], self.n_feature), dtype=z.dtype)
        phi[xp.arange(z.shape[0]), z[:, self.column].astype(xp.int64)] = self.amplitude
        return phi  # of no area, -1: the last

    @override
    def backward(self, z: Any, phi: Any, adjoint: Any) -> tuple[FeatureAdjoint, Any]:
        xp = namespace(z)
        log_amplitude = float(xp.vdot(adjoint, phi))
        frequency = np.zeros(self.frequency.shape)
        return FeatureAdjoint(frequency, log_amplitude), xp.zeros((z.shape[0], self.column + 1))


@dataclass(frozen=True)
class Areas(OneVariance):
    """``variance`` where both are in the same area, else 0.

    Parameters
    ----------
    columns : tuple of int
        First and last + 1 column of the inputs: one, the area's number, at least 0. Places whose
        number is below 0 are in no area: nothing is known of their effects.
    n_area : int
    label : str
    """

    columns: tuple[int, int]
    n_area: int
    label: str = "area"

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        column = self.columns[0]
        own, other = at.z[:, column], at.w[:, column]
        out = at.allocate((own.shape[0], other.shape[0]), at.z.dtype)
        out[...] = own[:, None] == other[None]
        out *= at.z.dtype.type(np.exp(float(at.theta[0])))
        return out, out

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        xp = namespace(at.z)
        grad = xp.vdot(adjoint, cache).reshape(1).astype(xp.float64)
        return grad, xp.zeros(at.w.shape) if want_w else None

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Exact."""
        shape = (self.columns[1], self.n_area + 1)
        amplitude = float(np.exp(0.5 * float(theta[0])))
        return AreaFeatures(np.zeros(shape), amplitude, column=self.columns[0])

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        return np.array([0.5 * adjoint.log_amplitude])
