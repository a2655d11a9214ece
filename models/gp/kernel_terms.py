r"""A sum of kernels whose terms have inducing variables of their own.

With ``f = sum_t f_t`` the inducing variables of term ``t`` are values, or averages of values, of
``f_t`` alone: ``K = [K_1 K_2 ...]`` and a block-diagonal ``K_WW``, so that everything written for
one set of inducing values holds. A linear term has its coefficients, which are exact. An inducing
variable that averages over the nodes ``x_j`` of an area (an interdomain variable, Lazaro-Gredilla &
Figueiras-Vidal 2009),

    u_a = sum_j c_aj f_t(x_j),    cov(f_t(x), u_a) = sum_j c_aj k_t(x, x_j),

is what the area's response tells about ``f_t`` to first order, whatever the length-scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.backend.arena import Allocate
from models.backend.arrays import like, namespace
from models.core.protocol import Arrays, override
from models.gp.components import Component
from models.gp.kernel_sums import Sum
from models.gp.kernels import Kernel, Pairs
from models.gp.random_features import FeatureAdjoint, Features
from models.gp.regression_kernels import Smooths
from models.gp.shapes import loops

N_FEATURE_ONE = 128  # random features of a term of one dimension
N_FEATURE_STRATA = 32  # where their frequencies are stratified


@dataclass(frozen=True)
class Term:
    """A term of a sum, and which of the sum's parameters are its own.

    Attributes
    ----------
    kernel : Kernel
    places : (n_theta,) int
    """

    kernel: Kernel
    places: np.ndarray

    @property
    def columns(self) -> tuple[int, int]:
        """First and last + 1 column that it looks at; (0, 0) where it looks at none."""
        return columns_of(self.kernel)


def columns_of(kernel: Kernel) -> tuple[int, int]:
    """Return the first and last + 1 column of the inputs that a kernel looks at."""
    found = frozenset().union(*(each.columns for each in kernel.components))
    return (min(found), max(found) + 1) if found else (0, 0)


def split_terms(kernel: Kernel, start: int = 0) -> Iterator[Term]:
    """Yield the terms of a sum; the one-dimensional smooths of :class:`Smooths` one by one."""
    if isinstance(kernel, Sum):
        yield from split_terms(kernel.left, start)
        yield from split_terms(kernel.right, start + kernel.left.n_theta)
    elif isinstance(kernel, Smooths):
        for k, part in enumerate(kernel.parts):
            yield Term(part, start + np.array([k, kernel.n_theta - 1]))
    else:
        yield Term(kernel, start + np.arange(kernel.n_theta))


@dataclass(frozen=True, eq=False)
class TermKernel(Kernel):
    """A kernel with the inducing variables of its terms.

    Parameters
    ----------
    whole : Kernel
        What the terms add up to.
    terms : tuple of Term
    values, nodes : tuple of int
        Inducing variables of each term, and nodes that each of them averages over.
    share : (n_node,) float64
        Weight of each node, all terms one after the other.
    """

    whole: Kernel
    terms: tuple[Term, ...]
    values: tuple[int, ...]
    nodes: tuple[int, ...]
    share: np.ndarray

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return self.whole.names

    @property
    @override
    def components(self) -> tuple[Component, ...]:
        return self.whole.components

    @override
    def start(self, variance: float) -> np.ndarray:
        return self.whole.start(variance)

    @override
    def diag(self, theta: np.ndarray, z: np.ndarray) -> Any:
        return self.whole.diag(theta, z)

    @override
    def diag_backward(self, theta: np.ndarray, z: np.ndarray, adjoint: np.ndarray) -> Any:
        return self.whole.diag_backward(theta, z, adjoint)

    @override
    def evaluate(self, at: Pairs) -> tuple[Any, Any]:
        return self.whole.evaluate(at)

    @override
    def adjoints(self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool) -> tuple[Any, Any]:
        return self.whole.adjoints(at, cache, adjoint, want_w)

    def parts(self) -> Iterator[tuple[Term, slice, slice, int]]:
        """Yield each term, its nodes, its inducing variables and the nodes of each of these."""
        node = value = 0
        for term, n_value, n_node in zip(self.terms, self.values, self.nodes, strict=True):
            stop = node + n_value * n_node
            yield term, slice(node, stop), slice(value, value + n_value), n_node
            node, value = stop, value + n_value

    @property
    def n_value(self) -> int:
        """Number of inducing variables."""
        return sum(self.values)

    @override
    def evaluate_cross(self, at: Pairs) -> tuple[Any, Any]:
        z, out = at.z, at.allocate((at.z.shape[0], self.n_value), at.z.dtype)
        caches = []
        for term, rows, cols, n_node in self.parts():
            k, cache = term.kernel.evaluate(self._of(at, term, rows))
            out[:, cols] = k if n_node == 1 else _averaged(k, self._share(rows, n_node, z))
            caches.append(cache)
        return out, caches

    @override
    def cross_values(
        self, theta: np.ndarray, z: np.ndarray, w: np.ndarray, allocate: Allocate | None = None
    ) -> Any:
        at = Pairs.of(theta, z, w, allocate)
        out = at.allocate((z.shape[0], self.n_value), z.dtype)
        for term, rows, cols, n_node in self.parts():
            own = self._of(at, term, rows)
            if n_node == 1:
                term.kernel.write(own, out, cols.start)
            else:
                k = term.kernel.evaluate(own)[0]
                out[:, cols] = _averaged(k, self._share(rows, n_node, z))
        return out

    @override
    def cross_adjoints(
        self, at: Pairs, cache: Any, adjoint: np.ndarray, want_w: bool
    ) -> tuple[Any, Any]:
        z, xp = at.z, namespace(at.z)
        grad, d_w = xp.zeros(self.n_theta), xp.zeros(at.w.shape) if want_w else None
        for (term, rows, cols, n_node), own in zip(self.parts(), cache, strict=True):
            part = xp.ascontiguousarray(adjoint[:, cols])
            if n_node > 1:
                part = _spread(part, self._share(rows, n_node, z))
            by_theta, by_w = term.kernel.adjoints(self._of(at, term, rows), own, part, want_w)
            grad[like(term.places, grad)] += by_theta
            if d_w is not None:
                d_w[rows] += by_w
        return grad, d_w

    @override
    def inducing(self, theta: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, Any]:
        out, caches = np.zeros((self.n_value, self.n_value)), []
        for term, rows, cols, n_node in self.parts():
            k, cache = term.kernel.forward(theta[term.places], w[rows], w[rows])
            if n_node > 1:
                share = self._share(rows, n_node, k)
                k = _averaged(np.ascontiguousarray(_averaged(k, share).T), share)
            out[cols, cols] = 0.5 * (k + k.T)
            caches.append(cache)
        return out, caches

    @override
    def inducing_backward(
        self, theta: np.ndarray, w: np.ndarray, cache: Any, adjoint: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        grad, d_w = np.zeros(self.n_theta), np.zeros(w.shape)
        for (term, rows, cols, n_node), own in zip(self.parts(), cache, strict=True):
            part = np.ascontiguousarray(adjoint[cols, cols])
            if n_node > 1:
                share = self._share(rows, n_node, part)
                part = _spread(np.ascontiguousarray(_spread(part, share).T), share)
            by_theta, by_w = term.kernel.backward(
                theta[term.places], w[rows], w[rows], own, part, want_w=True
            )
            grad[term.places] += by_theta
            d_w[rows] += 2.0 * by_w
        return grad, d_w

    @override
    def features(self, theta: np.ndarray, n_feature: int, rng: np.random.Generator) -> Features:
        """Side by side, term by term."""
        parts = []
        for term in self.terms:
            most = n_feature
            if term.columns[1] - term.columns[0] <= 1:
                few = getattr(term.kernel, "stratified", False)
                most = N_FEATURE_STRATA if few else N_FEATURE_ONE
            wanted = min(n_feature, most)
            parts.append(term.kernel.features(theta[term.places], wanted, rng))
        return Features(None, None, tuple(parts))

    @override
    def features_theta(self, features: Features, adjoint: FeatureAdjoint) -> np.ndarray:
        grad = np.zeros(self.n_theta)
        for term, own, by in zip(self.terms, features.parts, adjoint.parts, strict=True):
            grad[term.places] += term.kernel.features_theta(own, by)
        return grad

    @override
    def inducing_features(self, features: Features, w: np.ndarray) -> np.ndarray:
        out = np.zeros((self.n_value, features.n_feature))
        first = 0
        for (_, rows, cols, n_node), own in zip(self.parts(), features.parts, strict=True):
            phi = own(w[rows])
            if n_node > 1:
                phi = _averaged(np.ascontiguousarray(phi.T), self._share(rows, n_node, phi)).T
            out[cols, first : first + own.n_feature] = phi
            first += own.n_feature
        return out

    @staticmethod
    def _of(at: Pairs, term: Term, rows: slice) -> Pairs:
        """Return the pairs of a term with its own nodes."""
        return Pairs(at.theta[term.places], at.z, at.w[rows], at.allocate)

    def _share(self, rows: slice, n_node: int, as_array: Any) -> Any:
        return like(self.share[rows].reshape(-1, n_node), as_array, as_array.dtype)


def _averaged(k: Any, share: Any) -> Any:
    """Average the columns (n, n_value * n_node) of each inducing variable: (n, n_value)."""
    n_value, n_node = share.shape
    if namespace(k) is np:
        out = np.empty((k.shape[0], n_value), k.dtype)
        loops().averaged(k, share, out)
        return out
    return namespace(k).einsum("nvj,vj->nv", k.reshape(k.shape[0], n_value, n_node), share)


def _spread(adjoint: np.ndarray, share: Any) -> Any:
    """Take the adjoint of :func:`_averaged` back: (n, n_value * n_node)."""
    return (adjoint[:, :, None] * share).reshape(adjoint.shape[0], -1)


def term_kernel(whole: Kernel, fixed: Arrays) -> Kernel:
    """Give a kernel the inducing variables that a state describes; none of its own if it has none.

    Parameters
    ----------
    whole : Kernel
    fixed : dict of arrays
        ``term_values`` and ``term_nodes`` (n_term,), ``node_share`` (n_node,), and ``term_of``
        (n_split,), the term that each of :func:`split_terms` belongs to.
    """
    if "term_values" not in fixed:
        return whole
    values, nodes = (tuple(fixed[name].tolist()) for name in ("term_values", "term_nodes"))
    terms = merge_terms(whole, fixed["term_of"])
    return TermKernel(whole, terms, values, nodes, fixed["node_share"])


def whole_kernel(kernel: Kernel) -> Kernel:
    """Return a kernel without inducing variables of its own."""
    return kernel.whole if isinstance(kernel, TermKernel) else kernel


def merge_terms(whole: Kernel, term_of: np.ndarray) -> tuple[Term, ...]:
    """Add up the split terms that share their inducing variables."""
    split = list(split_terms(whole))
    merged = []
    for number in range(int(term_of.max()) + 1):
        own = [term for term, of in zip(split, term_of, strict=True) if of == number]
        kernel = own[0].kernel
        for other in own[1:]:
            kernel = Sum(kernel, other.kernel)
        merged.append(Term(kernel, np.concatenate([each.places for each in own])))
    return tuple(merged)
