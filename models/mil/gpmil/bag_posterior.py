r"""The distribution of a bag's probability under a joint Gaussian posterior of its latent values.

    f_b ~ N(m, S),   m = mu + K alpha,   S = k(X, X) - K Q K'   (Kim & De la Torre 2010, eq. 14)

Under the soft-max likelihood it is ``sigma(log sum exp f)``, whose distribution is drawn. Under the
witness likelihood it is ``sigma(p'f)``, with the shares ``p`` of eq. (17) at ``m``, and fixed, as
they are in training: ``p'f`` is one normal number. Eq. (15), the probability at the mode, is there
beside them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import expit, logsumexp

from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.gp.kernels import Kernel
from models.likelihoods.probability import Probability, ProbabilityDraws
from models.mil.data.spread_columns import scaled_columns


def witness_share(m: np.ndarray, inverse_temperature: float) -> np.ndarray:
    """Return eq. (17) for one bag, whose latent values have means ``m``: (n_pix,)."""
    scaled = inverse_temperature * m
    return np.asarray(np.exp(scaled - logsumexp(scaled)))


def joint_posterior(kernel: Kernel, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (n_pix,) and covariance (n_pix, n_pix) of the latent values of some pixels.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta``, ``w`` (n_ind, n_dim), ``mean``, ``alpha``, ``q``.
    z : (n_pix, n_dim) float64
        Scaled inputs.
    """
    theta, w = params["theta"], params["w"]
    k = kernel.matrix(theta, z, w)
    cov = kernel.matrix(theta, z, z) - k @ params["q"] @ k.T
    return params["mean"][0] + k @ params["alpha"], 0.5 * (cov + cov.T)


def predict_bags(
    kernel: Kernel,
    params: Arrays,
    bags: BagBlock,
    n_draws: int,
    rng: np.random.Generator | None,
    seed: int,
) -> Probability | ProbabilityDraws:
    """Predict the label of each bag (eq. 14): draws, which the witness likelihood does not need.

    Parameters
    ----------
    kernel, params
        As of :func:`joint_posterior`, with the scalings and ``inverse_temperature``.
    rng : numpy Generator or None
        Where None, each bag's draws are seeded by ``seed`` and its number: the same in any block.
    """
    z = scaled_columns(params, bags.x, bags.coords, np.float64)
    heat = float(params["inverse_temperature"][0])
    edges = list(pairwise(bags.offsets.tolist()))
    if heat > 0:
        g_mean, g_var = np.empty(bags.n_bag), np.empty(bags.n_bag)
        for a, (first, stop) in enumerate(edges):
            m, cov = joint_posterior(kernel, params, z[first:stop])
            share = witness_share(m, heat)
            g_mean[a], g_var[a] = share @ m, max(share @ cov @ share, 0.0)
        return Probability("logistic", g_mean, g_var)
    draws = np.empty((n_draws, bags.n_bag))
    for a, (first, stop) in enumerate(edges):
        source = rng or np.random.default_rng([seed, 3, int(bags.bag[a])])
        m, cov = joint_posterior(kernel, params, z[first:stop])
        f = m + source.standard_normal((n_draws, stop - first)) @ covariance_root(cov).T
        draws[:, a] = expit(logsumexp(f, axis=1))
    return ProbabilityDraws(draws)


def covariance_root(cov: np.ndarray, jitter: float = 0.0) -> np.ndarray:
    """Return ``R`` with ``R R' = cov``; instances that coincide, or nearly, make it singular."""
    try:
        return np.asarray(np.linalg.cholesky(cov + jitter * np.eye(cov.shape[0])))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(0.5 * (cov + cov.T))
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def mode_probability(params: Arrays, m: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return eq. (15): the probability of each bag at the means ``m`` (n_pix,) of its pixels."""
    heat = float(params["inverse_temperature"][0])
    at = np.empty(offsets.shape[0] - 1)
    for a, (first, stop) in enumerate(pairwise(offsets.tolist())):
        here = m[first:stop]
        at[a] = witness_share(here, heat) @ here if heat > 0 else logsumexp(here)
    return np.asarray(expit(at))
