r"""Laplace's approximation to a Gaussian process behind the soft-max likelihood of bags.

The mode of ``S(f) = sum_b l_b(f) + (f - mu)' K^-1 (f - mu) / 2`` (Kim & De la Torre 2010, eqs.
9-10), the Gaussian around it (eqs. 11-12) and the evidence (eq. 13). Everything is done in the
whitened basis ``f = mu + L v``, ``L L' = K``, where the Hessian is ``B = I + L' H L`` and

    log Z = -sum l - v'v / 2 - log|B| / 2.

``H`` is the block-diagonal Hessian of the bags, or its projection to positive semi-definite; where
a whole ``B`` has eigenvalues below ``FLOOR``, they are lifted to it. The floor is well above zero,
or the evidence would have poles: at a kernel where a mode is about to split ``|B|`` goes to 0, and
a search for the best evidence finds just these kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg

from models.backend.arrays import cholesky, gram, is_positive_definite, solve_lower
from models.core.errors import NumericalError
from models.mil.gpmil.soft_max import (
    Sizes,
    SoftMaxTerms,
    contract_third,
    project,
    project_backward,
    soft_max_terms,
    soft_max_value,
)

Projection = Literal["blocks", "whole"]

JITTER = 1e-8  # of the kernel matrix, as a share of its mean diagonal
FLOOR = 0.1  # least eigenvalue of B in the approximation, where the prior alone has 1
FLAT = 1e-6  # curvature under which a direction goes neither up nor down
MAX_NEWTON = 200
SMALL = 1e-10  # squared Newton decrement at which the mode is found
ROUNDING = 1e-12  # of the objective: a step that promises less than this cannot be judged
LEAST_DAMPING = 0.01  # of the prior's curvature


@dataclass(frozen=True)
class Mode:
    """A local minimum of ``S``.

    Attributes
    ----------
    v, f : (n_pix,) float64
        Whitened and plain latent values.
    terms : SoftMaxTerms
    objective : float
        ``S``, nats.
    converged : bool
    n_step : int
        Newton steps made.
    """

    v: np.ndarray
    f: np.ndarray
    terms: SoftMaxTerms
    objective: float
    converged: bool
    n_step: int


@dataclass(frozen=True)
class Laplace:
    """The approximate posterior at a mode.

    Attributes
    ----------
    mode : Mode
    alpha : (n_pix,) float64
        ``K^-1 (f - mu)``.
    r : (n_pix, n_pix) float64
        ``K^-1 - K^-1 Q^-1 K^-1``: the predictive variance is ``k** - k*' r k*`` (eq. 14).
    evidence : float
        ``log Z``, nats.
    d_k : (n_pix, n_pix) float64 or None
        Its derivative by ``K`` (entries taken as independent), if wanted.
    d_mean : float
        Its derivative by ``mu``, if wanted.
    """

    mode: Mode
    alpha: np.ndarray
    r: np.ndarray
    evidence: float
    d_k: np.ndarray | None
    d_mean: float


def factor_prior(k: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of ``K`` with its jitter.

    Raises
    ------
    NumericalError
        If there is none.
    """
    n = k.shape[0]
    lifted = k.copy()
    lifted[np.diag_indices(n)] += JITTER * np.trace(k) / n
    try:
        return np.asarray(cholesky(lifted))
    except np.linalg.LinAlgError as error:
        msg = "the kernel matrix of the instances is not positive definite; use a simpler kernel"
        raise NumericalError(msg) from error


def find_mode(
    lower: np.ndarray, mean: float, sizes: Sizes, sign: np.ndarray, v: np.ndarray | None = None
) -> Mode:
    """Minimise ``S`` by Newton's method in a trust region, only ever downhill.

    Steps solve with the exact ``B``, damped where the quadratic does not hold, and at least as much
    as makes it positive definite; a stationary point that is no minimum is left along its most
    negative curvature. Steps with the projected blocks instead, which look natural, creep: a
    projected direction has only the prior's curvature left, and hundreds of them go nowhere where
    the signal variance is large.

    Parameters
    ----------
    lower : (n_pix, n_pix) float64
        Factor of ``K``.
    mean : float
    sizes : Sizes
    sign : (n_bag,) float64, -1 or 1
    v : (n_pix,) float64, optional
        Where to start; the prior mean where not given.
    """
    v = np.zeros(lower.shape[0]) if v is None else v.copy()
    f = mean + lower @ v
    terms = soft_max_terms(sizes, sign, f)
    objective = terms.value + 0.5 * float(v @ v)
    gradient = lower.T @ terms.gradient + v
    curvature = whitened_hessian(lower, terms.hessian, sizes)
    damping = 0.0
    for step in range(MAX_NEWTON):
        factor, damping = _damped_factor(curvature, damping)
        direction = -solve_lower(factor, solve_lower(factor, gradient), transposed=True)
        decrement = -float(gradient @ direction)
        if decrement < SMALL * max(1.0, damping):
            # A damped step may end at a saddle; an undamped one ends at a minimum.
            escaped = None
            if damping > 0.0:
                escaped = _escape(lower, mean, sizes, sign, v, curvature, objective)
            if escaped is None:
                return Mode(v, f, terms, objective, True, step)
            there, damping = escaped, 0.0
        else:
            there = v + direction
            promised = decrement - 0.5 * float(direction @ (curvature @ direction))
            value = soft_max_value(sizes, sign, mean + lower @ there) + 0.5 * float(there @ there)
            kept = (objective - value) / promised
            if not kept > 1e-4:
                if decrement < ROUNDING * max(1.0, abs(objective)):  # rounding alone is left
                    return Mode(v, f, terms, objective, True, step)
                damping = max(4.0 * damping, LEAST_DAMPING)
                continue
            if kept > 0.75:
                damping = 0.25 * damping if damping > LEAST_DAMPING else 0.0
            elif kept < 0.25:
                damping = max(4.0 * damping, LEAST_DAMPING)
        v = there
        f = mean + lower @ v
        terms = soft_max_terms(sizes, sign, f)
        objective = terms.value + 0.5 * float(v @ v)
        gradient = lower.T @ terms.gradient + v
        curvature = whitened_hessian(lower, terms.hessian, sizes)
    return Mode(v, f, terms, objective, False, MAX_NEWTON)


def _damped_factor(curvature: np.ndarray, damping: float) -> tuple[np.ndarray, float]:
    """Factor ``B + damping I``, with more damping where that is not positive definite."""
    while True:
        lifted = curvature.copy()
        lifted[np.diag_indices(lifted.shape[0])] += damping
        try:
            return np.asarray(cholesky(lifted)), damping
        except np.linalg.LinAlgError:
            if not np.isfinite(curvature).all():
                raise
            damping = max(4.0 * damping, LEAST_DAMPING)


def _all_above(b: np.ndarray, floor: float) -> bool:
    """Whether all eigenvalues of a symmetric matrix are above a floor."""
    lowered = b.copy()
    lowered[np.diag_indices(b.shape[0])] -= floor
    return is_positive_definite(lowered)


def whitened_hessian(lower: np.ndarray, blocks: list[np.ndarray], sizes: Sizes) -> np.ndarray:
    """Return ``B = I + L' H L``: (n_pix, n_pix)."""
    b = lower.T @ sizes.times(blocks, lower)
    b = 0.5 * (b + b.T)
    b[np.diag_indices(b.shape[0])] += 1.0
    return b


def _escape(
    lower: np.ndarray,
    mean: float,
    sizes: Sizes,
    sign: np.ndarray,
    v: np.ndarray,
    curvature: np.ndarray,
    objective: float,
) -> np.ndarray | None:
    """Leave a saddle along its most negative curvature; None at a minimum, but for rounding."""
    values, vectors = scipy.linalg.eigh(curvature, subset_by_index=[0, 0])
    if values[0] > -FLAT:
        return None
    way = vectors[:, 0] * np.sign(vectors[np.abs(vectors[:, 0]).argmax(), 0])
    for length in 2.0 ** np.arange(1, -20, -1):
        there = v + length * way
        value = soft_max_value(sizes, sign, mean + lower @ there) + 0.5 * float(there @ there)
        if value < objective:
            return there
    return None


def approximate(
    lower: np.ndarray,
    sizes: Sizes,
    projection: Projection,
    mode: Mode,
    *,
    learn: bool,
) -> Laplace:
    """Build the Gaussian at a mode, its evidence, and what learning the kernel needs.

    Parameters
    ----------
    lower, sizes
        As of :func:`find_mode`.
    projection : {"blocks", "whole"}
        Whether each bag's Hessian is made positive semi-definite, or the whole ``B`` where needed.
    mode : Mode
    learn : bool
        Whether the derivatives are wanted.
    """
    terms = mode.terms
    blocks = project(terms.hessian) if projection == "blocks" else terms.hessian
    b = whitened_hessian(lower, blocks, sizes)
    lifted = not _all_above(b, FLOOR)
    if lifted:
        values, vectors = np.linalg.eigh(b)
        positive = np.maximum(values, FLOOR)
        root = (vectors / np.sqrt(positive)).T @ lower.T  # root' root = Q^-1
        log_det = float(np.log(positive).sum())
        inverse = solve_lower(lower, np.eye(lower.shape[0]))
        turned = vectors.T @ inverse
        r = (turned.T * (1.0 - 1.0 / positive)) @ turned  # L^-T (I - B^-1) L^-1
    else:
        factor = cholesky(b)
        root = solve_lower(factor, np.ascontiguousarray(lower.T))
        log_det = 2.0 * float(np.log(np.diag(factor)).sum())
        r = -gram(np.ascontiguousarray(sizes.times(blocks, root.T).T))
        for rows, block in zip(sizes.rows, blocks, strict=True):
            r[rows[:, :, None], rows[:, None, :]] += block
    alpha = -terms.gradient
    evidence = -mode.objective - 0.5 * log_det
    if not np.isfinite(evidence):
        msg = "the evidence is not finite; use a simpler kernel, or leave covariates out"
        raise NumericalError(msg)
    if not learn:
        return Laplace(mode, alpha, r, evidence, None, 0.0)
    if lifted:  # a lifted eigenvalue does not move
        slope = np.where(values > FLOOR, 1.0 / positive, 0.0)
        moving = (vectors * np.sqrt(slope)).T @ lower.T
        way = sizes.times(blocks, lower @ (vectors * slope) @ vectors.T)
        d_log_det = solve_lower(lower, way.T, transposed=True).T
        d_log_det = 0.5 * (d_log_det + d_log_det.T)
    else:
        moving, d_log_det = root, r
    c = sizes.inner(moving)
    if projection == "blocks":
        c = project_backward(terms.hessian, c)
    s = -0.5 * contract_third(terms, c, sizes)
    # The mode itself moves by the exact Hessian, whatever is projected.
    if projection == "whole" and not lifted:
        moved = root.T @ (root @ s)
    else:
        exact = whitened_hessian(lower, terms.hessian, sizes)
        moved = lower @ scipy.linalg.solve(exact, lower.T @ s, assume_a="sym")
    u = s - sizes.times(terms.hessian, moved)
    by_mode = np.outer(u, alpha)
    d_k = 0.5 * (np.outer(alpha, alpha) - d_log_det + by_mode + by_mode.T)
    d_k[np.diag_indices(d_k.shape[0])] += JITTER * np.trace(d_k) / d_k.shape[0]
    return Laplace(mode, alpha, r, evidence, d_k, float((alpha + u).sum()))
