r"""The profile bound: the best bound over q(u), as a function of the hyperparameters.

    L(phi) = max_q ELBO(q, phi) + log p(phi),
    phi    = (mean, logarithms of the kernel's parameters and of the likelihood's own).

``q`` climbs by full natural steps over all bags, and stops where the next step would gain less than
a given number of nats. By the envelope theorem the gradient of ``L`` is that of the bound at the
best ``q``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np

from models.aggregate.objective import Objective
from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import gram, inverse_lower
from models.core.errors import NumericalError
from models.core.protocol import Arrays, State, Stats, override
from models.gp import sparse_gp
from models.gp.kernel_model import whitened
from models.gp.kernel_terms import TermKernel
from models.gp.kernels import Constant, Kernel, Linear
from models.gp.regression_kernels import Ridge

# Of a climb. Where a count is far off natural steps swing about the best q; twice as many brought
# fits of such areas no nearer to their optimum (docs/design/hyperparameters.md).
MOST_STEPS = 20
# Share of the way of a natural step near its end. The covariance's derivative lacks part of the
# curvature by the mean (how exposure is spread inside areas follows the mean as well; up to half of
# it, measured): full steps would swing there, and these divide the error by three.
STEADY, NEAR = 0.65, 0.5
SHORTEST = 1e-3  # share of a natural step that is still tried
ROUNDING = 1e-9  # of the bound, as a share of it
EXPECTED = 0.7  # of what a natural step promises: near the end up to half of it is too much
SHRINKS = 0.2  # what is left, from one step to the next, or more
HOPE = 10.0  # times what a natural step would gain to second order, that a climb may still gain
Evaluate = Callable[[State, bool], Stats]
_NONE = np.zeros(0)


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


class Visited(Protocol):
    """What a pass over the bags finds at a state."""

    @property
    def bound(self) -> float:
        """Nats, all bags."""


Visit = TypeVar("Visit", bound=Visited)


class Profile(ABC, Generic[Visit]):
    """``L(phi)``: a climb of ``q`` by natural steps, whatever ``q`` is made of.

    Attributes
    ----------
    names, of_q : tuple of str
        Parameters of a state that are hyperparameters, and those that are ``q``'s.
    """

    names: tuple[str, ...]
    of_q: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def _longest(self) -> float:
        """The most that a step may move a value of ``q``."""

    @abstractmethod
    def _carried(self, state: State, params: Arrays) -> Arrays:
        """Carry ``q`` to other hyperparameters with what the data say of ``u`` held."""

    @abstractmethod
    def _found(self, state: State, *, slopes: bool) -> Visit:
        """Pass over the bags."""

    @abstractmethod
    def _left(self, state: State, found: Visit) -> float:
        """Return the nats that the next natural step would gain, to second order."""

    @abstractmethod
    def _stepped(self, state: State, found: Visit, rate: float, longest: float) -> State:
        """Take a share of the natural step."""

    @abstractmethod
    def _gradient(self, state: State, found: Visit) -> np.ndarray:
        """Return the gradient by ``phi``, near the best ``q``."""

    def pack(self, params: Arrays) -> np.ndarray:
        """Return ``phi`` of some parameters: (n_phi,)."""
        return np.concatenate([np.ravel(params[name]) for name in self.names])

    def unpack(self, state: State, phi: np.ndarray) -> State:
        """Return the state with other hyperparameters."""
        params = with_phi(state.params, self.names, phi)
        return replace(state, params={**params, **self._carried(state, params)})

    def at(
        self, state: State, tolerance: float, least: float = -np.inf, *, slopes: bool = True
    ) -> Point:
        """Climb to the best ``q`` from the state's own.

        Parameters
        ----------
        state : State
        tolerance : float
            Nats that the next natural step may still gain.
        least : float
            The climb is given up where it looks as if it could not reach so many nats.
        slopes : bool
            Whether the gradient is wanted, of a climb that is not given up.

        Raises
        ------
        NumericalError
            If the bound is not finite, however short the steps.
        """
        longest = self._longest
        rate, near = 1.0, False
        best: tuple[Point, Visit] | None = None
        for passes in range(1, MOST_STEPS + 1):
            try:
                found = self._found(state, slopes=near)
                value = found.bound
            except NumericalError:
                if best is None or rate < SHORTEST:
                    raise
                value = -np.inf
            if best is not None:
                at = best[0]
                if not value >= at.value - _slack(at.value, tolerance):
                    # A step too long: the expansion of the bound does not hold that far.
                    rate, near = 0.3 * rate, False
                    best = replace(at, passes=passes), best[1]
                    if rate < SHORTEST:
                        break
                    state = self._stepped(at.state, best[1], rate, longest)
                    continue
            left = self._left(state, found)
            best = Point(state, value, _NONE, left, passes), found
            if left < tolerance:
                return self._finished(*best, tolerance, slopes=slopes, had=near)
            if value + HOPE * left < least:
                return best[0]
            rate = min(1.0 if left > NEAR else STEADY, rate * 2.0)
            near = slopes and SHRINKS * left < tolerance
            state = self._stepped(state, found, rate, longest)
        assert best is not None
        return self._finished(replace(best[0], passes=passes), best[1], tolerance, slopes=slopes)

    def _finished(
        self, at: Point, found: Visit, tolerance: float, *, slopes: bool, had: bool = False
    ) -> Point:
        """Return a point with its gradient, and with what is left to ``q`` counted as had.

        No more than the tolerance: far from its end a climb promises what it cannot keep. ``found``
        has the slopes by the kernel's parameters where ``had``.
        """
        value = at.value + EXPECTED * min(at.left, tolerance)
        if not slopes:
            return replace(at, value=value)
        passes = at.passes
        if not had:
            found, passes = self._found(at.state, slopes=True), passes + 1
        grad = self._gradient(at.state, found)
        if not np.isfinite(grad).all():
            raise NumericalError(sparse_gp.NOT_FINITE)
        return replace(at, value=value, grad=grad, passes=passes)


def with_phi(params: Arrays, names: Sequence[str], phi: np.ndarray) -> Arrays:
    """Return parameters with other hyperparameters: ``phi`` has those of ``names``, in one."""
    found, first = dict(params), 0
    for name in names:
        size = params[name].size
        found[name] = phi[first : first + size].copy()
        first += size
    return found


class ProfileBound(Profile[Objective]):
    """``L(phi)`` of a VBAgg model.

    Parameters
    ----------
    model : VBAgg
    evaluate : callable
        From a state, and whether slopes by the kernel's parameters are wanted, sums of all bags.
    n_bag : int

    """

    of_q = ("v_mean", "root")

    def __init__(self, model: SurfaceModel, evaluate: Evaluate, n_bag: int) -> None:
        self._model, self._evaluate, self._n_bag = model, evaluate, n_bag
        self.names = model.phi_names

    @property
    @override
    def _longest(self) -> float:
        quadratic = self._model.resolved_likelihood.quadratic
        return np.inf if quadratic else sparse_gp.LONGEST_STEP

    @override
    def _carried(self, state: State, params: Arrays) -> Arrays:
        """Carry ``q`` to other hyperparameters with what the data say of ``u`` held.

        That is the site ``exp(h'u - u'H u / 2)`` with which ``q`` is the prior's posterior: it
        moves less than ``q`` does when the prior changes.
        """
        kernel = self._model._kernel(state.fixed)
        old, new = (
            sparse_gp.factor_of(kernel.inducing(each["theta"], each["w"])[0])
            for each in (state.params, params)
        )
        old_inverse = inverse_lower(old)
        turn = old_inverse @ new
        q = whitened(state.params)
        root_inverse = inverse_lower(q.factor())
        before = gram(root_inverse)
        data = before - np.eye(before.shape[0])
        site = turn.T @ data @ turn
        # A higher mean leaves less to the term that can carry a constant.
        up = float(params["mean"][0] - state.params["mean"][0])
        linear = before @ q.v_mean - up * (data @ (old_inverse @ constant_values(kernel, state)))
        precision = np.eye(before.shape[0]) + 0.5 * (site + site.T)
        root = sparse_gp.inverse_root(precision)
        cov = gram(np.ascontiguousarray(root.T))
        np.fill_diagonal(root, np.log(np.diag(root)))
        return {"v_mean": cov @ (turn.T @ linear), "root": root}

    @override
    def _found(self, state: State, *, slopes: bool) -> Objective:
        stats = self._evaluate(state, slopes)
        found = self._model.objective(state, stats, self._n_bag, slopes=slopes)
        if not (np.isfinite(found.d_mean).all() and np.isfinite(found.d_cov).all()):
            raise NumericalError(sparse_gp.NOT_FINITE)
        return replace(found, d_cov=sparse_gp.narrowing(found.d_cov))

    @override
    def _left(self, state: State, found: Objective) -> float:
        return whitened(state.params).natural_gain(found.d_mean, found.d_cov)

    @override
    def _gradient(self, state: State, found: Objective) -> np.ndarray:
        """Return the gradient by ``phi`` with the held site moving ``q`` along.

        At the best ``q`` it is that of the bound with ``q`` held. Near it, the site moves less with
        ``phi`` than ``q`` does, so that an error of ``q`` enters by its square; the mean with ``q``
        held is ill-conditioned besides: a term carries a constant as well, and all bags know it
        together.
        """
        params, grad = state.params, dict(found.grad)
        kernel = self._model._kernel(state.fixed)
        theta, w = params["theta"], params["w"]
        k_ww, cache = kernel.inducing(theta, w)
        inverse = inverse_lower(sparse_gp.factor_of(k_ww))
        q = whitened(params)
        cov = gram(np.ascontiguousarray(q.factor().T))
        precision = gram(inverse_lower(q.factor()))
        identity = np.eye(cov.shape[0])
        data = precision - identity
        # Slopes by the whitened mean and covariance, the divergence from the prior included.
        by_mean = found.d_mean - q.v_mean
        by_cov = 0.5 * (found.d_cov + found.d_cov.T + data)
        a = cov @ by_mean
        by_turn = np.outer(q.v_mean, a) - np.outer(data @ a, q.v_mean)
        by_turn -= 2.0 * data @ (cov @ by_cov @ cov)
        by_k = sparse_gp.lower_backward(inverse, by_turn)
        grad["theta"] = grad["theta"] + kernel.inducing_backward(theta, w, cache, by_k)[0]
        up = inverse @ constant_values(kernel, state)
        grad["mean"] = grad["mean"] - float(by_mean @ (up - cov @ up))
        return self.pack(grad)

    @override
    def _stepped(self, state: State, found: Objective, rate: float, longest: float) -> State:
        q = whitened(state.params).natural_step(found.d_mean, found.d_cov, rate, longest)
        return replace(state, params={**state.params, "v_mean": q.v_mean, "root": q.root})


def _slack(value: float, tolerance: float) -> float:
    """Return by how much a bound may fall without a step being too long."""
    return ROUNDING * abs(value) + 0.1 * tolerance


def constant_values(kernel: Kernel, state: State) -> np.ndarray:
    """Return the inducing values of the function 1, had by one term alone: (n_ind,).

    That of a constant, else the last that is not linear: averages and points in space come last,
    and interpolate a constant. Zeros where all terms are linear.
    """
    ones = np.zeros(int(state.fixed["term_values"].sum()))
    carry = None
    for term, _, values, _ in cast(TermKernel, kernel).parts():
        if isinstance(term.kernel, Constant):
            carry = values
            break
        if not isinstance(term.kernel, Linear | Ridge):
            carry = values
    if carry is not None:
        ones[carry] = 1.0
    return ones
