r"""Sums over blocks of bags for Laplace's approximation to a sparse GP behind a pooled label.

``f_i = V_i' v`` with ``V_i = [L^-1 k(W, x_i), s]``, ``L L' = K_WW + jitter``, ``v ~ N(0, I)``: the
whitened inducing values and the intercept, of prior deviation ``s``. A bag's label has the logit
``A_b`` (:mod:`models.mil.pooled.bag_pooling`) with ``c_b = dA_b / dv = sum_i p_i V_i``. With
``e = T - sigma(A)`` and ``w = sigma(A) (1 - sigma(A))`` a pass sums, as it is asked:

MODE       ``sum log p(T | v)``, its gradient ``sum e c``, the Gauss-Newton (Fisher) precision
           ``sum w c c'`` and the exact one, ``sum (w + e g) c c' - sum_i e d_i V_i V_i'``;
LOG_DET    ``-1/2 d log det(P^-1) / dv``, ``P^-1`` the Gauss-Newton precision;
ADJOINT    the slopes by the hyperparameters of

               F = sum_b [ log p(T_b | v) + u' d log p(T_b | v) / dv - w_b c_b' P c_b / 2 ],

           ``v``, ``u`` and ``P`` held: the evidence's, when ``u`` is how the mode answers
           (:mod:`models.mil.pooled.pooled_evidence`).

SCORE      the log score of labels, with its gradient and Fisher information by a shift and a scale
           (:mod:`models.mil.pooled.pooled_calibration`);
STATISTICS those of the bags that are asked for, once, before the fit begins.

The intercept's column of ``V`` is kept as ones; its deviation is in what it is multiplied with.
Where the bags' statistics have a part in their logits (:mod:`bag_statistics`), its
columns stand in ``c_b`` between those of the inducing variables and the intercept's; instances have
none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import expit

from models.backend.arrays import row_dot, segment_sum, spread, square
from models.core.protocol import Arrays
from models.gp.kept_kernels import KeptBlock
from models.gp.kernels import Kernel
from models.gp.pixel_pass import row_tiles
from models.mil.pooled.bag_pooling import Pooling, pool
from models.mil.pooled.bag_statistics import BagColumns
from models.mil.pooled.pooled_calibration import Logits, moved_logits, score_sums

MODE, LOG_DET, ADJOINT, SCORE, STATISTICS = range(5)
NO_FOLD = -1  # that leaves no bag out
ROWS = 4096  # instances a tile
LEAST_SD = 1e-150  # of a bag's logit
KEEP = 1 << 16  # instances of a block whose V is kept within a pass; made again beyond them


class PooledPass:
    """One block of bags against one kernel and one set of inducing variables.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta`` (n_theta,), ``w`` (n_node, n_dim), ``lower_inv`` (n_ind, n_ind).
    z : (n_pix, n_dim) float64
        Scaled inputs.
    kept : KeptBlock, optional
        Holds ``V`` and what the kernel's adjoint needs, once they are made.
    s : (n_bag, n_stat) float64, optional
        Scaled statistics of the bags, where they have a part.
    """

    def __init__(
        self,
        kernel: Kernel,
        params: Arrays,
        z: np.ndarray,
        kept: KeptBlock | None = None,
        s: np.ndarray | None = None,
    ) -> None:
        self._kernel, self._params, self._z = kernel, params, z
        self.kept = kept if kept is not None else KeptBlock(b"")
        self._bags = None if s is None else BagColumns(params, s)

    @property
    def n_ind(self) -> int:
        """Number of inducing variables: columns of ``V`` without the intercept's."""
        return int(self._params["lower_inv"].shape[0])

    @property
    def own(self) -> np.ndarray:
        """Places of the columns of ``V`` among all values: those of the bags are left out."""
        return np.append(np.arange(self.n_ind), self._params["value"].shape[0] - 1)

    def tiles(self, z: np.ndarray | None = None) -> Iterator[tuple[slice, np.ndarray, Any]]:
        """Yield rows, ``V`` (n, n_ind + 1), its last column ones, and the kernel's cache."""
        own = z is None
        inputs = self._z if z is None else z
        if own and self.kept.tiles:
            yield from self.kept.tiles
            return
        keep = own and inputs.shape[0] <= KEEP
        made = []
        for rows in row_tiles(inputs.shape[0], ROWS):
            tile = (rows, *self._made(inputs[rows]))
            if keep:
                made.append(tile)
            yield tile
        if keep:
            self.kept.tiles = made

    def _made(self, z: np.ndarray) -> tuple[np.ndarray, Any]:
        k, cache = self._kernel.cross(self._params["theta"], z, self._params["w"])
        v = np.empty((z.shape[0], self.n_ind + 1))
        np.matmul(k, self._params["lower_inv"].T, out=v[:, :-1])
        v[:, -1] = 1.0
        return v, cache

    def residual(self, z: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the variance that the inducing variables leave of each instance: (n,)."""
        own = v[:, :-1]
        return np.maximum(self._kernel.diag(self._params["theta"], z) - row_dot(own, own), 0.0)

    def times(self, vectors: np.ndarray) -> np.ndarray:
        """Return ``V`` times ``vectors`` (n_ind + 1,) or (n_ind + 1, k)."""
        out = np.empty((self._z.shape[0], *vectors.shape[1:]))
        for rows, v, _ in self.tiles():
            out[rows] = v @ vectors
        return out

    def bag_sums(self, weight: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return ``sum_i weight_i V_i`` of each bag: (n_bag, n_ind + 1)."""
        out = np.zeros((offsets.shape[0] - 1, self.n_ind + 1))
        for rows, v, _ in self.tiles():
            first = int(np.searchsorted(offsets, rows.start, side="right")) - 1
            last = int(np.searchsorted(offsets, rows.stop, side="left"))
            starts = np.maximum(offsets[first:last] - rows.start, 0)
            out[first:last] += np.add.reduceat(weight[rows, None] * v, starts, axis=0)
        return out

    def slopes(self, share: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return ``c_b``, the slopes of the bags' logits by all values: (n_bag, n_value)."""
        c = self.bag_sums(share, offsets)
        if self._bags is None:
            return c
        return np.concatenate([c[:, :-1], self._bags.u, c[:, -1:]], axis=1)

    def of_bags(self, values: np.ndarray) -> np.ndarray | float:
        """Return what the statistics' values, of all (n_value,), add to the logits: (n_bag,)."""
        return 0.0 if self._bags is None else np.asarray(self._bags.u @ values[self.n_ind : -1])

    def logits(self, kind: Pooling, offsets: np.ndarray) -> Logits:
        """Return the bags' logits, calibrated, linearised at the mode.

        A Gauss-Newton posterior is that of the linearised model, and its predictions are made by
        the same (Immer et al. 2021).
        """
        params, t = self._params, float(np.exp(self._params["log_t"][0]))
        value, root, calibration = params["value"], params["root"], params["calibration"]
        f = self.times(value[self.own])
        if kind == "soft_max":
            at = pool(kind, f, offsets, t)
            half = self.slopes(at.share, offsets) @ root
            m = at.logit + self.of_bags(value)
            return moved_logits(m, row_dot(half, half), calibration)
        scale = float(np.exp(calibration[1]))
        f *= scale
        at = pool(kind, float(calibration[0]) + f, offsets, t)
        moves = np.stack([np.ones_like(f), f])  # of each instance, by the shift and the log scale
        by_m = np.stack([segment_sum(at.share * each, offsets) for each in moves])
        half = scale * (self.bag_sums(at.share, offsets) @ root)
        sd = np.sqrt(row_dot(half, half))
        by_sd = np.zeros_like(by_m)
        for k, each in enumerate(moves):
            by_share = at.diagonal * each - at.share * spread(at.rank_one * by_m[k], offsets)
            by_half = scale * (self.bag_sums(by_share, offsets) @ root)
            by_sd[k] = row_dot(half, by_half) / np.maximum(sd, LEAST_SD)
        by_sd[1] += sd
        return Logits(at.logit, sd, by_m, by_sd)

    def sums(
        self, ask: int, kind: Pooling, y: np.ndarray, offsets: np.ndarray, used: np.ndarray
    ) -> tuple[float, Arrays]:
        """Return the log likelihood and the sums that ``ask`` names, over the bags ``used``.

        Parameters
        ----------
        ask : int
            MODE, LOG_DET, ADJOINT or SCORE.
        kind : {"soft_max", "noisy_or"}
        y : (n_bag,) float64
            Labels, 0 or 1.
        offsets : (n_bag + 1,) int64
        used : (n_bag,) bool
        """
        params = self._params
        if ask == SCORE:
            return score_sums(self.logits(kind, offsets).of(used), y[used])
        value, own, t = params["value"], self.own, float(np.exp(params["log_t"][0]))
        at = pool(kind, self.times(value[own]), offsets, t)
        logit = at.logit + self.of_bags(value)
        against = (1.0 - 2.0 * y) * logit
        loglik = -float(np.logaddexp(0.0, against)[used].sum())
        p = expit(logit)
        e, w = used * (y - p), used * p * (1.0 - p)
        c = self.slopes(at.share, offsets)
        if ask == MODE:
            fisher = (c * w[:, None]).T @ c
            pooled = c[:, own]
            bent = (pooled * (e * at.rank_one)[:, None]).T @ pooled  # by the pooling's curvature
            h = spread(e, offsets) * at.diagonal
            for rows, v, _ in self.tiles():
                for sign in (1.0, -1.0):  # a square costs half of a product
                    root = np.sqrt(np.maximum(sign * h[rows], 0.0))
                    where = root > 0.0
                    bent -= sign * square(root[where, None] * v[where])
            exact = fisher.copy()
            exact[np.ix_(own, own)] += bent
            return loglik, {"gradient": e @ c, "fisher": fisher, "exact": exact}
        inner = c @ params["p"]  # P c_b
        size = row_dot(inner, c)
        slope = w * (1.0 - 2.0 * p)
        by_logit = -0.5 * slope * size
        q = np.empty(offsets[-1])
        bag = spread(np.arange(offsets.shape[0] - 1), offsets)
        pooled = np.ascontiguousarray(inner[:, own])
        for rows, v, _ in self.tiles():
            q[rows] = row_dot(v, pooled[bag[rows]])
        by_share = -spread(w, offsets) * q
        if ask == ADJOINT:
            along = self.times(params["u"][own])
            total = segment_sum(at.share * along, offsets) + self.of_bags(params["u"])
            by_logit = by_logit + e - w * total
            by_share += spread(e, offsets) * along
        total = segment_sum(at.share * by_share, offsets)
        by_f = at.share * spread(by_logit - at.rank_one * total, offsets)
        by_f += at.diagonal * by_share
        if ask == LOG_DET:
            found = np.zeros(value.shape[0])
            for rows, v, _ in self.tiles():
                found[own] += by_f[rows] @ v
            if self._bags is not None:
                found[self.n_ind : -1] = by_logit @ self._bags.u
            return loglik, {"log_det": found}
        by_log_t = float(by_logit @ at.by_log_t + by_share @ at.share_by_log_t)
        # dF/dV_i = by_f_i v' + p_i (e_b u - w_b P c_b)'
        each = e[:, None] * params["u"] - w[:, None] * inner
        sums = self._backward(by_f, at.share, np.ascontiguousarray(each[:, own]), bag, by_log_t)
        if self._bags is not None:  # dF/dU_b, likewise; A_b moves with U_b v
            here = slice(self.n_ind, -1)
            sums |= self._bags.backward(by_logit[:, None] * value[here] + each[:, here])
        return loglik, sums

    def _backward(
        self,
        by_f: np.ndarray,
        share: np.ndarray,
        each: np.ndarray,
        bag: np.ndarray,
        by_log_t: float,
    ) -> Arrays:
        """Take the adjoint of ``V`` back to the kernel, ``L`` and the intercept's deviation."""
        params, n_ind = self._params, self.n_ind
        theta, lower_inv = params["theta"], params["lower_inv"]
        by_theta, by_lower, by_sd = np.zeros(theta.shape[0]), np.zeros((n_ind, n_ind)), 0.0
        for rows, v, cache in self.tiles():
            d_v = share[rows, None] * each[bag[rows]]
            d_v += by_f[rows, None] * params["value"][self.own]
            by_sd += float(d_v[:, -1].sum())
            d_v = np.ascontiguousarray(d_v[:, :-1])
            by_lower -= d_v.T @ v[:, :-1]
            by_theta += self._kernel.cross_backward(
                theta, self._z[rows], params["w"], cache, d_v @ lower_inv, want_w=False
            )[0]
        return {
            "theta": by_theta,
            "lower": by_lower,
            "log_t": np.array([by_log_t]),
            "log_intercept_sd": np.array([by_sd]),
        }
