"""Functions drawn at several times, evaluated so that what holds still costs once.

Whoever asks for the same pixels period after period pays terms that hold still once, and of terms
of space with a time a product of matrices a period (:mod:`models.temporal.term_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from models.core.protocol import override
from models.gp.draws import FunctionDraws, with_mean
from models.gp.kernel_terms import TermKernel
from models.gp.random_features import Features
from models.temporal.term_runs import KEPT, MOVING, SUMMED, LastPixels, Run, runs_of


class Columns(NamedTuple):
    """What the features and the kernel at the inducing points are multiplied with.

    Attributes
    ----------
    weights : (n_feature, n_draws) float64
    coefficients : (n_value, n_column) float64
        The first ``n_draws`` columns are of the drawn functions.
    """

    weights: np.ndarray
    coefficients: np.ndarray


@dataclass(frozen=True)
class DrawnRun:
    """A run of terms with its random features.

    Attributes
    ----------
    run : Run
    features : Features
    of_features : slice
        Their places among those of all terms.
    """

    run: Run
    features: Features
    of_features: slice

    def evaluate(self, theta: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features and kernel at scaled inputs (n, n_dim)."""
        return self.features(z), self.run.cross(theta, z)

    def add(self, out: np.ndarray, own: Columns, phi: np.ndarray, k: np.ndarray) -> None:
        """Add the terms of the functions to (n, n_column)."""
        weights = own.weights[self.of_features]
        out[:, : weights.shape[1]] += phi @ weights.astype(phi.dtype, copy=False)
        out += k @ own.coefficients[self.run.of_values].astype(k.dtype, copy=False)


class Known(NamedTuple):
    """What is known of some pixels, whatever the period."""

    total: np.ndarray
    kept: list[tuple[DrawnRun, np.ndarray, np.ndarray]]


class JointTerms:
    """The terms of functions drawn together, shared by those of all times.

    Parameters
    ----------
    kernel : TermKernel
    theta : (n_theta,) float64
    w : (n_node, n_dim) float64
    features : sequence of Features or None
        Of each term; None for one that is evaluated elsewhere, which has no inducing value here.
    times : sequence of int
        Number of the time of each term.
    moving : collection of int
        Columns of the inputs that differ by period.
    """

    def __init__(
        self,
        kernel: TermKernel,
        theta: np.ndarray,
        w: np.ndarray,
        features: Sequence[Features | None],
        times: Sequence[int],
        moving: frozenset[int],
    ) -> None:
        self._theta = theta
        self.runs = []
        first = 0
        for run in runs_of(kernel, w, times, moving):
            own = tuple(each for j in run.terms if (each := features[j]) is not None)
            stop = first + sum(each.n_feature for each in own)
            self.runs.append(DrawnRun(run, Features(None, None, own), slice(first, stop)))
            first = stop
        self._first: Columns | None = None
        self._last: LastPixels[Known] = LastPixels(w.shape[1], moving)

    @property
    def n_draws(self) -> int:
        """Functions of each time."""
        assert self._first is not None
        return int(self._first.weights.shape[1])

    def take(self, first: Columns) -> None:
        """Take the weights of one time; those of terms that hold still are of every time."""
        self._first = first

    def at(self, z: np.ndarray, own: Columns, columns: slice | np.ndarray) -> np.ndarray:
        """Evaluate columns of one time at scaled inputs (n, n_dim): (n, n_column).

        Parameters
        ----------
        z : (n, n_dim) array
        own : Columns
            Those that are wanted, of this time.
        columns : slice or (n_column,) int64
            Their places among all: the functions, then what ``about`` makes.
        """
        last = columns.stop if isinstance(columns, slice) else int(columns.max(initial=-1)) + 1
        known = self._last.get(
            z, lambda: self._known(z, last), lambda known: known.total.shape[1] >= last
        )
        total = known.total[:, columns].copy()
        for drawn, phi, k in known.kept:
            drawn.add(total, own, phi, k)
        for drawn in self.runs:
            if drawn.run.kind == MOVING:
                drawn.add(total, own, *drawn.evaluate(self._theta, z))
        return total

    def _known(self, z: np.ndarray, least: int) -> Known:
        assert self._first is not None
        n_column = self.n_draws if least <= self.n_draws else self._first.coefficients.shape[1]
        first = Columns(self._first.weights, self._first.coefficients[:, :n_column])
        total, kept = np.zeros((z.shape[0], n_column), z.dtype), []
        for drawn in self.runs:
            if drawn.run.kind == SUMMED:
                drawn.add(total, first, *drawn.evaluate(self._theta, z))
            elif drawn.run.kind == KEPT:
                kept.append((drawn, *drawn.evaluate(self._theta, z)))
        return Known(total, kept)


@dataclass(frozen=True)
class FunctionsInTime(FunctionDraws):
    """Functions of one time, drawn with those of others.

    Attributes
    ----------
    terms : JointTerms
        Shared with those of the other times.
    table, about_table : (n_area + 1, n_draws), (n_area + 1, 1 + n_draws) float64, or None
        Of an effect of each area, what ``coefficients`` and ``about`` are of the others, where the
        kernel has one; the last is of no area.
    column : int
        Of the inputs that has the number of the area.
    chosen : (n_draws,) int64, or None
        Places of the functions among those that were drawn; None for all of them.
    """

    terms: JointTerms
    table: np.ndarray | None = None
    about_table: np.ndarray | None = None
    column: int = -1
    chosen: np.ndarray | None = None

    @override
    def some(self, columns: np.ndarray) -> Self:
        chosen = columns if self.chosen is None else self.chosen[columns]
        found = replace(super().some(columns), chosen=chosen)
        if self.table is None or self.about_table is None:
            return found
        about = self.about_table[:, with_mean(columns)]
        return replace(found, table=self.table[:, columns], about_table=about)

    @override
    def latent(self, z: np.ndarray) -> np.ndarray:
        own = Columns(self.weights, self.coefficients)
        f = self.terms.at(z, own, slice(self.n_draws) if self.chosen is None else self.chosen)
        f += z.dtype.type(self.surface.mean)
        if self.table is not None:
            f += self.table[self._areas(z)].astype(z.dtype, copy=False)
        return f

    @override
    def latent_and_about(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = Columns(self.weights, np.hstack([self.coefficients, self.about]))
        places: slice | np.ndarray = slice(both.coefficients.shape[1])
        if self.chosen is not None:
            places = np.append(self.chosen, self.terms.n_draws + with_mean(self.chosen))
        found = self.terms.at(z, both, places)
        f, about = found[:, : self.n_draws], found[:, self.n_draws :]
        f += z.dtype.type(self.surface.mean)
        if self.table is not None and self.about_table is not None:
            areas = self._areas(z)
            f += self.table[areas].astype(z.dtype, copy=False)
            about += self.about_table[areas].astype(z.dtype, copy=False)
        return f, about

    def _areas(self, z: np.ndarray) -> np.ndarray:
        return z[:, self.column].astype(np.int64)
