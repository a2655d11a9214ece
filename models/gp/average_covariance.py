r"""Prior covariances of weighted averages of ``f`` over areas, ``sum_i b_i f_i``.

They need no inducing variables: ``O(n_node^2)`` once for each length-scale of a term that has one
length-scale, whose matrices are kept on a grid of its logarithm. Terms of one covariate are
tabulated along a line, linear ones are exact, others are computed anew.

An area of many pixels is represented by strata of them, alike in what a term looks at, each at its
weighted mean: between areas that errs by the strata's extent squared. The variance of an area's own
average is that of pairs of its pixels.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from scipy.sparse import csr_array

from models.core.thinning import strata
from models.gp.bag_variance import choose_nodes
from models.gp.kernel_terms import Term, split_terms
from models.gp.kernels import Constant, Kernel, Linear, Radial
from models.gp.regression_kernels import Ridge
from models.gp.shapes import SHAPES, loops

STEP = 0.2  # of the logarithm of a length-scale: interpolation errs by .002 of a correlation
SHORTEST, LONGEST = -6.0, 6.0  # logarithms, of scaled inputs
N_LINE = 48
MOST_NODES = 1024  # of all areas together
LEAST_NODES, LARGEST_NODES = 4, 32  # of one area
PAIRED = 48  # pixels of an area whose pairs tell the variance of its average
TABLE_BYTES = 64e6  # of the matrices of a term that are kept: a chain stays near where it is
#: Parameters of a term whose part is kept: half the steps of a chain move few terms.
RECENT = 3
Matrix = Callable[[np.ndarray], np.ndarray]
Part = tuple[np.ndarray, np.ndarray | None]


class AverageCovariance:
    """Covariances of averages as a function of the kernel's parameters.

    Parameters
    ----------
    kernel : Kernel
        Sum of terms.
    z : (n_pix, n_dim) float64
        Scaled inputs.
    b : (n_pix,) float64
        Weights, at least 0.
    offsets : (n_area + 1,) int64
        Pixels of area ``a`` are ``offsets[a]:offsets[a + 1]``.

    Attributes
    ----------
    ones : (n_area,) float64
        Sums of the weights.
    terms : list of Term
    """

    def __init__(self, kernel: Kernel, z: np.ndarray, b: np.ndarray, offsets: np.ndarray) -> None:
        self._z, self._b, self._offsets = z, b, offsets
        self._n_area = offsets.size - 1
        area = np.repeat(np.arange(self._n_area), np.diff(offsets))
        self._sums = csr_array((b, (area, np.arange(b.size))), (self._n_area, b.size))
        self.ones = self._sums @ np.ones(b.size)
        self._most = int(np.clip(MOST_NODES // self._n_area, LEAST_NODES, LARGEST_NODES))
        self._nodes, self._mass, self._apart, self._own = self._choose()
        self.terms = list(split_terms(kernel))
        self._wide = [_is_wide(term) for term in self.terms]
        self._matrix: list[Matrix | _Table] = [self._of(term) for term in self.terms]
        self._known: list[OrderedDict[bytes, Part]] = [OrderedDict() for _ in self.terms]

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances of the whole function's averages, and what they lack of ``f``'s.

        Returns
        -------
        covariance : (n_area, n_area) float64
        inside : (n_area,) float64
            Variance of ``f`` inside the areas by the terms of two and more dimensions, of which the
            responses tell least.
        """
        total, inside = self.lower(theta)
        return total + np.tril(total, -1).T, inside

    def lower(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same, with the covariances' lower triangle and 0 above it."""
        total, inside = np.zeros((self._n_area, self._n_area)), np.zeros(self._n_area)
        for number, (term, matrix) in enumerate(zip(self.terms, self._matrix, strict=True)):
            if isinstance(matrix, _Table):
                own = theta[term.places]
                variance = matrix.add_to(total, own)
                if self._wide[number]:
                    inside += float(np.exp(own[0])) * self.ones - variance
                continue
            k, lacking = self.part(number, theta)
            loops().add_lower(total, k)
            if lacking is not None:
                inside += lacking
        return total, inside

    @property
    def means(self) -> np.ndarray:
        """Weighted means of the inputs: (n_area, n_dim)."""
        return np.asarray(self._sums @ self._z) / np.maximum(self.ones, 1e-300)[:, None]

    def term(self, number: int, theta: np.ndarray) -> np.ndarray:
        """Return the part of one term."""
        return self.part(number, theta)[0]

    def part(self, number: int, theta: np.ndarray) -> Part:
        """Return the part of one term, and what it adds inside the areas."""
        term, known = self.terms[number], self._known[number]
        own = theta[term.places]
        key = own.tobytes()
        if key not in known:
            k, lacking = self._matrix[number](own), None
            if self._wide[number]:
                lacking = self._sums @ np.asarray(term.kernel.diag(own, self._z)) - np.diag(k)
            known[key] = k, lacking
            if len(known) > RECENT:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]

    def _of(self, term: Term) -> Matrix | _Table:
        kernel = term.kernel
        if isinstance(kernel, Constant):
            level = np.outer(self.ones, self.ones)
            return lambda theta: float(np.exp(theta[0])) * level
        if _is_linear(kernel):
            means = self._sums @ self._z  # the kernel of averages is the average of the kernel
            return lambda theta: np.asarray(kernel.matrix(theta, means, means))
        if isinstance(kernel, Radial) and kernel.n_theta == 2:
            if kernel.columns[1] - kernel.columns[0] == 1:
                return _Table(self._along_line(kernel), self._n_area)
            return _Table(self._between_strata(kernel), self._n_area)
        return partial(self._between_nodes, kernel)

    def _along_line(self, kernel: Radial) -> Matrix:
        """Return the matrix of a term of one column: pixels stand between points of a line."""
        column = self._z[:, kernel.columns[0]]
        line = np.zeros((N_LINE, self._z.shape[1]))
        line[:, kernel.columns[0]] = np.linspace(column.min(), column.max(), N_LINE)
        width = float(np.ptp(column)) or 1.0
        place = np.clip((column - column.min()) / width * (N_LINE - 1), 0.0, N_LINE - 1 - 1e-9)
        low = place.astype(np.int64)
        share = place - low
        row = np.arange(column.size)
        between = csr_array(
            (np.append(1.0 - share, share), (np.append(row, row), np.append(low, low + 1))),
            (column.size, N_LINE),
        )
        spread = (self._sums @ between).toarray()
        return lambda theta: spread @ np.asarray(kernel.matrix(theta, line, line)) @ spread.T

    def _between_strata(self, kernel: Radial) -> Matrix:
        """Average over strata of each area, of a term of one length-scale."""
        columns, shape = slice(*kernel.columns), SHAPES[kernel.shape]
        places, share = self._strata(columns)
        square, both = self._pairs(columns)
        alone = np.asarray(self._sums.power(2).sum(axis=1)).ravel()

        def matrix(theta: np.ndarray) -> np.ndarray:
            out = share @ (share @ np.asarray(kernel.matrix(theta, places, places))).T
            apart = shape.scale * np.exp(-2.0 * theta[1]) * square
            alike = shape.on_host(np, apart, 0.0, np.empty)[0]
            return _with_variance(out, np.exp(theta[0]) * ((both * alike).sum(axis=1) + alone))

        return matrix

    def _strata(self, columns: slice) -> tuple[np.ndarray, csr_array]:
        """Return the weighted means of strata of each area, and their shares of averages."""
        bag = np.repeat(np.arange(self._n_area), np.diff(self._offsets))
        known = np.bincount(bag, self._b, self._n_area) > 0
        weight = np.where(known[bag], self._b, 1.0)  # nothing tells its pixels apart
        order = np.flatnonzero(weight > 0)
        quota = np.full(self._n_area, self._most)
        start = strata(self._z[:, columns], weight, order, bag, quota)
        total = np.add.reduceat(weight[order], start)
        places = np.add.reduceat(weight[order, None] * self._z[order], start) / total[:, None]
        mass = np.add.reduceat(self._b[order], start)
        row = bag[order[start]], np.arange(start.size)
        return places, csr_array((mass, row), (self._n_area, start.size))

    def _pairs(self, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return squared distances of pairs of pixels of each area, and their weights: twice."""
        n = int(min(PAIRED, np.diff(self._offsets).max()))
        first, second = np.triu_indices(n, 1)
        pixel = np.repeat(self._offsets[:-1, None], n, axis=1)
        mass = np.zeros(pixel.shape)
        for number in range(self._n_area):
            rows = slice(self._offsets[number], self._offsets[number + 1])
            chosen, own, _ = choose_nodes(self._b[rows], n, number)
            pixel[number, : chosen.size] += chosen
            mass[number, : chosen.size] = own
        z = self._z[:, columns]
        apart = ((z[pixel[:, first]] - z[pixel[:, second]]) ** 2).sum(axis=2)
        return apart, 2.0 * mass[:, first] * mass[:, second]

    def _between_nodes(self, kernel: Kernel, theta: np.ndarray) -> np.ndarray:
        """Average over nodes of each area."""
        z = self._z[self._nodes]
        k = np.asarray(kernel.matrix(theta, z, z))
        out = self._mass @ (self._mass @ k).T
        diagonal = np.asarray(kernel.diag(theta, z))
        inside = np.empty(self._n_area)
        for number, (first, last) in enumerate(self._apart):
            mass = self._own[first:last]
            pairs = mass @ k[first:last, first:last] @ mass
            inside[number] = pairs - mass**2 @ diagonal[first:last]
        alone = self._sums.power(2) @ np.asarray(kernel.diag(theta, self._z))
        return _with_variance(out, np.maximum(inside, 0.0) + alone)

    def _choose(self) -> tuple[np.ndarray, csr_array, list[tuple[int, int]], np.ndarray]:
        """Choose nodes; return them, their shares of averages, places by area, and masses."""
        nodes, shares, masses, places, first = [], [], [], [], 0
        for number in range(self._n_area):
            rows = slice(self._offsets[number], self._offsets[number + 1])
            b = self._b[rows]
            chosen, mass, _ = choose_nodes(b, self._most, number)
            if chosen.size == 0:
                chosen, mass = np.zeros(1, dtype=np.int64), np.zeros(1)
            nodes.append(chosen + self._offsets[number])
            total = float(mass.sum())
            shares.append(mass * (float(b.sum()) / total if total > 0 else 0.0))
            masses.append(mass if chosen.size > 1 else np.zeros(1))
            places.append((first, first + chosen.size))
            first += chosen.size
        row = np.repeat(np.arange(self._n_area), [last - start for start, last in places])
        share = csr_array((np.concatenate(shares), (row, np.arange(first))), (self._n_area, first))
        return np.concatenate(nodes), share, places, np.concatenate(masses)


class _Table:
    """Matrices of a term of one length-scale, interpolated by its logarithm.

    Parameters
    ----------
    unit : callable
        The matrix, (n_area, n_area), by the logarithms of variance and length-scale.
    n_area : int
    """

    def __init__(self, unit: Matrix, n_area: int) -> None:
        self._n_area = n_area

        @lru_cache(int(np.clip(TABLE_BYTES / (8.0 * n_area**2), 4, 64)))
        def at(number: int) -> np.ndarray:
            return np.ascontiguousarray(unit(np.array([0.0, SHORTEST + STEP * number])))

        self._at = at

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        total = np.zeros((self._n_area, self._n_area))
        self.add_to(total, theta)
        return total + np.tril(total, -1).T

    def add_to(self, total: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Add the lower triangle to that of ``total``; return the diagonal."""
        place = (min(max(float(theta[1]), SHORTEST), LONGEST - 1e-9) - SHORTEST) / STEP
        number = int(place)
        variance, share = math.exp(theta[0]), place - number
        diagonal = np.empty(self._n_area)
        loops().add_blend(
            total,
            self._at(number),
            self._at(number + 1),
            variance * (1.0 - share),
            variance * share,
            diagonal,
        )
        return diagonal


def _with_variance(cov: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Scale rows and columns to the variances that averages over all pixels have.

    Averages over few places have more. A covariance stays positive definite so, which it need not
    if its diagonal alone were put right.
    """
    out = 0.5 * (cov + cov.T)
    variance = np.diag(out)
    some = variance > 0
    scale = np.sqrt(np.where(some, np.minimum(wanted, variance) / np.where(some, variance, 1), 1.0))
    return np.asarray(out * scale * scale[:, None])


def _is_wide(term: Term) -> bool:
    return term.columns[1] - term.columns[0] > 1 and not _is_linear(term.kernel)


def _is_linear(kernel: Kernel) -> bool:
    return isinstance(kernel, Linear | Ridge | Constant)
