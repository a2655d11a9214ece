r"""Likelihood of a bag's label by the soft-max of its values (Kim & De la Torre 2010, eq. 5).

    P(T_b = t | f_b) = sigma(t A_b),    A_b = log sum_{i in b} exp f_i,    t in {-1, 1}.

With ``l = -log P = phi(A)`` and ``p = softmax(f_b)``, the derivatives inside a bag are

    dl = phi' p,    H = phi'' p p' + phi' (diag p - p p'),
    phi' = -t sigma(-t A),    phi'' = sigma(A) sigma(-A),    phi''' = phi'' (1 - 2 sigma(A)).

``H`` has negative eigenvalues where the bag is positive: ``l`` is not convex there. Bags of one
size are worked on together, as stacks of small matrices. A bag of one instance is the ordinary
logistic likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit, logsumexp

Stack = list[np.ndarray]  # one array for each bag size


@dataclass(frozen=True)
class Sizes:
    """The bags of a data set, those of one size together.

    Attributes
    ----------
    n_pix, n_bag : int
    bags : list of (n_here,) int64
        Bags of each size.
    rows : list of (n_here, size) int64
        Their pixels.
    """

    n_pix: int
    n_bag: int
    bags: Stack
    rows: Stack

    @classmethod
    def of(cls, offsets: np.ndarray) -> Sizes:
        """Sort bags, given by their CSR offsets (n_bag + 1,), by size."""
        sizes = np.diff(offsets)
        bags = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        rows = [offsets[here][:, None] + np.arange(sizes[here[0]]) for here in bags]
        return cls(int(offsets[-1]), sizes.shape[0], bags, rows)

    def spread(self, blocks: Stack) -> np.ndarray:
        """Lay one number a pixel, given by bag, side by side: (n_pix,)."""
        out = np.empty(self.n_pix)
        for rows, block in zip(self.rows, blocks, strict=True):
            out[rows] = block
        return out

    def times(self, blocks: Stack, a: np.ndarray) -> np.ndarray:
        """Multiply a block-diagonal matrix by ``a``: (n_pix, k) -> (n_pix, k)."""
        out = np.empty_like(a)
        for rows, block in zip(self.rows, blocks, strict=True):
            out[rows] = np.matmul(block, a[rows].reshape(*rows.shape, -1)).reshape(
                *rows.shape, *a.shape[1:]
            )
        return out

    def inner(self, a: np.ndarray) -> Stack:
        """Return the blocks of ``a' a`` for ``a`` (k, n_pix)."""
        out = []
        for rows in self.rows:
            part = a.T[rows]
            out.append(part @ part.transpose(0, 2, 1))
        return out


@dataclass(frozen=True)
class SoftMaxTerms:
    """The negative log-likelihood of the bags at one ``f``, and its derivatives.

    Attributes
    ----------
    value : float
        Sum over the bags of ``l``, nats.
    gradient : (n_pix,) float64
    hessian : list of (n_here, size, size) float64
    share : list of (n_here, size) float64
        ``p``.
    slopes : list of ((n_here,), (n_here,), (n_here,))
        ``phi'``, ``phi''`` and ``phi'''``.
    """

    value: float
    gradient: np.ndarray
    hessian: Stack
    share: Stack
    slopes: list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def soft_max_value(sizes: Sizes, sign: np.ndarray, f: np.ndarray) -> float:
    """Return the sum of ``l`` alone; arguments as of :func:`soft_max_terms`."""
    total = 0.0
    for bags, rows in zip(sizes.bags, sizes.rows, strict=True):
        total -= float(log_expit(sign[bags] * logsumexp(f[rows], axis=1)).sum())
    return total


def soft_max_terms(sizes: Sizes, sign: np.ndarray, f: np.ndarray) -> SoftMaxTerms:
    """Compute ``l`` and its derivatives.

    Parameters
    ----------
    sizes : Sizes
    sign : (n_bag,) float64
        Labels, -1 or 1.
    f : (n_pix,) float64
    """
    value, gradient = 0.0, np.empty(sizes.n_pix)
    hessian, share, slopes = [], [], []
    for bags, rows in zip(sizes.bags, sizes.rows, strict=True):
        t, here = sign[bags], f[rows]
        largest = logsumexp(here, axis=1)
        p = np.exp(here - largest[:, None])
        value -= float(log_expit(t * largest).sum())
        by, by2 = -t * expit(-t * largest), expit(largest) * expit(-largest)
        gradient[rows] = by[:, None] * p
        h = (by2 - by)[:, None, None] * p[:, :, None] * p[:, None, :]
        diagonal = np.arange(rows.shape[1])
        h[:, diagonal, diagonal] += by[:, None] * p
        hessian.append(h)
        share.append(p)
        slopes.append((by, by2, by2 * (1.0 - 2.0 * expit(largest))))
    return SoftMaxTerms(value, gradient, hessian, share, slopes)


def contract_third(terms: SoftMaxTerms, c: Stack, sizes: Sizes) -> np.ndarray:
    r"""Return ``sum_ij C_ij dH_ij / df_k``: (n_pix,).

    Parameters
    ----------
    c : list of (n_here, size, size) float64
        Symmetric blocks, held constant.
    """
    out = np.empty(sizes.n_pix)
    for rows, p, (by, by2, by3), block in zip(
        sizes.rows, terms.share, terms.slopes, c, strict=True
    ):
        diag = np.einsum("bii->bi", block)
        cp = np.matmul(block, p[:, :, None])[:, :, 0]
        pcp, dp = (p * cp).sum(axis=1), (p * diag).sum(axis=1)
        # d p / d f = diag p - p p', applied to 2 (phi'' - phi') C p + phi' c.
        inside = 2.0 * (by2 - by)[:, None] * cp + by[:, None] * diag
        through = p * (inside - (p * inside).sum(axis=1)[:, None])
        out[rows] = through + p * (by3 * pcp + by2 * (dp - pcp))[:, None]
    return out


def project(blocks: Stack) -> Stack:
    """Return the nearest positive semi-definite matrix of each block (Frobenius norm)."""
    out = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        scaled = vectors * np.maximum(values, 0.0)[:, None, :]
        out.append(scaled @ vectors.transpose(0, 2, 1))
    return out


def project_backward(blocks: Stack, adjoint: Stack) -> Stack:
    """Take the adjoint of :func:`project` back (Daleckii-Krein): symmetric blocks."""
    out = []
    for block, g in zip(blocks, adjoint, strict=True):
        values, vectors = np.linalg.eigh(block)
        turned = vectors.transpose(0, 2, 1)
        above = np.maximum(values, 0.0)
        gap = values[:, :, None] - values[:, None, :]
        level = np.abs(values).max(axis=1)[:, None, None]
        close = np.abs(gap) <= 1e-12 * np.maximum(level, 1e-300)
        kept = (values > 0).astype(np.float64)
        step = 0.5 * (kept[:, :, None] + kept[:, None, :])
        ratio = (above[:, :, None] - above[:, None, :]) / np.where(close, 1.0, gap)
        ratio = np.where(close, step, ratio)
        out.append(vectors @ (ratio * (turned @ g @ vectors)) @ turned)
    return out


def witness_shares(sizes: Sizes, f: np.ndarray, inverse_temperature: float) -> np.ndarray:
    """Return the soft witness assignment, eq. (17): (n_pix,), one in sum over each bag."""
    shares = []
    for rows in sizes.rows:
        scaled = inverse_temperature * f[rows]
        shares.append(np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True)))
    return sizes.spread(shares)
