"""Baselines of the multiple-instance benchmarks: scikit-learn on statistics of each bag.

A bag is seen through the mean, the minimum and the maximum of each feature. Every change here makes
the records of the baselines invalid.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from models.core.block import BagBlock

N_TREES = 500
N_INNER = 5  # inner folds that choose C
C_GRID = np.logspace(-4, 4, 9)


def bag_statistics(bags: BagBlock) -> np.ndarray:
    """Return mean, minimum and maximum of each feature in each bag: (n_bag, 3 n_feat)."""
    starts = bags.offsets[:-1]
    mean = np.add.reduceat(bags.x, starts) / np.diff(bags.offsets)[:, None]
    least, most = np.minimum.reduceat(bags.x, starts), np.maximum.reduceat(bags.x, starts)
    return np.hstack([mean, least, most])


def extra_trees(n_feat: int, seed: int) -> Any:
    """Return 500 extremely randomised trees."""
    del n_feat
    return ExtraTreesClassifier(N_TREES, random_state=seed)


def logistic(n_feat: int, seed: int) -> Any:
    """Return a logistic regression; inner folds choose C by log loss."""
    del n_feat
    model = LogisticRegressionCV(
        Cs=C_GRID,
        cv=N_INNER,
        scoring="neg_log_loss",
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
        max_iter=2000,
        random_state=seed,
    )
    return make_pipeline(StandardScaler(), model)


def gaussian_process(n_feat: int, seed: int) -> Any:
    """Return a Gaussian process classifier with one length-scale, learnt by its evidence."""
    # Distances between standardised points grow with the root of the number of features: from a
    # length-scale of 1 the search would not get away.
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(np.sqrt(n_feat), (1e-2, 1e4))
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=seed))


def by_statistics(
    make: Callable[[int, int], Any],
) -> Callable[[BagBlock, BagBlock, int], np.ndarray]:
    """Return ``predict`` of a scikit-learn classifier of the bags' statistics."""

    def predict(training: BagBlock, test: BagBlock, seed: int) -> np.ndarray:
        rows = bag_statistics(training)
        with warnings.catch_warnings():
            # A parameter at the end of its range, or a C too large to converge: both are scored.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = make(rows.shape[1], seed).fit(rows, training.y)
        return model.predict_proba(bag_statistics(test))[:, 1]

    return predict


BASELINES: dict[str, tuple[str, Callable[[int, int], Any]]] = {
    "extra_trees": ("500 extra trees on bag statistics", extra_trees),
    "logistic": ("logistic regression on bag statistics, C by inner folds", logistic),
    "gp_statistics": ("scikit-learn's GP classifier on bag statistics", gaussian_process),
}
