r"""Draws of whole functions, by Matheron's rule (Wilson et al. 2020, eq. 13).

    f(x) = mean + f0(x) + k(x, W) K_WW^-1 (u - f0(W)),   u ~ q,   f0 ~ the prior,

with ``f0`` from random Fourier features of the kernel. A draw is the same function whatever the
tiles it is evaluated on, so sums over pixels, of a district or a country, are joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from models.backend.arrays import solve_lower
from models.gp.kernels import Kernel
from models.gp.random_features import Features

N_FEATURE = 1024
LEAST_FEATURES = 256  # of functions that are pooled with those of other draws of hyperparameters
GROUP_FREQUENCIES = 64  # of a term, that a group of the functions drawn together has to itself
ROWS = 2048
#: Of ``f``, what single precision may round off by the inequality of Cauchy and Schwarz: fifty to a
#: hundred times what it does (docs/design/speed.md).
ROUNDED = 0.05


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
    dtype : dtype
        Of the inputs that they are evaluated at.
    about : (n_ind, 1 + n_draws) float64
        What the kernel is multiplied with for the mean of ``f``, and for how far each draw of the
        inducing values takes it from there.
    """

    surface: Surface
    features: Features
    weights: np.ndarray
    coefficients: np.ndarray
    group: np.ndarray
    dtype: Any
    about: np.ndarray

    @property
    def n_draws(self) -> int:
        """Number of functions."""
        return int(self.weights.shape[1])

    def some(self, columns: np.ndarray) -> Self:
        """Return some of the functions, by their places (n,)."""
        return replace(
            self,
            weights=self.weights[:, columns],
            coefficients=self.coefficients[:, columns],
            group=self.group[columns],
            about=self.about[:, with_mean(columns)],
        )

    def latent(self, z: np.ndarray) -> np.ndarray:
        """Evaluate ``f`` at scaled inputs (n_pix, n_dim): (n_pix, n_draws)."""
        of = self.surface
        f = self.features(z) @ self.weights.astype(z.dtype)
        k = of.kernel.cross_values(of.theta, z, of.w.astype(z.dtype))
        f += k @ self.coefficients.astype(z.dtype)
        f += z.dtype.type(of.mean)
        return f

    def latent_and_about(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate ``f``, and what ``about`` makes: (n, n_draws) and (n, 1 + n_draws)."""
        of = self.surface
        k = of.kernel.cross_values(of.theta, z, of.w.astype(z.dtype))
        found = k @ np.hstack([self.coefficients, self.about]).astype(z.dtype)
        f = found[:, : self.n_draws] + self.features(z) @ self.weights.astype(z.dtype)
        f += z.dtype.type(of.mean)
        return f, found[:, self.n_draws :]


def with_mean(columns: np.ndarray) -> np.ndarray:
    """Return the places of functions in ``about``, after that of the mean: (1 + n,)."""
    return np.append(0, columns + 1)


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
    about: np.ndarray,
    jitter_sd: float,
    rng: np.random.Generator,
    n_feature: int = N_FEATURE,
    precision: Any = np.float64,
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
    about : (n_ind, 1 + n_draws) float64
        See :class:`FunctionDraws`.
    jitter_sd : float
        Square root of the jitter: the prior draw at ``W`` carries the same noise as ``K_WW``.
    rng : numpy Generator
    n_feature : int
        Random features of each term of the kernel.
    precision : dtype
        Of the inputs that the functions are evaluated at: double where single would show.
    """
    n_draws = u_white.shape[1]
    features = surface.kernel.features(surface.theta, n_feature, rng)
    weights = rng.standard_normal((features.n_feature, n_draws))
    group = grouped(features, weights)
    at_w = surface.kernel.inducing_features(
        features, surface.w
    ) @ weights + jitter_sd * rng.standard_normal(u_white.shape)
    coefficients = solve_lower(lower, u_white - solve_lower(lower, at_w), transposed=True)
    dtype = precision if _bears_single(surface, np.hstack([coefficients, about])) else np.float64
    return FunctionDraws(surface, features, weights, coefficients, group, dtype, about)


def _bears_single(surface: Surface, coefficients: np.ndarray) -> bool:
    """Tell whether ``k(x, W)`` times coefficients bears single precision.

    Where inducing points are near one another coefficients are large, and cancel.
    """
    prior = float(np.max(surface.kernel.diag(surface.theta, surface.w)))
    largest = prior * float(np.sqrt((coefficients**2).sum(axis=0).max()))
    return float(np.finfo(np.float32).eps) * largest < ROUNDED


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
