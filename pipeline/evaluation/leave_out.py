"""Leave areas out of a fitted model by weighing the draws of its posterior.

Without the count of area ``a`` the posterior is proportional to ``q(f) / p(y_a | f)``: draws of
``q`` are weighed by ``1 / p(y_a | f)``, and the largest weights are smoothed by a generalised
Pareto distribution whose shape ``k`` tells whether they can be trusted (PSIS: Vehtari, Simpson,
Gelman, Yao & Gabry 2024). No model is fitted, except for the areas whose weights cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy.special import logsumexp

from models.likelihoods.likelihood import TINY
from pipeline.prediction.areas import AreaDraws


@dataclass(frozen=True)
class LeftOut(AreaDraws):
    """Draws of areas as if each had been left out.

    Attributes
    ----------
    k : (n_bag,) float64 array
        Shape of the largest weights of each.
    """

    k: np.ndarray = field(kw_only=True)


def smooth_weights(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Smooth importance weights (Vehtari et al. 2024, algorithm 1).

    Parameters
    ----------
    log_weights : (n,) float64 array
        Up to a constant.

    Returns
    -------
    log_weights : (n,) float64 array
        Normalised.
    k : float
        Shape of the generalised Pareto distribution of the largest; infinite where it cannot be
        told.
    """
    log_weights = log_weights - log_weights.max()
    n = log_weights.size
    n_tail = int(np.ceil(min(0.2 * n, 3 * np.sqrt(n))))
    order = np.argsort(log_weights, kind="stable")
    tail = order[-n_tail:]
    k = np.inf
    if n_tail >= 5:
        floor = max(float(log_weights[order[-n_tail - 1]]), float(np.log(np.finfo(float).tiny)))
        excess = np.exp(log_weights[tail]) - np.exp(floor)
        if excess[-1] <= 10 * np.finfo(float).eps:  # all weights are equal
            k = -np.inf
        elif excess[0] >= 0:
            k, scale = fit_pareto(np.maximum(excess, np.finfo(float).tiny))
            if np.isfinite(k):
                p = (np.arange(n_tail) + 0.5) / n_tail
                log_left = np.log1p(-p)
                grown = -log_left if abs(k) < 1e-12 else np.expm1(-k * log_left) / k
                smooth = np.log(np.exp(floor) + scale * grown)
                log_weights = log_weights.copy()
                log_weights[tail] = np.minimum(smooth, 0.0)  # none above the largest raw weight
    return log_weights - logsumexp(log_weights), float(k)


def fit_pareto(x: np.ndarray) -> tuple[float, float]:
    """Fit a generalised Pareto distribution (Zhang & Stephens 2009; prior of Vehtari et al. 2024).

    Parameters
    ----------
    x : (n,) float64 array
        Positive, ascending.

    Returns
    -------
    k, scale : float
        Shape (positive for heavy tails), drawn to 0.5 with the weight of ten values, and scale.
    """
    n = x.size
    m = 30 + int(np.sqrt(n))
    grid = 1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))
    b = grid / (3 * x[int(n / 4 + 0.5) - 1]) + 1 / x[-1]
    k = np.log1p(-b[:, None] * x).mean(axis=1)
    length = n * (np.log(-(b / k)) - k - 1)
    weight = np.exp(length - logsumexp(length))
    weight = np.where(weight >= 10 * np.finfo(float).eps, weight, 0.0)
    best = float((b * weight).sum() / weight.sum())
    shape = float(np.log1p(-best * x).mean())
    scale = -shape / best
    return (n * shape + 10 * 0.5) / (n + 10), scale


def trusted(n_draws: int) -> float:
    """Return the largest ``k`` whose weights can be trusted, for a number of draws."""
    return min(0.7, 1 - 1 / float(np.log10(n_draws)))


def leave_each_out(
    model: Any, store: Any, n_draws: int, seed: int, n_thread: int | None = None
) -> LeftOut:
    """Draw counts of each area as if the model had been fitted without it.

    Parameters
    ----------
    model : fitted model
        With ``sample_functions`` and ``predict_bags``.
    store : BagStore
        The areas that it was fitted to.
    n_draws, seed : int
        Functions drawn, and their seed; as many equally likely draws of each area are returned, by
        systematic resampling.
    n_thread : int, optional

    Returns
    -------
    LeftOut
        In the order of the store. ``log_density`` is that of the weighted draws.
    """
    functions = model.sample_functions(n_draws, np.random.default_rng([seed, 1]))

    def draw(number: int, part: Any) -> LeftOut:
        found = model.predict_bags(part, draws=functions)
        likelihood = found.likelihood
        y = np.asarray(part.y, dtype=np.float64)
        eta = np.maximum(found.draws, TINY) if likelihood.positive else found.draws
        each = likelihood.terms(y, eta, found.params, found.bag_data).value
        rng = np.random.default_rng([seed, 4, number])
        smoothed = [smooth_weights(-each[:, a]) for a in range(part.n_bag)]
        log_weight = np.stack([w for w, _ in smoothed], axis=1)
        chosen = resample(np.exp(log_weight), rng)
        without = found.rearranged(chosen)
        expected, counts = without.draws, without.observed(rng).draws
        tested = part.trials if likelihood.needs_trials else None
        weight = np.add.reduceat(part.weight.astype(np.float64), part.offsets[:-1])
        size = 1.0 if tested is None else tested
        return LeftOut(
            bag=np.asarray(part.bag, dtype=np.int64),
            y=y,
            people=weight,
            mean=(np.exp(log_weight) * found.draws).sum(axis=0) * size,
            expected=expected * size,
            counts=np.asarray(counts, dtype=np.float64),
            log_density=np.asarray(logsumexp(log_weight + each, axis=0), dtype=np.float64),
            tested=tested,
            k=np.array([k for _, k in smoothed]),
        )

    return LeftOut.of_blocks(store, draw, None, None, n_thread)


def resample(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose as many rows as there are, by systematic resampling, in random order.

    Parameters
    ----------
    weight : (n, n_bag) float64 array
        Of each row, in each column, adding up to one.
    rng : numpy Generator

    Returns
    -------
    (n, n_bag) int64 array
    """
    n, n_bag = weight.shape
    ends = np.cumsum(weight, axis=0)
    at = (np.arange(n)[:, None] + rng.random(n_bag)) / n * ends[-1]
    chosen = np.stack(
        [np.searchsorted(ends[:, a], at[:, a], side="right") for a in range(n_bag)], axis=1
    )
    return np.asarray(rng.permuted(np.minimum(chosen, n - 1), axis=0))


Refit = Callable[[np.ndarray], tuple[AreaDraws, np.ndarray]]


def leave_areas_out(left: LeftOut, fold: np.ndarray, refit: Refit) -> tuple[AreaDraws, Any, Any]:
    """Put refits in the place of areas whose weights cannot be trusted.

    Parameters
    ----------
    left : LeftOut
        Of every area, in the order of the store.
    fold : (n_bag,) int64 array
        Fold of each area, for the order of the result.
    refit : callable
        From folds, -1 for areas that are never left out, to predictions of the others.

    Returns
    -------
    predictions : AreaDraws
        Of all areas, fold after fold.
    fold_of : (n_bag,) int64 array
    about : dict
        ``method``, ``limit`` of ``k``, its ``median`` and ``max``, areas ``above`` it and the
        ``refits`` that they took.
    """
    limit = trusted(left.counts.shape[0])
    bad = ~(left.k <= limit)
    names = [each.name for each in fields(AreaDraws)]
    predictions = AreaDraws(**{name: getattr(left, name) for name in names})
    n_fit = 0
    if bad.any():
        # Not more areas together than a fold has: a fit without many of them is another fit.
        n_fit = int(np.ceil(bad.sum() / max(1, np.bincount(fold[fold >= 0]).max())))
        again = np.full(fold.shape, -1)
        again[np.flatnonzero(bad)] = np.arange(int(bad.sum())) % n_fit
        fitted, _ = refit(again)
        predictions = AreaDraws.concatenate([predictions.select(~bad), fitted])
    order = np.lexsort((predictions.bag, fold[predictions.bag]))
    finite = left.k[np.isfinite(left.k)]
    about = {
        "method": "importance weights of the posterior's draws, one area at a time",
        "limit": limit,
        "k_median": float(np.median(finite)) if finite.size else None,
        "k_max": float(finite.max()) if finite.size else None,
        "above": int(bad.sum()),
        "refits": n_fit,
    }
    return predictions.select(order), fold[predictions.bag[order]], about
