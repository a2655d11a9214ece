"""Scores of predicted counts: functions of counts, expectations and predictive draws.

A central interval of a discrete distribution covers more than its nominal level, the more so the
smaller the counts, and a finite number of draws rounds it. Coverage here is therefore that of the
randomised probability integral transform [1]_, averaged over its randomisation: the transform of
an observation is uniform on the interval that its rank among the draws, and its ties, allow. For a
calibrated prediction the expected coverage is *exactly* the nominal level, for counts of any size
and any number of draws. ``closed`` is the plain share of counts inside the closed interval.

References
----------
.. [1] Czado, Gneiting and Held (2009), Predictive model assessment for count data, Biometrics 65.
.. [2] Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation,
   JASA 102, equations 20-21 (CRPS) and 43 (interval score).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import xlogy
from scipy.stats import rankdata

from models.likelihoods.negative_binomial import count_log_density

LEVELS = (0.5, 0.8, 0.9, 0.95)


def pit_bounds(
    draws: np.ndarray, y: np.ndarray, most: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the probability integral transform of each observation.

    Parameters
    ----------
    draws : (n_draws, n) array
        Draws of the predictive distribution of each observation.
    y : (n,) array
        Observations.
    most : (n,) array, optional
        Where an observation is only known to be from ``y`` to this: the interval of the transform
        is that of all it may be, and the transform uniform still.

    Returns
    -------
    lower, upper : (n,) float64 arrays in [0, 1], ``lower < upper``
        The transform is uniform on [lower, upper]. If ``y`` is one more draw, a uniform number from
        that interval is uniform on [0, 1], with or without ties.
    """
    n_draws = draws.shape[0]
    below = (draws < y).sum(axis=0)
    equal = ((draws >= y) & (draws <= (y if most is None else most))).sum(axis=0)
    return below / (n_draws + 1), (below + equal + 1) / (n_draws + 1)


def pit_coverage(lower: np.ndarray, upper: np.ndarray, level: float) -> np.ndarray:
    """Probability that a transform uniform on [lower, upper] lies in the central ``level``.

    Returns
    -------
    (n,) float64 array in [0, 1]
        Its mean is the coverage; 0 or 1 for most observations, a share for those on the edge.
    """
    low, high = (1 - level) / 2, (1 + level) / 2
    inside = np.clip(np.minimum(upper, high) - np.maximum(lower, low), 0, None)
    return inside / (upper - lower)


def crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score from draws, unbiased by their number.

    ``E|X - y| - E|X - X'| / 2`` ([2]_, equation 21) with pairs of different draws only.

    Parameters
    ----------
    draws : (n_draws, n) array
        Draws of the predictive distribution.
    y : (n,) array
        Observations.

    Returns
    -------
    (n,) float64 array, in the unit of y
    """
    n_draws = draws.shape[0]
    ordered = np.sort(draws, axis=0).astype(np.float64)
    miss = np.abs(ordered - y).mean(axis=0)
    if n_draws < 2:
        return miss
    rank = 2.0 * np.arange(1, n_draws + 1) - n_draws - 1
    return miss - rank @ ordered / (n_draws * (n_draws - 1))


def interval_score(y: np.ndarray, lower: np.ndarray, upper: np.ndarray, level: float) -> np.ndarray:
    """Width of an interval plus the penalty for missing ([2]_, equation 43), in the unit of y."""
    alpha = 1 - level
    miss = np.clip(lower - y, 0, None) + np.clip(y - upper, 0, None)
    return upper - lower + 2 / alpha * miss


def poisson_deviance(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Deviance ``2 (y log(y / mean) - y + mean)`` of each count, infinite where mean is 0 < y."""
    with np.errstate(divide="ignore"):
        ratio = np.where(y > 0, y, 1.0) / np.where(y > 0, mean, 1.0)
    return 2 * (xlogy(y, ratio) - y + mean)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation, NaN where either side is constant or fewer than two pairs exist."""
    if a.shape[0] < 2:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    scale_a, scale_b = np.abs(a).max(), np.abs(b).max()
    if scale_a == 0 or scale_b == 0 or not np.isfinite(scale_a * scale_b):
        return float("nan")
    a, b = a / scale_a, b / scale_b
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1, 1))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, NaN where either side is constant."""
    return pearson(rankdata(a), rankdata(b))


def rmse(a: np.ndarray, b: np.ndarray) -> float:
    """Root of the mean squared difference."""
    return float(np.sqrt(np.mean((a - b) ** 2)))


def mae(a: np.ndarray, b: np.ndarray) -> float:
    """Mean absolute difference."""
    return float(np.mean(np.abs(a - b)))


def predictive_scores(
    y: np.ndarray,
    draws: np.ndarray,
    log_density: np.ndarray,
    levels: Sequence[float] = LEVELS,
    most: np.ndarray | None = None,
) -> dict[str, Any]:
    """Scores of predictive distributions given by draws of the counts.

    Parameters
    ----------
    y : (n_bag,) array
        Observed counts.
    draws : (n_draws, n_bag) array
        Draws of the counts, observation noise included.
    log_density : (n_bag,) array
        Log predictive density of each observed count.
    levels : sequence of float
        Central levels of the intervals to score.
    most : (n_bag,) array, optional
        Where a count is suppressed, the largest that it may be, and ``y`` the smallest. It has a
        density and a transform, but no CRPS, and no part in ``closed`` and ``score``.

    Returns
    -------
    dict
        ``nll`` (mean over areas), ``n_impossible`` (areas whose predictive density is zero),
        ``crps``, and ``intervals``: for each level ``coverage`` (randomised transform, averaged),
        ``closed`` (share inside the closed interval of draws), ``width`` and ``score``.
    """
    lower, upper = pit_bounds(draws, y, most)
    known = np.ones(y.shape, bool) if most is None else most == y
    intervals = {}
    for level in levels:
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        intervals[f"{level:g}"] = {
            "coverage": float(pit_coverage(lower, upper, level).mean()),
            "closed": _mean(((low <= y) & (y <= high))[known]),
            "width": float((high - low).mean()),
            "score": _mean(interval_score(y, low, high, level)[known]),
        }
    return {
        "nll": float(-np.mean(log_density)),
        "n_impossible": int(np.sum(~np.isfinite(log_density))),
        "crps": _mean(crps(draws[:, known], y[known])),
        "intervals": intervals,
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def people_scores(
    y: np.ndarray,
    mean: np.ndarray,
    exposure: np.ndarray,
    people: np.ndarray,
    draws: np.ndarray,
    log_density: np.ndarray,
    levels: Sequence[float] = LEVELS,
    most: np.ndarray | None = None,
) -> dict[str, Any]:
    """Scores in which each area counts by the people in it: what a person drawn at random gets.

    Parameters
    ----------
    y, mean : (n_bag,) arrays
        Observed and expected counts.
    exposure : (n_bag,) array
        A rate is a count over its exposure.
    people : (n_bag,) array
        Weight of each area: people at risk, or km2 without a population.
    draws : (n_draws, n_bag) array
        Draws of the counts, observation noise included.
    log_density : (n_bag,) array
        Log predictive density of each observed count.
    levels : sequence of float
        Central levels of the intervals.
    most : (n_bag,) array, optional
        See :func:`predictive_scores`: suppressed counts have no part in ``rates``.

    Returns
    -------
    dict
        ``rates``: of means ``correlation``, ``rmse`` and ``bias`` (expected less observed), of
        medians ``mae``; ``nll``; ``coverage`` of each level. Areas without people or exposure have
        no weight.
    """
    known = (people > 0) & (exposure > 0)
    weight = people[known]
    seen = known if most is None else known & (most == y)
    moments = PairMoments()
    moments.add(y[seen] / exposure[seen], mean[seen] / exposure[seen], people[seen])
    lower, upper = pit_bounds(draws[:, known], y[known], None if most is None else most[known])
    miss = np.abs(np.median(draws[:, seen], axis=0) - y[seen]) / exposure[seen]

    def average(values: np.ndarray, by: np.ndarray = weight) -> float:
        return float(by @ values / by.sum()) if by.size else float("nan")

    return {
        "rates": {**moments.summary(), "mae": average(miss, people[seen])},
        "nll": average(-log_density[known]),
        "coverage": {f"{level:g}": average(pit_coverage(lower, upper, level)) for level in levels},
    }


def moment_log_density(y: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Log predictive density of counts from the first two moments of their expectation's draws.

    The expectation is assumed to be gamma distributed, so that the counts are negative binomial.
    The average of Poisson densities over a few hundred draws depends, for a count beyond all
    draws, on the nearest draw alone; this density does not.

    Parameters
    ----------
    y : (n,) array
        Counts.
    expected : (n_draws, n) array
        Draws of their expectations.

    Returns
    -------
    (n,) float64 array, nats
    """
    mean, variance = expected.mean(axis=0), expected.var(axis=0)
    size = np.full(mean.shape, np.inf)
    # A variance that rounding made leaves Poisson counts.
    np.divide(mean**2, variance, out=size, where=variance > 1e-12 * mean**2)
    return count_log_density(y, mean, size)


def pit_histogram(
    draws: np.ndarray, y: np.ndarray, n_bin: int = 10, most: np.ndarray | None = None
) -> list[float]:
    """Share of the observations in equal bins of the transform ([1]_, section 2), flat if right."""
    lower, upper = pit_bounds(draws, y, most)
    edges = np.linspace(0, 1, n_bin + 1)[:, None]
    cumulative = np.clip((edges - lower) / (upper - lower), 0, 1).mean(axis=1)
    return [float(share) for share in np.diff(cumulative)]


@dataclass
class PairMoments:
    """Weighted moments of pairs, added up part by part: for what does not fit in memory.

    Parts are merged by the pairwise update of Chan, Golub and LeVeque (1983), so that nothing
    cancels however many there are.
    """

    n: int = 0
    weight: float = 0.0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(2))
    scatter: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))
    absolute: float = 0.0
    squared: float = 0.0

    def add(self, a: np.ndarray, b: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Add pairs (a, b), each (n,), with weights >= 0 (n,), 1 where not given."""
        weight = np.ones(a.shape[0]) if weight is None else weight
        total = float(weight.sum())
        self.n += a.shape[0]
        if total == 0:
            return
        pair = np.stack([a, b]).astype(np.float64)
        mean = pair @ weight / total
        centred = pair - mean[:, None]
        shift = mean - self.mean
        both = self.weight + total
        self.scatter += (centred * weight) @ centred.T
        self.scatter += np.outer(shift, shift) * (self.weight * total / both)
        self.mean += shift * (total / both)
        self.weight = both
        self.absolute += float(weight @ np.abs(pair[0] - pair[1]))
        self.squared += float(weight @ (pair[0] - pair[1]) ** 2)

    def summary(self) -> dict[str, float]:
        """Return ``correlation``, ``rmse``, ``mae`` and ``bias`` (mean of b - a)."""
        if self.weight == 0:
            return dict.fromkeys(("correlation", "rmse", "mae", "bias"), float("nan"))
        variance = np.diag(self.scatter)
        constant = bool((variance <= 1e-24 * self.weight * self.mean**2).any())
        correlation = float("nan")
        if not constant:
            correlation = float(np.clip(self.scatter[0, 1] / np.sqrt(variance.prod()), -1, 1))
        return {
            "correlation": correlation,
            "rmse": float(np.sqrt(self.squared / self.weight)),
            "mae": self.absolute / self.weight,
            "bias": float(self.mean[1] - self.mean[0]),
        }
