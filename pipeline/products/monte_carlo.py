r"""Standard error of an average over drawn functions, from one set of them.

Draws are dealt to the draws of the hyperparameters ("members") in proportion to their weights, so
that members are strata: what they differ by is no chance. In a member the draws of a group share
their random features: they are independent given these, and groups are independent of each other.
With ``x`` the deviation of a draw from the average of its member, ``t_g`` its sum over a group and
``G_k`` groups in member ``k``,

    Var(mean) = 1 / n^2 sum_k G_k / (G_k - 1) sum_{g in k} t_g^2,

the variance of a stratified sample of clusters (Cochran 1977, section 11). It leaves out that the
number of draws of a member is its share to within one draw only.
"""

from __future__ import annotations

import numpy as np


def standard_error(value: np.ndarray, clusters: np.ndarray | None = None) -> float:
    """Return the Monte Carlo standard error of the average of draws.

    Parameters
    ----------
    value : (n_draws,) array
    clusters : (n_draws, 2) int array, optional
        Member and group of each draw; all independent if not given. A member of one group, as one
        with very few draws is, takes the variance of a draw from the others.

    Returns
    -------
    float
    """
    n = value.shape[0]
    each = np.stack([np.zeros(n), np.arange(n)], axis=1) if clusters is None else clusters
    variance, known = 0.0, 0
    for member in np.unique(each[:, 0]):
        own = each[:, 0] == member
        off = value[own] - value[own].mean()
        _, group = np.unique(each[own, 1], return_inverse=True)
        total = np.bincount(group, off)
        if total.size > 1:
            variance += total.size / (total.size - 1) * float(total @ total)
            known += int(own.sum())
    if known == 0:
        return standard_error(value) if clusters is not None else float("nan")
    return float(np.sqrt(variance * n / known) / n)
