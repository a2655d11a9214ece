r"""One pass over instances that each have a latent value of their own: moments, sums, adjoints.

With ``V_n = [L^-1 k(W, x_n), sd]`` (the last for an intercept of prior deviation ``sd``, where
there is one) and ``q(v) = N(v_mean, R R')``

    m_n = V_n' v_mean,   s_n = r_n + |R' V_n|^2,   r_n = k_nn - |L^-1 k(W, x_n)|^2,

and quadratic sites ``h_n f_n - w_n f_n^2 / 2`` ask ``q`` for ``sum w_n V_n V_n'`` and
``sum h_n V_n``. The backward pass takes ``d/dm, d/ds`` to the kernel (METHODS section 1):

    d V = d_m v_mean' + 2 d_s (V R R' - V),   d K = d V L^-1,   L' d L = -d V' V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arena import arena_for
from models.backend.arrays import like, namespace, row_dot, square
from models.core.protocol import Arrays
from models.gp.evidence_pass import EvidencePass
from models.gp.kernels import Kernel

KEEP = 16384  # instances whose V is kept between the two sums; made again beyond them


@dataclass
class Instances:
    """What a pass over the instances of a block found.

    Attributes
    ----------
    m, s, r : (n_pix,) float64
        Mean and variance of ``f``, and what of the latter the inducing values leave.
    precision : (n_value, n_value) float64
        ``sum w_n V_n V_n'``.
    kept : list of (slice, (n, n_value)) or None
        ``V``, tile by tile.
    """

    m: np.ndarray
    s: np.ndarray
    r: np.ndarray
    precision: np.ndarray
    kept: list[tuple[slice, np.ndarray]] | None


class InstancePass:
    """Instances against one kernel, one set of inducing points and one ``q``.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta`` (n_theta,), ``w`` (n_ind, n_dim), ``lower_inv`` (n_ind, n_ind), ``v_mean``
        (n_value,), ``factor`` (n_value, n_value): ``R``.
    intercept_sd : float
    dtype : numpy dtype
        Of the products over instances; sums over tiles are float64.
    """

    def __init__(self, kernel: Kernel, params: Arrays, intercept_sd: float, dtype: Any) -> None:
        self._kernel, self._params = kernel, params
        self._sd, self._dtype = intercept_sd, np.dtype(dtype)
        self._evidence = EvidencePass(kernel, params, dtype)

    @property
    def n_ind(self) -> int:
        """Number of inducing points: columns of ``V`` without the intercept's."""
        return int(self._params["w"].shape[0])

    def tiles(self, z: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows, ``V`` (n, n_value) and ``r`` (n,); an array of its own each time."""
        for rows, v, residual in self._evidence.whitened(z):
            yield rows, self._with_intercept(v), residual

    def forward(
        self, z: np.ndarray, weight: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    ) -> Instances:
        """Compute moments, and with ``weight`` the sum of the sites' precisions.

        Parameters
        ----------
        z : (n_pix, n_dim) float array
            Scaled inputs.
        weight : callable, optional
            ``w_n`` from ``(m, s)``, each (n,).
        """
        xp = namespace(z)
        factor = like(self._params["factor"], z, self._dtype)
        v_mean = like(self._params["v_mean"], z)
        n_pix, n_value = z.shape[0], v_mean.shape[0]
        m, s, r = xp.empty(n_pix), xp.empty(n_pix), xp.empty(n_pix)
        precision = xp.zeros((n_value, n_value))
        kept: list[tuple[slice, np.ndarray]] | None = None
        if weight is not None and n_pix <= KEEP:
            kept = []
        for rows, v, residual in self.tiles(z):
            half = v @ factor
            m[rows], r[rows] = v @ v_mean, residual
            s[rows] = residual + row_dot(half, half)
            if weight is not None:
                root = np.sqrt(weight(m[rows], s[rows])).astype(self._dtype)
                precision += square(v * root[:, None])
            if kept is not None:
                kept.append((rows, v))
        return Instances(m, s, r, precision, kept)

    def weighted_sum(self, z: np.ndarray, found: Instances, h: np.ndarray) -> np.ndarray:
        """Return ``sum h_n V_n``, ``h`` (n_pix,): (n_value,) float64."""
        total = namespace(z).zeros(self._params["v_mean"].shape[0])
        h = like(h, z, self._dtype)
        pairs = found.kept or ((rows, v) for rows, v, _ in self.tiles(z))
        for rows, v in pairs:
            total += h[rows] @ v
        return total

    def backward(self, z: np.ndarray, d_m: np.ndarray, d_s: np.ndarray) -> Arrays:
        """Take the adjoints of the moments, each (n_pix,), back to the kernel.

        Returns
        -------
        dict of float64 arrays
            ``theta`` (n_theta,), without what goes through ``K_WW``; ``lower`` (n_ind, n_ind),
            ``L'`` times the adjoint of ``L``, of which the lower triangle counts.
        """
        arena = arena_for(z)
        theta, dtype = self._params["theta"], self._dtype
        names = ("w", "lower_inv", "factor", "v_mean")
        w, lower_inv, factor, v_mean = (like(self._params[name], z, dtype) for name in names)
        n_ind = w.shape[0]
        d_m, d_s = like(d_m, z), like(d_s, z)
        d_theta = self._kernel.diag_backward(theta, z, d_s)
        d_lower = namespace(z).zeros((n_ind, n_ind))
        for first in range(0, z.shape[0], 512):
            rows = slice(first, first + 512)
            mark = arena.mark()
            k, cache = self._kernel.forward(theta, z[rows], w, arena.allocate)
            g = k @ lower_inv.T
            v = self._with_intercept(g)
            by_v = 2.0 * ((v @ factor) @ factor.T - v)
            by_v *= d_s[rows, None].astype(dtype)
            by_v += d_m[rows, None].astype(dtype) * v_mean
            d_v = by_v[:, :n_ind]
            d_lower -= d_v.T @ g
            d_theta += self._kernel.backward(
                theta, z[rows], w, cache, d_v @ lower_inv, want_w=False, allocate=arena.allocate
            )[0]
            arena.release(mark)
        return {"theta": d_theta, "lower": d_lower}

    def _with_intercept(self, v: np.ndarray) -> np.ndarray:
        if not self._sd > 0:
            return v.copy()
        xp = namespace(v)
        return xp.concatenate([v, xp.full((v.shape[0], 1), self._sd, dtype=v.dtype)], axis=1)
