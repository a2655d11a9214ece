"""Scores of one number said of each area: the functional that a score asks for.

A score of points is consistent for one functional of the predictive distribution: that functional
has the least expected score (Gneiting 2011, Making and evaluating point forecasts, JASA 106,
theorems 7 and 9). Scored by another, a forecaster who knows the distribution exactly loses to one
who does not: the mean of a skewed count is far above what its absolute error asks for.

============================================  ======================================================
score                                         functional of the predictive distribution of a count
============================================  ======================================================
``rmse``, ``poisson_deviance``                mean
``mae``                                       median, observation noise included
``rmse`` of ``log_counts``                    mean of the logarithm
``mae`` of ``log_counts``                     logarithm of the median
``correlation``, ``spearman``                 mean (of the logarithm for ``log_counts``)
============================================  ======================================================

A rate is a count over an exposure that is known, and its functionals are theirs over it. The median
is of the *count*, not of its expectation: an area with an expectation of 0.6 most often has no
case, and an area effect of mean one has a median below one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.evaluation.scores import mae, pearson, poisson_deviance, rmse, spearman

HALF = 0.5  # added to counts before their logarithm, so that zeros have one


def point_scores(
    y: np.ndarray,
    mean: np.ndarray,
    draws: np.ndarray,
    exposure: np.ndarray,
    *,
    counts: bool = True,
) -> dict[str, Any]:
    """Scores of points against observed counts, each of the functional that it asks for.

    Parameters
    ----------
    y, mean : (n_bag,) arrays
        Observed and expected counts.
    draws : (n_draws, n_bag) array
        Draws of the counts, observation noise included: their medians and mean logarithms.
    exposure : (n_bag,) array
        A rate is a count over its exposure: people, or people tested.
    counts : bool
        Whether they are counts; other values have no ``poisson_deviance`` and no ``log_counts``.

    Returns
    -------
    dict
        ``poisson_deviance`` (mean over areas), and of ``counts``, ``rates`` and ``log_counts``
        each ``rmse``, ``mae``, ``correlation``; ``spearman`` of counts and of rates. Logarithms
        are of counts plus one half.
    """
    exposure = np.where(exposure > 0, exposure, np.nan)
    known = np.isfinite(y / exposure) & np.isfinite(mean / exposure)
    median = np.median(draws, axis=0)
    per = exposure[known]
    result: dict[str, Any] = {
        "counts": _scores(y, mean, median),
        "rates": _scores(y[known] / per, mean[known] / per, median[known] / per),
    }
    if not counts:
        return result
    logs = _scores(_log(y), _log(draws).mean(axis=0), _log(median))
    del logs["spearman"]  # the ranks of the logarithms are those of the counts
    deviance = float(poisson_deviance(y, mean).mean()) if y.size else float("nan")
    return {"poisson_deviance": deviance, **result, "log_counts": logs}


def _log(counts: np.ndarray) -> np.ndarray:
    return np.log(np.clip(counts, 0, None) + HALF)


def _scores(observed: np.ndarray, mean: np.ndarray, median: np.ndarray) -> dict[str, float]:
    """Squared error and correlations of means, absolute error of medians; NaN without areas."""
    if observed.shape[0] == 0:
        return dict.fromkeys(("rmse", "mae", "correlation", "spearman"), float("nan"))
    return {
        "rmse": rmse(observed, mean),
        "mae": mae(observed, median),
        "correlation": pearson(observed, mean),
        "spearman": spearman(observed, mean),
    }
