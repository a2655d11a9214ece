r"""Variance of a bag's aggregate under the posterior, and its adjoints.

With ``S = k(X, X) - K Q K'`` inside a bag and ``a_k`` of :mod:`models.likelihoods.links`,

    V = Var sum_i p_i Psi(f_i) = sum_ij p_i p_j C_ij,    C_ij = sum_k a_k(i) a_k(j) S_ij^k / k!.

All pairs of a bag couple: ``O(n_a^2 n_ind)``. They are visited in tiles, the upper triangle alone,
and never held together. Bags of more than ``max_pixels`` pixels stand for themselves by
``max_pixels`` nodes drawn in proportion to ``p``, one from each of ``max_pixels`` strata of equal
weight (pixels are stored in the order of the map, so strata are compact): the diagonal stays exact,
and the pairs of nodes stand for all other pairs. ``docs/design/aggregates.md`` has the measured
error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arrays import like, namespace, segment_sum, to_host
from models.gp.pixel_pass import PairAdjoint, PixelPass
from models.likelihoods.links import Link

PAIRS = 192  # pixels a side of a tile of pairs: its matrices stay in the cache


@dataclass
class BagVariance:
    """``V`` of each bag, with its adjoints not yet multiplied by the objective's slope.

    Attributes
    ----------
    value : (n_bag,) float64
    d_m, d_s : (n_pix,) float64
        Derivative of the bag's ``V`` by the moments of its pixels.
    rows : (n_node,) int64
        Pixels that the covariances were taken at, ascending.
    gk : (n_node, n_ind)
        ``G K`` with ``G = dV / dS``.
    d_theta : (n_bag, n_theta) float64
        By the kernel's parameters through ``k(X, X)``.
    node_bag : (n_node,) int64
        Bag of each node.
    """

    value: Any
    d_m: Any
    d_s: Any
    rows: Any
    gk: Any
    d_theta: Any
    node_bag: Any

    def scaled(self, slope: Any) -> PairAdjoint:
        """Multiply by the derivative of the objective by ``V``, (n_bag,)."""
        by_node = slope[like(self.node_bag, slope)].astype(self.gk.dtype)
        return PairAdjoint(self.rows, self.gk * by_node[:, None], slope @ self.d_theta)


def bag_variance(
    fwd: PixelPass, link: Link, p: Any, offsets: Any, bag: Any, max_pixels: int
) -> BagVariance:
    """Compute ``V`` of each bag and its adjoints.

    Parameters
    ----------
    fwd : PixelPass
        Kept for learning.
    link : Link
    p : (n_pix,) float64
        Weights.
    offsets : (n_bag + 1,) int
    bag : (n_bag,) int
        Numbers of the bags in the data set: a bag's nodes are the same in every step and block.
    max_pixels : int
        Nodes a bag; bags of no more pixels are exact.
    """
    xp = namespace(fwd.z)
    # The exponential's series is summed: its one factor a_0 goes with expm1(S).
    n_factor = 1 if link.n_term is None else link.n_term
    a = link.moments(fwd.m, fwd.s, n_factor + 2)
    factors, slopes, curves = a[1 : n_factor + 1], a[2 : n_factor + 2], a[3 : n_factor + 3]
    each, each_m, each_s = _diagonal(link, factors, slopes, curves, fwd.s)
    square = p * p
    value = segment_sum(square * each, offsets)
    d_m, d_s = square * each_m, square * each_s
    host_p = to_host(p)
    n_bag = offsets.shape[0] - 1
    d_theta = xp.zeros((n_bag, fwd.params["theta"].shape[0]))
    rows, gks, node_bag = [], [], []
    for a_bag in range(n_bag):
        lo, hi = int(offsets[a_bag]), int(offsets[a_bag + 1])
        if hi - lo < 2:
            continue
        nodes, mass = choose_nodes(host_p[lo:hi], max_pixels, int(bag[a_bag]))
        if nodes.shape[0] < 2:
            continue
        nodes += lo
        here = like(nodes, p)
        at = [f[here] for f in factors]
        pair = _visit(fwd, link, here, like(mass, p), at)
        value[a_bag] += pair.value
        for grad, slope, curve in zip(pair.d_factor, slopes, curves, strict=True):
            d_m[here] += grad * slope[here]
            d_s[here] += 0.5 * grad * curve[here]
        d_theta[a_bag] = pair.d_theta
        rows.append(nodes)
        gks.append(pair.gk)
        node_bag.append(np.full(nodes.shape[0], a_bag))
    none = np.zeros(0, dtype=np.int64)
    return BagVariance(
        value,
        d_m,
        d_s,
        np.concatenate(rows) if rows else none,
        xp.concatenate(gks) if gks else xp.zeros((0, fwd.k.shape[1]), dtype=fwd.k.dtype),
        d_theta,
        np.concatenate(node_bag) if node_bag else none,
    )


def _diagonal(
    link: Link, factors: list[Any], slopes: list[Any], curves: list[Any], s: Any
) -> tuple[Any, Any, Any]:
    """Return ``C_ii`` and its derivatives by ``m_i`` and ``s_i``."""
    xp = namespace(s)
    if link.n_term is None:
        (a,) = factors
        over = xp.expm1(s)
        return a * a * over, 2.0 * a * a * over, a * a * (over + xp.exp(s))
    value, by_m, by_s = xp.zeros_like(s), xp.zeros_like(s), xp.zeros_like(s)
    power_before = xp.ones_like(s)  # s^(k-1) / (k-1)!
    for k, (a, slope, curve) in enumerate(zip(factors, slopes, curves, strict=True), start=1):
        power = power_before * s / k
        value += a * a * power
        by_m += 2.0 * a * slope * power
        by_s += a * curve * power + a * a * power_before
        power_before = power
    return value, by_m, by_s


def choose_nodes(p: np.ndarray, max_pixels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the pixels whose pairs stand for all pairs of the bag, and their masses.

    Returns
    -------
    nodes : (n_node,) int64
        Ascending.
    mass : (n_node,) float64
        Scaled so that the products of different nodes add up to those of different pixels.
    """
    used = np.flatnonzero(p > 0)
    if used.shape[0] <= max_pixels:
        return used, p[used]
    edges = np.cumsum(p)
    at = (np.arange(max_pixels) + np.random.default_rng(seed).random(max_pixels)) * (
        edges[-1] / max_pixels
    )
    drawn = np.minimum(np.searchsorted(edges, at, side="right"), used[-1])
    nodes, count = np.unique(drawn, return_counts=True)
    mass = count.astype(np.float64)
    apart = mass.sum() ** 2 - (mass**2).sum()
    if apart <= 0:  # one pixel has nearly all of the weight
        return nodes[:1], mass[:1]
    return nodes, mass * np.sqrt((edges[-1] ** 2 - (p**2).sum()) / apart)


@dataclass
class _PairSums:
    value: Any  # a number: on a device it stays there
    d_factor: list[Any]
    gk: Any
    d_theta: Any


def _visit(fwd: PixelPass, link: Link, nodes: Any, mass: Any, factors: list[Any]) -> _PairSums:
    """Sum over the pairs of different nodes of one bag."""
    xp = namespace(fwd.z)
    kernel, theta, dtype = fwd.kernel, fwd.params["theta"], fwd.z.dtype
    z, k, kq = fwd.z[nodes], fwd.k[nodes], fwd.kq[nodes]
    weighted = [(mass * f).astype(dtype) for f in factors]
    n = nodes.shape[0]
    out = _PairSums(
        xp.zeros(()), [xp.zeros(n) for _ in factors], xp.zeros_like(k), xp.zeros(theta.shape)
    )
    tiles = [slice(i, min(i + PAIRS, n)) for i in range(0, n, PAIRS)]
    for number, rows in enumerate(tiles):
        for cols in tiles[number:]:
            same = cols is rows
            twice = 1.0 if same else 2.0
            prior, cache = kernel.forward(theta, z[rows], z[cols])
            cov = prior - kq[rows] @ k[cols].T
            if same:
                xp.fill_diagonal(cov, 0)  # pairs of one pixel are in the diagonal's part
            adjoint = xp.zeros_like(cov)
            for power, before, factor, grad in zip(
                *_powers(link, cov), weighted, out.d_factor, strict=True
            ):
                left = power @ factor[cols]
                grad[rows] += 2.0 * left
                out.value += twice * (factor[rows] @ left)
                if not same:
                    grad[cols] += 2.0 * (power.T @ factor[rows])
                adjoint += factor[rows, None] * factor[cols] * before
            if same:
                xp.fill_diagonal(adjoint, 0)
            out.gk[rows] += adjoint @ k[cols]
            if not same:
                out.gk[cols] += adjoint.T @ k[rows]
            by_theta, _ = kernel.backward(theta, z[rows], z[cols], cache, adjoint, want_w=False)
            out.d_theta += twice * by_theta
    for grad in out.d_factor:
        grad *= mass
    return out


def _powers(link: Link, cov: Any) -> tuple[list[Any], list[Any]]:
    """Return ``S^k / k!`` and its derivative for each term; ``e^S - 1`` for the exponential."""
    xp = namespace(cov)
    if link.n_term is None:
        over = xp.expm1(cov)
        return [over], [over + 1]
    powers, before = [], [xp.ones_like(cov)]
    for k in range(1, (link.n_term or 0) + 1):
        powers.append(before[-1] * cov / k)
        before.append(powers[-1])
    return powers, before[:-1]
