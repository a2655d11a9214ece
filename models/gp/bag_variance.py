r"""Variance of a bag's aggregate under the posterior, and its adjoints.

With ``S = k(X, X) - K Q K'`` inside a bag and ``a_k`` of :mod:`models.likelihoods.links`,

    V = Var sum_i p_i Psi(f_i) = sum_ij p_i p_j C_ij,    C_ij = sum_k a_k(i) a_k(j) S_ij^k / k!.

All pairs of a bag couple: ``O(n_a^2 n_ind)``. They are visited in strips; small bags together, for
fewer and larger operations, with the pairs of different bags struck out. Bags of more than
``max_pixels`` pixels stand for themselves by ``max_pixels`` nodes drawn in proportion to ``p``, one
from each of ``max_pixels`` strata of equal weight (pixels are stored in the order of the map, so
strata are compact): the diagonal stays exact, and the pairs of nodes stand for all other pairs.
Where the part of ``V`` that the inducing variables have is known for all pixels
(:meth:`PixelPass.followed`), the nodes' own estimate of it is a control variate
(:mod:`models.gp.drawn_share`). ``docs/design/aggregates.md`` has the measured error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from models.backend.arrays import add_at, like, namespace, segment_sum, spread, to_host
from models.gp.pixel_pass import PairAdjoint, PixelPass
from models.gp.shapes import loops
from models.likelihoods.links import Link

PAIRS = 192  # rows of a strip of pairs: its matrices stay in the cache
TOGETHER = 128  # nodes of small bags whose pairs are visited at once


@dataclass(frozen=True)
class _Group:
    """Nodes of some bags: their places among the pixels, masses and bags, (n_node,) each.

    Attributes
    ----------
    starts : (n_bag + 1,) int64
        Where the nodes of each bag begin, one after the other.
    """

    nodes: Any
    mass: Any
    bag: Any
    starts: np.ndarray

    @property
    def single(self) -> bool:
        """Whether they are of one bag."""
        return self.starts.shape[0] == 2


@dataclass(frozen=True)
class Drawn:
    """Nodes of the bags that have more pixels than nodes.

    Attributes
    ----------
    nodes : (n_node,) int64
        Places among the pixels, ascending.
    mass : (n_node,) float64
        Whose products, over different nodes of a bag, stand for those of different pixels.
    square : (n_node,) float64
        Estimates a sum of ``p_i^2 g_i`` over the pixels of a bag by that of ``square_i g_i``.
    bag : (n_node,) int64
    """

    nodes: np.ndarray
    mass: np.ndarray
    square: np.ndarray
    bag: np.ndarray


@dataclass
class _Strip:
    """Pairs of some rows with all nodes of a group, kept for the way back."""

    group: _Group
    rows: slice
    left: list[Any]
    before: list[Any]
    cache: Any
    k: Any


class BagVariance:
    """``V`` of each bag, and the way back from it.

    Attributes
    ----------
    value : (n_bag,) float64
    drawn : Drawn or None
        None where every pixel is a node.
    """

    drawn: Drawn | None = None

    def __init__(self, fwd: PixelPass, link: Link, p: Any, offsets: Any) -> None:
        self._fwd, self._link, self._offsets = fwd, link, offsets
        # The exponential's series is summed: its one factor a_0 goes with expm1(S).
        n_factor = 1 if link.n_term is None else link.n_term
        a = link.moments(fwd.m, fwd.s, n_factor + 2)
        self._factors = a[1 : n_factor + 1]
        self._slopes, self._curves = a[2 : n_factor + 2], a[3 : n_factor + 3]
        square = p * p
        each, each_m, each_s = _diagonal(link, self._factors, self._slopes, self._curves, fwd.s)
        self.value = segment_sum(square * each, offsets)
        self._d_m, self._d_s = square * each_m, square * each_s
        self._strips: list[_Strip] = []
        self._compiled = link.n_term is None and namespace(fwd.z) is np

    def visit(self, group: _Group) -> None:
        """Add the pairs of different nodes of each bag of a group."""
        fwd, here = self._fwd, _range(group.nodes)
        z, k, kq = fwd.z[here], fwd.k[here], fwd.kq[here]
        weighted = self._weighted(group)
        n = int(group.nodes.shape[0])
        for first in range(0, n, PAIRS):
            rows = slice(first, min(first + PAIRS, n))
            prior, cache = self._prior(z, rows)
            if self._compiled:
                left, before = [np.empty(prior.shape[0], prior.dtype)], [np.empty_like(prior)]
                at = (prior, kq, k, group.starts, first, weighted[0])
                loops().exponential_pairs(*at, before[0], left[0])
            else:
                shared = kq[rows] @ k.T
                if fwd.halved:
                    shared = 0.5 * (shared + k[rows] @ kq.T)
                cov = prior - shared
                apart = self._apart(group, rows)
                cov *= apart
                power, before = _powers(self._link, cov)
                left = [each @ factor for each, factor in zip(power, weighted, strict=True)]
                for each in before:
                    each *= apart
            for factor, sums in zip(weighted, left, strict=True):
                add_at(self.value, group.bag[rows], factor[rows] * sums)
            self._strips.append(_Strip(group, rows, left, before, cache, k))

    def _prior(self, z: Any, rows: slice) -> tuple[Any, Any]:
        """Return the prior covariances of a strip, the next one, and their by-products."""
        fwd, kept = self._fwd, self._fwd.kept
        number = len(self._strips)
        if kept is not None and number < len(kept.strips):
            return kept.strips[number]
        made = fwd.kernel.forward(fwd.params["theta"], z[rows], z)
        if kept is not None:
            kept.strips.append(made)
        return made

    def backward(self, slope: Any, *, slopes: bool = True) -> tuple[Any, Any, PairAdjoint]:
        """Take the derivative of the objective by ``V``, (n_bag,), back.

        Parameters
        ----------
        slope : (n_bag,) float64
        slopes : bool
            Whether the kernel's parameters are wanted; zeros where not.

        Returns
        -------
        d_m, d_s : (n_pix,) float64
            By the moments of the pixels.
        PairAdjoint
            By the covariances.
        """
        fwd, xp = self._fwd, namespace(self._fwd.z)
        by_pixel = spread(slope, self._offsets)
        d_m, d_s = by_pixel * self._d_m, by_pixel * self._d_s
        d_theta, rows_of, gks = xp.zeros(fwd.params["theta"].shape), [], []
        for strip in self._strips:
            group, rows = strip.group, strip.rows
            here = group.nodes[rows]
            weighted = self._weighted(group)
            by_row = slope[group.bag[rows]]
            z = fwd.z[group.nodes]
            adjoint: Any = 0.0
            by_k: Any = None
            parts = zip(strip.left, strip.before, weighted, self._slopes, self._curves, strict=True)
            for left, before, factor, by_m, by_s in parts:
                # Both ends of a pair: twice its row.
                grad = 2.0 * by_row * group.mass[rows] * left
                d_m[here] += grad * by_m[here]
                d_s[here] += 0.5 * grad * by_s[here]
                row = (by_row * factor[rows]).astype(fwd.z.dtype)
                if self._compiled:
                    adjoint, by_k = np.empty_like(before), np.empty_like(strip.k[rows])
                    at = (before, strip.k, group.starts, rows.start, row, factor)
                    loops().pair_adjoints(*at, adjoint, by_k)
                else:
                    adjoint = adjoint + row[:, None] * factor * before
            gks.append(adjoint @ strip.k if by_k is None else by_k)
            rows_of.append(here)
            if slopes:
                theta, cache = fwd.params["theta"], strip.cache
                if cache is None:  # not kept with the covariances
                    cache = fwd.kernel.forward(theta, z[rows], z)[1]
                d_theta += fwd.kernel.backward(theta, z[rows], z, cache, adjoint, want_w=False)[0]
        none = xp.zeros((0, fwd.k.shape[1]), dtype=fwd.k.dtype)
        rows_all = [to_host(each) for each in rows_of] or [np.zeros(0, dtype=np.int64)]
        return (
            d_m,
            d_s,
            PairAdjoint(np.concatenate(rows_all), xp.concatenate(gks) if gks else none, d_theta),
        )

    def over(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return ``e^S - 1`` of pairs of one bag, under the exponential link on the host.

        Parameters
        ----------
        first, second : (n_pair,) int64
            Places among the pixels, ``first`` ascending; 0 for those that are no nodes.
        """
        found = np.zeros(first.size)
        for strip in self._strips:
            nodes, mine = strip.group.nodes, strip.group.nodes[strip.rows]
            here = np.flatnonzero(np.isin(first, mine) & np.isin(second, nodes))
            row, col = np.searchsorted(mine, first[here]), np.searchsorted(nodes, second[here])
            found[here] = strip.before[0][row, col]
        return found

    def _weighted(self, group: _Group) -> list[Any]:
        dtype = self._fwd.z.dtype
        return [(group.mass * each[group.nodes]).astype(dtype) for each in self._factors]

    def _apart(self, group: _Group, rows: slice) -> Any:
        """Tell pairs of different nodes of one bag: 1, from all others: 0."""
        xp, dtype = namespace(self._fwd.z), self._fwd.z.dtype
        n = int(group.nodes.shape[0])
        if group.single:
            apart = xp.ones((rows.stop - rows.start, n), dtype=dtype)
        else:
            apart = (group.bag[rows, None] == group.bag[None]).astype(dtype)
        at = xp.arange(rows.stop - rows.start)
        apart[at, at + rows.start] = 0  # pairs of one pixel are in the diagonal's part
        return apart


def bag_variance(
    fwd: PixelPass, link: Link, p: Any, offsets: Any, bag: Any, max_pixels: int
) -> BagVariance:
    """Compute ``V`` of each bag.

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
    found = BagVariance(fwd, link, p, offsets)
    host_p = to_host(p)
    waiting: list[tuple[np.ndarray, np.ndarray, int]] = []
    drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    held = 0
    for number in range(offsets.shape[0] - 1):
        lo, hi = int(offsets[number]), int(offsets[number + 1])
        if hi - lo < 2:
            continue
        nodes, mass, square = choose_nodes(host_p[lo:hi], max_pixels, int(bag[number]))
        if nodes.shape[0] < 2:
            continue
        if square is not None:
            drawn.append((nodes + lo, mass, square, np.full(nodes.shape[0], number)))
        if waiting and held + nodes.shape[0] > TOGETHER:
            found.visit(_grouped(waiting, p))
            waiting, held = [], 0
        waiting.append((nodes + lo, mass, number))
        held += nodes.shape[0]
    if waiting:
        found.visit(_grouped(waiting, p))
    if drawn:
        found.drawn = Drawn(*(np.concatenate(each) for each in zip(*drawn, strict=True)))
    return found


def _grouped(bags: list[tuple[np.ndarray, np.ndarray, int]], like_array: Any) -> _Group:
    nodes, mass, number = zip(*bags, strict=True)
    of = np.repeat(number, [each.shape[0] for each in nodes])
    return _Group(
        like(np.concatenate(nodes), like_array),
        like(np.concatenate(mass), like_array),
        like(of, like_array),
        np.cumsum([0, *(each.shape[0] for each in nodes)]),
    )


def _range(places: Any) -> Any:
    """Return ascending places as a slice, which copies nothing, where they are all of a range."""
    if namespace(places) is np and places[-1] - places[0] + 1 == places.shape[0]:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


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


def choose_nodes(
    p: np.ndarray, max_pixels: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Choose the pixels whose pairs stand for all pairs of the bag, and their masses.

    Returns
    -------
    nodes : (n_node,) int64
        Ascending.
    mass : (n_node,) float64
        Scaled so that the products of different nodes add up to those of different pixels.
    square : (n_node,) float64 or None
        As of :class:`Drawn`; None where every pixel is a node.
    """
    used = np.flatnonzero(p > 0)
    if used.shape[0] <= max_pixels:
        return used, p[used], None
    return _drawn_nodes(np.ascontiguousarray(p, dtype=np.float64).tobytes(), max_pixels, seed)


@lru_cache(1 << 13)
def _drawn_nodes(
    weights: bytes, max_pixels: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw the nodes of a bag, the same in each pass of a fit."""
    p = np.frombuffer(weights)
    used = np.flatnonzero(p > 0)
    edges = np.cumsum(p)
    at = (np.arange(max_pixels) + np.random.default_rng(seed).random(max_pixels)) * (
        edges[-1] / max_pixels
    )
    drawn = np.minimum(np.searchsorted(edges, at, side="right"), used[-1])
    nodes, count = np.unique(drawn, return_counts=True)
    mass = count.astype(np.float64)
    square = mass * p[nodes] * (edges[-1] / max_pixels)
    apart = mass.sum() ** 2 - (mass**2).sum()
    if apart <= 0:  # one pixel has nearly all of the weight
        return nodes[:1], mass[:1], None
    return nodes, mass * np.sqrt((edges[-1] ** 2 - (p**2).sum()) / apart), square


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
