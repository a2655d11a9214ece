"""Folds of bags with labels."""

from __future__ import annotations

import numpy as np


def stratified_folds(y: np.ndarray, n_fold: int, seed: int) -> np.ndarray:
    """Assign bags at random to folds with equal shares of each label.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each bag, 0 to ``min(n_fold, n_bag) - 1``.
    """
    n_bag = y.shape[0]
    order = np.lexsort((np.random.default_rng([seed, 11]).permutation(n_bag), y))
    fold = np.empty(n_bag, dtype=np.int64)
    fold[order] = np.arange(n_bag) % max(1, min(n_fold, n_bag))
    return fold
