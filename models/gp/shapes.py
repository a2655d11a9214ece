"""Shapes of stationary kernels: how a radial kernel decays with distance, one class each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri, stdtrit

from models.backend.arena import Allocate
from models.backend.arrays import fused
from models.core.protocol import override


@cache
def loops() -> Any:
    """Return :mod:`models.gp.compiled_loops`, imported when first used: the compiler takes long."""
    from models.gp import compiled_loops

    return compiled_loops


class Shape(ABC):
    """Decay of a kernel with distance.

    A new shape defines :meth:`on_host` and :meth:`frequencies`, and :meth:`quantile` if it can;
    :func:`models.gp.kernel_text.register_shape` makes it a word of ``kernel=...``.

    Attributes
    ----------
    name : str
    scale : float
        What the squared distance is multiplied by before it reaches the shape.
    slope : float
        ``dk / d squared distance = slope * u``.
    holds_variance : bool
        Whether the log variance has been added to the scaled squared distance already.
    prefers_space : bool
        Whether it stands for the coordinates, where there are any and no columns are named.
    """

    name: ClassVar[str]
    scale: ClassVar[float] = 1.0
    slope: ClassVar[float]
    holds_variance: ClassVar[bool] = False
    prefers_space: ClassVar[bool] = False

    @abstractmethod
    def on_host(self, xp: Any, d2: Any, log_variance: float, allocate: Allocate) -> tuple[Any, Any]:
        """Return the kernel and ``u``, (n, m) each; ``d2`` may be overwritten.

        Parameters
        ----------
        xp : module
            NumPy, or the device's.
        d2 : (n, m)
            ``scale`` times the squared distances; rounding may take them below 0.
        log_variance : float
        allocate : callable
            Hands out arrays, see :mod:`models.backend.arena`.
        """

    def on_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, allocate: Allocate
    ) -> tuple[Any, Any] | None:
        """Do the same on the host for one column: (n,) and (m,); None where only that is known."""
        del z, w, log_variance, allocate
        return None

    def write_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, out: np.ndarray, first: int
    ) -> bool:
        """Write the kernel of one column into those of ``out`` from ``first`` on, on the host.

        Returns
        -------
        bool
            False where only :meth:`on_host` is known: nothing was written.
        """
        del z, w, log_variance, out, first
        return False

    def on_device(self, xp: Any, d2: Any, log_variance: float) -> tuple[Any, Any]:
        """Do the same on a device, where kept buffers bring nothing and one fused kernel is all."""
        return self.on_host(xp, d2, log_variance, xp.empty)

    @abstractmethod
    def frequencies(self, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Make standard normal draws (n_dim, n) draws of the spectral density; in place or not."""

    def quantile(self, p: np.ndarray) -> np.ndarray | None:
        """Return quantiles of the spectral density in one dimension; None where none are known."""
        del p
        return None


class Rbf(Shape):
    """``exp(-d^2 / 2)``."""

    name = "rbf"
    scale = slope = -0.5
    holds_variance = True

    @override
    def on_host(self, xp: Any, d2: Any, log_variance: float, allocate: Allocate) -> tuple[Any, Any]:
        if xp is np:
            value = allocate(d2.shape, d2.dtype)
            loops().rbf_matrix(d2, value)
            return value, value
        value = xp.exp(d2)
        return value, value

    @override
    def on_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, allocate: Allocate
    ) -> tuple[Any, Any]:
        value = allocate((z.shape[0], w.shape[0]), z.dtype)
        loops().rbf_line(z, w, log_variance, value)
        return value, value

    @override
    def write_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, out: np.ndarray, first: int
    ) -> bool:
        loops().rbf_written(z, w, log_variance, out, first)
        return True

    @override
    def frequencies(self, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return normal

    @override
    def quantile(self, p: np.ndarray) -> np.ndarray:
        return np.asarray(ndtri(p))


class Matern(Shape):
    """Base of the Materns of smoothness ``nu``: the spectral density is a multivariate t.

    Attributes
    ----------
    degrees : int
        ``2 nu``, the degrees of freedom of that t.
    """

    degrees: ClassVar[int]
    prefers_space = True

    @override
    def frequencies(self, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return normal / np.sqrt(rng.chisquare(self.degrees, normal.shape[1]) / self.degrees)

    @override
    def quantile(self, p: np.ndarray) -> np.ndarray:
        return np.asarray(stdtrit(self.degrees, p))


class _CompiledMatern(Matern):
    """One whose loops are :mod:`models.gp.compiled_loops`'s, by its name."""

    def _own(self, like_these: Any) -> tuple[float, ...]:
        """Return what its loops take besides the log variance."""
        del like_these
        return ()

    @override
    def on_host(self, xp: Any, d2: Any, log_variance: float, allocate: Allocate) -> tuple[Any, Any]:
        value, u = allocate(d2.shape, d2.dtype), allocate(d2.shape, d2.dtype)
        loop = getattr(loops(), f"{self.name}_matrix")
        loop(d2, *self._own(d2), log_variance, value, u)
        return value, u

    @override
    def on_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, allocate: Allocate
    ) -> tuple[Any, Any]:
        shape = (z.shape[0], w.shape[0])
        value, u = allocate(shape, z.dtype), allocate(shape, z.dtype)
        loop = getattr(loops(), f"{self.name}_line")
        loop(z, w, *self._own(z), log_variance, value, u)
        return value, u

    @override
    def write_line(
        self, z: np.ndarray, w: np.ndarray, log_variance: float, out: np.ndarray, first: int
    ) -> bool:
        getattr(loops(), f"{self.name}_written")(z, w, log_variance, out, first)
        return True


class Matern12(_CompiledMatern):
    """``exp(-d)``."""

    name, degrees = "matern12", 1
    scale, slope = 1.0, -0.5

    @override
    def _own(self, like_these: Any) -> tuple[float, ...]:
        # The expanded square leaves rounding where z = w, which the square root here would magnify;
        # and k' = -e^-r / (2 r) is infinite there, where it only ever multiplies a zero difference.
        return (_least(like_these),)

    @override
    def on_device(self, xp: Any, d2: Any, log_variance: float) -> tuple[Any, Any]:
        return _fused_matern12(d2, log_variance, _least(d2))


class Matern32(_CompiledMatern):
    """``(1 + sqrt3 d) exp(-sqrt3 d)``."""

    name, degrees = "matern32", 3
    scale, slope = 3.0, -1.5

    @override
    def on_device(self, xp: Any, d2: Any, log_variance: float) -> tuple[Any, Any]:
        return _fused_matern32(d2, log_variance)


class Matern52(_CompiledMatern):
    """``(1 + sqrt5 d + 5 d^2 / 3) exp(-sqrt5 d)``."""

    name, degrees = "matern52", 5
    scale, slope = 5.0, -5.0 / 6.0

    @override
    def on_device(self, xp: Any, d2: Any, log_variance: float) -> tuple[Any, Any]:
        return _fused_matern52(d2, log_variance)


def _least(d2: Any) -> float:
    """Return the largest squared distance that may be rounding."""
    return float(64 * np.finfo(d2.dtype).eps)


@fused
def _fused_matern12(xp: Any, d2: Any, log_variance: Any, least: Any) -> tuple[Any, Any]:
    apart = d2 > least
    r = xp.sqrt(xp.where(apart, d2, 0.0))
    value = xp.exp(log_variance - r)
    return value, xp.where(apart, value / xp.where(apart, r, 1.0), 0.0)


@fused
def _fused_matern32(xp: Any, d2: Any, log_variance: Any) -> tuple[Any, Any]:
    a = xp.sqrt(xp.maximum(d2, 0.0))
    decay = xp.exp(log_variance - a)
    return (a + 1.0) * decay, decay


@fused
def _fused_matern52(xp: Any, d2: Any, log_variance: Any) -> tuple[Any, Any]:
    square = xp.maximum(d2, 0.0)
    a = xp.sqrt(square)
    decay = xp.exp(log_variance - a)
    return (square / 3.0 + a + 1.0) * decay, (a + 1.0) * decay


SHAPES: dict[str, Shape] = {
    shape.name: shape for shape in (Rbf(), Matern12(), Matern32(), Matern52())
}
