"""Random Fourier features: finite-dimensional draws of a Gaussian process (Rahimi & Recht 2007)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from models.backend.arrays import like, namespace, to_host
from models.gp.shapes import loops


@dataclass(frozen=True)
class FeatureAdjoint:
    """Adjoints of what :class:`Features` is made of; those of tiles add up.

    Attributes
    ----------
    frequency : (n_column, n_frequency) float64 or None
    log_amplitude : float
    parts : tuple of FeatureAdjoint
    """

    frequency: Any
    log_amplitude: float
    parts: tuple[FeatureAdjoint, ...] = ()

    def __add__(self, other: FeatureAdjoint) -> FeatureAdjoint:
        """Add part by part."""
        if self.parts:
            pairs = zip(self.parts, other.parts, strict=True)
            return FeatureAdjoint(None, 0.0, tuple(a + b for a, b in pairs))
        return FeatureAdjoint(
            self.frequency + other.frequency, self.log_amplitude + other.log_amplitude
        )


class Waves(NamedTuple):
    """Cosines and sines of all parts, whose angles one product makes.

    Attributes
    ----------
    half : (n_column, n_wave) float64
        Half of the frequencies, 0 in the columns that a part does not look at, which have to be
        finite all the same.
    amplitude : (n_leaf,) float64
    spans : (n_leaf, 3) int64
        See :func:`models.gp.compiled_loops.write_waves`.
    others : list of (Features, slice)
        Parts that have none, and their columns.
    """

    half: np.ndarray
    amplitude: np.ndarray
    spans: np.ndarray
    others: list[tuple[Features, slice]]


@dataclass(frozen=True)
class Features:
    """Random Fourier features ``phi(z)`` with ``E phi(z)'phi(z') = k(z, z')``.

    ``phi = amplitude [cos(z frequency), sin(z frequency)]``, or ``z frequency`` where ``amplitude``
    is None (the linear kernel). Cosines and sines of the same frequencies give every point its
    exact variance, which phases drawn at random do not (Sutherland & Schneider 2015), and each is
    the other's slope.

    Attributes
    ----------
    frequency : (n_column, n_frequency) float64 or None
    amplitude : float or None
    parts : tuple of Features
        Of the terms of a sum of kernels, side by side.
    factors : tuple of Features
        Of the factors of a product, whose frequencies were added up.
    independent : bool
        Whether the frequencies are independent draws, any of which stand for the kernel: neither
        exact features nor those from strata.
    """

    frequency: Any
    amplitude: float | None
    parts: tuple[Features, ...] = ()
    factors: tuple[Features, ...] = ()
    independent: bool = False

    @property
    def n_feature(self) -> int:
        """Number of features."""
        if self.parts:
            return sum(part.n_feature for part in self.parts)
        return int(self.frequency.shape[1]) * (1 if self.amplitude is None else 2)

    def leaves(self) -> Iterator[Features]:
        """Yield the features that have frequencies, in the order of their columns."""
        if self.parts:
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self

    @property
    def is_waves(self) -> bool:
        """Whether they are cosines and sines."""
        return self.amplitude is not None

    @cached_property
    def _waves(self) -> Waves:
        half, amplitude, spans, others = list[np.ndarray](), list[float](), list[list[int]](), []
        column = first = 0
        for leaf in self.leaves():
            if leaf.is_waves:
                n = int(leaf.frequency.shape[1])
                half.append(0.5 * leaf.frequency)
                assert leaf.amplitude is not None
                amplitude.append(float(leaf.amplitude))
                spans.append([first, n, column])
                first += n
            else:
                others.append((leaf, slice(column, column + leaf.n_feature)))
            column += leaf.n_feature
        joined = np.zeros((max((own.shape[0] for own in half), default=0), first))
        for own, (start, n, _) in zip(half, spans, strict=True):
            joined[: own.shape[0], start : start + n] = own
        return Waves(joined, np.array(amplitude), np.array(spans, np.int64).reshape(-1, 3), others)

    def _on_host(self, z: np.ndarray) -> np.ndarray:
        """Return ``phi(z)`` of all parts, written where it belongs."""
        own, phi = self._waves, np.empty((z.shape[0], self.n_feature), dtype=z.dtype)
        tangent = z[:, : own.half.shape[0]] @ own.half.astype(z.dtype)
        np.tan(tangent, out=tangent)
        loops().write_waves(tangent, own.amplitude.astype(z.dtype), own.spans, phi)
        for leaf, columns in own.others:
            phi[:, columns] = leaf(z)
        return phi

    def __call__(self, z: Any) -> Any:
        """Return ``phi(z)``: (n, n_feature)."""
        xp = namespace(z)
        if self.parts and xp is np:
            return self._on_host(z)
        if self.parts:
            return xp.concatenate([part(z) for part in self.parts], axis=1)
        frequency = like(self.frequency, z, z.dtype)
        n_column, n_frequency = frequency.shape  # columns to the right belong to other parts
        if self.amplitude is None:
            return z[:, :n_column] @ frequency
        # By the tangent of half the angle, as write_waves does.
        tangent = z[:, :n_column] @ (0.5 * frequency)
        xp.tan(tangent, out=tangent)
        phi = xp.empty((z.shape[0], 2 * n_frequency), dtype=z.dtype)
        cos, sin = phi[:, :n_frequency], phi[:, n_frequency:]
        xp.multiply(tangent, tangent, out=cos)
        cos += 1
        xp.divide(z.dtype.type(2 * self.amplitude), cos, out=cos)
        xp.multiply(tangent, cos, out=sin)
        cos -= z.dtype.type(self.amplitude)
        return phi

    def backward(self, z: Any, phi: Any, adjoint: Any) -> tuple[FeatureAdjoint, Any]:
        """Take the adjoint of ``phi(z)``, (n, n_feature), back.

        Returns
        -------
        FeatureAdjoint
        (n, n_column) array
            Adjoint of the first columns of ``z``, those that the features look at.
        """
        xp = namespace(z)
        if self.parts:
            backs, first = [], 0
            for part in self.parts:
                here = slice(first, first + part.n_feature)
                backs.append(part.backward(z, phi[:, here], adjoint[:, here]))
                first = here.stop
            d_z = xp.zeros((z.shape[0], max(each.shape[1] for _, each in backs)))
            for _, each in backs:
                d_z[:, : each.shape[1]] += each
            return FeatureAdjoint(None, 0.0, tuple(each for each, _ in backs)), d_z
        frequency = like(self.frequency, z, z.dtype)
        n_column, n = frequency.shape
        if self.amplitude is None:
            d_angle, log_amplitude = adjoint, 0.0
        else:
            d_angle = adjoint[:, n:] * phi[:, :n]
            d_angle -= adjoint[:, :n] * phi[:, n:]
            log_amplitude = float(xp.vdot(adjoint, phi))
        d_frequency = (z[:, :n_column].T @ d_angle).astype(xp.float64, copy=False)
        return FeatureAdjoint(to_host(d_frequency), log_amplitude), d_angle @ frequency.T
