"""The sites of all periods as arrays of a state, and what their posterior tells blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.backend.arrays import gram, inverse_lower, times_lower
from models.core.protocol import Arrays
from models.gp.sparse_gp import factor_of
from models.temporal.state_space import Site

LINEAR, ROOT = "site_linear", "site_root"
# Precision of a site that counts as none, where the prior's is 1. ``q`` without it loses a quarter
# of its square, nats; the filter's work goes by the rank of what is left.
LEAST = 1e-4


def packed(sites: Sequence[Site], most: int = 0) -> Arrays:
    """Return sites as arrays: roots are filled up by zeros to the largest rank, or to ``most``."""
    most = max(most, *(site.root.shape[0] for site in sites))
    root = np.zeros((len(sites), most, sites[0].linear.size))
    for t, site in enumerate(sites):
        root[t, : site.root.shape[0]] = site.root
    return {LINEAR: np.stack([site.linear for site in sites]), ROOT: root}


def unpacked(params: Arrays) -> list[Site]:
    """Return the sites of a state; of their roots the rows that are not 0."""
    found = []
    for linear, root in zip(params[LINEAR], params[ROOT], strict=True):
        used = int(np.flatnonzero(root.any(axis=1)).max(initial=-1)) + 1
        found.append(Site(linear, root[:used]))
    return found


def root_of(precision: np.ndarray) -> np.ndarray:
    """Return a root of the positive part of a symmetric precision: (rank, n_value)."""
    value, vector = np.linalg.eigh(0.5 * (precision + precision.T))
    used = value > LEAST
    return np.ascontiguousarray((vector[:, used] * np.sqrt(value[used])).T)


@dataclass(frozen=True)
class Basis:
    """The basis of the whitened values: ``u = L v``.

    Attributes
    ----------
    k_ww, lower, inverse : (n_value, n_value) float64
    cache : object
        What the kernel's way back wants.
    """

    k_ww: np.ndarray
    lower: np.ndarray
    inverse: np.ndarray
    cache: object

    @classmethod
    def of(cls, kernel: object, params: Arrays) -> Basis:
        """Return that of a kernel under parameters."""
        k_ww, cache = kernel.inducing(params["theta"], params["w"])  # type: ignore[attr-defined]
        lower = factor_of(k_ww)
        return cls(k_ww, lower, inverse_lower(lower), cache)

    def block_arrays(self, mean: np.ndarray, cov: np.ndarray) -> Arrays:
        """Return ``alpha``, ``q`` and ``cov`` of a period's blocks from the moments of ``v_t``."""
        whole = self._outside(cov)
        alpha = self.inverse.T @ mean
        return {"alpha": alpha, "q": gram(self.inverse) - whole, "cov": whole}

    def _outside(self, a: np.ndarray) -> np.ndarray:
        """Return ``L^-T a L^-1`` of a symmetric matrix."""
        half = times_lower(self.inverse, np.ascontiguousarray(a), transposed=True)
        return symmetric(times_lower(self.inverse, np.ascontiguousarray(half.T), transposed=True))

    def inside(self, a: np.ndarray) -> np.ndarray:
        """Return ``L^-1 a L^-T`` of a symmetric matrix."""
        half = times_lower(self.inverse, np.ascontiguousarray(a))
        return symmetric(times_lower(self.inverse, np.ascontiguousarray(half.T)))


def symmetric(a: np.ndarray) -> np.ndarray:
    """Return the symmetric part."""
    return np.asarray(0.5 * (a + a.T))
