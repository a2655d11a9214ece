"""Leave areas and regions out of a fitted model by weighing the draws of its posterior.

Given the function, areas are independent. Without the responses of a set of areas ``A`` the
posterior is therefore proportional to ``q(f) / prod_{a in A} p(y_a | f)``: draws of ``q`` are
weighed by the inverse of that product, and smoothed (:mod:`pipeline.evaluation.psis`). No model is
fitted, except where the Pareto ``k`` of the weights says that they cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy.special import logsumexp

from pipeline.evaluation.posterior import Posterior, draw_posterior
from pipeline.evaluation.psis import resample, smooth_members, trusted
from pipeline.products.areas import AreaDraws

REFIT_SHARE = 0.1  # of the areas whose weights may fail, before every fold is fitted again
TOGETHER = 0.05  # share of the areas that one such refit leaves out: a fit without many is another


@dataclass(frozen=True)
class LeftOut(AreaDraws):
    """Draws of areas as if each had been left out.

    Attributes
    ----------
    k : (n_bag,) float64 array
        Shape of the largest weights of each.
    """

    k: np.ndarray = field(kw_only=True)


def leave_each_out(
    model: Any, store: Any, n_draws: int, seed: int, n_thread: int | None = None
) -> LeftOut:
    """Draw the posterior and leave each area out of it: :func:`leave_areas_one_by_one`."""
    return leave_areas_one_by_one(draw_posterior(model, store, n_draws, seed, None, n_thread), seed)


def leave_areas_one_by_one(posterior: Posterior, seed: int) -> LeftOut:
    """Draw counts of each area as if the model had been fitted without it.

    Parameters
    ----------
    posterior : Posterior
    seed : int
        Of the resampling and of the noise.

    Returns
    -------
    LeftOut
        In the order of the store, as many draws as the posterior has, equally likely by systematic
        resampling. ``log_density`` is that of the weighted draws.
    """
    found, rng = posterior.areas, np.random.default_rng([seed, 4])
    smoothed = [smooth_members(-each, posterior.member) for each in found.log_lik.T]
    log_weight = np.stack([w for w, _ in smoothed], axis=1)
    weight = np.exp(log_weight)
    chosen = resample(weight, rng)
    expected, counts = posterior.respond(chosen, np.arange(len(found)), rng)
    return LeftOut(
        bag=found.bag,
        y=found.y,
        people=found.people,
        mean=(weight * found.expected).sum(axis=0),
        expected=expected,
        counts=counts,
        log_density=np.asarray(logsumexp(log_weight + found.log_lik, axis=0)),
        tested=found.tested,
        least=found.least,
        most=found.most,
        k=np.array([k for _, k in smoothed]),
    )


def leave_region_out(
    posterior: Posterior, region: np.ndarray, unseen: np.ndarray, seed: int
) -> tuple[AreaDraws, float]:
    """Draw counts of a region as if the model had been fitted without it and its buffer.

    Parameters
    ----------
    posterior : Posterior
    region : (n_bag,) bool array
        Areas to predict.
    unseen : (n_bag,) bool array
        Areas whose responses the model must not have seen: the region and its buffer.
    seed : int
        Of the resampling and of the noise.

    Returns
    -------
    AreaDraws
        Joint draws of the region's areas. ``log_density`` is that of each area by itself.
    k : float
        Shape of the largest weights, which are those of the joint density of ``unseen``.
    """
    found, rng = posterior.areas, np.random.default_rng([seed, 5])
    log_weight, k = smooth_members(-found.log_lik[:, unseen].sum(axis=1), posterior.member)
    areas = np.flatnonzero(region)
    one = resample(np.exp(log_weight)[:, None], rng)
    chosen = np.broadcast_to(one, (one.shape[0], areas.size))
    expected, counts = posterior.respond(chosen, areas, rng)
    each = found.log_lik[:, areas]
    return AreaDraws(
        bag=found.bag[areas],
        y=found.y[areas],
        people=found.people[areas],
        mean=np.exp(log_weight) @ found.expected[:, areas],
        expected=expected,
        counts=counts,
        log_density=np.asarray(logsumexp(log_weight[:, None] + each, axis=0)),
        tested=found.tested[areas],
        least=found.least[areas],
        most=found.most[areas],
    ), k


Refit = Callable[[np.ndarray], tuple[AreaDraws, np.ndarray]]


def leave_areas_out(
    left: LeftOut, fold: np.ndarray, refit: Refit, most_fits: int | None = None
) -> tuple[AreaDraws, np.ndarray, dict[str, Any]]:
    """Put refits in the place of areas whose weights cannot be trusted.

    Each of at most ``most_fits`` leaves out a share of ``TOGETHER``. Where the weights of more than
    ``REFIT_SHARE`` of the areas fail, as under counts so large that each rules its own area, all
    areas are predicted by fits without their fold.

    Parameters
    ----------
    left : LeftOut
        Of every area, in the order of the store.
    fold : (n_bag,) int64 array
        Fold of each area.
    refit : callable
        From folds, -1 for areas that are never left out, to predictions of the others.
    most_fits : int, optional
        As many as there are folds if not given.

    Returns
    -------
    predictions : AreaDraws
        Of all areas, fold after fold.
    fold_of : (n_bag,) int64 array
    about : dict
        ``method``, ``limit`` of ``k``, its ``k_median`` and ``k_max``, areas ``above`` it, those
        ``refitted`` in how many ``refits``, whether ``by_folds``, and ``unreliable``: numbers of
        the areas that keep weights which cannot be trusted.
    """
    limit = trusted(left.counts.shape[0])
    n, most_fits = len(left), int(fold.max()) + 1 if most_fits is None else most_fits
    bad = np.flatnonzero(~(left.k <= limit))
    worst_first = bad[np.argsort(-np.nan_to_num(left.k[bad], nan=np.inf), kind="stable")]
    together = max(1, int(np.ceil(TOGETHER * n)))
    names = [each.name for each in fields(AreaDraws)]
    predictions = AreaDraws(**{name: getattr(left, name) for name in names})
    method = "importance weights of the posterior's draws, one area at a time"
    by_folds = bad.size > REFIT_SHARE * n
    if by_folds:
        method = "a fit without each fold: too many areas rule their own weights"
        n_refitted, n_fit, rest = n, int(fold.max()) + 1, bad[:0]
        predictions = refit(fold)[0]
    else:
        n_refitted = min(bad.size, most_fits * together)
        again_at, rest = worst_first[:n_refitted], worst_first[n_refitted:]
        n_fit = int(np.ceil(n_refitted / together))
        if n_fit:
            again = np.full(fold.shape, -1)
            again[again_at] = np.arange(n_refitted) % n_fit
            fitted, _ = refit(again)
            predictions = AreaDraws.concatenate([predictions.select(again < 0), fitted])
    order = np.lexsort((predictions.bag, fold[predictions.bag]))
    finite = left.k[np.isfinite(left.k)]
    about = {
        "method": method,
        "limit": limit,
        "k_median": float(np.median(finite)) if finite.size else None,
        "k_max": float(finite.max()) if finite.size else None,
        "above": int(bad.size),
        "refitted": n_refitted,
        "refits": n_fit,
        "by_folds": by_folds,
        "unreliable": np.sort(rest),
    }
    return predictions.select(order), fold[predictions.bag[order]], about


def leave_regions_out(
    posterior: Posterior, fold: np.ndarray, unseen: np.ndarray, refit: Refit, seed: int
) -> tuple[AreaDraws, np.ndarray, list[dict[str, Any]]]:
    """Leave each region out by weights where they can be trusted, else by a fit without it.

    Parameters
    ----------
    posterior : Posterior
    fold : (n_bag,) int64 array
        Region of each area.
    unseen : (n_fold, n_bag) bool array
        Areas that each fold must not have seen: its region and its buffer.
    refit : callable
        From regions, -1 where weights serve, to predictions of the others.
    seed : int

    Returns
    -------
    predictions : AreaDraws
        Of all areas, fold after fold.
    fold_of : (n_bag,) int64 array
    made : list of dict
        Of each fold ``how`` (``weights`` or ``refit``) and ``k``.
    """
    limit = trusted(posterior.n_draws)
    made: list[dict[str, Any]] = []
    parts, wanted = [], np.full(fold.shape, -1)
    for number, without in enumerate(unseen):
        found, k = leave_region_out(posterior, fold == number, without, seed + number)
        good = bool(k <= limit)
        made.append({"how": "weights" if good else "refit", "k": k})
        if good:
            parts.append(found)
        else:
            wanted[fold == number] = number
    if (wanted >= 0).any():
        parts.append(refit(wanted)[0])
    predictions = AreaDraws.concatenate(parts)
    order = np.lexsort((predictions.bag, fold[predictions.bag]))
    return predictions.select(order), fold[predictions.bag[order]], made
