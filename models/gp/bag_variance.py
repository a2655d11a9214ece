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

from dataclasses import dataclass, field
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
    linear : BagVariance or None
        The same for the first term of the series alone, ``sum_ij p_i p_j a_1(i) a_1(j) S_ij``: the
        variance of what is linear in ``f``. For the exponential link, which sums its series.
    """

    value: Any
    d_m: Any
    d_s: Any
    rows: Any
    gk: Any
    d_theta: Any
    node_bag: Any
    linear: BagVariance | None = None

    def scaled(self, slope: Any, by_linear: Any = None) -> PairAdjoint:
        """Multiply by the derivative of the objective by ``V``, and by its linear part: (n_bag,)."""
        by_node = slope[like(self.node_bag, slope)].astype(self.gk.dtype)
        gk, d_theta = self.gk * by_node[:, None], slope @ self.d_theta
        if self.linear is not None and by_linear is not None:
            other = self.linear.scaled(by_linear)
            gk, d_theta = gk + other.gk, d_theta + other.d_theta
        return PairAdjoint(self.rows, gk, d_theta)


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
    square = p * p
    n_bag = offsets.shape[0] - 1
    series = (False, True) if link.n_term is None else (False,)
    parts = []
    for first in series:
        each, each_m, each_s = _diagonal(link, factors, slopes, curves, fwd.s, first=first)
        d_theta = xp.zeros((n_bag, fwd.params["theta"].shape[0]))
        parts.append(
            _Parts(segment_sum(square * each, offsets), square * each_m, square * each_s, d_theta)
        )
    host_p = to_host(p)
    rows, node_bag = [], []
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
        for part, pair in zip(parts, _visit(fwd, link, here, like(mass, p), at), strict=True):
            part.value[a_bag] += pair.value
            for grad, slope, curve in zip(pair.d_factor, slopes, curves, strict=True):
                part.d_m[here] += grad * slope[here]
                part.d_s[here] += 0.5 * grad * curve[here]
            part.d_theta[a_bag] = pair.d_theta
            part.gks.append(pair.gk)
        rows.append(nodes)
        node_bag.append(np.full(nodes.shape[0], a_bag))
    none = np.zeros(0, dtype=np.int64)
    at_rows = np.concatenate(rows) if rows else none
    of_bag = np.concatenate(node_bag) if node_bag else none
    made: BagVariance | None = None
    for part in reversed(parts):  # the linear part is the last
        gk = xp.concatenate(part.gks) if part.gks else xp.zeros((0, fwd.k.shape[1]), fwd.k.dtype)
        made = BagVariance(
            part.value, part.d_m, part.d_s, at_rows, gk, part.d_theta, of_bag, made
        )
    assert made is not None  # noqa: S101 (there is at least one part)
    return made


@dataclass
class _Parts:
    """What adds up bag by bag, of ``V`` or of its linear part."""

    value: Any
    d_m: Any
    d_s: Any
    d_theta: Any
    gks: list[Any] = field(default_factory=list)


def _diagonal(
    link: Link,
    factors: list[Any],
    slopes: list[Any],
    curves: list[Any],
    s: Any,
    *,
    first: bool,
) -> tuple[Any, Any, Any]:
    """Return ``C_ii``, or its ``first`` term, and its derivatives by ``m_i`` and ``s_i``."""
    xp = namespace(s)
    if link.n_term is None:
        (a,) = factors
        if first:
            return a * a * s, 2.0 * a * a * s, a * a * (s + 1.0)
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


def _visit(
    fwd: PixelPass, link: Link, nodes: Any, mass: Any, factors: list[Any]
) -> list[_PairSums]:
    """Sum over the pairs of different nodes of one bag; the linear part last where it is wanted."""
    xp = namespace(fwd.z)
    kernel, theta, dtype = fwd.kernel, fwd.params["theta"], fwd.z.dtype
    z, k, kq = fwd.z[nodes], fwd.k[nodes], fwd.kq[nodes]
    weighted = [(mass * f).astype(dtype) for f in factors]
    n = nodes.shape[0]
    both = link.n_term is None
    out = [
        _PairSums(
            xp.zeros(()), [xp.zeros(n) for _ in factors], xp.zeros_like(k), xp.zeros(theta.shape)
        )
        for _ in range(1 + both)
    ]
    tiles = [slice(i, min(i + PAIRS, n)) for i in range(0, n, PAIRS)]
    for number, rows in enumerate(tiles):
        for cols in tiles[number:]:
            same = cols is rows
            twice = 1.0 if same else 2.0
            prior, cache = kernel.forward(theta, z[rows], z[cols])
            cov = prior - kq[rows] @ k[cols].T
            if same:
                xp.fill_diagonal(cov, 0)  # pairs of one pixel are in the diagonal's part
            series = [_powers(link, cov)]
            if both:
                series.append(([cov], [xp.ones_like(cov)]))
            for sums, powers in zip(out, series, strict=True):
                adjoint = xp.zeros_like(cov)
                for power, before, factor, grad in zip(
                    *powers, weighted, sums.d_factor, strict=True
                ):
                    left = power @ factor[cols]
                    grad[rows] += 2.0 * left
                    sums.value += twice * (factor[rows] @ left)
                    if not same:
                        grad[cols] += 2.0 * (power.T @ factor[rows])
                    adjoint += factor[rows, None] * factor[cols] * before
                if same:
                    xp.fill_diagonal(adjoint, 0)
                sums.gk[rows] += adjoint @ k[cols]
                if not same:
                    sums.gk[cols] += adjoint.T @ k[rows]
                by_theta, _ = kernel.backward(
                    theta, z[rows], z[cols], cache, adjoint, want_w=False
                )
                sums.d_theta += twice * by_theta
    for sums in out:
        for grad in sums.d_factor:
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
