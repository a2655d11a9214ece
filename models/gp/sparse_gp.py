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

import contextlib
from dataclasses import dataclass

import numpy as np

from models.backend.arrays import (
    cholesky,
    gram,
    inverse_lower,
    is_positive_definite,
    times_lower,
)
from models.core.errors import NumericalError

JITTER = 1e-6
LONGEST_STEP = 1.0
ROUNDING = 1e-14
NOT_FINITE = "the slopes of the bound are not finite"


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

    def kl_backward(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of :meth:`kl` by ``v_mean`` and by the unconstrained root."""
        grad = self.factor()
        np.fill_diagonal(grad, np.diag(grad) ** 2 - 1.0)
        return self.v_mean.copy(), grad

    def root_adjoint(self, d_cov: np.ndarray) -> np.ndarray:
        """Take the (symmetric) adjoint of ``R R'`` back to the unconstrained root."""
        factor = self.factor()
        # d_cov is symmetric: d_cov R = (R' d_cov)'.
        d_root = np.tril(2.0 * times_lower(factor, d_cov, transposed=True).T)
        np.fill_diagonal(d_root, np.diag(d_root) * np.diag(factor))
        return d_root

    def natural_step(
        self, d_mean: np.ndarray, d_cov: np.ndarray, rate: float, longest: float = LONGEST_STEP
    ) -> Whitened:
        r"""Step along the natural gradient of the bound (Hoffman et al. 2013).

        With ``H = -2 d_cov`` the data's precision and ``P = (R R')^-1``, ``P`` moves by ``rate`` of
        the way to the precision that the data ask for, ``I + H``; no direction gets wider than the
        prior (:func:`narrowing`). Then ``v_mean`` moves by ``rate P^-1 (d_mean - v_mean)``.

        Parameters
        ----------
        d_mean : (n_ind,) float64
            Adjoint of ``v_mean`` through the data alone, without the KL term.
        d_cov : (n_ind, n_ind) float64, symmetric
            Adjoint of ``R R'``, likewise.
        rate : float
            In (0, 1]; 1 jumps to the optimum of a conjugate term.
        longest : float
            Most that an inducing value may move, in deviations of the prior.
        """
        if not (np.isfinite(d_mean).all() and np.isfinite(d_cov).all()):
            raise NumericalError(NOT_FINITE)
        identity = np.eye(self.v_mean.shape[0])
        before = gram(inverse_lower(self.factor()))
        site = (1.0 - rate) * (before - identity) - rate * (d_cov + d_cov.T)
        site = 0.5 * (site + site.T)
        # Rounding must not decide: what is as wide as the prior counts as narrower.
        if not is_positive_definite(site + ROUNDING * np.trace(before) * identity):
            site = _positive_part(site)
        root = inverse_root(identity + site)
        cov = gram(np.ascontiguousarray(root.T))
        step = rate * (cov @ (d_mean - self.v_mean))
        # Far from the optimum the expansion of the bound does not hold: no inducing value moves
        # by more than one deviation of the prior a step.
        largest = float(np.abs(step).max(initial=0.0))
        if largest > longest:
            step *= longest / largest
        np.fill_diagonal(root, np.log(np.diag(root)))
        return Whitened(self.v_mean + step, root)

    def natural_gain(self, d_mean: np.ndarray, d_cov: np.ndarray) -> float:
        r"""Return what a full natural step would gain, to second order, nats.

        ``g' P^-1 g / 2 + tr((P_0^-1 D)^2) / 4`` with ``g`` the slope of the bound by ``v_mean``,
        ``P`` the precision that the data ask for, ``P_0`` that of ``q`` and ``D = P - P_0``.
        """
        n_ind = self.v_mean.shape[0]
        factor = self.factor()
        wanted = np.eye(n_ind) - d_cov - d_cov.T
        # R' P R, which is the identity at the optimum.
        inner = times_lower(factor, np.ascontiguousarray(wanted), transposed=True)
        inner = times_lower(factor, np.ascontiguousarray(inner.T), transposed=True)
        off = inner - np.eye(n_ind)
        slope = times_lower(factor, (d_mean - self.v_mean)[:, None], transposed=True)[:, 0]
        try:
            low = cholesky(0.5 * (inner + inner.T))
            slope = inverse_lower(low) @ slope
        except np.linalg.LinAlgError:
            pass
        return 0.5 * float(slope @ slope) + 0.25 * float((off * off).sum())


def narrowing(d_cov: np.ndarray) -> np.ndarray:
    """Return the part of an adjoint of ``q``'s covariance under which the data narrow ``q``.

    Where counts vary by more than the model allows for, the log-normal and second-order estimates
    rise as the aggregate's variance does, without end: a ``q`` wider than the prior would stand for
    the noise. So ``q`` is sought among those that are no wider than the prior in any direction.
    The best of them is where the natural step with this part, ``H`` its positive part, stays: what
    is left of the adjoint acts on directions that the data do not narrow.

    Parameters
    ----------
    d_cov : (n_ind, n_ind) float64, symmetric
    """
    data = -0.5 * (d_cov + d_cov.T)
    # Mostly they do in all directions, which a Cholesky factor tells sooner than eigenvalues.
    return -(data if is_positive_definite(data) else _positive_part(data))


def _positive_part(a: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix without its negative eigenvalues."""
    values, vectors = np.linalg.eigh(a)
    chosen = values > 0
    vectors = vectors[:, chosen]
    return np.asarray((vectors * values[chosen]) @ vectors.T)


def inverse_root(precision: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of the inverse of a precision that is the prior's at least.

    Raises
    ------
    NumericalError
        If it is not finite.
    """
    # With rows and columns in reverse, P = U U' for an upper U, and (U^-1)' is the root.
    with contextlib.suppress(np.linalg.LinAlgError):
        upper = cholesky(np.ascontiguousarray(precision[::-1, ::-1]))
        return np.ascontiguousarray(inverse_lower(upper).T[::-1, ::-1])
    # So large that its rounding is larger than the prior's.
    try:
        values, vectors = np.linalg.eigh(precision)
    except np.linalg.LinAlgError as error:
        raise NumericalError(NOT_FINITE) from error
    half = vectors / np.sqrt(np.maximum(values, 1.0))
    root = np.linalg.qr(half.T)[1].T
    return np.asarray(root * np.where(np.diag(root) < 0, -1.0, 1.0))


@dataclass(frozen=True)
class Factored:
    """``K_WW`` with its Cholesky factor, and the block quantities ``alpha`` and ``Q``."""

    lower: np.ndarray
    lower_inv: np.ndarray
    spread: np.ndarray  # I - R R'
    alpha: np.ndarray
    q: np.ndarray
    cov: np.ndarray  # K_WW^-1 Sigma K_WW^-1


def factor_of(k_ww: np.ndarray, jitter: float = JITTER) -> np.ndarray:
    """Return the lower Cholesky factor of ``K_WW`` with its jitter.

    Raises
    ------
    NumericalError
        If it is not positive definite even so.
    """
    n_ind = k_ww.shape[0]
    try:
        return np.asarray(cholesky(k_ww + jitter * np.trace(k_ww) / n_ind * np.eye(n_ind)))
    except np.linalg.LinAlgError as error:
        msg = (
            "the covariance of the inducing points is not positive definite; "
            "use fewer inducing points or a smaller learning rate"
        )
        raise NumericalError(msg) from error


def factorise(k_ww: np.ndarray, whitened: Whitened, known: Factored | None = None) -> Factored:
    """Compute ``alpha`` and ``Q`` from ``K_WW`` and ``q(v)``.

    Parameters
    ----------
    k_ww : (n_ind, n_ind) float64
        Prior covariance of the inducing values, without jitter.
    whitened : Whitened
    known : Factored, optional
        Of the same ``K_WW`` and another ``q``.

    Raises
    ------
    NumericalError
        If ``K_WW`` is not positive definite even so.
    """
    n_ind = k_ww.shape[0]
    lower = factor_of(k_ww) if known is None else known.lower
    lower_inv = inverse_lower(lower) if known is None else known.lower_inv
    factor = whitened.factor()
    spread = np.eye(n_ind) - gram(np.ascontiguousarray(factor.T))
    alpha = lower_inv.T @ whitened.v_mean
    # L^-T (I - R R') L^-1, each part a square.
    cov = gram(times_lower(factor, lower_inv, transposed=True))
    return Factored(lower, lower_inv, spread, alpha, gram(lower_inv) - cov, cov)


def factorise_backward(
    fac: Factored,
    whitened: Whitened,
    d_alpha: np.ndarray,
    d_q: np.ndarray,
    by_cov: np.ndarray | None = None,
    *,
    slopes: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take the adjoints of ``alpha`` and ``Q`` back to ``q(v)`` and ``K_WW``.

    Parameters
    ----------
    fac, whitened : Factored, Whitened
        As given to and returned by :func:`factorise`.
    d_alpha : (n_ind,) float64
    d_q : (n_ind, n_ind) float64, symmetric
    by_cov : (n_ind, n_ind) float64, symmetric, optional
        Adjoint of ``K_WW^-1 Sigma K_WW^-1``.
    slopes : bool
        Whether the adjoint of ``K_WW`` is wanted; zeros where not.

    Returns
    -------
    d_mean : (n_ind,) float64
        Adjoint of ``v_mean``.
    d_cov : (n_ind, n_ind) float64, symmetric
        Adjoint of ``R R'``, the covariance of ``v``.
    d_k_ww : (n_ind, n_ind) float64, symmetric
        Adjoint of ``K_WW`` (its entries taken as independent), jitter included.
    """
    l_inv = fac.lower_inv
    d_mean = l_inv @ d_alpha  # alpha = L^-T v
    # Q = L^-T (I - R R') L^-1, hence L^-1 dQ L^-T.
    d_spread = times_lower(l_inv, np.ascontiguousarray(times_lower(l_inv, d_q).T))
    d_cov = -0.5 * (d_spread + d_spread.T)
    inner: np.ndarray | None = None
    if by_cov is not None:  # L^-T R R' L^-1, likewise
        inner = times_lower(l_inv, np.ascontiguousarray(times_lower(l_inv, by_cov).T))
        d_cov += 0.5 * (inner + inner.T)
    if not slopes:
        return d_mean, d_cov, np.zeros_like(d_q)
    # L' times the adjoint of L: the products with L' on the left cancel one inverse each, so that
    # no ill-conditioned matrix is multiplied out.
    lt_dl = -np.outer(whitened.v_mean, d_mean) - 2.0 * fac.spread @ d_spread
    if inner is not None:
        lt_dl += 2.0 * (fac.spread - np.eye(fac.spread.shape[0])) @ inner
    return d_mean, d_cov, lower_backward(l_inv, lt_dl)


def lower_backward(l_inv: np.ndarray, lt_dl: np.ndarray, jitter: float = JITTER) -> np.ndarray:
    """Take the adjoint of ``L`` back to ``K_WW``.

    Parameters
    ----------
    l_inv : (n_ind, n_ind) float64
        ``L^-1``.
    lt_dl : (n_ind, n_ind) float64
        ``L'`` times the adjoint of ``L``; its lower triangle counts.

    Returns
    -------
    (n_ind, n_ind) float64, symmetric
        Adjoint of ``K_WW`` (its entries taken as independent), jitter included.
    """
    phi = np.tril(lt_dl)
    np.fill_diagonal(phi, 0.5 * np.diag(phi))
    # L^-T phi L^-1: as L^-T (L^-T phi')'.
    inner = times_lower(l_inv, np.ascontiguousarray(phi.T), transposed=True)
    d_lifted = times_lower(l_inv, np.ascontiguousarray(inner.T), transposed=True)
    d_lifted = 0.5 * (d_lifted + d_lifted.T)
    n_ind = d_lifted.shape[0]
    d_lifted[np.diag_indices(n_ind)] += jitter * np.trace(d_lifted) / n_ind
    return d_lifted
