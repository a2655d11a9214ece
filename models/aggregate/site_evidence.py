r"""The evidence of the hyperparameters with what the data say of ``u`` held, and its Hessian.

At the best ``q`` the data act on the inducing variables as the site ``exp(h'u - u'H u / 2)``. Held,
it turns the model into Gaussian regression,

    log Z(phi) = h'(K_WW^-1 + H)^-1 h / 2 - log|I + K_WW H| / 2,

whose Hessian costs the ``K_WW`` alone and no pass over the pixels. It lacks how the site itself
moves with ``phi``; a constant added to ``f`` moves the inducing variables of one term.
"""

from __future__ import annotations

import numpy as np

from models.aggregate.profile_bound import constant_values
from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import cholesky, gram, inverse_lower
from models.core.protocol import State
from models.gp.kernel_model import whitened
from models.gp.priors import log_prior, log_prior_level, side_of
from models.gp.sparse_gp import factor_of

STEP = 0.05  # of the differences, in logarithms


class SiteEvidence:
    """``log Z`` around one state.

    Parameters
    ----------
    model : VBAgg
    state : State
        With the best ``q``.
    """

    def __init__(self, model: SurfaceModel, state: State) -> None:
        self._model, self._state = model, state
        self._kernel = model._kernel(state.fixed)
        params = state.params
        inverse = inverse_lower(factor_of(self._kernel.inducing(params["theta"], params["w"])[0]))
        q = whitened(params)
        before = gram(inverse_lower(q.factor()))
        site = inverse.T @ (before - np.eye(before.shape[0])) @ inverse
        self._precision = 0.5 * (site + site.T)
        self._linear = inverse.T @ (before @ q.v_mean)
        self._ones = constant_values(self._kernel, state)

    @property
    def knows_mean(self) -> bool:
        """Whether a term can carry a constant, so that the mean's curvature is known."""
        return bool(self._ones.any())

    def gradient(self, theta: np.ndarray, shift: float = 0.0) -> tuple[np.ndarray, float]:
        """Return the gradient by ``theta``, with the prior's, and that by the mean.

        Parameters
        ----------
        theta : (n_theta,) float64
        shift : float
            Of the mean from the state's.
        """
        w = self._state.params["w"]
        k_ww, cache = self._kernel.inducing(theta, w)
        lower = factor_of(k_ww)
        linear = self._linear - shift * (self._precision @ self._ones)
        inner = np.eye(lower.shape[0]) + lower.T @ self._precision @ lower
        root = inverse_lower(cholesky(0.5 * (inner + inner.T))) @ lower.T
        cov = gram(root)  # of u under the held site
        mean = cov @ linear
        # d log Z / d K = (K^-1 (mean mean' + cov) K^-1 - K^-1) / 2, by what the site leaves.
        rest = linear - self._precision @ mean
        left = self._precision - self._precision @ cov @ self._precision
        d_k = 0.5 * (np.outer(rest, rest) - left)
        by_theta = self._kernel.inducing_backward(theta, w, cache, d_k)[0]
        if self._model.priors == "weak":
            side = side_of(self._state.fixed)
            by_theta = by_theta + log_prior(self._kernel, theta, self._model.link_name, side)[1]
        # By the mean: minus the slope of the site at the posterior's mean.
        by_mean = -float(self._ones @ (self._precision @ mean - linear))
        at = float(self._state.params["mean"][0]) + shift
        by_mean += log_prior_level(self._model.link_name, at, self._state.fixed)[1]
        return by_theta, by_mean

    def hessian(self) -> np.ndarray:
        """Return the Hessian by the mean and ``theta``, (1 + n_theta,) twice: by differences."""
        theta = self._state.params["theta"]
        n = theta.size + 1
        found = np.empty((n, n))
        for k in range(n):
            away = np.zeros(n)
            away[k] = STEP
            rows = []
            for sign in (1.0, -1.0):
                by_theta, by_mean = self.gradient(theta + sign * away[1:], sign * away[0])
                rows.append(np.concatenate([[by_mean], by_theta]))
            found[k] = (rows[0] - rows[1]) / (2 * STEP)
        return 0.5 * (found + found.T)
