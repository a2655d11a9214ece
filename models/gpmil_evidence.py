r"""The evidence of GPMIL and its gradient, under the soft-max and the witness law.

Given the witness shares ``p`` of eq. (17), the witness law (eq. 18) sees a bag by one number,
``g_b = sum_i p_i f_i``, and is ordinary logistic classification of ``n_bag`` points with the kernel
matrix ``P' K P``: Laplace's approximation then costs that of the bags, not of the instances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.kernels import Kernel
from models.laplace import Projection, approximate, factor_prior, find_mode
from models.soft_max import Sizes, witness_shares

WARMEST, COOLING = 0.1, 10.0  # lambda of eq. (17) at the first stage, and its factor (section 4)
MAX_STAGES = 12
MAX_TURNS = 20  # of shares and posterior at one temperature
DAMPING = 0.5
AGREE = 0.01  # most that a share is from its temperature's law when they agree


@dataclass(frozen=True)
class Problem:
    """Labelled bags, scaled.

    Attributes
    ----------
    z : (n_pix, n_dim) float64
    sizes : Sizes
    sign : (n_bag,) float64
        Labels, -1 or 1.
    kernel : Kernel
    """

    z: np.ndarray
    sizes: Sizes
    sign: np.ndarray
    kernel: Kernel

    @property
    def bag(self) -> np.ndarray:
        """Bag of each instance: (n_pix,) int64."""
        out = np.empty(self.sizes.n_pix, dtype=np.int64)
        for bags, rows in zip(self.sizes.bags, self.sizes.rows, strict=True):
            out[rows] = bags[:, None]
        return out


@dataclass(frozen=True)
class Posterior:
    """Laplace's posterior over the instances, and its evidence.

    Attributes
    ----------
    evidence : float
        Eq. (13), nats.
    grad : (n_theta + 1,) float64 or None
        By the logarithms of the kernel's parameters, and the mean.
    alpha : (n_pix,) float64
        Predictive mean: ``mu + k* alpha``.
    q : (n_pix, n_pix) float64
        Predictive variance: ``k** - k* q k*'``.
    converged : bool
        Whether the mode was found.
    """

    evidence: float
    grad: np.ndarray | None
    alpha: np.ndarray
    q: np.ndarray
    converged: bool


def posterior(
    problem: Problem,
    point: np.ndarray,
    share: np.ndarray | None,
    projection: Projection,
    *,
    learn: bool,
) -> Posterior:
    """Approximate the posterior at some hyperparameters.

    Parameters
    ----------
    problem : Problem
    point : (n_theta + 1,) float64
        Logarithms of the kernel's parameters, and the mean.
    share : (n_pix,) float64 or None
        Witness shares, held fixed; the soft-max law where None.
    projection : {"blocks", "whole"}
        See :func:`models.laplace.approximate`.
    learn : bool
        Whether the gradient is wanted.
    """
    z, kernel, theta, mean = problem.z, problem.kernel, point[:-1], float(point[-1])
    k, cache = kernel.forward(theta, z, z)
    bag = problem.bag
    if share is None:
        sizes, prior = problem.sizes, k
    else:
        sizes, prior = _single_bags(problem), _bag_kernel(k, share, bag)[0]
    lower = factor_prior(prior)
    mode = find_mode(lower, mean, sizes, problem.sign)
    found = approximate(lower, sizes, projection, mode, learn=learn)
    alpha, q, d_k = found.alpha, found.r, found.d_k
    if share is not None:
        pairs = (bag[:, None], bag)
        alpha, outer = share * alpha[bag], np.outer(share, share)
        q = q[pairs] * outer
        d_k = None if d_k is None else d_k[pairs] * outer
    grad = None
    if d_k is not None:
        by_theta, _ = kernel.backward(theta, z, z, cache, d_k, want_w=False)
        grad = np.append(by_theta, found.d_mean)
    return Posterior(found.evidence, grad, alpha, q, mode.converged)


def anneal(problem: Problem, point: np.ndarray, coldest: float) -> tuple[np.ndarray, float]:
    """Sharpen the witness shares from uniform, temperature by temperature (section 3.1).

    At each temperature shares and posterior alternate until they agree. Undamped they do not: push
    down the largest instance of a negative bag and another one takes its place, for ever.

    Returns
    -------
    share : (n_pix,) float64
    inverse_temperature : float
        The last ``lambda``: ``coldest``.
    """
    mean, bag = float(point[-1]), problem.bag
    k = problem.kernel.matrix(point[:-1], problem.z, problem.z)
    share = witness_shares(problem.sizes, np.zeros(problem.sizes.n_pix), 1.0)
    singles, v = _single_bags(problem), None
    heats = [WARMEST * COOLING**stage for stage in range(MAX_STAGES)]
    for heat in [heat for heat in heats if heat < coldest * (1 - 1e-9)] + [coldest]:
        for turn in range(MAX_TURNS):
            k_bag, k_cross = _bag_kernel(k, share, bag)
            mode = find_mode(factor_prior(k_bag), mean, singles, problem.sign, v)
            v, f = mode.v, mean - k_cross @ mode.terms.gradient
            way = witness_shares(problem.sizes, f, heat) - share
            if float(np.abs(way).max()) < AGREE:
                break
            share = share + way / (1.0 + DAMPING * turn)
    return share, heat


def _bag_kernel(k: np.ndarray, share: np.ndarray, bag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``P' K P`` (n_bag, n_bag) and ``K P`` (n_pix, n_bag); bags are stored in a row."""
    first = np.flatnonzero(np.diff(bag, prepend=-1))
    k_cross = np.add.reduceat(k * share, first, axis=1)
    return np.add.reduceat(share[:, None] * k_cross, first, axis=0), k_cross


def _single_bags(problem: Problem) -> Sizes:
    return Sizes.of(np.arange(problem.sizes.n_bag + 1))
