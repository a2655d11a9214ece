r"""Nystrom MAP: a Gaussian process by explicit features of inducing points, no posterior.

``f = mean + Phi beta``, ``Phi = k(z, W) K_WW^{-1/2}``, ``beta ~ N(0, g^2 I)`` (Law et al. 2018, eq.
28). Any root of ``K_WW^-1`` gives the same distribution; here it is the inverse of its Cholesky
factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from models.aggregate.point_model import PointModel
from models.backend.arrays import like, namespace
from models.core.protocol import Arrays, State, Summary, override
from models.gp import sparse_gp
from models.gp.inducing_points import POINTS, choose_inducing_points
from models.gp.kernel_model import KernelModel
from models.gp.kernels import Kernel
from models.gp.pixel_pass import row_tiles
from models.gp.priors import log_prior
from models.gp.sparse_gp import Factored, Whitened
from models.training.parameters import Count, NotNegative, Positive, Precision

ROWS = 1024


@dataclass(kw_only=True, eq=False, repr=False)
class Nystrom(KernelModel, PointModel):
    """Maximum a posteriori weights of the Nystrom features of a kernel.

    Parameters
    ----------
    n_inducing : int or "auto"
        Number of inducing points, 200 where ``auto``; they stay where k-means++ puts them, unless
        ``learn_inducing``.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`; ``auto`` is ``additive``. Its parameters are
        learnt under weak priors (:mod:`models.gp.priors`), without which variance could stand in
        for weights at no cost.
    prior_sd : float
        ``g``, deviation of the weights.
    learn_inducing : bool
        Move the inducing points during the fit.
    manifold, bag_manifold : float
        Strength of the penalties over pixels, eq. (29), and over bags, eq. (33); 0 is none.
    likelihood, link, area_effect, batch_bags, max_epochs, learning_rate, tolerance, dtype, seed
        As of :class:`models.VBAgg`.
    """

    kind = "nystrom"
    about = "baseline: inducing points as features"
    source = "Law et al. 2018"

    n_inducing: Count | Literal["auto"] = "auto"
    kernel: str = "auto"
    prior_sd: Positive = 1.0
    learn_inducing: bool = False
    manifold: NotNegative = 0.0
    bag_manifold: NotNegative = 0.0
    dtype: Precision = "float64"

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means++."""
        state = super().init(sample, rng)
        kernel = self._kernel(state.fixed)
        state.params["theta"] = kernel.start(0.5)
        return state

    @override
    def start_surface(self, z: np.ndarray, rng: np.random.Generator) -> Arrays:
        n_point = POINTS if self.n_inducing == "auto" else self.n_inducing
        w = choose_inducing_points(z, n_point, rng)
        return {"w": w, "beta": np.zeros(w.shape[0])}

    @override
    def block_params(self, state: State) -> Arrays:
        """Add the weights at the inducing points, ``L^-T beta``."""
        fac = self._nystrom_factors(state.fixed, state.params)[2]
        return {**state.fixed, **state.params, "alpha": fac.alpha}

    @override
    def surface(self, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, Any]:
        kernel = self._kernel(params)
        f = namespace(z).empty(z.shape[0])
        w, alpha = (like(params[name], z, z.dtype) for name in ("w", "alpha"))
        for rows in row_tiles(z.shape[0], ROWS):
            f[rows] = kernel.matrix(params["theta"], z[rows], w) @ alpha
        return f, kernel

    @override
    def surface_backward(
        self, params: Arrays, z: np.ndarray, cache: Any, d_f: np.ndarray
    ) -> Arrays:
        kernel: Kernel = cache
        theta, d_f = params["theta"], d_f.astype(z.dtype, copy=False)
        w, alpha = (like(params[name], z, z.dtype) for name in ("w", "alpha"))
        learnt = ("alpha", "theta", "w") if self.learn_inducing else ("alpha", "theta")
        sums = {name: namespace(z).zeros(params[name].shape) for name in learnt}
        for rows in row_tiles(z.shape[0], ROWS):
            k, kept = kernel.forward(theta, z[rows], w)
            sums["alpha"] += k.T @ d_f[rows]
            d_k = d_f[rows, None] * alpha
            by_theta, by_w = kernel.backward(
                theta, z[rows], w, kept, d_k, want_w=self.learn_inducing
            )
            sums["theta"] += by_theta
            if self.learn_inducing:
                sums["w"] += by_w
        return sums

    @override
    def objective(self, state: State, stats: Any, n_bag_total: int) -> tuple[float, Arrays]:
        """Through ``alpha = L^-T beta`` as well."""
        value, grad = super().objective(state, stats, n_bag_total)
        params, kernel = state.params, self._kernel(state.fixed)
        k_cache, white, fac = self._nystrom_factors(state.fixed, params)
        none = np.zeros_like(fac.lower)
        d_beta, _, d_k = sparse_gp.factorise_backward(fac, white, grad.pop("alpha"), none)
        by_theta, by_w = kernel.backward(
            params["theta"], params["w"], params["w"], k_cache, d_k, want_w=self.learn_inducing
        )
        prior, slope = log_prior(kernel, params["theta"], self.link_name)
        grad["beta"] = d_beta - params["beta"] / self.prior_sd**2
        grad["theta"] = grad["theta"] + by_theta + slope
        if self.learn_inducing:  # W stands on both sides of K_WW
            grad["w"] = grad["w"] + 2.0 * by_w
        weights = -0.5 * float(params["beta"] @ params["beta"]) / self.prior_sd**2
        return value + prior + weights, grad

    def _nystrom_factors(self, fixed: Arrays, params: Arrays) -> tuple[Any, Whitened, Factored]:
        kernel, w = self._kernel(fixed), params["w"]
        k_ww, cache = kernel.forward(params["theta"], w, w)
        white = Whitened(params["beta"], np.zeros((w.shape[0], w.shape[0])))
        return cache, white, sparse_gp.factorise(k_ww, white)
