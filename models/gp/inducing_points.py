"""Where the inducing points start: k-means on a sample of pixels."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import MiniBatchKMeans, kmeans_plusplus


def choose_inducing_points(z: np.ndarray, n_inducing: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``n_inducing`` points: k-means++ seeds, refined by mini-batch k-means.

    Parameters
    ----------
    z : (n_sample, n_dim) float64
        Scaled inputs of a sample of pixels.
    n_inducing : int
        Wanted number; there are never more than distinct rows of ``z``.
    rng : numpy Generator

    Returns
    -------
    (n_ind, n_dim) float64
    """
    distinct = np.unique(z, axis=0)
    if distinct.shape[0] <= n_inducing:
        return distinct
    seed = int(rng.integers(2**31))
    centres, _ = kmeans_plusplus(distinct, n_inducing, random_state=seed)
    means = MiniBatchKMeans(
        n_inducing, init=centres, n_init=1, batch_size=4096, max_iter=10, random_state=seed
    )
    return np.asarray(means.fit(distinct).cluster_centers_, dtype=np.float64)
