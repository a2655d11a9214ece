r"""Expected log likelihood of a bag's label under jointly Gaussian latent values.

Soft-max likelihood, ``A = log sum exp f``, ``f ~ N(m, S)``: drawn, with the same noise in every
step. The adjoints are Price's, ``d/dm E h = E grad h`` and ``d/dS E h = E hess h / 2``, the second
of them without taking the square root of ``S`` back. A bag of one instance is integrated by
Gauss-Hermite quadrature. Bags too large to draw are bounded, by Jensen's inequality on either side:

    E log sigma(t A) >= [t = 1] log sum exp m - log(1 + sum exp(m + s / 2)).

Witness likelihood: ``g = p'f`` is one normal number, with the shares ``p`` held at those of ``m``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, log_expit, logsumexp

from models.gp.bag_variance import bag_variance
from models.gp.pixel_pass import Aggregated, PairAdjoint, PixelPass
from models.likelihoods.links import find_link
from models.likelihoods.probability import gauss_hermite
from models.mil.gpmil.bag_posterior import covariance_root
from models.mil.gpmil.soft_max import Sizes, witness_shares

N_NODE = 32
JITTER = 1e-6  # of a bag's covariance, as a share of its mean diagonal


def logistic(sign: Any, m: Any, s: Any) -> tuple[Any, Any, Any]:
    """Return ``E log sigma(t f)``, ``f ~ N(m, s)``, and its derivatives by ``m`` and ``s``."""
    nodes, weights = gauss_hermite(N_NODE)
    f = m[:, None] + np.sqrt(s)[:, None] * nodes
    t = sign[:, None]
    return (
        log_expit(t * f) @ weights,
        (t * expit(-t * f)) @ weights,
        -0.5 * (expit(f) * expit(-f)) @ weights,
    )


def soft_max(
    fwd: PixelPass,
    sign: np.ndarray,
    offsets: np.ndarray,
    bag: np.ndarray,
    n_samples: int,
    max_pixels: int,
    seed: int,
) -> Aggregated:
    """Estimate the sum over bags under the soft-max likelihood, with its adjoints.

    Parameters
    ----------
    fwd : PixelPass
        Kept for learning.
    sign, bag : (n_bag,)
        Labels, -1 or 1; numbers in the data set, which seed the draws.
    offsets : (n_bag + 1,) int
    n_samples : int
        Even: half of the draws are the others' mirror images.
    max_pixels : int
        Bags of more instances are bounded.
    seed : int
    """
    kernel, theta = fwd.kernel, fwd.params["theta"]
    sizes = np.diff(offsets)
    d_m, d_s = np.zeros(fwd.m.shape), np.zeros(fwd.m.shape)
    single = np.flatnonzero(sizes == 1)
    rows = offsets[single]
    each, d_m[rows], d_s[rows] = logistic(sign[single], fwd.m[rows], fwd.s[rows])
    total = float(each.sum())
    nodes, gks, d_theta = [], [], np.zeros(theta.shape)
    for a in np.flatnonzero(sizes > 1):
        here = slice(int(offsets[a]), int(offsets[a + 1]))
        if sizes[a] > max_pixels:
            value, d_m[here], d_s[here] = _bounded(sign[a], fwd.m[here], fwd.s[here])
            total += value
            continue
        z, k = fwd.z[here], fwd.k[here]
        prior, cache = kernel.forward(theta, z, z)
        cov = (prior - fwd.kq[here] @ k.T).astype(np.float64)
        np.fill_diagonal(cov, fwd.s[here])
        noise = np.random.default_rng([seed, 5, int(bag[a])]).standard_normal(
            (n_samples // 2, int(sizes[a]))
        )
        value, d_m[here], g = _drawn(sign[a], fwd.m[here], cov, noise)
        total += value
        d_s[here] = np.diag(g)
        np.fill_diagonal(g, 0.0)
        g = g.astype(z.dtype)
        nodes.append(np.arange(here.start, here.stop))
        gks.append(g @ k)
        d_theta += kernel.backward(theta, z, z, cache, g, want_w=False)[0]
    pairs = PairAdjoint(np.concatenate(nodes), np.concatenate(gks), d_theta) if nodes else None
    return Aggregated(total, d_m, d_s, pairs, {})


def _drawn(
    t: float, m: np.ndarray, cov: np.ndarray, noise: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return one bag's expectation, its adjoint by ``m``, and by ``S`` (symmetric)."""
    n = m.shape[0]
    step = noise @ covariance_root(cov, JITTER * np.trace(cov) / n).T
    f = np.concatenate([m + step, m - step])
    largest = logsumexp(f, axis=1)
    p = np.exp(f - largest[:, None])
    by, by2 = t * expit(-t * largest), -expit(largest) * expit(-largest)
    d_m = (by @ p) / f.shape[0]
    g = 0.5 / f.shape[0] * (p.T * (by2 - by)) @ p
    g[np.diag_indices(n)] += 0.5 * d_m
    return float(log_expit(t * largest).mean()), d_m, g


def _bounded(t: float, m: np.ndarray, s: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return one bag's lower bound and its adjoints by ``m`` and ``s``."""
    raised = m + 0.5 * s
    above = float(np.logaddexp(0.0, logsumexp(raised)))
    q = np.exp(raised - above)
    if t < 0:
        return -above, -q, -0.5 * q
    largest = float(logsumexp(m))
    return largest - above, np.exp(m - largest) - q, -0.5 * q


def witness(
    fwd: PixelPass,
    sign: np.ndarray,
    offsets: np.ndarray,
    bag: np.ndarray,
    inverse_temperature: float,
    max_pixels: int,
) -> Aggregated:
    """Compute the sum over bags under the witness likelihood, with its adjoints.

    Parameters
    ----------
    fwd, sign, offsets, bag
        As of :func:`soft_max`.
    inverse_temperature : float
        ``lambda`` of eq. (17).
    max_pixels : int
        Nodes that the pairs of a larger bag are taken from, see :mod:`bag_variance`.
    """
    share = witness_shares(Sizes.of(offsets), fwd.m, inverse_temperature)
    g_mean = np.add.reduceat(share * fwd.m, offsets[:-1])
    variance = bag_variance(fwd, find_link("identity"), share, offsets, bag, max_pixels)
    each, by_mean, by_var = logistic(sign, g_mean, np.maximum(variance.value, 0.0))
    d_m, d_s, pairs = variance.backward(by_var)
    d_m += np.repeat(by_mean, np.diff(offsets)) * share
    return Aggregated(float(each.sum()), d_m, d_s, pairs, {})
