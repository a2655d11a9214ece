r"""The sparse variational Gaussian process, by its two block quantities.

With ``K = k(X, W)`` and ``u = f(W) ~ q = N(eta, Sigma)``, a block of pixels needs only

    alpha = K_WW^-1 (eta - mu),    Q = K_WW^-1 - K_WW^-1 Sigma K_WW^-1,
    m = mu + K alpha,              s_i = k_ii - K_i Q K_i'.

``q`` is kept in the whitened basis ``u = mu + L v``, ``L L' = K_WW + jitter``,
``v ~ N(v_mean, R R')``, where the KL term does not see the kernel and Adam's steps do not depend on
its scale. This file holds the M x M algebra, once a step on the driver, in float64; METHODS
section 1, Law et al. 2018, eqs. (7)-(10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.errors import NumericalError
from models.xp import cholesky, solve_lower

JITTER = 1e-6


@dataclass(frozen=True)
class Whitened:
    """``q(v) = N(v_mean, R R')`` over the whitened inducing values.

    Attributes
    ----------
    v_mean : (n_ind,) float64
    root : (n_ind, n_ind) float64
        Unconstrained parameters of the lower triangular ``R``: its strict lower part as it is, the
        logarithm of its diagonal; the upper part is ignored.
    """

    v_mean: np.ndarray
    root: np.ndarray

    def factor(self) -> np.ndarray:
        """Return ``R``: (n_ind, n_ind)."""
        return np.tril(self.root, -1) + np.diag(np.exp(np.diag(self.root)))

    def kl(self) -> float:
        """KL divergence from ``q(v)`` to ``N(0, I)``, nats."""
        factor = self.factor()
        log_det = 2.0 * np.trace(self.root)
        n_ind = self.v_mean.shape[0]
        return 0.5 * float((factor**2).sum() + self.v_mean @ self.v_mean - n_ind - log_det)

    def kl_backward(self) -> Whitened:
        """Return the gradient of :meth:`kl`, in the same layout."""
        grad = self.factor()
        diagonal = np.diag(grad) ** 2 - 1.0
        np.fill_diagonal(grad, diagonal)
        return Whitened(self.v_mean.copy(), grad)


@dataclass(frozen=True)
class Factored:
    """``K_WW`` with its Cholesky factor, and the block quantities ``alpha`` and ``Q``."""

    lower: np.ndarray
    lower_inv: np.ndarray
    spread: np.ndarray  # I - R R'
    alpha: np.ndarray
    q: np.ndarray


def factorise(k_ww: np.ndarray, whitened: Whitened, jitter: float = JITTER) -> Factored:
    """Compute ``alpha`` and ``Q`` from ``K_WW`` and ``q(v)``.

    Parameters
    ----------
    k_ww : (n_ind, n_ind) float64
        Prior covariance of the inducing values, without jitter.
    whitened : Whitened
    jitter : float
        Added to the diagonal, as a share of its mean.

    Raises
    ------
    NumericalError
        If ``K_WW`` is not positive definite even so.
    """
    n_ind = k_ww.shape[0]
    lifted = k_ww + jitter * np.trace(k_ww) / n_ind * np.eye(n_ind)
    try:
        lower = cholesky(lifted)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "the covariance of the inducing points is not positive definite; "
            "use fewer inducing points or a smaller learning rate"
        ) from error
    lower_inv = solve_lower(lower, np.eye(n_ind))
    factor = whitened.factor()
    spread = np.eye(n_ind) - factor @ factor.T
    alpha = lower_inv.T @ whitened.v_mean
    q = lower_inv.T @ spread @ lower_inv
    return Factored(lower, lower_inv, spread, alpha, 0.5 * (q + q.T))


def factorise_backward(
    fac: Factored,
    whitened: Whitened,
    d_alpha: np.ndarray,
    d_q: np.ndarray,
    jitter: float = JITTER,
) -> tuple[Whitened, np.ndarray]:
    """Take the adjoints of ``alpha`` and ``Q`` back to ``q(v)`` and ``K_WW``.

    Parameters
    ----------
    fac, whitened : Factored, Whitened
        As given to and returned by :func:`factorise`.
    d_alpha : (n_ind,) float64
    d_q : (n_ind, n_ind) float64, symmetric

    Returns
    -------
    d_whitened : Whitened
        Adjoints of ``v_mean`` and of the unconstrained root.
    d_k_ww : (n_ind, n_ind) float64, symmetric
        Adjoint of ``K_WW`` (its entries taken as independent), jitter included.
    """
    l_inv = fac.lower_inv
    t = l_inv @ d_alpha  # adjoint of v_mean: alpha = L^-T v
    inner = l_inv @ d_q @ l_inv.T  # adjoint of I - R R'
    factor = whitened.factor()
    d_root = np.tril(-2.0 * inner @ factor)
    np.fill_diagonal(d_root, np.diag(d_root) * np.diag(factor))
    # L' times the adjoint of L, from alpha = L^-T v and Q = L^-T (I - RR') L^-1: the products with
    # L' on the left cancel one inverse each, so no ill-conditioned matrix is multiplied out.
    lt_dl = -np.outer(whitened.v_mean, t) - 2.0 * fac.spread @ inner
    phi = np.tril(lt_dl)
    np.fill_diagonal(phi, 0.5 * np.diag(phi))
    d_lifted = l_inv.T @ phi @ l_inv
    d_lifted = 0.5 * (d_lifted + d_lifted.T)
    n_ind = d_lifted.shape[0]
    d_lifted[np.diag_indices(n_ind)] += jitter * np.trace(d_lifted) / n_ind
    return Whitened(t, d_root), d_lifted
