r"""One pass over a block's pixels: moments of ``f`` forward, adjoints back.

The block sees ``(theta, w, mean, alpha, Q)`` alone (see :mod:`sparse_gp`). With the adjoints
``g_m, g_s`` of the moments (METHODS section 1):

    d alpha = K' g_m,   d Q = -K' diag(g_s) K,   d K = g_m alpha' - 2 diag(g_s) K Q,

and ``d K`` goes through the kernel to its parameters and to ``w``. What flows back through the
covariances inside the bags (:mod:`bag_variance`) joins at the pixels where they were taken.
``docs/design/speed.md`` explains why the pass runs in tiles, on kept buffers, and with symmetric
updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from models.backend.arena import NoArena
from models.backend.arrays import (
    add_outer,
    fused,
    keep_freed_memory,
    like,
    namespace,
    row_dot,
    spread,
    square,
)
from models.core.protocol import Arrays
from models.gp.kept_kernels import KeptBlock
from models.gp.kernels import Kernel

ROWS = 512  # pixels a tile: its matrices stay near the cache
DEVICE_BYTES = 1 << 28  # of a matrix on a device: enough work to hide the start of its kernels
SQUARED = 4096  # pixels of one symmetric update
DEVICE_SQUARED = 16384  # on a device: single precision adds up no more than that
KEEP = 16384  # pixels for which the kernel's by-products are kept instead of made again
DEVICE_KEEP = 1 << 18  # on a device
STRIP = 128  # columns of a strip of Q's triangle


@dataclass
class PixelPass:
    """The forward pass over the pixels of one block, ready for one backward pass.

    Attributes
    ----------
    m, s : (n_pix,) float64
        Mean and variance of ``f`` under q.
    k, kq : (n_pix, n_ind)
        ``K`` and ``K Q``; the backward pass overwrites the latter.
    halved : bool
        Whether the latter is ``K T`` instead, see :func:`_strips`.
    """

    kernel: Kernel
    params: Arrays
    low: tuple[Any, Any, Any, Any]
    z: Any
    m: Any
    s: Any
    k: Any
    kq: Any
    caches: list[Any] | None
    arena: Any
    kept: KeptBlock | None = None
    halved: bool = False

    def followed(self, b: Any, offsets: Any) -> Followed:
        """Return the variance of ``sum_i b_i f_i`` of each bag that the posterior of ``u`` has.

        ``c' K_WW^-1 Sigma K_WW^-1 c`` with ``c = sum_i b_i K_i``.

        Parameters
        ----------
        b : (n_pix,) float64
        offsets : (n_bag + 1,) int
        """
        xp = namespace(self.z)
        cov = like(self.params["cov"], self.z)
        scaled = self.k * b[:, None].astype(self.k.dtype)
        sums = xp.stack(
            [scaled[int(i) : int(j)].sum(axis=0, dtype=xp.float64) for i, j in pairwise(offsets)]
        )
        turned = sums @ cov.astype(xp.float64)
        return Followed((turned * sums).sum(axis=1), b, offsets, sums, turned)

    def backward(
        self,
        d_m: Any,
        d_s: Any,
        pairs: PairAdjoint | None = None,
        followed: tuple[Followed, Any] | None = None,
        drawn: DrawnAdjoint | None = None,
        *,
        slopes: bool = True,
    ) -> Arrays:
        """Return the adjoints of the block parameters, float64.

        Parameters
        ----------
        d_m, d_s : (n_pix,) float64
            Adjoints of the moments.
        pairs : PairAdjoint, optional
            Adjoints through the covariances inside the bags.
        followed : (Followed, (n_bag,) array), optional
            With the adjoint of its value. ``b`` is taken as given: :meth:`Followed.by_weight`.
        drawn : DrawnAdjoint, optional
            Adjoints through the control variate of bags of nodes.
        slopes : bool
            Whether those by ``theta`` and ``w`` are wanted; zeros where not.
        """
        xp = namespace(self.z)
        kernel, dtype = self.kernel, self.z.dtype
        theta, w, alpha, q = self.low
        allocate = self.arena.allocate
        d_alpha, d_w = xp.zeros(alpha.shape), xp.zeros(w.shape)
        d_theta = kernel.diag_backward(theta, self.z, d_s) if slopes else xp.zeros(theta.shape)
        turned: Any = None
        b: Any = None
        bag: Any = None
        # The blocks of a model have the same sums, whatever their bags need.
        sums: Arrays = {"cov": xp.zeros(q.shape)} if "cov" in self.params else {}
        if followed is not None:
            of, by = followed
            b, bag = of.b, spread(xp.arange(by.shape[0]), of.offsets)
            turned = (2.0 * by[:, None] * of.turned).astype(dtype)
            sums["cov"] = of.sums.T @ (by[:, None] * of.sums)
            if drawn is not None:
                sums["cov"] += drawn.d_cov
        for number, rows in enumerate(row_tiles(self.z.shape[0], _rows(alpha))):
            mark = self.arena.mark()
            k, d_k = self.k[rows], self.kq[rows]
            gm = d_m[rows].astype(dtype)
            d_alpha += gm @ k
            if not slopes:
                continue
            if xp is np:
                d_k *= (-2 * d_s[rows]).astype(dtype)[:, None]
                add_outer(d_k, gm, alpha, allocate(d_k.shape, dtype))
            else:
                d_k = _d_kernel(d_k, d_s[rows].astype(dtype)[:, None], gm[:, None], alpha[None])
            if pairs is not None:
                first, last = np.searchsorted(pairs.rows, [rows.start, rows.stop])
                at = like(pairs.rows[first:last] - rows.start, self.z)
                d_k[at] -= 2 * (pairs.gk[first:last] @ q)
            if turned is not None:
                d_k += b[rows, None].astype(dtype) * turned[bag[rows]]
            if drawn is not None:
                first, last = np.searchsorted(drawn.rows, [rows.start, rows.stop])
                at = like(drawn.rows[first:last] - rows.start, self.z)
                d_k[at] += drawn.d_k[first:last].astype(dtype)
            cache = (
                self.caches[number]
                if self.caches is not None
                else kernel.cross(theta, self.z[rows], w, allocate)[1]
            )
            tile_theta, tile_w = kernel.cross_backward(
                theta, self.z[rows], w, cache, d_k, want_w=True, allocate=allocate
            )
            d_theta += tile_theta
            d_w += tile_w
            self.arena.release(mark)
        if pairs is not None:
            d_theta += pairs.d_theta
        return {
            **sums,
            "mean": d_m.sum(keepdims=True),
            "alpha": d_alpha,
            "q": self._by_q(d_s, pairs),
            "theta": d_theta,
            "w": d_w,
        }

    def _by_q(self, d_s: Any, pairs: PairAdjoint | None) -> Any:
        """Return the adjoint of ``Q``: (n_ind, n_ind) float64."""
        if pairs is None:
            return squares(self.k, -d_s, self.arena.allocate)
        if np.array_equal(pairs.rows, np.arange(self.k.shape[0])):  # one product has both
            scaled = _scaled(self.k, d_s[:, None].astype(self.k.dtype))
            both = (self.k.T @ (pairs.gk + scaled)).astype("float64")
            return -0.5 * (both + both.T)
        alone = squares(self.k, -d_s, self.arena.allocate)
        both = (self.k[like(pairs.rows, self.z)].T @ pairs.gk).astype("float64")
        return alone - 0.5 * (both + both.T)


def forward(
    kernel: Kernel,
    params: Arrays,
    z: Any,
    *,
    learn: bool = True,
    arena: Any = None,
    kept: KeptBlock | None = None,
    slopes: bool = True,
) -> PixelPass:
    """Compute the moments of ``f`` at the scaled inputs ``z`` (n_pix, n_dim).

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta`` (n_theta,), ``w`` (n_ind, n_dim), ``mean`` (1,), ``alpha`` (n_ind,),
        ``q`` (n_ind, n_ind).
    z : (n_pix, n_dim) float array
    learn : bool
        Keep what the backward pass needs.
    arena : Arena or NoArena, optional
        Allocates the matrices, until it is started anew; new memory where not given.
    kept : KeptBlock, optional
        Where the kernel's matrices are, or are put; on the host, to learn.
    slopes : bool
        Whether the backward pass is to have those by the kernel.
    """
    xp = namespace(z)
    if xp is np:
        keep_freed_memory()
    low = _low(params, z)
    theta, w, alpha, q = low
    arena = NoArena(xp.empty) if arena is None else arena
    allocate = arena.allocate
    n_pix, n_ind = z.shape[0], alpha.shape[0]
    halved = xp is np and not (learn and (slopes or n_ind <= STRIP))
    strips = _strips(q) if halved else None
    m, s = xp.empty(n_pix), xp.empty(n_pix)
    n_kept = n_pix if learn else 0
    found = kept is not None and kept.k is not None
    k_all: Any = kept.k if kept is not None and found else None
    if k_all is None:
        make = np.empty if kept is not None else allocate  # an arena's matrices are not for keeps
        k_all = make((n_kept, n_ind), z.dtype)
    kq_all = allocate((n_kept, n_ind), z.dtype)
    caches: list[Any] | None = None
    if kept is not None:
        kept.k, caches = k_all, kept.tiles if kept.tiles or not found else None
    elif learn and slopes and n_pix <= (KEEP if xp is np else DEVICE_KEEP):
        caches = []
    for rows in row_tiles(n_pix, _rows(alpha)):
        mark = arena.mark()
        if found:
            k = k_all[rows]
        elif caches is None:
            k = kernel.cross_values(theta, z[rows], w, allocate)
        else:
            k, cache = kernel.cross(theta, z[rows], w, allocate if kept is None else np.empty)
        kq = kq_all[rows] if learn else allocate(k.shape, k.dtype)
        if strips is None:
            xp.matmul(k, q, out=kq)
        else:  # T for Q: the same variances, and the same covariances of a pair in the mean
            for first, strip in strips:
                xp.matmul(k[:, first:], strip, out=kq[:, first : first + strip.shape[1]])
        m[rows] = k @ alpha
        s[rows] = kernel.diag(theta, z[rows]) - row_dot(k, kq)
        if learn and not found:
            k_all[rows] = k
        if caches is None:
            arena.release(mark)
        elif not found:
            caches.append(cache)
    m += float(params["mean"][0])
    xp.maximum(s, 0.0, out=s)  # rounding alone can take it below
    return PixelPass(kernel, params, low, z, m, s, k_all, kq_all, caches, arena, kept, halved)


@fused
def _d_kernel(xp: Any, kq: Any, d_s: Any, d_m: Any, alpha: Any) -> Any:
    """Return ``d K`` in one kernel: see the module."""
    del xp
    return d_m * alpha - 2.0 * d_s * kq


@fused
def _scaled(xp: Any, k: Any, by_row: Any) -> Any:
    del xp
    return k * by_row


def _low(params: Arrays, z: Any) -> tuple[Any, Any, Any, Any]:
    """Bring ``w``, ``alpha`` and ``q`` to the pixels; ``theta`` stays with the host."""
    return params["theta"], *(like(params[name], z, z.dtype) for name in ("w", "alpha", "q"))


def _rows(alpha: Any) -> int:
    return ROWS if namespace(alpha) is np else max(1, DEVICE_BYTES // alpha.nbytes)


def squares(k: Any, weight: Any, allocate: Any) -> Any:
    """Return ``K' diag(weight) K``, float64, by symmetric updates: half of a product's work.

    Rows of positive and of negative weight are added up apart; under most likelihoods whole bags
    agree.
    """
    xp = namespace(k)
    n_ind = k.shape[1]
    total = xp.zeros((n_ind, n_ind))
    if xp is not np:  # nothing to be won: a look at the signs would hold up the device
        for rows in row_tiles(k.shape[0], DEVICE_SQUARED):
            total += _scaled(k[rows], weight[rows].astype(k.dtype)[:, None]).T @ k[rows]
        return 0.5 * (total + total.T)
    root = xp.sqrt(xp.abs(weight)).astype(k.dtype)
    buffer = allocate((min(SQUARED, k.shape[0]), n_ind), k.dtype)
    for rows in row_tiles(k.shape[0], SQUARED):
        at = weight[rows]
        for sign in (1.0, -1.0):
            chosen = at * sign > 0
            if not bool(chosen.any()):
                continue
            if bool(chosen.all()):
                part = buffer[: at.shape[0]]
                xp.multiply(k[rows], root[rows, None], out=part)
            else:
                part = k[rows][chosen]
                part *= root[rows][chosen, None]
            total += sign * square(part)
    return total


def _strips(q: Any) -> list[tuple[int, Any]]:
    """Return a lower triangular ``T`` with ``k T k' = k Q k'``, as strips of columns.

    ``T`` has the diagonal of the symmetric ``Q`` and twice what is below it, so that ``K T`` takes
    little more than half of the work of ``K Q``. Each strip comes with its first row and column.
    """
    xp = namespace(q)
    triangle = 2 * xp.tril(q, -1)
    xp.fill_diagonal(triangle, xp.diag(q))
    return [
        (first, xp.ascontiguousarray(triangle[first:, first : first + STRIP]))
        for first in range(0, q.shape[0], STRIP)
    ]


def row_tiles(n_pix: int, step: int = 0) -> list[slice]:
    """Cut ``n_pix`` rows into slices of ``step`` (``ROWS`` where 0)."""
    step = step or ROWS
    return [slice(i, min(i + step, n_pix)) for i in range(0, n_pix, step)]


@dataclass(frozen=True)
class Followed:
    """Variance of a weighted sum over each bag under the posterior of the inducing variables.

    Attributes
    ----------
    value : (n_bag,) float64
    b : (n_pix,) float64
        The weights.
    offsets : (n_bag + 1,) int
    sums, turned : (n_bag, n_ind) float64
        ``c``, and its product with the covariance.
    """

    value: Any
    b: Any
    offsets: Any
    sums: Any
    turned: Any

    def by_weight(self, k: Any) -> Any:
        """Return the derivative of each bag's value by its weights: (n_pix,)."""
        xp = namespace(k)
        each = [
            k[int(i) : int(j)] @ turned.astype(k.dtype)
            for (i, j), turned in zip(pairwise(self.offsets), self.turned, strict=True)
        ]
        return 2.0 * xp.concatenate(each).astype(xp.float64)


@dataclass
class PairAdjoint:
    """What :meth:`PixelPass.backward` takes in of the covariances in the bags."""

    rows: Any
    gk: Any
    d_theta: Any


@dataclass(frozen=True)
class DrawnAdjoint:
    """What :meth:`PixelPass.backward` takes in of :class:`models.gp.drawn_share.DrawnShare`.

    Attributes
    ----------
    rows : (n_node,) int64
        Pixels, ascending.
    d_k : (n_node, n_ind) float64 or None
        Adjoint of their ``k``, where slopes by the kernel are wanted.
    d_cov : (n_ind, n_ind) float64
    """

    rows: np.ndarray
    d_k: Any
    d_cov: Any


@dataclass(frozen=True)
class Aggregated:
    """The objective's part of some bags, and its adjoints.

    Attributes
    ----------
    value : float
        Sum over the bags, nats.
    d_m, d_s : (n_pix,) float64
    pairs : PairAdjoint or None
        Through the covariances inside the bags.
    by : dict of float
        By the likelihood's parameters.
    followed : (Followed, (n_bag,) array) or None
        With the adjoint of its value.
    drawn : DrawnAdjoint or None
        Through the control variate of bags of nodes.
    """

    value: float
    d_m: Any
    d_s: Any
    pairs: PairAdjoint | None
    by: dict[str, float]
    followed: tuple[Followed, Any] | None = None
    drawn: DrawnAdjoint | None = None
