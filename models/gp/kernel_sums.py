"""Sums and products of kernels."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from models.backend.arrays import namespace
from models.core.errors import ParameterError
from models.core.protocol import override
from models.gp.components import Component
from models.gp.kernels import Kernel, Pairs
from models.gp.random_features import FeatureAdjoint, Features


@dataclass(frozen=True)
class Pair(Kernel):
    """Two kernels joined; parameters are those of the left, then of the right.

    Attributes
    ----------
    operation : str
        NumPy function that joins the two matrices.
    """

    operation: ClassVar[str]

    left: Kernel
    right: Kernel

    @abstractmethod
    def _adjoints(self, adjoint: np.ndarray, ka: Any, kb: Any) -> tuple[Any, Any]:
        """Return the adjoints of the left and the right kernel's values ``ka`` and ``kb``."""

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return self.left.names + self.right.names

    def _split(self, theta: np.ndarray) -> tuple[Any, Any]:
        return theta[: self.left.n_theta], theta[self.left.n_theta :]

    def _embedded(
        self, theta: np.ndarray, n_feature: int, rng: np.random.Generator
    ) -> tuple[Features, Features]:
        a, b = self._split(theta)
        return self.left.features(a, n_feature, rng), self.right.features(b, n_feature, rng)

    def _joined(self, ka: Any, kb: Any, out: Any = None) -> Any:
        return getattr(namespace(ka), self.operation)(ka, kb, out=out)

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        a, b = self._split(theta)
        return self._joined(self.left.diag(a, z), self.right.diag(b, z))

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        a, b = self._split(theta)
        to_left, to_right = self._adjoints(adjoint, self.left.diag(a, z), self.right.diag(b, z))
        return namespace(z).concatenate(
            [self.left.diag_backward(a, z, to_left), self.right.diag_backward(b, z, to_right)]
        )

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        a, b = self._split(at.theta)
        ka, cache_a = self.left.evaluate(at.under(a))
        kb, cache_b = self.right.evaluate(at.under(b))
        out = at.allocate(ka.shape, ka.dtype)
        kept = (ka, kb) if self.operation == "multiply" else (None, None)
        return self._joined(ka, kb, out), (cache_a, cache_b, kept)

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        a, b = self._split(at.theta)
        cache_a, cache_b, kept = cache
        left, right = self._adjoints(adjoint, *kept)
        ga, wa = self.left.adjoints(at.under(a), cache_a, left, want_w)
        gb, wb = self.right.adjoints(at.under(b), cache_b, right, want_w)
        return namespace(at.z).concatenate([ga, gb]), wa + wb if want_w else None


@dataclass(frozen=True)
class Sum(Pair):
    """``k_left + k_right``."""

    operation: ClassVar[str] = "add"

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return self.left.components + self.right.components

    @override
    def start(self, variance: float) -> np.ndarray:
        """Share the variance equally between the terms."""
        n_left, n_right = _n_term(self.left), _n_term(self.right)
        share = variance / (n_left + n_right)
        return np.concatenate([self.left.start(share * n_left), self.right.start(share * n_right)])

    @override
    def _adjoints(self, adjoint: np.ndarray, ka: Any, kb: Any) -> tuple[Any, Any]:
        return adjoint, adjoint

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Side by side."""
        return Features(None, None, self._embedded(theta, n_feature, rng))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        a, b = features.parts
        by_a, by_b = adjoint.parts
        return np.concatenate(
            [self.left.features_theta(a, by_a), self.right.features_theta(b, by_b)]
        )


@dataclass(frozen=True)
class Product(Pair):
    """``k_left * k_right``."""

    operation: ClassVar[str] = "multiply"

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        """Of each with each: products of sums are sums of products."""
        return tuple(a.times(b) for a in self.left.components for b in self.right.components)

    @override
    def start(self, variance: float) -> np.ndarray:
        """Start the left factor at variance 1."""
        return np.concatenate([self.left.start(1.0), self.right.start(variance)])

    @override
    def _adjoints(self, adjoint: np.ndarray, ka: Any, kb: Any) -> tuple[Any, Any]:
        return adjoint * kb, adjoint * ka

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Add up the frequencies of independent factors."""
        a, b = self._embedded(theta, n_feature, rng)
        if a.parts or b.parts or a.amplitude is None or b.amplitude is None:
            msg = (
                "kernel: joint draws of a product of sums or of linear kernels are not available; "
                "write the product out as a sum of products of stationary kernels"
            )
            raise ParameterError(msg)
        width = max(a.frequency.shape[0], b.frequency.shape[0])
        frequency = _widened(a.frequency, width) + _widened(b.frequency, width)
        amplitude = a.amplitude * b.amplitude * float(np.sqrt(frequency.shape[1]))
        independent = a.independent and b.independent
        return Features(frequency, amplitude, factors=(a, b), independent=independent)

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
