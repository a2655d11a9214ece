r"""Coefficients of the linear part of a kernel, with their posterior deviations.

A linear kernel ``sum_k v_k z_k w_k`` is a regression ``z'beta`` with ``beta_k ~ N(0, v_k)``. Given
``u = f(W) ~ q``, ``Cov(beta, u) = V W'``, so that with the block quantities of
:mod:`models.gp.sparse_gp`

    E beta = V W' alpha,    Cov beta = V - V W' Q W V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.gp.kernel_sums import Sum
from models.gp.kernel_terms import TermKernel
from models.gp.kernels import Kernel, Linear
from models.gp.regression_kernels import Ridge


@dataclass(frozen=True)
class Coefficient:
    """Slope of ``f`` by one covariate, a standard deviation of it being the unit.

    Attributes
    ----------
    column : int
        Number of the covariate; those after the last one are the coordinates.
    mean, sd : float
        Of the posterior.
    """

    column: int
    mean: float
    sd: float


def linear_coefficients(
    kernel: Kernel, theta: np.ndarray, w: np.ndarray, alpha: np.ndarray, q: np.ndarray
) -> list[Coefficient]:
    """Return the coefficients of the linear terms of a kernel; none where it has none.

    Parameters
    ----------
    kernel : Kernel
    theta : (n_theta,);  w : (n_ind, n_dim);  alpha : (n_ind,);  q : (n_ind, n_ind)
    """
    if isinstance(kernel, TermKernel):  # alpha and Q stand for coefficients as they are
        found = []
        for term, nodes, own, _ in kernel.parts():
            if isinstance(term.kernel, Linear | Ridge):
                by = theta[term.places], w[nodes], alpha[own], q[own, own]
                found += linear_coefficients(term.kernel, *by)
        return found
    if isinstance(kernel, Sum):
        n_left = kernel.left.n_theta
        return [
            *linear_coefficients(kernel.left, theta[:n_left], w, alpha, q),
            *linear_coefficients(kernel.right, theta[n_left:], w, alpha, q),
        ]
    if not isinstance(kernel, Linear | Ridge):
        return []
    n_column = kernel.columns[1] - kernel.columns[0]
    variance = np.broadcast_to(np.exp(theta), (n_column,))
    cross = variance[:, None] * w[:, kernel.columns[0] : kernel.columns[1]].T
    mean = cross @ alpha
    spread = np.maximum(variance - np.einsum("ki,ij,kj->k", cross, q, cross), 0.0)
    return [
        Coefficient(kernel.columns[0] + k, float(mean[k]), float(np.sqrt(spread[k])))
        for k in range(mean.shape[0])
    ]


def pooled(each: Sequence[list[Coefficient]], weight: np.ndarray) -> list[Coefficient]:
    """Return coefficients over draws of the hyperparameters, by the law of total variance.

    Parameters
    ----------
    each : sequence of lists of Coefficient
        The same columns under each draw.
    weight : (n_draw,) float64
        Of the draws; they add up to 1.
    """
    result = []
    for same in zip(*each, strict=True):
        means, sds = (np.array([getattr(one, name) for one in same]) for name in ("mean", "sd"))
        mean = float(weight @ means)
        variance = float(weight @ (sds**2 + (means - mean) ** 2))
        result.append(Coefficient(same[0].column, mean, float(np.sqrt(variance))))
    return result
