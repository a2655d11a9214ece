r"""One pass over a block's pixels: moments of ``f`` forward, adjoints back.

The block sees ``(theta, w, mean, alpha, Q)`` alone (see :mod:`models.sparse_gp`). With the adjoints
``g_m, g_s`` of the moments (METHODS section 1):

    d alpha = K' g_m,   d Q = -K' diag(g_s) K,   d K = g_m alpha' - 2 diag(g_s) K Q,

and ``d K`` goes through the kernel to its parameters and to ``w``. Under the square link the bag
term also needs the covariances inside the bag; they are visited in tiles of pixel pairs and never
held together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.kernels import Kernel
from models.protocol import Arrays
from models.xp import namespace

ROWS = 512  # pixels a tile: its matrices stay near the cache
KEEP = 16384  # pixels for which the kernel's by-products are kept instead of made again
PAIRS = 192  # pixels a side of a tile of pairs


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

    def backward(self, d_m: Any, d_s: Any, pairs: PairPass | None = None) -> Arrays:
        """Return the adjoints of the block parameters, float64.

        Parameters
        ----------
        d_m, d_s : (n_pix,) float64
            Adjoints of the moments.
        pairs : PairPass, optional
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
                left += pairs.gk[rows]
                d_k -= 2 * (pairs.gk[rows] @ q)
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


@dataclass
class PairPass:
    """The part of the square link's bag term that couples the pixels of a bag.

    Attributes
    ----------
    dispersion : (n_bag,) float64
        ``d = 2 m'P S P m + tr((S P)^2)``.
    d_m : (n_pix,) float64
        Adjoint of the means through ``d``.
    gk : (n_pix, n_ind)
        ``G K`` with ``G`` the adjoint of ``S`` through ``d``.
    d_theta : (n_theta,) float64
        Adjoint of the kernel's parameters through ``k(X, X)``.
    """

    dispersion: Any
    d_m: Any
    gk: Any
    d_theta: Any


def pair_pass(fwd: PixelPass, p: Any, offsets: Any, slope: Any) -> PairPass:
    r"""Visit all pairs of pixels of each bag, tile by tile, upper triangle alone.

    With ``S = k(X, X) - K Q K'`` the adjoint of ``S`` through ``slope * d`` is
    ``G = 2 slope (P m m'P + P S P)``, so that ``d`` and all its adjoints come from one visit.
    Memory is ``PAIRS^2``; work ``3 n_a^2 n_ind`` flops a bag.

    Parameters
    ----------
    fwd : PixelPass
        Kept for learning.
    p : (n_pix,) float64
        Weights.
    offsets : (n_bag + 1,) int
    slope : (n_bag,) float64
        Derivative of the objective by ``d``.
    """
    xp = namespace(fwd.z)
    kernel, theta, z, dtype = fwd.kernel, fwd.params["theta"], fwd.z, fwd.z.dtype
    n_bag = offsets.shape[0] - 1
    out = PairPass(
        xp.zeros(n_bag), xp.zeros_like(fwd.m), xp.zeros_like(fwd.k), xp.zeros(theta.shape)
    )
    p_low, pm = p.astype(dtype), (p * fwd.m).astype(dtype)
    for a in range(n_bag):
        lo, hi, g = int(offsets[a]), int(offsets[a + 1]), dtype.type(2 * float(slope[a]))
        trace = 0.0
        spm = xp.zeros(hi - lo)
        tiles = [slice(i, min(i + PAIRS, hi)) for i in range(lo, hi, PAIRS)]
        for number, rows in enumerate(tiles):
            in_bag = slice(rows.start - lo, rows.stop - lo)
            pk = p_low[rows, None] * fwd.k[rows]
            for cols in tiles[number:]:
                twice = 1.0 if cols is rows else 2.0
                cov, cache = kernel.forward(theta, z[rows], z[cols])
                cov = cov - fwd.kq[rows] @ fwd.k[cols].T
                psp = cov * p_low[rows, None]
                psp *= p_low[cols]
                trace += twice * float(xp.vdot(psp, cov))
                spm[in_bag] += cov @ pm[cols]
                out.gk[rows] += cov @ (p_low[cols, None] * fwd.k[cols])
                if cols is not rows:
                    spm[cols.start - lo : cols.stop - lo] += cov.T @ pm[rows]
                    out.gk[cols] += cov.T @ pk
                psp += pm[rows, None] * pm[cols]
                psp *= g
                tile_theta, _ = kernel.backward(theta, z[rows], z[cols], cache, psp, want_w=False)
                out.d_theta += twice * tile_theta
        bag = slice(lo, hi)
        weighted_m = p[bag] * fwd.m[bag]
        out.dispersion[a] = 2.0 * float(weighted_m @ spm) + trace
        out.d_m[bag] = 4.0 * float(slope[a]) * p[bag] * spm
        out.gk[bag] *= p_low[bag, None]
        out.gk[bag] += pm[bag, None] * (pm[bag] @ fwd.k[bag])
        out.gk[bag] *= g
    return out


def _row_tiles(n_pix: int) -> list[slice]:
    return [slice(i, min(i + ROWS, n_pix)) for i in range(0, n_pix, ROWS)]
