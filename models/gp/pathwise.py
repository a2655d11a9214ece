r"""``E_q log p(y | eta)`` by draws of whole functions: right for any likelihood and link.

In every step some functions are drawn from the posterior by Matheron's rule (Wilson et al. 2020,
eq. 13), and the log density of each bag is averaged over them. With ``u = mean + L v``,
``v = v_mean + R eps``, the block quantity ``alpha = L^-T v_mean`` and a draw ``f0 = phi(.)' omega``
of the prior by random Fourier features,

    f(x) = mean + k(x, W) alpha +- g(x),
    g(x) = phi(x)' omega + k(x, W) D,     D = L^-T (R eps - L^-1 (phi(W) omega + nugget)),

where the nugget is the jitter of ``K_WW``. Functions come in pairs at either side of the
posterior's mean (antithetic draws): what is odd in ``g`` cancels, and a pair costs the products of
one.

``eps``, ``omega`` and the features are drawn from ``(seed, step)`` alone: the same on every worker,
fresh in every step. Everything else is differentiated through, the features' frequencies and
amplitudes included. A block sees ``(theta, w, mean, alpha, D)`` and returns their adjoints; what
lies between ``D`` and the parameters is the driver's, once a step. For natural steps the block adds
up the Hessian of the log density by ``K_WW^-1 u`` too, which is twice the derivative by its
covariance on average (Price's theorem). ``docs/design/monte-carlo.md`` has what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from models.backend.arrays import like, namespace, solve_lower
from models.core.errors import NumericalError
from models.core.protocol import Arrays
from models.gp.kernels import Kernel
from models.gp.random_features import FeatureAdjoint, Features
from models.gp.sparse_gp import JITTER, Factored, Whitened, factorise_backward
from models.likelihoods.observation import Observation

STREAM = 21  # of the random numbers of a seed
SIGNS = (1.0, -1.0)  # of the functions made of one draw
ROWS = 512  # pixels a tile: its matrices stay near the cache
KEEP = (
    6144  # pixels for which a tile's matrices are kept for the backward pass instead of made again
)
ROUNDED = 1e-15  # from the upper end of an aggregate: the probit link rounds to 1


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step.

    Attributes
    ----------
    features : Features
        Of the prior, under the kernel's parameters at this step.
    weights : (n_feature, n_draw) float64
        ``omega``.
    eps, nugget : (n_ind, n_draw) float64
        Of the whitened inducing values, and of the jitter; standard normal.
    """

    features: Features
    weights: np.ndarray
    eps: np.ndarray
    nugget: np.ndarray


def draw(
    kernel: Kernel,
    theta: np.ndarray,
    n_ind: int,
    n_paths: int,
    n_features: int,
    step: np.ndarray,
) -> Draws:
    """Draw what ``n_paths`` functions are made of.

    Parameters
    ----------
    step : (2,) int
        Seed of the fit and number of the step, which decide the draw.

    Raises
    ------
    ParameterError
        If the kernel has no random features.
    """
    rng = np.random.default_rng([int(step[0]), STREAM, int(step[1])])
    features = kernel.features(theta, n_features, rng)
    n_draw = n_paths // len(SIGNS)
    normal = rng.standard_normal
    return Draws(
        features,
        normal((features.n_feature, n_draw)),
        normal((n_ind, n_draw)),
        normal((n_ind, n_draw)),
    )


# -- the driver ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conditioned:
    """Draws conditioned on the inducing values, and what the backward pass needs.

    Attributes
    ----------
    coefficients : (n_ind, n_draw) float64
        ``D``.
    at_w : (n_ind, n_feature) float64
        Features of the inducing points.
    prior, away : (n_ind, n_draw) float64
        ``L^-1 (phi(W) omega + nugget)``, and ``R eps`` less that.
    nugget_sd : float
    """

    coefficients: np.ndarray
    at_w: np.ndarray
    prior: np.ndarray
    away: np.ndarray
    nugget_sd: float


def condition(
    drawn: Draws, fac: Factored, whitened: Whitened, k_ww: np.ndarray, w: np.ndarray
) -> Conditioned:
    """Condition the draws of the prior on those of the inducing values (Matheron's rule)."""
    nugget_sd = float(np.sqrt(JITTER * np.trace(k_ww) / w.shape[0]))
    at_w = drawn.features(w)
    prior = fac.lower_inv @ (at_w @ drawn.weights + nugget_sd * drawn.nugget)
    away = whitened.factor() @ drawn.eps - prior
    coefficients = solve_lower(fac.lower, away, transposed=True)
    return Conditioned(coefficients, at_w, prior, away, nugget_sd)


@dataclass(frozen=True)
class PathAdjoint:
    """Adjoints of what the driver made the block's parameters of.

    Attributes
    ----------
    v_mean : (n_ind,) float64
    root : (n_ind, n_ind) float64
        By the unconstrained root of q(v).
    cov : (n_ind, n_ind) float64, symmetric
        By the covariance of ``v``, estimated from the Hessian: for natural steps. Zero without it.
    k_ww : (n_ind, n_ind) float64, symmetric
        Its entries taken as independent.
    theta, w : (n_theta,), (n_ind, n_dim) float64
        Through the features.
    """

    v_mean: np.ndarray
    root: np.ndarray
    cov: np.ndarray
    k_ww: np.ndarray
    theta: np.ndarray
    w: np.ndarray


def driver_backward(
    kernel: Kernel,
    drawn: Draws,
    fac: Factored,
    whitened: Whitened,
    k_ww: np.ndarray,
    w: np.ndarray,
    sums: Arrays,
) -> PathAdjoint:
    """Take the adjoints of ``alpha`` and ``D``, and the curvature, back to the parameters.

    Parameters
    ----------
    sums : dict of arrays
        From :func:`block_sums`, added up.
    """
    l_inv, n_ind = fac.lower_inv, w.shape[0]
    made = condition(drawn, fac, whitened, k_ww, w)
    none = np.zeros((n_ind, n_ind))
    d_mean, _, d_k = factorise_backward(fac, whitened, sums["alpha"], none)
    d_away = l_inv @ sums["coefficients"]
    d_root = np.tril(d_away @ drawn.eps.T)
    np.fill_diagonal(d_root, np.diag(d_root) * np.exp(np.diag(whitened.root)))
    d_prior = -l_inv.T @ d_away  # by phi(W) omega + nugget
    # L' times the adjoint of L, and through the Cholesky factor, as in factorise_backward.
    lt_dl = np.tril(d_away @ made.prior.T - made.away @ d_away.T)
    np.fill_diagonal(lt_dl, 0.5 * np.diag(lt_dl))
    by_k = l_inv.T @ lt_dl @ l_inv
    by_trace = JITTER * np.trace(by_k) / n_ind
    by_trace += 0.5 * made.nugget_sd * float((d_prior * drawn.nugget).sum()) / np.trace(k_ww)
    d_k += 0.5 * (by_k + by_k.T) + by_trace * np.eye(n_ind)
    by_features, d_z = drawn.features.backward(w, made.at_w, d_prior @ drawn.weights.T)
    d_w = np.zeros(w.shape)
    d_w[:, : d_z.shape[1]] = d_z
    d_cov = none
    if "curvature" in sums:
        half = 0.5 * l_inv @ sums["curvature"] @ l_inv.T
        d_cov = 0.5 * (half + half.T)
    d_theta = kernel.features_theta(drawn.features, by_features)
    return PathAdjoint(d_mean, d_root, d_cov, d_k, d_theta, d_w)


# -- a block -------------------------------------------------------------------------------------


@dataclass
class _Tile:
    k: Any
    cache: Any
    phi: Any
    f: Any  # (n_row, n_paths) float64


@dataclass(frozen=True)
class _Paths:
    """The functions, ready to be evaluated at the pixels of one block."""

    kernel: Kernel
    features: Features
    theta: np.ndarray
    w: Any
    mean: float
    z: Any
    columns: Any  # (n_ind, 1 + n_draw): alpha and D
    weights: Any

    def tile(self, rows: slice) -> _Tile:
        xp = namespace(self.z)
        z = self.z[rows]
        k, cache = self.kernel.forward(self.theta, z, self.w)
        phi = self.features(z)
        of_k = k @ self.columns
        away = of_k[:, 1:] + phi @ self.weights
        centre = of_k[:, :1].astype(xp.float64) + self.mean
        f = xp.concatenate([centre + sign * away for sign in SIGNS], axis=1)
        return _Tile(k, cache, phi, f)


def block_sums(
    kernel: Kernel,
    params: Arrays,
    drawn: Draws,
    z: Any,
    seen: Observation,
    *,
    curvature: bool,
) -> tuple[float, Arrays]:
    """Average the log density of some bags over the functions; two passes over the pixels.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        ``theta``, ``w`` (n_ind, n_dim), ``mean`` (1,), ``alpha`` (n_ind,) and ``coefficients``
        (n_ind, n_draw).
    drawn : Draws
        Drawn by :func:`draw` under the same ``theta``.
    z : (n_pix, n_dim) float array
        Scaled inputs.
    seen : Observation
        The responses.
    curvature : bool
        Add up the Hessian by ``K_WW^-1 u`` as well.

    Returns
    -------
    float
        Nats.
    dict of arrays
        Adjoints of ``params`` and of the likelihood's parameters, float64, and ``curvature``
        (n_ind, n_ind).

    Raises
    ------
    NumericalError
        If the value is not finite.
    """
    xp, dtype = namespace(z), z.dtype
    columns = np.concatenate([params["alpha"][:, None], params["coefficients"]], axis=1)
    paths = _Paths(
        kernel,
        drawn.features,
        params["theta"],
        like(params["w"], z, dtype),
        float(params["mean"][0]),
        z,
        like(columns, z, dtype),
        like(drawn.weights, z, dtype),
    )
    p, offsets, link = seen.p, seen.offsets, seen.link
    n_pix, n_bag, n_draw = z.shape[0], seen.y.shape[0], columns.shape[1] - 1
    n_path = n_draw * len(SIGNS)
    bag = np.repeat(np.arange(n_bag), np.diff(offsets))  # of the host: loops go by it
    tiles = [slice(i, min(i + ROWS, n_pix)) for i in range(0, n_pix, ROWS)]
    kept: list[_Tile] | None = [] if n_pix <= KEEP else None

    eta = xp.zeros((n_bag, n_path))
    for rows in tiles:
        tile = paths.tile(rows)
        if kept is not None:
            kept.append(tile)
        with np.errstate(over="ignore"):  # an infinite aggregate is reported below
            each = p[rows, None] * link.value(tile.f)
        for a, inside in _bags_of(bag[rows]):
            eta[a] += each[inside].sum(axis=0)
    value, d1, d2, by = _density(seen, eta.T, curvature=curvature)

    d_columns, d_w = xp.zeros(columns.shape), xp.zeros(params["w"].shape)
    d_theta, d_mean = xp.zeros(params["theta"].shape), xp.zeros(1)
    by_features: FeatureAdjoint | None = None
    n_ind = columns.shape[0]
    hessian = xp.zeros((n_ind, n_ind) if curvature else (0, 0))
    by_u = xp.zeros((n_bag, n_ind, n_path)) if curvature else None
    for number, rows in enumerate(tiles):
        tile = kept[number] if kept is not None else paths.tile(rows)
        _, slope, curve = link.moments(tile.f, 0.0, 2)  # of a point: Psi and its derivatives
        slope = p[rows, None] * slope
        of_bag = like(bag[rows], z)
        g = slope * d1[of_bag]
        centre = g.sum(axis=1, keepdims=True)
        away = sum(sign * g[:, i * n_draw : (i + 1) * n_draw] for i, sign in enumerate(SIGNS))
        both = xp.concatenate([centre, away], axis=1).astype(dtype, copy=False)
        d_mean += centre.sum()
        d_columns += tile.k.T @ both
        if by_u is not None:
            for a, inside in _bags_of(bag[rows]):
                by_u[a] += tile.k[inside].T @ slope[inside].astype(dtype, copy=False)
            bend = (p[rows, None] * curve * d1[of_bag]).sum(axis=1, keepdims=True)
            hessian += tile.k.T @ (bend.astype(dtype, copy=False) * tile.k)
        tile_theta, tile_w = kernel.backward(
            paths.theta, z[rows], paths.w, tile.cache, both @ paths.columns.T, want_w=True
        )
        d_theta += tile_theta
        d_w += tile_w
        back, _ = drawn.features.backward(z[rows], tile.phi, both[:, 1:] @ paths.weights.T)
        by_features = back if by_features is None else by_features + back
    if by_features is not None:
        d_theta += like(kernel.features_theta(drawn.features, by_features), d_theta)
    sums = {
        "mean": d_mean,
        "alpha": d_columns[:, 0],
        "coefficients": d_columns[:, 1:],
        "theta": d_theta,
        "w": d_w,
        **by,
    }
    if by_u is not None:
        side = by_u.transpose(1, 0, 2).reshape(n_ind, -1)
        hessian += (side * d2.reshape(-1)) @ side.T
        sums["curvature"] = 0.5 * (hessian + hessian.T)
    return value, sums


def _bags_of(bag: np.ndarray) -> list[tuple[int, slice]]:
    """Return the bags of consecutive pixels, and which of the pixels are theirs."""
    edges = [0, *(np.flatnonzero(np.diff(bag)) + 1).tolist(), bag.shape[0]]
    return [(int(bag[i]), slice(i, j)) for i, j in pairwise(edges)]


def _density(seen: Observation, eta: Any, *, curvature: bool) -> tuple[float, Any, Any, Arrays]:
    """Average the log density over the paths, ``eta`` (n_path, n_bag), with its derivatives.

    Returns
    -------
    float
        Sum over the bags.
    d1, d2 : (n_bag, n_path)
        By ``eta``, divided by the number of paths; the second None unless wanted.
    dict of (1,) arrays
    """
    xp = namespace(eta)
    if not bool(xp.isfinite(eta).all()):
        msg = "a drawn aggregate is not finite: the fit diverged; lower the learning rate"
        raise NumericalError(msg)
    seen.likelihood.check_mean(seen.y, eta.mean(axis=0))
    eta = seen.likelihood.inside(eta, ROUNDED)
    n_path = eta.shape[0]
    at = seen.terms(eta, order=3 if curvature else 1)
    value = float(at.value.sum()) / n_path
    if not np.isfinite(value):
        msg = "the objective is not finite: the fit diverged; lower the learning rate"
        raise NumericalError(msg)
    by = {name: xp.asarray([float(each.sum()) / n_path]) for name, each in at.by.items()}
    d2 = xp.broadcast_to(at.d2, eta.shape).T / n_path if curvature else None
    return value, at.d1.T / n_path, d2, by
