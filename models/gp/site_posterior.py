r"""The posterior given a sum of quadratic sites, and the prior variance of the best bound.

With sites ``a_b + h_b s_b - w_b s_b^2 / 2`` on ``s_b = c_b' v + noise`` of variance ``r_b`` and
``v ~ N(0, I)``, the best ``q(v)`` is ``N(P^-1 h, P^-1)`` with ``P = I + sum w_b c_b c_b'`` and
``h = sum h_b c_b``, and its bound

    sum_b (a_b - w_b r_b / 2) + h' P^-1 h / 2 - log|P| / 2.

A prior deviation ``g`` times as large multiplies ``c`` by ``g`` and ``r`` by ``g^2``: the bound at
any ``g`` follows from the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when first used: optimize starts slowly

from models.backend.arrays import cholesky, gram, inverse_lower
from models.core.errors import NumericalError

FARTHEST = 2.0  # that the logarithm of the prior deviation moves an update, at most
CLOSE = 0.02
ILL = (
    "the posterior of the inducing values is not positive definite; scale the features, or use a "
    'smaller variance or aggregate="mean"'
)


@dataclass(frozen=True)
class SiteSums:
    """Sums over sites.

    Attributes
    ----------
    constant, residual : float
        ``sum a_b`` and ``sum w_b r_b / 2``.
    precision : (n_value, n_value) float64
        ``sum w_b c_b c_b'``.
    linear : (n_value,) float64
        ``sum h_b c_b``.
    """

    constant: float
    residual: float
    precision: np.ndarray
    linear: np.ndarray

    def posterior(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return mean and unconstrained root (see :class:`Whitened`), and bound.

        Raises
        ------
        NumericalError
            If the precision is not positive definite in double precision.
        """
        inverse = self._inverse()
        try:
            root = cholesky(gram(inverse))
        except np.linalg.LinAlgError as error:
            raise NumericalError(ILL) from error
        np.fill_diagonal(root, np.log(np.diag(root)))
        mean = inverse.T @ (inverse @ self.linear)
        return mean, root, self._bound(inverse)

    def bound(self) -> float:
        """Return the bound alone."""
        return self._bound(self._inverse())

    def grown(self, factor: float, n_ind: int) -> SiteSums:
        """Return the sums under a prior deviation ``factor`` times as large.

        The first ``n_ind`` values are the process's; what comes after them keeps its own prior.
        """
        each = np.ones(self.linear.shape[0])
        each[:n_ind] = factor
        return SiteSums(
            self.constant,
            self.residual * factor**2,
            self.precision * np.outer(each, each),
            self.linear * each,
        )

    def best_growth(self, n_ind: int) -> float:
        """Return the ``factor`` of :meth:`grown` with the best bound, 1 if none is better."""

        def loss(log_factor: float) -> float:
            return -self.grown(float(np.exp(log_factor)), n_ind).bound()

        found = scipy.optimize.minimize_scalar(
            loss, bounds=(-FARTHEST, FARTHEST), method="bounded", options={"xatol": CLOSE}
        )
        return float(np.exp(found.x)) if found.fun < loss(0.0) else 1.0

    def _inverse(self) -> np.ndarray:
        try:
            return inverse_lower(cholesky(self.precision + np.eye(self.linear.shape[0])))
        except np.linalg.LinAlgError as error:
            raise NumericalError(ILL) from error

    def _bound(self, inverse: np.ndarray) -> float:
        half = inverse @ self.linear
        log_det = -2.0 * float(np.log(np.diag(inverse)).sum())
        return self.constant - self.residual + 0.5 * float(half @ half) - 0.5 * log_det
