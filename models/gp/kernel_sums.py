"""Sums and products of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arena import Allocate
from models.backend.arrays import namespace
from models.core.errors import ParameterError
from models.core.protocol import override
from models.gp.kernels import Kernel
from models.gp.random_features import FeatureAdjoint, Features


@dataclass(frozen=True)
class Pair(Kernel):
    """Two kernels joined; parameters are those of the left, then of the right."""

    left: Kernel
    right: Kernel

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return self.left.names + self.right.names

    def _split(self, theta: Any) -> tuple[Any, Any]:
        return theta[: self.left.n_theta], theta[self.left.n_theta :]

    def _embedded(
        self, theta: Any, n_feature: int, rng: np.random.Generator
    ) -> tuple[Features, Features]:
        a, b = self._split(theta)
        return self.left.features(a, n_feature, rng), self.right.features(b, n_feature, rng)


@dataclass(frozen=True)
class Sum(Pair):
    """``k_left + k_right``."""

    @override
    def start(self, variance: float) -> np.ndarray:
        """Share the variance equally between the terms."""
        share = variance / (_n_term(self.left) + _n_term(self.right))
        return np.concatenate(
            [
                self.left.start(share * _n_term(self.left)),
                self.right.start(share * _n_term(self.right)),
            ]
        )

    @override
    def diag(self, theta: Any, z: Any) -> Any:
        a, b = self._split(theta)
        return self.left.diag(a, z) + self.right.diag(b, z)

    @override
    def diag_backward(self, theta: Any, z: Any, adjoint: Any) -> Any:
        a, b = self._split(theta)
        return namespace(z).concatenate(
            [self.left.diag_backward(a, z, adjoint), self.right.diag_backward(b, z, adjoint)]
        )

    @override
    def forward(
        self, theta: Any, z: Any, w: Any, allocate: Allocate | None = None
    ) -> tuple[Any, Any]:
        a, b = self._split(theta)
        xp = namespace(z)
        ka, cache_a = self.left.forward(a, z, w, allocate)
        kb, cache_b = self.right.forward(b, z, w, allocate)
        out = (allocate or xp.empty)(ka.shape, ka.dtype)
        return xp.add(ka, kb, out=out), (cache_a, cache_b)

    @override
    def backward(
        self,
        theta: Any,
        z: Any,
        w: Any,
        cache: Any,
        adjoint: Any,
        *,
        want_w: bool,
        allocate: Allocate | None = None,
    ) -> tuple[Any, Any]:
        a, b = self._split(theta)
        ga, wa = self.left.backward(a, z, w, cache[0], adjoint, want_w=want_w, allocate=allocate)
        gb, wb = self.right.backward(b, z, w, cache[1], adjoint, want_w=want_w, allocate=allocate)
        return namespace(z).concatenate([ga, gb]), wa + wb if want_w else None

    @override
    def features(self, theta: Any, n_feature: int, rng: np.random.Generator) -> Features:
        """Side by side."""
        a, b = self._embedded(theta, n_feature, rng)
        return Features(None, None, (a, b))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        a, b = features.parts
        return np.concatenate(
            [
                self.left.features_theta(a, adjoint.parts[0]),
                self.right.features_theta(b, adjoint.parts[1]),
            ]
        )


@dataclass(frozen=True)
class Product(Pair):
    """``k_left * k_right``."""

    @override
    def start(self, variance: float) -> np.ndarray:
        """Start the left factor at variance 1."""
        return np.concatenate([self.left.start(1.0), self.right.start(variance)])

    @override
    def diag(self, theta: Any, z: Any) -> Any:
        a, b = self._split(theta)
        return self.left.diag(a, z) * self.right.diag(b, z)

    @override
    def diag_backward(self, theta: Any, z: Any, adjoint: Any) -> Any:
        a, b = self._split(theta)
        return namespace(z).concatenate(
            [
                self.left.diag_backward(a, z, adjoint * self.right.diag(b, z)),
                self.right.diag_backward(b, z, adjoint * self.left.diag(a, z)),
            ]
        )

    @override
    def forward(
        self, theta: Any, z: Any, w: Any, allocate: Allocate | None = None
    ) -> tuple[Any, Any]:
        a, b = self._split(theta)
        xp = namespace(z)
        ka, cache_a = self.left.forward(a, z, w, allocate)
        kb, cache_b = self.right.forward(b, z, w, allocate)
        out = (allocate or xp.empty)(ka.shape, ka.dtype)
        return xp.multiply(ka, kb, out=out), (ka, cache_a, kb, cache_b)

    @override
    def backward(
        self,
        theta: Any,
        z: Any,
        w: Any,
        cache: Any,
        adjoint: Any,
        *,
        want_w: bool,
        allocate: Allocate | None = None,
    ) -> tuple[Any, Any]:
        a, b = self._split(theta)
        ka, cache_a, kb, cache_b = cache
        left, right = adjoint * kb, adjoint * ka
        ga, wa = self.left.backward(a, z, w, cache_a, left, want_w=want_w, allocate=allocate)
        gb, wb = self.right.backward(b, z, w, cache_b, right, want_w=want_w, allocate=allocate)
        return namespace(z).concatenate([ga, gb]), wa + wb if want_w else None

    @override
    def features(self, theta: Any, n_feature: int, rng: np.random.Generator) -> Features:
        """Add up the frequencies of independent factors."""
        a, b = self._embedded(theta, n_feature, rng)
        if a.parts or b.parts or a.amplitude is None or b.amplitude is None:
            msg = (
                "joint draws of a product of sums or of linear kernels are not available; "
                "write the product out as a sum of products of stationary kernels"
            )
            raise ParameterError(msg)
        width = max(a.frequency.shape[0], b.frequency.shape[0])
        frequency = _widened(a.frequency, width) + _widened(b.frequency, width)
        amplitude = a.amplitude * b.amplitude * float(np.sqrt(frequency.shape[1]))
        return Features(frequency, amplitude, factors=(a, b))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        """Each factor's frequencies have the adjoint of their sum."""
        a, b = features.factors
        return np.concatenate(
            [self.left.features_theta(a, adjoint), self.right.features_theta(b, adjoint)]
        )


def _widened(frequency: np.ndarray, n_row: int) -> np.ndarray:
    return np.pad(frequency, ((0, n_row - frequency.shape[0]), (0, 0)))


def _n_term(kernel: Kernel) -> int:
    """Count the terms of a sum: each has a share of the starting variance."""
    return _n_term(kernel.left) + _n_term(kernel.right) if isinstance(kernel, Sum) else 1
