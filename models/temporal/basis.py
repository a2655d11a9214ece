"""The basis of the whitened inducing values, and what their posterior tells blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from models.backend.arrays import gram, inverse_lower, times_lower
from models.core.protocol import Arrays
from models.gp import sparse_gp
from models.gp.kernels import Kernel
from models.gp.sparse_gp import factor_of
from models.temporal.near import near
from models.temporal.sites import Arrow, Split, symmetric


@dataclass(frozen=True)
class Basis:
    """The basis of the whitened values: ``u = L v``, of shared values; ``u = sd v``, of own ones.

    Attributes
    ----------
    split : Split
    lower, inverse : (n_shared, n_shared) float64
    own_sd : float
        Deviation of an area's effect; 1 where there is none.
    jitter_sd : float
        Deviation of the noise that ``L`` includes.
    """

    split: Split
    lower: np.ndarray
    inverse: np.ndarray
    own_sd: float
    jitter_sd: float
    _kernel: Kernel = field(repr=False)
    _params: Mapping[str, np.ndarray] = field(repr=False)
    _cache: object = field(repr=False)

    @classmethod
    def of(cls, model: object, fixed: Arrays, params: Arrays) -> Basis:
        """Return that of a model under parameters."""
        split = Split.of(fixed)
        # The effects of all areas are alike: one stands for them.
        few = near({**fixed, "theta": params["theta"], "w": params["w"]}, np.arange(1))
        kernel = model._kernel(few)  # type: ignore[attr-defined]
        k_ww, cache = kernel.inducing(few["theta"], few["w"])
        jitter_sd = float(np.sqrt(sparse_gp.JITTER * np.trace(k_ww) / k_ww.shape[0]))
        lower, at = factor_of(k_ww), split.first
        own_sd = float(lower[at, at]) if split.n_own else 1.0
        if split.n_own:
            lower = np.ascontiguousarray(np.delete(np.delete(lower, at, 0), at, 1))
        return cls(split, lower, inverse_lower(lower), own_sd, jitter_sd, kernel, few, cache)

    @property
    def kernel(self) -> Kernel:
        """The kernel, with the effect of one area at most."""
        return self._kernel

    @property
    def few(self) -> Mapping[str, np.ndarray]:
        """The constants and parameters of :attr:`kernel`."""
        return self._params

    def alpha(self, v: np.ndarray) -> np.ndarray:
        """Return ``K^-1 u = L^-T v`` of values (n_value, ...)."""
        shared, own = self.split.parts(v)
        return self.split.join(self.inverse.T @ shared, own / self.own_sd)

    def block_arrays(self, mean: np.ndarray, cov: Arrow) -> Arrays:
        """Return ``alpha``, ``q`` and ``cov`` of a period's blocks from the moments of ``v_t``."""
        half = times_lower(self.inverse, np.ascontiguousarray(cov.shared), transposed=True)
        whole = Arrow(
            symmetric(times_lower(self.inverse, np.ascontiguousarray(half.T), transposed=True)),
            self.inverse.T @ cov.cross / self.own_sd,
            cov.own / self.own_sd**2,
        )
        return {
            "alpha": self.alpha(mean),
            "q": gram(self.inverse) - whole.shared,
            "own_prior": np.array([self.own_sd**-2.0]),
            **whole.as_named("cov"),
        }

    @property
    def _at(self) -> int:
        return int(self.split.first)

    def values(self, f: np.ndarray) -> np.ndarray:
        """Return ``L^-1 f`` of (n_value,) values."""
        shared, own = self.split.parts(f)
        return self.split.join(self.inverse @ shared, own / self.own_sd)

    def inside(self, a: Arrow) -> Arrow:
        """Return ``L^-1 a L^-T``."""
        half = times_lower(self.inverse, np.ascontiguousarray(a.shared))
        return Arrow(
            symmetric(times_lower(self.inverse, np.ascontiguousarray(half.T))),
            self.inverse @ a.cross / self.own_sd,
            a.own / self.own_sd**2,
        )

    def backward(self, turn: np.ndarray, own: float) -> np.ndarray:
        """Return the slopes by ``theta`` from ``L'`` times the adjoint of ``L``.

        Parameters
        ----------
        turn : (n_shared, n_shared) float64
        own : float
            Of the effects of all areas together.
        """
        inverse = self.inverse
        if self.split.n_own:
            inverse, turn = (
                _bordered(inverse, self._at, 1.0 / self.own_sd),
                _bordered(turn, self._at, own),
            )
        by_k = sparse_gp.lower_backward(inverse, turn)
        theta, w = self._params["theta"], self._params["w"]
        return self._kernel.inducing_backward(theta, w, self._cache, by_k)[0]


def _bordered(a: np.ndarray, at: int, corner: float) -> np.ndarray:
    """Put a row and a column of zeros into a matrix, with ``corner`` where they meet."""
    found = np.insert(np.insert(a, at, 0.0, axis=0), at, 0.0, axis=1)
    found[at, at] = corner
    return found
