r"""Joint distribution of averages of ``f`` over sets of places, under ``q``.

An average ``a_s = mean_i f(z_si)`` is linear in ``f``, so that all of them are jointly normal: with
the block quantities of :mod:`models.gp.sparse_gp`, ``K`` the averaged covariances with the inducing
variables and ``P`` the prior covariances of the averages,

    E a = mean + K alpha,    Cov a = P - K Q K'.
"""

from __future__ import annotations

import numpy as np

from models.core.protocol import Arrays
from models.gp.kernels import Kernel


def averages(kernel: Kernel, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (n_set,) and covariance (n_set, n_set) of the averages of ``f`` over sets.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta w mean alpha q``.
    z : (n_set, n_place, n_dim) float64
        Scaled inputs.
    """
    n_set, n_place, n_dim = z.shape
    flat = z.reshape(-1, n_dim)
    k = kernel.cross_values(params["theta"], flat, params["w"])
    k = k.reshape(n_set, n_place, -1).mean(axis=1)
    prior = kernel.matrix(params["theta"], flat, flat)
    prior = prior.reshape(n_set, n_place, n_set, n_place).mean(axis=(1, 3))
    cov = prior - k @ params["q"] @ k.T
    return params["mean"][0] + k @ params["alpha"], 0.5 * (cov + cov.T)
