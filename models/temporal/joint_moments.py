r"""Means and variances of ``f`` at several times, evaluated so that what holds still costs once.

With ``S`` the values of terms that hold still at inputs that do (:mod:`models.temporal.term_runs`),
``R`` all other shared ones, and ``e_a`` the effect of the pixel's area,

    k'Qk = K_S Q_SS K_S' + 2 K_S Q_SR K_R' + K_R Q_RR K_R' + 2 s_a K Q_a + s_a^2 Q_aa,

the first summand is the same in every period, as is ``K_S alpha_S``: the posterior of values that
hold still is one. What is left is a product of ``n_S x n_R`` a pixel, not of all values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from models.backend.arrays import row_dot
from models.core.protocol import Arrays, State
from models.gp.kernel_terms import TermKernel
from models.gp.scaling import scaled_inputs
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.prediction import Prediction
from models.temporal.basis import Basis
from models.temporal.near import near
from models.temporal.sites import Arrow, Split
from models.temporal.temporal_model import TemporalModel
from models.temporal.term_runs import MOVING, SUMMED, LastPixels, runs_of


class Path(Protocol):
    """The posterior of all periods under one set of hyperparameters, as much as is asked of it."""

    @property
    def model(self) -> TemporalModel:
        """The model that its numbers belong to."""

    @property
    def arrays(self) -> Arrays:
        """Constants and parameters of a state."""

    @property
    def state(self) -> State:
        """The arrays as a state."""

    @property
    def basis(self) -> Basis:
        """Of the whitened inducing values."""

    @property
    def split(self) -> Split:
        """Which of the values are of one area each."""

    @property
    def term_times(self) -> list[int]:
        """Number of the time of each term."""

    def moments_of_values(self, times: Sequence[float]) -> list[tuple[np.ndarray, Arrow]]:
        """Return mean and covariance of the whitened values at some times."""

    def moving_columns(self, columns: Sequence[int] | None) -> frozenset[int]:
        """Return the columns of the inputs that differ by period."""


class AtTime(NamedTuple):
    """What blocks of one time need.

    Attributes
    ----------
    alpha : (n_rest,) float64
    q_across : (n_still, n_rest) float64
    q_rest : (n_rest, n_rest) float64
    own_alpha : (n_own,) float64
    own_across : (n_shared, n_own) float64
        Rows as the values stand in ``K``: those that hold still, then the rest.
    own_q : (n_own,) float64
    """

    alpha: np.ndarray
    q_across: np.ndarray
    q_rest: np.ndarray
    own_alpha: np.ndarray
    own_across: np.ndarray
    own_q: np.ndarray


class Known(NamedTuple):
    """What is known of some pixels, whatever the period."""

    k_still: np.ndarray
    k_kept: np.ndarray
    m: np.ndarray
    s: np.ndarray


class PathMoments:
    """Means and variances under one set of hyperparameters.

    Parameters
    ----------
    path : Path
    times : sequence of float
    moving : collection of int
        Columns of the inputs that differ by period.
    """

    def __init__(self, path: Path, times: Sequence[float], moving: frozenset[int]) -> None:
        arrays = path.arrays
        nothing = near(arrays, np.zeros(0, np.int64))
        kernel = path.model._kernel(nothing)
        assert isinstance(kernel, TermKernel)
        self.shared = path.model.shared_params(path.state)
        self._kernel, self._theta, self._path = kernel, arrays["theta"], path
        runs = list(runs_of(kernel, nothing["w"], path.term_times, moving))
        self._by_kind = {
            "still": [run for run in runs if run.kind == SUMMED],
            "kept": [run for run in runs if run.kind not in (SUMMED, MOVING)],
            "moving": [run for run in runs if run.kind == MOVING],
        }
        places = {
            kind: np.concatenate(
                [np.zeros(0, np.int64), *(np.r_[run.of_values] for run in of_kind)]
            )
            for kind, of_kind in self._by_kind.items()
        }
        self._still = places["still"]
        self._rest = np.concatenate([places["kept"], places["moving"]])
        self._mean = float(arrays["mean"][0])
        self._column = int(arrays["x_mean"].size) - 1  # of the area's number
        self._variance = 0.0
        if path.split.n_own:
            (own,) = (t for t, n in zip(kernel.terms, kernel.values, strict=True) if not n)
            self._variance = float(np.exp(self._theta[own.places[0]]))
        self._last: LastPixels[Known] = LastPixels(nothing["w"].shape[1], moving)
        self._at = [self._of(*each) for each in path.moments_of_values(times)]

    def _of(self, mean: np.ndarray, cov: Arrow) -> AtTime:
        path, still, rest = self._path, self._still, self._rest
        found = path.basis.block_arrays(mean, cov)
        alpha, own_alpha = path.split.parts(found["alpha"])
        q = Arrow.explained(found, Arrow.named(found, "cov"))
        if not hasattr(self, "_q_still"):
            self._q_still, self._alpha_still = q.shared[np.ix_(still, still)], alpha[still]
        return AtTime(
            alpha[rest],
            q.shared[np.ix_(still, rest)],
            q.shared[np.ix_(rest, rest)],
            own_alpha,
            q.cross[np.concatenate([still, rest])],
            q.own,
        )

    def at(self, number: int, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of ``f`` at a time's scaled inputs (n, n_dim): (n,) each."""
        at, known = self._at[number], self._last.get(z, lambda: self._known(z))
        k = np.hstack([known.k_kept, self._cross("moving", z)])
        m = known.m + k @ at.alpha + self._mean
        explained = known.s + row_dot(2.0 * (known.k_still @ at.q_across) + k @ at.q_rest, k)
        if at.own_q.size:
            self._add_own(at, np.hstack([known.k_still, k]), z, m, explained)
        s = self._kernel.diag(self._theta, z) - explained
        return m, np.maximum(s, 0.0)  # rounding alone can take it below

    def _add_own(
        self, at: AtTime, k: np.ndarray, z: np.ndarray, m: np.ndarray, explained: np.ndarray
    ) -> None:
        """Add the effects of the pixels' own areas; -1 is in no area."""
        areas, variance = z[:, self._column].astype(np.int64), self._variance
        for area in np.unique(areas[areas >= 0]):
            rows = areas == area
            m[rows] += variance * at.own_alpha[area]
            across = k[rows] @ at.own_across[:, area]
            explained[rows] += 2.0 * variance * across + variance**2 * at.own_q[area]

    def _known(self, z: np.ndarray) -> Known:
        k = self._cross("still", z)
        explained = row_dot(k @ self._q_still, k)
        return Known(k, self._cross("kept", z), k @ self._alpha_still, explained)

    def _cross(self, kind: str, z: np.ndarray) -> np.ndarray:
        none = np.zeros((z.shape[0], 0))
        return np.hstack([none, *(run.cross(self._theta, z) for run in self._by_kind[kind])])


class JointMoments:
    """Distributions of the rates of pixels at several times.

    Parameters
    ----------
    parts : sequence of Path
    weight : (n_part,) float64
        Their probabilities.
    times : sequence of float
    moving : sequence of int, optional
        Columns of the covariates that differ by period; all if not given.
    """

    def __init__(
        self,
        parts: Sequence[Path],
        weight: np.ndarray,
        times: Sequence[float],
        moving: Sequence[int] | None = None,
    ) -> None:
        self._parts = [PathMoments(part, times, part.moving_columns(moving)) for part in parts]
        self._weight = weight
        self._link = parts[0].model.link_name

    def at(self, number: int, x: np.ndarray, coords: np.ndarray | None) -> MixturePrediction:
        """Return the distribution of each pixel's rate at the time of that number."""
        parts = []
        for part in self._parts:
            z = scaled_inputs(part.shared, x, coords, np.float64)
            base = float(part.shared["base_rate"][0])
            parts.append(Prediction(self._link, *part.at(number, z), base))
        return MixturePrediction(tuple(parts), self._weight)
