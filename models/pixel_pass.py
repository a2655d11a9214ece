r"""One pass over a block's pixels: moments of ``f`` forward, adjoints back.

The block sees ``(theta, w, mean, alpha, Q)`` alone (see :mod:`models.sparse_gp`). With the adjoints
``g_m, g_s`` of the moments (METHODS section 1):

    d alpha = K' g_m,   d Q = -K' diag(g_s) K,   d K = g_m alpha' - 2 diag(g_s) K Q,

and ``d K`` goes through the kernel to its parameters and to ``w``. What flows back through the
covariances inside the bags (:mod:`models.bag_variance`) joins at the pixels where they were taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from models.kernels import Kernel
from models.protocol import Arrays
from models.xp import namespace

if TYPE_CHECKING:
    from models.bag_variance import PairAdjoint

ROWS = 512  # pixels a tile: its matrices stay near the cache
KEEP = 16384  # pixels for which the kernel's by-products are kept instead of made again


@dataclass
class PixelPass:
    """The forward pass over the pixels of one block, ready for the way back.

    Attributes
    ----------
    m, s : (n_pix,) float64
        Mean and variance of ``f`` under q.
    """

    kernel: Kernel
    params: Arrays
    z: Any
    m: Any
    s: Any
    k: Any
    kq: Any
    caches: list[Any] | None

    def backward(self, d_m: Any, d_s: Any, pairs: PairAdjoint | None = None) -> Arrays:
        """Return the adjoints of the block parameters, float64.

        Parameters
        ----------
        d_m, d_s : (n_pix,) float64
            Adjoints of the moments.
        pairs : PairAdjoint, optional
            Adjoints through the covariances inside the bags.
        """
        xp = namespace(self.z)
        params, kernel, dtype = self.params, self.kernel, self.z.dtype
        theta, w, alpha, q = (params[name] for name in ("theta", "w", "alpha", "q"))
        d_alpha, d_q = xp.zeros(alpha.shape), xp.zeros(q.shape)
        d_w = xp.zeros(w.shape)
        d_theta = kernel.diag_backward(theta, self.z, d_s)
        for number, rows in enumerate(_row_tiles(self.z.shape[0])):
            k, kq = self.k[rows], self.kq[rows]
            gm, gs = d_m[rows].astype(dtype), d_s[rows].astype(dtype)[:, None]
            left = gs * k
            d_k = -2 * gs * kq
            d_k += gm[:, None] * alpha
            if pairs is not None:
                first, last = np.searchsorted(pairs.rows, [rows.start, rows.stop])
                at, gk = pairs.rows[first:last] - rows.start, pairs.gk[first:last]
                left[at] += gk
                d_k[at] -= 2 * (gk @ q)
            d_alpha += k.T @ gm
            d_q -= k.T @ left
            cache = (
                self.caches[number]
                if self.caches is not None
                else kernel.forward(theta, self.z[rows], w)[1]
            )
            tile_theta, tile_w = kernel.backward(theta, self.z[rows], w, cache, d_k, want_w=True)
            d_theta += tile_theta
            d_w += tile_w
        if pairs is not None:
            d_theta += pairs.d_theta
        return {
            "mean": d_m.sum(keepdims=True),
            "alpha": d_alpha,
            "q": 0.5 * (d_q + d_q.T),
            "theta": d_theta,
            "w": d_w,
        }


def forward(kernel: Kernel, params: Arrays, z: Any, *, learn: bool = True) -> PixelPass:
    """Compute the moments of ``f`` at the scaled inputs ``z`` (n_pix, n_dim).

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta`` (n_theta,), ``w`` (n_ind, n_dim), ``mean`` (1,), ``alpha`` (n_ind,),
        ``q`` (n_ind, n_ind).
    z : (n_pix, n_dim) float array
    learn : bool
        Keep what the way back needs.
    """
    xp = namespace(z)
    theta, w, alpha, q = (params[name] for name in ("theta", "w", "alpha", "q"))
    n_pix, n_ind = z.shape[0], w.shape[0]
    m, s = xp.empty(n_pix), xp.empty(n_pix)
    kept = (n_pix, n_ind) if learn else (0, n_ind)
    k_all, kq_all = xp.empty(kept, dtype=z.dtype), xp.empty(kept, dtype=z.dtype)
    caches: list[Any] | None = [] if learn and n_pix <= KEEP else None
    for rows in _row_tiles(n_pix):
        k, cache = kernel.forward(theta, z[rows], w)
        kq = k @ q
        m[rows] = k @ alpha
        s[rows] = kernel.diag(theta, z[rows]) - xp.einsum("ij,ij->i", k, kq)
        if learn:
            k_all[rows], kq_all[rows] = k, kq
        if caches is not None:
            caches.append(cache)
    m += params["mean"][0]
    xp.maximum(s, 0.0, out=s)  # rounding alone can take it below
    return PixelPass(kernel, params, z, m, s, k_all, kq_all, caches)


def _row_tiles(n_pix: int) -> list[slice]:
    return [slice(i, min(i + ROWS, n_pix)) for i in range(0, n_pix, ROWS)]
