r"""Draws of whole functions, by Matheron's rule (Wilson et al. 2020, eq. 13).

    f(x) = mean + f0(x) + k(x, W) K_WW^-1 (u - f0(W)),   u ~ q,   f0 ~ the prior,

with ``f0`` from random Fourier features of the kernel. A draw is the same function whatever the
tiles it is evaluated on, so sums over pixels, of a district or a country, are joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.backend.arrays import solve_lower
from models.gp.kernels import Kernel
from models.gp.random_features import Features
from models.likelihoods.links import find_link

N_FEATURE = 1024
LEAST_FEATURES = 256  # of functions that are pooled with those of other draws of hyperparameters
GROUP_FREQUENCIES = 64  # of a term, that a group of the functions drawn together has to itself
ROWS = 2048


@dataclass(frozen=True)
class Surface:
    """What the drawn functions share.

    Attributes
    ----------
    kernel : Kernel
    theta : (n_theta,) float64
    w : (n_ind, n_dim) float64
        Inducing points, scaled.
    mean : float
        Of ``f``.
    link : str
    scale : float
        Rate per unit of weight that ``Psi(f) = 1`` stands for.
    """

    kernel: Kernel
    theta: np.ndarray
    w: np.ndarray
    mean: float
    link: str
    scale: float


@dataclass(frozen=True)
class FunctionDraws:
    """``n_draws`` functions of the posterior.

    Attributes
    ----------
    surface : Surface
    weights : (n_feature, n_draws) float64
        Of the prior part.
    coefficients : (n_ind, n_draws) float64
        Of the kernel at the inducing points.
    group : (n_draws,) int64
        Functions of one group share random features, see :func:`draw_functions`.
    """

    surface: Surface
    features: Features
    weights: np.ndarray
    coefficients: np.ndarray
    group: np.ndarray

    @property
    def n_draws(self) -> int:
        """Number of functions."""
        return int(self.weights.shape[1])

    def latent(self, z: np.ndarray) -> np.ndarray:
        """Evaluate ``f`` at scaled inputs (n_pix, n_dim): (n_pix, n_draws)."""
        of = self.surface
        f = self.features(z) @ self.weights.astype(z.dtype)
        k, _ = of.kernel.cross(of.theta, z, of.w.astype(z.dtype))
        f += k @ self.coefficients.astype(z.dtype)
        f += z.dtype.type(of.mean)
        return f

    def bag_sums(self, z: np.ndarray, weight: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Sum ``weight x rate`` over each bag: (n_draws, n_bag), tile by tile of pixels.

        Parameters
        ----------
        z : (n_pix, n_dim), scaled inputs;  weight : (n_pix,);  offsets : (n_bag + 1,)
        """
        total = np.zeros((offsets.shape[0] - 1, self.n_draws))
        bag = np.repeat(np.arange(total.shape[0]), np.diff(offsets))
        for start in range(0, z.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            value = find_link(self.surface.link).value(self.latent(z[rows]))
            value *= weight[rows, None].astype(value.dtype)
            add_by_bag(total, bag[rows], value)
        return self.surface.scale * total.T


def add_by_bag(total: np.ndarray, bag: np.ndarray, value: np.ndarray) -> None:
    """Add what pixels (n, ...) have to the bags (n_bag, ...) that they follow one another in."""
    first = np.flatnonzero(np.diff(bag, prepend=-1))
    total[bag[first]] += np.add.reduceat(value, first, axis=0, dtype=np.float64)


def feature_share(share: float) -> int:
    """Return the random features for functions that are this share of those pooled.

    A draw's variance is right on average over the features, and off by their number: pooled draws
    of independent features are off by the number of all of them.
    """
    return max(LEAST_FEATURES, 2 * int(np.ceil(0.5 * share * N_FEATURE)))


def draw_functions(
    surface: Surface,
    lower: np.ndarray,
    u_white: np.ndarray,
    jitter_sd: float,
    rng: np.random.Generator,
    n_feature: int = N_FEATURE,
) -> FunctionDraws:
    """Condition draws of the prior on draws of the inducing values.

    Functions that share random features are not independent: what the features miss of the
    covariance, all of them miss. So they are drawn in groups, each with frequencies of its own out
    of all that are evaluated; averages of groups then tell how far features alone put them apart
    (:func:`pipeline.products.monte_carlo.standard_error`).

    Parameters
    ----------
    surface : Surface
    lower : (n_ind, n_ind) float64
        Cholesky factor of ``K_WW`` with its jitter.
    u_white : (n_ind, n_draws) float64
        Draws of the whitened inducing values, ``u = mean + lower u_white``.
    jitter_sd : float
        Square root of the jitter: the prior draw at ``W`` carries the same noise as ``K_WW``.
    rng : numpy Generator
    n_feature : int
        Random features of each term of the kernel.
    """
    n_draws = u_white.shape[1]
    features = surface.kernel.features(surface.theta, n_feature, rng)
    weights = rng.standard_normal((features.n_feature, n_draws))
    group = grouped(features, weights)
    at_w = surface.kernel.inducing_features(
        features, surface.w
    ) @ weights + jitter_sd * rng.standard_normal(u_white.shape)
    coefficients = solve_lower(lower, u_white - solve_lower(lower, at_w), transposed=True)
    return FunctionDraws(surface, features, weights, coefficients, group)


def grouped(features: Features, weights: np.ndarray) -> np.ndarray:
    """Leave each group of functions its own frequencies, in place; return the groups (n_draws,).

    Every ``n_group``-th independent frequency is of one group, with as much more weight. Functions
    are groups of their own where all features are exact, or too few for two groups.
    """
    n_draws = weights.shape[1]
    independent = [leaf.frequency.shape[1] for leaf in features.leaves() if leaf.independent]
    n_group = min(max(independent, default=0) // GROUP_FREQUENCIES, n_draws // 2)
    if n_group < 2:
        return np.arange(n_draws)
    group, first = np.arange(n_draws) % n_group, 0
    for leaf in features.leaves():
        rows = slice(first, first + leaf.n_feature)
        first = rows.stop
        n_frequency = leaf.frequency.shape[1]
        if leaf.independent and n_group <= n_frequency:
            owner = np.arange(n_frequency) % n_group
            share = np.sqrt(n_frequency / np.bincount(owner))
            owner = np.tile(owner, 2)  # cosines, then sines
            weights[rows] *= np.where(owner[:, None] == group, share[owner][:, None], 0.0)
    return group
