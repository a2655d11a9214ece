r"""Sums over the instances of each bag: all that a likelihood of their sum needs of a sparse GP.

With ``V_n = L^-1 k(W, x_n)``, ``L L' = K_WW + jitter``, and the whitened inducing values ``v``
(``f_n = V_n' v + noise`` of variance ``k_nn - |V_n|^2``, independent between instances: FITC),

    s_b = scale_b sum_n f_n  =  c_b' v + noise of variance r_b,
    c_b = scale_b L^-1 sum_n k(W, x_n),    r_b = scale_b^2 sum_n (k_nn - |V_n|^2).

One pass over the instances makes ``(c_b, r_b)``, M + 1 numbers a bag; nothing else is ever asked of
the instances while the kernel stands still (Kandemir et al. 2016, section 3). The squares are
summed of ``V``, a triangular product, and not of ``K K_WW^-1 K'``: half of the work, and the
root of its condition number, which single precision can bear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arena import arena_for
from models.backend.arrays import like, namespace, row_dot, segment_sum, to_host
from models.core.protocol import Arrays
from models.gp.kernels import Kernel
from models.gp.pixel_pass import row_tiles

ROWS = 1024  # instances a tile: its matrices stay near the cache
DEVICE_ROWS = 4096  # on a device: bags are summed by a product with a matrix of so many columns
STRIP = 64  # columns of a strip of the triangle
FEW = 32  # bags a tile that are summed by a product


@dataclass(frozen=True)
class Evidence:
    """What is known of the evidence ``s_b`` of some bags before the labels.

    Attributes
    ----------
    c : (n_bag, n_ind) float64
        Loadings on the whitened inducing values.
    r : (n_bag,) float64
        Variance that the inducing values leave.
    """

    c: np.ndarray
    r: np.ndarray


class EvidencePass:
    """Tiles of instances against one kernel and one set of inducing points.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta`` (n_theta,), ``w`` (n_ind, n_dim), ``lower_inv`` (n_ind, n_ind): ``L^-1``.
    dtype : numpy dtype
        Of the products over instances; sums over tiles are float64.
    """

    def __init__(self, kernel: Kernel, params: Arrays, dtype: Any) -> None:
        self._kernel = kernel
        self._theta = params["theta"]
        self._w = params["w"]
        self._lower_inv = params["lower_inv"]
        self._dtype = np.dtype(dtype)
        self._strips = _strips(self._lower_inv.astype(dtype, copy=False))

    def whitened(self, z: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows, ``V`` (n, n_ind) and the residual variances (n,), tile by tile.

        The arrays are overwritten by the next tile.
        """
        arena = arena_for(z)
        at = self._brought(z)
        for rows in _tiles(z):
            mark = arena.mark()
            _, v, _ = self._tile(z[rows], at, arena)
            yield rows, v, self._residual(z[rows], v)
            arena.release(mark)

    def forward(self, z: np.ndarray, offsets: np.ndarray, scale: np.ndarray) -> Evidence:
        """Sum over bags.

        Parameters
        ----------
        z : (n_pix, n_dim) float array
            Scaled inputs.
        offsets : (n_bag + 1,) int64
        scale : (n_bag,) float64
            Of each bag's sum.
        """
        arena, xp = arena_for(z), namespace(z)
        at = self._brought(z)
        n_bag, n_ind = offsets.shape[0] - 1, at[0].shape[0]
        sums, residuals = xp.zeros((n_bag, n_ind)), xp.zeros(n_bag)
        for rows in _tiles(z):
            mark = arena.mark()
            k, v, _ = self._tile(z[rows], at, arena)
            first, starts = _bags_in(rows, offsets)
            here = slice(first, first + starts.shape[0])
            sums[here] += _sums(k, starts)
            edges = np.append(starts, k.shape[0])
            residuals[here] += segment_sum(self._residual(z[rows], v), edges)
            arena.release(mark)
        total, residual = to_host(sums), to_host(residuals)
        c = (total @ self._lower_inv.T) * scale[:, None]
        return Evidence(c, residual * scale**2)

    def backward(
        self,
        z: np.ndarray,
        offsets: np.ndarray,
        scale: np.ndarray,
        c: np.ndarray,
        d_c: np.ndarray,
        d_r: np.ndarray,
    ) -> Arrays:
        """Take the adjoints of ``c`` (n_bag, n_ind) and ``r`` (n_bag,), none positive, back.

        Returns
        -------
        dict of float64 arrays
            ``theta`` (n_theta,), that of the instances' own covariances; ``lower`` (n_ind, n_ind),
            ``L'`` times the adjoint of ``L``, of which the lower triangle counts.
        """
        arena, xp = arena_for(z), namespace(z)
        kernel, theta, dtype = self._kernel, self._theta, self._dtype
        brought = w, lower_inv = self._brought(z)
        by_k = like((scale[:, None] * d_c) @ self._lower_inv, z, dtype)
        by_square = like(scale**2 * d_r, z)
        d_theta, d_lower = xp.zeros(theta.shape[0]), like(-(d_c.T @ c), z)
        bag = np.repeat(np.arange(scale.shape[0]), np.diff(offsets))
        for rows in _tiles(z):
            mark = arena.mark()
            at = like(bag[rows], z)
            _, v, cache = self._tile(z[rows], brought, arena)
            d_k = arena.allocate(v.shape, dtype)
            root = np.sqrt(-by_square[at])[:, None].astype(dtype)
            v *= root
            d_lower -= 2.0 * (v.T @ v)
            v *= 2.0 * root
            xp.matmul(v, lower_inv, out=d_k)
            d_k += by_k[at]
            d_theta += kernel.backward(
                theta, z[rows], w, cache, d_k, want_w=False, allocate=arena.allocate
            )[0]
            d_theta += kernel.diag_backward(theta, z[rows], by_square[at])
            arena.release(mark)
        return {"theta": d_theta, "lower": d_lower}

    def _brought(self, z: Any) -> tuple[Any, Any]:
        """Bring ``w`` and ``L^-1`` to the instances."""
        return like(self._w, z, self._dtype), like(self._lower_inv, z, self._dtype)

    def _tile(self, z: Any, at: tuple[Any, Any], arena: Any) -> tuple[Any, Any, Any]:
        w, lower_inv = at
        k, cache = self._kernel.forward(self._theta, z, w, arena.allocate)
        if namespace(z) is not np:
            return k, k @ lower_inv.T, cache
        v = arena.allocate(k.shape, self._dtype)
        for first, strip in self._strips:
            width = strip.shape[1]
            np.matmul(k[:, : first + width], strip, out=v[:, first : first + width])
        return k, v, cache

    def _residual(self, z: np.ndarray, v: np.ndarray) -> np.ndarray:
        left = self._kernel.diag(self._theta, z) - row_dot(v, v)
        # Rounding alone can take it below.
        return np.maximum(left, 0.0).astype(np.float64, copy=False)


def _strips(lower_inv: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Cut the upper triangle ``L^-T`` into strips of columns, without the zeros below."""
    n_ind = lower_inv.shape[0]
    return [
        (first, np.ascontiguousarray(lower_inv.T[: first + STRIP, first : first + STRIP]))
        for first in range(0, n_ind, STRIP)
    ]


def _bags_in(rows: slice, offsets: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the first bag that meets the rows, and where in them each such bag starts."""
    first = int(np.searchsorted(offsets, rows.start, side="right")) - 1
    last = int(np.searchsorted(offsets, rows.stop, side="left"))
    return first, np.maximum(offsets[first:last] - rows.start, 0)


def _sums(k: Any, starts: np.ndarray) -> Any:
    if namespace(k) is not np:
        bag = np.repeat(np.arange(starts.shape[0]), np.diff(starts, append=k.shape[0]))
        each = like(np.arange(starts.shape[0]), k)[:, None]
        return (like(bag, k) == each).astype(k.dtype) @ k
    if starts.shape[0] > FEW:
        return np.add.reduceat(k, starts, axis=0, dtype=np.float64)
    member = np.zeros((starts.shape[0], k.shape[0]), dtype=k.dtype)
    for row, (start, stop) in enumerate(zip(starts, [*starts[1:], k.shape[0]], strict=True)):
        member[row, start:stop] = 1.0
    return member @ k


def _tiles(z: Any) -> list[slice]:
    return row_tiles(z.shape[0], ROWS if namespace(z) is np else DEVICE_ROWS)
