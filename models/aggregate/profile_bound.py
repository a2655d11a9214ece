r"""The profile bound: the best bound over q(u), as a function of the hyperparameters.

    L(phi) = max_q ELBO(q, phi) + log p(phi),    phi = (mean, log kernel parameters, likelihood's own)

``q`` climbs by full natural steps over all bags, and stops where the next step would gain less than
a given number of nats. By the envelope theorem the gradient of ``L`` is that of the bound at the
best ``q``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.backend.arrays import cholesky, gram, inverse_lower
from models.core.errors import NumericalError
from models.core.protocol import Arrays, State, Stats
from models.gp import sparse_gp
from models.gp.kernel_model import whitened

MOST_STEPS = 40
Evaluate = Callable[[State], Stats]


@dataclass(frozen=True)
class Point:
    """The profile bound at one ``phi``.

    Attributes
    ----------
    state : State
        With the best ``q``.
    value : float
        Nats, all bags.
    grad : (n_phi,) float64
    left : float
        Nats that the next natural step would gain.
    passes : int
        Over all bags, to get here.
    """

    state: State
    value: float
    grad: np.ndarray
    left: float
    passes: int


class ProfileBound:
    """``L(phi)`` of a VBAgg model.

    Parameters
    ----------
    model : VBAgg
    evaluate : callable
        Sums of all bags under a state.
    n_bag : int
    """

    def __init__(self, model: Any, evaluate: Evaluate, n_bag: int) -> None:
        self._model, self._evaluate, self._n_bag = model, evaluate, n_bag
        self.names = ("mean", "theta", *model.resolved_likelihood.parameters)

    def pack(self, params: Arrays) -> np.ndarray:
        """Return ``phi`` of some parameters: (n_phi,)."""
        return np.concatenate([np.ravel(params[name]) for name in self.names])

    def unpack(self, state: State, phi: np.ndarray) -> State:
        """Return the state with other hyperparameters."""
        params, first = dict(state.params), 0
        for name in self.names:
            size = params[name].size
            params[name] = phi[first : first + size].copy()
            first += size
        return replace(state, params={**params, **self._carried(state, params)})

    def _carried(self, state: State, params: Arrays) -> Arrays:
        """Carry ``q`` to other hyperparameters with what the data say of ``u`` held.

        That is the site ``exp(h'u - u'H u / 2)`` with which ``q`` is the prior's posterior: it
        moves less than ``q`` does when the prior changes.
        """
        old = self._model.inducing_factor(state.fixed, state.params["theta"], state.params["w"])
        new = self._model.inducing_factor(state.fixed, params["theta"], params["w"])
        turn = inverse_lower(old) @ new
        q = whitened(state.params)
        root_inverse = inverse_lower(q.factor())
        before = gram(root_inverse)
        site = turn.T @ (before - np.eye(before.shape[0])) @ turn
        precision = np.eye(before.shape[0]) + 0.5 * (site + site.T)
        try:
            cov = gram(inverse_lower(cholesky(precision)))
            root = cholesky(cov)
        except np.linalg.LinAlgError:  # sites that are no likelihood's: begin from q as it is
            return {"v_mean": state.params["v_mean"], "root": state.params["root"]}
        np.fill_diagonal(root, np.log(np.diag(root)))
        return {"v_mean": cov @ (turn.T @ (before @ q.v_mean)), "root": root}

    def at(self, state: State, tolerance: float, most: int = MOST_STEPS) -> Point:
        """Climb to the best ``q`` from the state's own.

        Parameters
        ----------
        state : State
        tolerance : float
            Nats that the next natural step may still gain.
        most : int
            Most passes.

        Raises
        ------
        NumericalError
            If the bound is not finite, however short the steps.
        """
        quadratic = self._model.resolved_likelihood.quadratic
        longest = np.inf if quadratic else sparse_gp.LONGEST_STEP
        rate, best, before = 1.0, None, state
        for passes in range(1, most + 1):
            try:
                found = self._model.objective(state, self._evaluate(state), self._n_bag)
                value = found.bound
            except NumericalError:
                if best is None or rate < 1e-3:
                    raise
                found, value = None, -np.inf
            if best is not None and value < best.value - 1e-9 * abs(best.value) - 0.1 * tolerance:
                # A step too long: the expansion of the bound does not hold that far.
                rate *= 0.3
                if rate < 1e-3:
                    return replace(best, passes=passes)
                state = self._stepped(before, kept, rate, longest)  # noqa: F821
                continue
            q = whitened(state.params)
            left = q.natural_gain(found.d_mean, found.d_cov)
            best = Point(state, value, self.pack(found.grad), left, passes)
            if left < tolerance:
                return best
            rate = min(1.0, rate * 2.0)
            before, kept = state, found
            state = self._stepped(state, found, rate, longest)
        return replace(best, passes=most)

    def _stepped(self, state: State, found: Any, rate: float, longest: float) -> State:
        q = whitened(state.params).natural_step(found.d_mean, found.d_cov, rate, longest)
        return replace(state, params={**state.params, "v_mean": q.v_mean, "root": q.root})
