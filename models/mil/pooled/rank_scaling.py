"""Normal scores: covariates by their ranks among the training instances.

A kernel of distances sees a covariate as it is measured: a heavy tail, or a covariate that is 0 but
in a few instances, then outweighs all others. By ranks a fit does not change with any increasing
transformation of a covariate, as trees' fits do not.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from models.core.protocol import Arrays

N_KNOT = 201  # values of a covariate between which scores are interpolated, at most


def rank_knots(x: np.ndarray) -> Arrays:
    """Return what :func:`normal_scores` needs: ``rank_value`` and ``rank_score``.

    Parameters
    ----------
    x : (n_sample, n_feat) float64
        A sample of the training instances.

    Returns
    -------
    dict of (n_knot, n_feat) float64 arrays
        Increasing values of each covariate and their scores; the last ones repeat where a
        covariate has fewer values.
    """
    value, score = np.empty((2, N_KNOT, x.shape[1]))
    for k, column in enumerate(x.T):
        known, count = np.unique(column, return_counts=True)
        # Equal values share the middle of their ranks.
        level = (np.cumsum(count) - 0.5 * count) / column.size
        if known.size > N_KNOT:
            place = np.linspace(0.0, 1.0, N_KNOT)
            near = np.interp(place, (level - level[0]) / (level[-1] - level[0]), known)
            known, level = near, np.interp(near, known, level)
        spare = N_KNOT - known.size
        value[:, k] = np.pad(known, (0, spare), mode="edge")
        score[:, k] = np.pad(ndtri(level), (0, spare), mode="edge")
    return {"rank_value": value, "rank_score": score}


def normal_scores(knots: Arrays, x: np.ndarray) -> np.ndarray:
    """Return the normal scores of covariates ``x`` (n_pix, n_feat); beyond the ends, the ends'."""
    out = np.empty(x.shape)
    for k in range(x.shape[1]):
        out[:, k] = np.interp(x[:, k], knots["rank_value"][:, k], knots["rank_score"][:, k])
    return out
