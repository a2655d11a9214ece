"""Kernels of regressions: linear with one variance of all slopes, and smooths of each covariate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import like, namespace
from models.core.protocol import override
from models.gp.components import Component, separate
from models.gp.kernels import Kernel, Linear, Pairs, Radial
from models.gp.random_features import FeatureAdjoint, Features


@dataclass(frozen=True)
class Ridge(Kernel):
    """``variance sum_k z_k w_k``: a linear regression whose coefficients share their variance."""

    columns: tuple[int, int]
    label: str = "ridge"

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return (f"{self.label}.variance",)

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return separate(self.columns, linear=True)

    @override
    def start(self, variance: float) -> np.ndarray:
        return np.array([np.log(variance / max(self.columns[1] - self.columns[0], 1))])

    @property
    def _linear(self) -> Linear:
        """The same regression, with a variance of its own for each coefficient."""
        return Linear(self.columns, self.label)

    def _each(self, theta: np.ndarray) -> Any:
        return np.repeat(theta, self._linear.n_theta)

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        return self._linear.diag(self._each(theta), z)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        return self._linear.diag_backward(self._each(theta), z, adjoint).sum(keepdims=True)

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        return self._linear.evaluate(at.under(self._each(at.theta)))

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        each = at.under(self._each(at.theta))
        grad, d_w = self._linear.adjoints(each, cache, adjoint, want_w)
        return grad.sum(keepdims=True), d_w

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Exact, one feature for each column."""
        return self._linear.features(self._each(theta), n_feature, rng)

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        return self._linear.features_theta(features, adjoint).sum(keepdims=True)


@dataclass(frozen=True)
class Smooths(Kernel):
    """A smooth function of each covariate, added up, as generalised additive models have them.

    ``sum_k variance_k shape(|z_k - w_k| / lengthscale)``: each covariate has a variance of its own,
    and all share the length-scale.
    """

    columns: tuple[int, int]
    label: str = "smooth"
    shape: str = "matern52"

    @property
    def parts(self) -> tuple[Radial, ...]:
        """The smooth of each covariate, of its own variance and the shared length-scale."""
        return tuple(
            Radial(self.shape, (k, k + 1), ard=False, label=f"{self.label}[{k}]")
            for k in range(*self.columns)
        )

    @property
    @override
    def names(self) -> tuple[str, ...]:
        n_dim = self.columns[1] - self.columns[0]
        variances = [f"{self.label}.variance[{k}]" for k in range(n_dim)]
        return (*variances, f"{self.label}.lengthscale")

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return separate(self.columns, linear=False)

    @override
    def start(self, variance: float) -> np.ndarray:
        n_dim = max(self.columns[1] - self.columns[0], 1)
        return np.append(np.full(n_dim, np.log(variance / n_dim)), 0.0)

    def _each(self, theta: np.ndarray) -> Iterator[tuple[int, Radial, Any]]:
        for k, part in enumerate(self.parts):
            yield k, part, theta[[k, -1]]

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        total = float(np.exp(theta[:-1]).sum())
        return namespace(z).full(z.shape[0], total, dtype=z.dtype)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        xp = namespace(z)
        grad = xp.zeros(self.n_theta)
        grad[:-1] = like(np.exp(theta[:-1]), grad) * adjoint.sum(dtype=xp.float64)
        return grad

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        out = at.allocate((at.z.shape[0], at.w.shape[0]), at.z.dtype)
        out[...] = 0
        caches = []
        for _, part, own in self._each(at.theta):
            value, cache = part.evaluate(at.under(own))
            out += value
            caches.append(cache)
        return out, caches

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        xp = namespace(at.z)
        grad, dw = xp.zeros(self.n_theta), xp.zeros(at.w.shape) if want_w else None
        for k, part, own in self._each(at.theta):
            by_theta, by_w = part.adjoints(at.under(own), cache[k], adjoint, want_w)
            grad[k] = by_theta[0]
            grad[-1] += by_theta[1]
            if dw is not None:
                dw += by_w
        return grad, dw

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Side by side."""
        each = [part.features(own, n_feature, rng) for _, part, own in self._each(theta)]
        return Features(None, None, tuple(each))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        grad = np.zeros(self.n_theta)
        parts = zip(self.parts, features.parts, adjoint.parts, strict=True)
        for k, (part, own, by) in enumerate(parts):
            found = part.features_theta(own, by)
            grad[k] = found[0]
            grad[-1] += found[1]
        return grad
