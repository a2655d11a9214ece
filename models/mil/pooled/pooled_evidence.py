r"""Laplace's evidence of a sparse GP behind a pooled label, and its exact gradient.

At hyperparameters ``phi`` the mode ``v`` of ``Psi(v) = sum_b log p(T_b | v) - v'v / 2`` is found by
Newton's method, and with the Gauss-Newton precision ``B = I + sum_b w_b c_b c_b'`` there

    E(phi) = Psi(v) - log det(B) / 2.

``B`` is that of the model linearised at the mode, at least ``I`` whatever the labels; the exact
Hessian ``H`` goes to singular where a mode is about to split, and its determinant would draw the
search there. How the mode moves is the exact Hessian's affair all the same: ``dv/dphi = H^-1
d(grad Psi)/dphi``. With ``u = H^-1 s``, ``s = -1/2 d log det(B) / dv``, the whole gradient is that
of ``Psi + u' grad Psi - tr(B^-1 B) / 2``, with ``v``, ``u`` and ``B^-1`` held: one pass for ``s``,
one for the slopes, both sums over bags (:mod:`models.mil.pooled.pooled_pass`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from models.backend.arrays import cholesky, gram, inverse_lower
from models.core.errors import NumericalError
from models.core.protocol import Arrays, State, Stats
from models.gp.kernels import Kernel
from models.gp.sparse_gp import factor_of, lower_backward
from models.mil.pooled.bag_statistics import OWN, bag_kernel
from models.mil.pooled.pooled_calibration import N_FOLD, Prior, fit_calibration
from models.mil.pooled.pooled_pass import ADJOINT, LOG_DET, MODE, NO_FOLD, SCORE

SMALL = 1e-8  # Newton decrement at which the mode is found
ROUNDING = 1e-13  # of the objective: less cannot be seen in it
MAX_NEWTON = 100
ARMIJO = 1e-4
BACKTRACKS = 30
ESCAPES = 5  # from saddles
LEAST_CURVATURE = 0.1  # of a step where the Hessian is indefinite; the prior alone has 1

Sums = Callable[[State, int, bool], Stats]


@dataclass(frozen=True)
class Mode:
    """The mode of ``v`` at some hyperparameters.

    Attributes
    ----------
    state : State
        With ``v_mean`` there, and ``factor``: ``R`` with ``R R' = B^-1``.
    evidence : float
        ``E``, nats, without the hyperparameters' prior.
    exact : (n_value, n_value) float64
        ``H``.
    """

    state: State
    evidence: float
    exact: np.ndarray


class PooledEvidence:
    """Evidence by passes over all bags.

    Parameters
    ----------
    sums : callable
        See :meth:`models.core.protocol.Model.refinement`.
    kernel : Kernel
    """

    def __init__(self, sums: Sums, kernel: Kernel) -> None:
        self._sums, self._kernel = sums, kernel
        self._factored: dict[str, tuple[bytes, np.ndarray]] = {}
        self.passes = 0

    def mode(self, state: State, fold: int = NO_FOLD) -> Mode:
        """Find the mode, from the state's ``v_mean``, without the bags of a fold.

        Raises
        ------
        NumericalError
            If the sums are not finite.
        """
        scale = intercept_scale(state.params)
        v = state.params["v_mean"]
        stats, objective = self._at(state, v, fold)
        escapes = 0
        for _ in range(MAX_NEWTON):
            gradient = scale * stats.sums["gradient"] - v
            exact = _precision(scale, stats.sums["exact"])
            lower = _cholesky(exact)
            if lower is not None:
                inverse = inverse_lower(lower)
                step = inverse.T @ (inverse @ gradient)
            else:  # Gauss-Newton steps, which look natural, go to and fro between two modes
                step = _saddle_free(exact, gradient)
            decrement = float(gradient @ step)
            if decrement < SMALL:
                if lower is not None or escapes == ESCAPES:
                    break
                step, escapes = _downhill(exact), escapes + 1  # a saddle, not a mode
                decrement = 0.0
            found = self._search(state, v, step, objective, decrement, fold)
            if found is None:  # rounding alone is left
                break
            v, stats, objective = found
        precision = _precision(scale, stats.sums["fisher"])
        inverse = inverse_lower(cholesky(precision))
        log_det = -2.0 * float(np.log(np.diag(inverse)).sum())
        params = {**state.params, "v_mean": v, "factor": np.ascontiguousarray(inverse.T)}
        return Mode(
            replace(state, params=params),
            objective - 0.5 * log_det,
            _precision(scale, stats.sums["exact"]),
        )

    def gradient(self, at: Mode) -> np.ndarray:
        """Return the gradient by ``theta``, the bags' ``theta``, ``log t`` and ``log s``."""
        params = at.state.params
        scale = intercept_scale(params)
        p = gram(np.ascontiguousarray(params["factor"].T)) * np.outer(scale, scale)
        s = scale * self._ask(at.state, LOG_DET, p=p).sums["log_det"]
        u = scale * np.linalg.solve(at.exact, s)
        sums = self._ask(at.state, ADJOINT, p=p, u=u).sums
        found = []
        for own, kernel in self._parts(at.state):
            theta, w = params[own + "theta"], params[own + "w"]
            d_k = lower_backward(self._lower_inv(at.state, own, kernel), sums[own + "lower"])
            cache = kernel.inducing(theta, w)[1]
            found.append(sums[own + "theta"] + kernel.inducing_backward(theta, w, cache, d_k)[0])
        return np.concatenate([*found, sums["log_t"], sums["log_intercept_sd"]])

    def calibration(self, state: State, prior: Prior) -> np.ndarray:
        """Return the shift and the log scale of logits that bags left out ask for: (2,)."""
        left_out = [self.mode(state, fold).state for fold in range(N_FOLD)]

        def sums(at: np.ndarray) -> tuple[float, Arrays]:
            found = [
                self._ask(
                    each,
                    SCORE,
                    fold=np.array(fold),
                    root=intercept_scale(each.params)[:, None] * each.params["factor"],
                    calibration=at,
                )
                for fold, each in enumerate(left_out)
            ]
            total = found[0]
            for stats in found[1:]:
                total += stats
            return total.bound, total.sums

        return fit_calibration(sums, prior)

    def _search(
        self,
        state: State,
        v: np.ndarray,
        step: np.ndarray,
        objective: float,
        decrement: float,
        fold: int,
    ) -> tuple[np.ndarray, Stats, float] | None:
        """Go as far along a step as pays; None where nothing does."""
        length = 1.0
        for _ in range(BACKTRACKS):
            there = v + length * step
            stats, value = self._at(state, there, fold)
            if value >= objective + ARMIJO * length * decrement - ROUNDING * abs(objective):
                return there, stats, value
            length *= 0.5
        return None

    def _at(self, state: State, v: np.ndarray, fold: int) -> tuple[Stats, float]:
        there = replace(state, params={**state.params, "v_mean": v})
        stats = self._ask(there, MODE, fold=np.array(fold))
        value = stats.bound - 0.5 * float(v @ v)
        if not np.isfinite(value):
            msg = "the likelihood of the labels is not finite; scale the features or use fewer"
            raise NumericalError(msg)
        return stats, value

    def _ask(self, state: State, ask: int, **arrays: np.ndarray) -> Stats:
        self.passes += 1
        memory = {"ask": np.array(ask), **arrays}
        for own, kernel in self._parts(state):
            memory[own + "lower_inv"] = self._lower_inv(state, own, kernel)
        return self._sums(replace(state, memory=memory), 0, False)

    def _parts(self, state: State) -> list[tuple[str, Kernel]]:
        """Return the kernels, of instances and maybe of bags, with what their arrays begin with."""
        of_bags = bag_kernel(state.fixed)
        return [("", self._kernel), *([] if of_bags is None else [(OWN, of_bags)])]

    def _lower_inv(self, state: State, own: str, kernel: Kernel) -> np.ndarray:
        theta = state.params[own + "theta"]
        made = theta.tobytes()
        if own not in self._factored or self._factored[own][0] != made:
            inverse = inducing_inverse(kernel, theta, state.params[own + "w"])
            self._factored[own] = made, inverse
        return self._factored[own][1]


def intercept_scale(params: Arrays) -> np.ndarray:
    """Return what ``V`` with a column of ones is multiplied with by column: (n_value,)."""
    scale = np.ones(params["v_mean"].shape[0])
    scale[-1] = np.exp(params["log_intercept_sd"][0])
    return scale


def inducing_inverse(kernel: Kernel, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return ``L^-1``, ``L L'`` the prior covariance of the inducing variables: (n_ind, n_ind)."""
    return inverse_lower(factor_of(kernel.inducing(theta, w)[0]))


def _precision(scale: np.ndarray, total: np.ndarray) -> np.ndarray:
    found = np.outer(scale, scale) * (0.5 * (total + total.T))
    found[np.diag_indices(scale.shape[0])] += 1.0
    return found


def _cholesky(a: np.ndarray) -> np.ndarray | None:
    try:
        return np.asarray(cholesky(a))
    except np.linalg.LinAlgError:
        return None


def _saddle_free(exact: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return Newton's step with the sizes of the curvatures, whatever their signs."""
    values, vectors = np.linalg.eigh(exact)
    size = np.maximum(np.abs(values), LEAST_CURVATURE)
    return np.asarray(vectors @ ((vectors.T @ gradient) / size))


def _downhill(exact: np.ndarray) -> np.ndarray:
    """Return the direction of most negative curvature, of a deviation of the prior."""
    way = np.linalg.eigh(exact)[1][:, 0]
    return np.asarray(way * np.sign(way[np.abs(way).argmax()]))
