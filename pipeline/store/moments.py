"""Means and sums of squared deviations of covariates, which merge without losing digits."""

from __future__ import annotations

import numpy as np


def moments_of(x: np.ndarray) -> np.ndarray:
    """Return mean and sum of squared deviations of each column, (2, n_feat) float64.

    Columns are shifted by their first value, so that columns far from zero lose no digits and the
    deviation of a constant column is exactly zero.
    """
    shifted = x.astype(np.float64)
    shift = shifted[0].copy()
    shifted -= shift
    mean = shifted.mean(axis=0)
    shifted -= mean
    return np.stack([shift + mean, np.einsum("ij,ij->j", shifted, shifted)])


def merge_moments(count: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Merge the moments of disjoint sets of pixels (Chan, Golub & LeVeque 1983, eq. 2.1).

    Parameters
    ----------
    count : (n_set,) int array
        Pixels of each set.
    moments : (n_set, 2, n_feat) float64 array
        Mean and sum of squared deviations of each set.

    Returns
    -------
    (2, n_feat) float64 array
    """
    share = count.astype(np.float64)[:, None]
    shift = moments[0, 0]
    centred = moments[:, 0] - shift
    mean = (share * centred).sum(axis=0) / share.sum()
    spread = (moments[:, 1] + share * (centred - mean) ** 2).sum(axis=0)
    return np.stack([shift + mean, spread])


def scaling_of(count: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation over sets of pixels; 1 for a deviation of zero."""
    if count.shape[0] == 0:
        found = "no bag is chosen, so that the scaling is undefined; choose at least one"
        raise ValueError(found)
    mean, spread = merge_moments(count, moments)
    sd = np.sqrt(spread / count.sum())
    return mean, np.where(sd > 0, sd, 1.0)
