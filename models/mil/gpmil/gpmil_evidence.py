r"""The evidence of GPMIL and its gradient, under the soft-max and the witness likelihood.

Given the witness shares ``p`` of eq. (17), the witness likelihood (eq. 18) sees a bag by one
number, ``g_b = sum_i p_i f_i``, and is ordinary logistic classification of ``n_bag`` points with
the kernel matrix ``P' K P``: Laplace's approximation then costs that of the bags, not of the
instances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import logit

from models.core.protocol import Arrays
from models.gp.kernels import Kernel
from models.mil.gpmil.laplace import Projection, approximate, factor_prior, find_mode
from models.mil.gpmil.soft_max import Sizes, witness_shares

LARGE_SD, TAIL, MEAN_SD = 5.0, 0.1, 3.0
WARMEST, COOLING = 0.1, 10.0  # lambda of eq. (17) at the first stage, and its factor (section 4)
MAX_STAGES = 12
MAX_TURNS = 20  # of shares and posterior at one temperature
DAMPING = 0.5
AGREE = 0.01  # most that a share is from its temperature's when they agree


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
    grad : (n_theta + 1,) float64
        By the logarithms of the kernel's parameters, and the mean; 0 where not wanted.
    alpha : (n_pix,) float64
        Predictive mean: ``mu + k* alpha``.
    q : (n_pix, n_pix) float64
        Predictive variance: ``k** - k* q k*'``.
    converged : bool
        Whether the mode was found.
    """

    evidence: float
    grad: np.ndarray
    alpha: np.ndarray
    q: np.ndarray
    converged: bool


def start_mean(y: np.ndarray, n_pix: int, likelihood: str) -> float:
    """Return the constant mean at which bags are positive as often as they are.

    Under the soft-max likelihood the largest of ``n`` values counts about as
    ``mean + log n + 1/2``: from a mean of 0 every bag of hundreds starts as positive, and the
    process itself has to explain away the constant, by a length-scale that sees nothing else.

    Parameters
    ----------
    y : (n_bag,)
        Labels, 0 or 1.
    n_pix : int
        Instances of all bags.
    likelihood : {"softmax", "witness"}
    """
    n_bag = y.shape[0]
    at = float(logit((y.sum() + 0.5) / (n_bag + 1.0)))
    if likelihood == "witness":  # its shares add up to one
        return at
    size = n_pix / n_bag
    return at - float(np.log(size)) - 0.5 * (1.0 - 1.0 / size)


def log_prior(
    names: tuple[str, ...], point: np.ndarray, centre: float = 0.0
) -> tuple[float, np.ndarray]:
    """Return the log density of the hyperparameters, up to a constant, and its gradient.

    Labels without noise do not determine the latent function's scale: its variance would grow
    without limit, and its mean fall. Deviations are exponential with ``P(sd > LARGE_SD) = TAIL``
    (Simpson et al. 2017), densities being by the logarithm of the variance; the mean is normal.
    Length-scales have no prior.

    Parameters
    ----------
    names : tuple of str
        Of the kernel's parameters.
    point : (n_theta + 1,) float64
        Their logarithms, and the mean.
    centre : float
        Of the mean's prior, see :func:`start_mean`.
    """
    variances = np.array([".variance" in name for name in names] + [False])
    rate = -np.log(TAIL) / LARGE_SD
    sd = np.exp(0.5 * point[variances])
    mean = float(point[-1]) - centre
    value = float((0.5 * point[variances] - rate * sd).sum()) - 0.5 * (mean / MEAN_SD) ** 2
    grad = np.zeros_like(point)
    grad[variances] = 0.5 - 0.5 * rate * sd
    grad[-1] = -mean / MEAN_SD**2
    return value, grad


def scale_by_range(fixed: Arrays, x: np.ndarray) -> Arrays:
    """Return the scalings with every covariate divided by its range, not its deviation.

    Rarely active covariates then weigh less. All are multiplied by one number, so that their
    squares still add up to the number of covariates, and length-scales keep their meaning.

    Parameters
    ----------
    fixed : dict of arrays
        From :func:`models.gp.scaling.scaling_of`.
    x : (n_pix, n_feat)
    """
    spread = np.ptp(x, axis=0).astype(np.float64)
    spread = np.where(spread > 0, spread, 1.0)
    share = fixed["x_sd"] / spread
    level = float(np.sqrt((share[np.ptp(x, axis=0) > 0] ** 2).mean())) if spread.size else 1.0
    return {**fixed, "x_sd": spread * (level if level > 0 else 1.0)}


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
        Witness shares, held fixed; the soft-max likelihood where None.
    projection : {"blocks", "whole"}
        See :func:`models.mil.gpmil.laplace.approximate`.
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
    grad = np.zeros_like(point)
    if d_k is not None:
        by_theta, _ = kernel.backward(theta, z, z, cache, d_k, want_w=False)
        grad = np.append(by_theta, found.d_mean)
    return Posterior(found.evidence, grad, alpha, q, mode.converged)


def anneal(problem: Problem, point: np.ndarray, coldest: float) -> np.ndarray:
    """Sharpen the witness shares from uniform, temperature by temperature (section 3.1).

    At each temperature shares and posterior alternate until they agree. Undamped they do not: push
    down the largest instance of a negative bag and another one takes its place, for ever.

    Returns
    -------
    (n_pix,) float64
        Shares at the inverse temperature ``coldest``.
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
            v, f = mode.v, mean - mode.terms.gradient @ k_cross
            way = witness_shares(problem.sizes, f, heat) - share
            if float(np.abs(way).max()) < AGREE:
                break
            share = share + way / (1.0 + DAMPING * turn)
    return share


def _bag_kernel(k: np.ndarray, share: np.ndarray, bag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``P' K P`` (n_bag, n_bag) and ``P' K`` (n_bag, n_pix)."""
    p = csr_array((share, (bag, np.arange(bag.shape[0]))))
    k_cross = p @ k
    k_bag = p @ np.ascontiguousarray(k_cross.T)
    return 0.5 * (k_bag + k_bag.T), k_cross


def _single_bags(problem: Problem) -> Sizes:
    return Sizes.of(np.arange(problem.sizes.n_bag + 1))
