r"""Covariance functions with hand-derived adjoints.

A kernel is a small immutable tree. It owns no numbers: its parameters are an array of logarithms,
``theta``, whose layout :attr:`Kernel.names` describes, so that an optimiser sees one vector. For
``K = k(Z, W)`` and the adjoint ``dK = d objective / dK``, :meth:`Kernel.backward` returns the
adjoints of ``theta`` and of ``W`` (Law et al. 2018, section 3.2; METHODS section 1).

Inputs are scaled features and, in the last two or three columns where a kernel has a spatial part,
scaled coordinates. Parameters are variances and LENGTH-SCALES (the paper prints squared
length-scales).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arena import Allocate
from models.backend.arrays import like, namespace
from models.core.protocol import override
from models.gp.components import Component, separate
from models.gp.random_features import FeatureAdjoint, Features
from models.gp.shapes import SHAPES, loops

# Length-scale of space at the start, in deviations of the coordinates (a country is 3 to 5 across):
# from a longer one the noise takes up what the field could say, and the objective is flat.
START_SPACE = 0.4


@dataclass(frozen=True)
class Pairs:
    """Where the matrix of a kernel is evaluated.

    Attributes
    ----------
    theta : (n_theta,) float64
    z, w : (n, n_dim), (m, n_dim)
        Scaled inputs of its rows and columns.
    allocate : callable
        Hands out the arrays, see :mod:`models.backend.arena`.
    """

    theta: np.ndarray
    z: np.ndarray
    w: np.ndarray
    allocate: Allocate

    @classmethod
    def of(
        cls, theta: np.ndarray, z: np.ndarray, w: np.ndarray, allocate: Allocate | None
    ) -> Pairs:
        """Return pairs whose arrays are new ones where ``allocate`` is not given."""
        return cls(theta, z, w, allocate or namespace(z).empty)

    def under(self, theta: np.ndarray) -> Pairs:
        """Return the same pairs under other parameters: those of a part."""
        return Pairs(theta, self.z, self.w, self.allocate)


class Kernel(ABC):
    """What every kernel does; ``theta`` holds the natural logarithms of its parameters."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Name of each element of ``theta``, such as ``ard.lengthscale[3]``."""

    @property
    def n_theta(self) -> int:
        """Number of parameters."""
        return len(self.names)

    @property
    def components(self) -> tuple[Component, ...]:
        """The functions that it adds up; of a kernel with ``columns``, one of them all."""
        return (Component(frozenset(range(*getattr(self, "columns", (0, 0))))),)

    @abstractmethod
    def start(self, variance: float) -> np.ndarray:
        """Return the starting ``theta`` for a total prior variance of about ``variance``."""

    @abstractmethod
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        """Return ``k(z_i, z_i)``: (n,)."""

    @abstractmethod
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        """Return d/d theta of ``sum_i adjoint_i k(z_i, z_i)``: (n_theta,) float64."""

    @abstractmethod
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        """Return ``k(z, w)`` (n, m) and whatever :meth:`adjoints` wants to reuse."""

    @abstractmethod
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        """Return the adjoints of ``theta`` (n_theta,) and ``w`` (m, n_dim; None unless wanted)."""

    @abstractmethod
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Return random features whose inner products have expectation ``k``."""

    @abstractmethod
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        """Return the adjoint of ``theta`` from that of the features drawn under it: (n_theta,)."""

    def matrix(self, theta: np.ndarray, z: np.ndarray, w: np.ndarray) -> Any:
        """Return ``k(z, w)``: (n, m)."""
        return self.forward(theta, z, w)[0]

    def write(self, at: Pairs, out: Any, first: int) -> None:
        """Write ``k(z, w)`` into the columns of ``out`` (n, n_column) from ``first`` on."""
        out[:, first : first + at.w.shape[0]] = self.evaluate(at)[0]

    # Inducing variables are values of the whole function at ``w``, unless a subclass has others.

    def evaluate_cross(self, at: Pairs) -> tuple[Any, Any]:
        """Return the covariances of ``f(z)`` with the inducing variables, (n, n_ind), and a cache.

        ``w`` (n_node, n_dim) holds the points that the inducing variables are made of.
        """
        return self.evaluate(at)

    def cross_adjoints(
        self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool
    ) -> tuple[Any, Any]:
        """Return the adjoints of ``theta`` and ``w`` through :meth:`evaluate_cross`."""
        return self.adjoints(at, cache, adjoint, want_w)

    def cross_values(
        self, theta: np.ndarray, z: np.ndarray, w: np.ndarray, allocate: Allocate | None = None
    ) -> Any:
        """Return the first of :meth:`evaluate_cross` alone: adjoints are not wanted."""
        return self.evaluate_cross(Pairs.of(theta, z, w, allocate))[0]

    # The same, of arrays one by one.

    def forward(
        self, theta: np.ndarray, z: np.ndarray, w: np.ndarray, allocate: Allocate | None = None
    ) -> tuple[Any, Any]:
        """:meth:`evaluate`."""
        return self.evaluate(Pairs.of(theta, z, w, allocate))

    def backward(
        self,
        theta: np.ndarray,
        z: np.ndarray,
        w: np.ndarray,
        cache: Any,
        adjoint: np.ndarray,
        *,
        want_w: bool,
        allocate: Allocate | None = None,
    ) -> tuple[Any, Any]:
        """:meth:`adjoints`."""
        return self.adjoints(Pairs.of(theta, z, w, allocate), cache, adjoint, want_w)

    def cross(
        self, theta: np.ndarray, z: np.ndarray, w: np.ndarray, allocate: Allocate | None = None
    ) -> tuple[Any, Any]:
        """:meth:`evaluate_cross`."""
        return self.evaluate_cross(Pairs.of(theta, z, w, allocate))

    def cross_backward(
        self,
        theta: np.ndarray,
        z: np.ndarray,
        w: np.ndarray,
        cache: Any,
        adjoint: np.ndarray,
        *,
        want_w: bool,
        allocate: Allocate | None = None,
    ) -> tuple[Any, Any]:
        """:meth:`cross_adjoints`."""
        return self.cross_adjoints(Pairs.of(theta, z, w, allocate), cache, adjoint, want_w)

    def inducing(self, theta: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return the covariance of the inducing variables, (n_ind, n_ind), and a cache."""
        return self.forward(theta, w, w)

    def inducing_backward(
        self, theta: np.ndarray, w: np.ndarray, cache: Any, adjoint: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the adjoints of ``theta`` and ``w`` through :meth:`inducing`."""
        d_theta, d_w = self.backward(theta, w, w, cache, adjoint, want_w=True)
        # W stands on both sides of the symmetric matrix: its adjoint counts twice.
        return d_theta, 2.0 * d_w

    def inducing_features(self, features: Features, w: np.ndarray) -> np.ndarray:
        """Return the features of the inducing variables: (n_ind, n_feature)."""
        return features(w)


@dataclass(frozen=True)
class Radial(Kernel):
    """Stationary kernel ``variance * shape(|(z - w) / lengthscale|^2)`` on some columns.

    Parameters
    ----------
    shape : str
        Decay with distance, one of :data:`models.gp.shapes.SHAPES`.
    columns : tuple of int
        First and last + 1 column of the inputs that it looks at.
    ard : bool
        One length-scale for each column (automatic relevance determination), or one for all.
    label : str
        Prefix of its parameters' names.
    spatial : bool
        Whether its columns are coordinates.
    """

    shape: str
    columns: tuple[int, int]
    ard: bool
    label: str
    spatial: bool = False

    @property
    @override
    def names(self) -> tuple[str, ...]:
        scales = (
            [f"{self.label}.lengthscale[{k}]" for k in range(self.columns[1] - self.columns[0])]
            if self.ard
            else [f"{self.label}.lengthscale"]
        )
        return (f"{self.label}.variance", *scales)

    @override
    def start(self, variance: float) -> np.ndarray:
        """Of covariates, length-scales grow with the root of the dimension."""
        n_dim = self.columns[1] - self.columns[0]
        first = START_SPACE if self.spatial else np.sqrt(max(n_dim, 1))
        theta = np.full(self.n_theta, np.log(first))
        theta[0] = np.log(variance)
        return theta

    def _scaled(self, theta: np.ndarray, z: np.ndarray) -> Any:
        part = z[:, self.columns[0] : self.columns[1]]
        return part * like(np.exp(-theta[1:]), z, z.dtype)

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        xp = namespace(z)
        return xp.full(z.shape[0], np.exp(theta[0]), dtype=z.dtype)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        xp = namespace(z)
        grad = xp.zeros(self.n_theta)
        grad[0] = np.exp(theta[0]) * adjoint.sum(dtype=xp.float64)
        return grad

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        """Make the squared distance by one product of widened matrices."""
        theta, z, xp = at.theta, at.z, namespace(at.z)
        zs, ws = self._scaled(theta, z), self._scaled(theta, at.w)
        shape, log_variance = SHAPES[self.shape], float(theta[0])
        if xp is np and zs.shape[1] == 1:
            along = shape.on_line(zs[:, 0], ws[:, 0], log_variance, at.allocate)
            if along is not None:
                return along[0], (*along, shape.slope, zs, ws)
        scale = shape.scale
        ones = xp.ones((zs.shape[0], 1), dtype=z.dtype)
        wide_z = xp.concatenate([zs, (zs * zs).sum(axis=1, keepdims=True), ones], axis=1)
        w_square = scale * (ws * ws).sum(axis=1, keepdims=True)
        if shape.holds_variance:
            w_square += log_variance
        wide_w = xp.concatenate([-2 * scale * ws, xp.full_like(w_square, scale), w_square], axis=1)
        d2 = at.allocate((zs.shape[0], ws.shape[0]), z.dtype)
        xp.matmul(wide_z, wide_w.T, out=d2)
        if xp is np:
            value, u = shape.on_host(xp, d2, log_variance, at.allocate)
        else:
            value, u = shape.on_device(xp, d2, log_variance)
        return value, (value, u, shape.slope, zs, ws)

    @override
    def write(self, at: Pairs, out: Any, first: int) -> None:
        """Of one column in one pass, which reads and writes nothing else."""
        here, shape = slice(*self.columns), SHAPES[self.shape]
        if here.stop - here.start == 1 and namespace(at.z) is np and out.flags.c_contiguous:
            scale = out.dtype.type(math.exp(-at.theta[1]))
            line = at.z[:, here.start] * scale, at.w[:, here.start] * scale
            if shape.write_line(*line, float(at.theta[0]), out, first):
                return
        super().write(at, out, first)

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        """Of one column in one pass; of more ``sum G (z - w)^2`` expanded, to leave products."""
        xp = namespace(at.z)
        value, u, slope, zs, ws = cache
        grad = xp.empty(self.n_theta)
        if xp is np and zs.shape[1] == 1:
            per_column, apart = np.empty(1), np.zeros(ws.shape)
            line = (zs[:, 0], ws[:, 0], apart[:, 0])
            grad[0], per_column[0] = loops().line_adjoints(adjoint, value, u, *line)
        else:
            g = at.allocate(adjoint.shape, adjoint.dtype)
            if xp is np:
                rows = np.empty(zs.shape[0])
                grad[0] = loops().weighed(adjoint, value, u, g, rows)
            else:
                xp.multiply(adjoint, u, out=g)
                rows = g @ xp.ones(g.shape[1], dtype=g.dtype)
                grad[0] = rows.sum(dtype=xp.float64) if u is value else xp.vdot(adjoint, value)
            wide_z = xp.concatenate([zs, xp.ones((zs.shape[0], 1), dtype=zs.dtype)], axis=1)
            by_w = g.T @ wide_z
            gz, cols = by_w[:, :-1], by_w[:, -1]
            per_column = (
                rows.astype(xp.float64) @ (zs * zs)
                + cols.astype(xp.float64) @ (ws * ws)
                - 2 * (gz * ws).sum(axis=0, dtype=xp.float64)
            )
            apart = gz - cols[:, None] * ws
        per_column *= -2 * slope  # d(d2) / d log lengthscale = -2 d2
        grad[1:] = per_column if self.ard else per_column.sum()
        if not want_w:
            return grad, None
        dw = xp.zeros(at.w.shape)
        scale = like((-2 * slope) * np.exp(-at.theta[1:]), at.z)
        dw[:, self.columns[0] : self.columns[1]] = apart * scale
        return grad, dw

    @property
    def stratified(self) -> bool:
        """Whether the frequencies of random features are drawn from strata."""
        one = self.columns[1] - self.columns[0] == 1
        return one and SHAPES[self.shape].quantile(np.full(1, 0.5)) is not None

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Frequencies from the spectral density of the shape; of one dimension, from strata.

        One frequency from each of equally probable strata is unbiased as well, and its kernel is as
        close as that of ten times as many (Matern-5/2: rms error .041 of 16, .074 of 64 without).
        """
        n_dim = self.columns[1] - self.columns[0]
        n_frequency, shape = (n_feature + 1) // 2, SHAPES[self.shape]
        quantiles = None
        if n_dim == 1:  # a cosine and a sine know no sign: positive frequencies are enough
            strata = (np.arange(n_frequency) + rng.random(n_frequency)) / n_frequency
            quantiles = shape.quantile(0.5 + 0.5 * strata)
        if quantiles is None:
            omega = shape.frequencies(rng.standard_normal((n_dim, n_frequency)), rng)
        else:
            omega = quantiles[None]
        omega *= np.exp(-np.asarray(theta[1:]))[:, None]
        frequency = np.zeros((self.columns[1], n_frequency))
        frequency[self.columns[0] :] = omega
        amplitude = float(np.sqrt(np.exp(float(theta[0])) / n_frequency))
        return Features(frequency, amplitude, independent=quantiles is None)

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        """Frequencies are in inverse proportion to the length-scales."""
        here = slice(*self.columns)
        per_column = -(features.frequency[here] * adjoint.frequency[here]).sum(axis=1)
        grad = np.empty(self.n_theta)
        grad[0] = 0.5 * adjoint.log_amplitude
        grad[1:] = per_column if self.ard else per_column.sum()
        return grad


@dataclass(frozen=True)
class Linear(Kernel):
    """``sum_k variance_k z_k w_k``: a linear regression with independent coefficients."""

    columns: tuple[int, int]
    label: str = "linear"

    @property
    @override
    def names(self) -> tuple[str, ...]:
        n_dim = self.columns[1] - self.columns[0]
        return tuple(f"{self.label}.variance[{k}]" for k in range(n_dim))

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return separate(self.columns, linear=True)

    @override
    def start(self, variance: float) -> np.ndarray:
        return np.full(self.n_theta, np.log(variance / self.n_theta))

    def _part(self, z: np.ndarray) -> Any:
        return z[:, self.columns[0] : self.columns[1]]

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        part = self._part(z)
        return (part * part) @ like(np.exp(theta), z, z.dtype)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        xp = namespace(z)
        part = self._part(z)
        return like(np.exp(theta), z) * (adjoint @ (part * part)).astype(xp.float64)

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        z, out = at.z, at.allocate((at.z.shape[0], at.w.shape[0]), at.z.dtype)
        scaled = self._part(z) * like(np.exp(at.theta), z, z.dtype)
        namespace(z).matmul(scaled, self._part(at.w).T, out=out)
        return out, None

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        xp = namespace(at.z)
        gz = adjoint.T @ self._part(at.z)
        variance = like(np.exp(at.theta), at.z)
        grad = variance * (gz * self._part(at.w)).sum(axis=0, dtype=xp.float64)
        if not want_w:
            return grad, None
        dw = xp.zeros(at.w.shape)
        dw[:, self.columns[0] : self.columns[1]] = gz * variance
        return grad, dw

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Exact, one feature for each column."""
        frequency = np.zeros((self.columns[1], self.n_theta))
        frequency[self.columns[0] :] = np.diag(np.exp(0.5 * np.asarray(theta)))
        return Features(frequency, None)

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        here = slice(*self.columns)
        return np.asarray(0.5 * np.diag(features.frequency[here] * adjoint.frequency[here]))


class OneVariance(Kernel):
    """A kernel whose only parameter is its variance."""

    label: str

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return (f"{self.label}.variance",)

    @override
    def start(self, variance: float) -> np.ndarray:
        return np.array([np.log(variance)])

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        return namespace(z).full(z.shape[0], np.exp(float(theta[0])), dtype=z.dtype)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        return like(np.exp(theta), z) * adjoint.sum(dtype=np.float64)


@dataclass(frozen=True)
class Constant(OneVariance):
    """``variance``, everywhere: an unknown level of the whole function."""

    label: str = "constant"

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return (Component(frozenset(), linear=True),)

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        out = at.allocate((at.z.shape[0], at.w.shape[0]), at.z.dtype)
        out[...] = np.exp(float(at.theta[0]))
        return out, None

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        xp = namespace(at.z)
        grad = like(np.exp(at.theta), at.z) * adjoint.sum(dtype=xp.float64)
        return grad, xp.zeros(at.w.shape) if want_w else None

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Exact, a cosine of frequency 0 (its sine is 0)."""
        return Features(np.zeros((1, 1)), float(np.exp(0.5 * float(theta[0]))))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        return np.array([0.5 * adjoint.log_amplitude])
