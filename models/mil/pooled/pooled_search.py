r"""The search for the best evidence of a pooled GP, and the calibration of what it found.

A fit advances in steps whose whole memory is in the state:

0. *begin*: what the bags' statistics need, by a pass (:mod:`models.mil.pooled.bag_statistics`);
1. *climb*: quasi-Newton (BFGS) steps by the exact gradient, from each start in turn, with the bags'
   statistics and then without: the best evidence decides;
2. *calibrate*: shift and scale of the logits (:mod:`models.mil.pooled.pooled_calibration`).

Hyperparameters have log-normal priors: some ninety labels leave ridges along which a kernel
degenerates. Medians and widths are on the scale of logits and of the data's own distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from models.core.errors import NumericalError
from models.core.protocol import Arrays, Info, State
from models.gp.kernels import Kernel
from models.mil.pooled.bag_statistics import OWN, bag_kernel, prior_width
from models.mil.pooled.pooled_calibration import OF_BAGS, OF_INSTANCES
from models.mil.pooled.pooled_evidence import Mode, PooledEvidence, Sums

CLIMB, CALIBRATE, DONE = range(3)
# Median and deviation of the logarithm: of a deviation of f (logits), of a length-scale (median
# distances of instances; of space as it starts), of t (1 / logits), of the intercept's deviation.
# Where a covariate has its own length-scale it may be of no use, and its length-scale far out; one
# that all share is far below the distances only if instances tell nothing of each other.
SD = (np.log(2.0), 0.75)
LENGTH, OWN_LENGTH = (0.0, 0.5), (0.0, 1.0)
T = (0.0, 1.5)
INTERCEPT = (np.log(2.0), 0.5)
STARTS = ((0.0, 0.0), (1.0, -0.7))  # shifts of log t and of log length-scales
LONGEST = 1.0  # that a logarithm moves in one step
START_INVERSE = 0.3
BACKTRACKS = 6
FARTHEST = 8.0  # of a logarithm from its prior's median


@dataclass(frozen=True)
class SearchSettings:
    """What a search does; see :class:`models.mil.pooled.pooled_gp.PooledGP`."""

    has_temperature: bool
    n_starts: int
    tolerance: float
    calibrate: bool
    seed: int


class PooledSearch:
    """Advances a fit to its optimum.

    Parameters
    ----------
    settings : SearchSettings
    sums : callable
        See :meth:`models.core.protocol.Model.refinement`.
    kernel : Kernel
    state : State
        At the start, or where a fit was interrupted.
    begin : callable
        Makes of the state that a fit starts from the one that it climbs from.
    at_end : callable
        Called when the fit is done.
    """

    def __init__(
        self,
        settings: SearchSettings,
        sums: Sums,
        kernel: Kernel,
        state: State,
        begin: Callable[[State], State],
        at_end: Callable[[], None],
    ) -> None:
        self._settings, self._begin, self._at_end = settings, begin, at_end
        self._kernel, self._evidence = kernel, PooledEvidence(sums, kernel)
        if "stage" in state.memory:
            self._plan(state)

    def init(self, state: State) -> State:
        """Return the state that the climbs start from."""
        if "stage" in state.memory:
            return state
        state = self._begin(state)
        self._plan(state)
        first = {"stage": np.array(CLIMB), "start": np.array(0), "passes": np.array(0)}
        return replace(state, memory={**first, "first": self._pack(state.params)})

    def _plan(self, state: State) -> None:
        kernel, of_bags = self._kernel, bag_kernel(state.fixed)
        names = (*kernel.names, "t", "intercept")
        prior = prior_of(names, kernel.start(1.0), float(state.fixed["distance"][0]))
        if of_bags is not None:
            names = (*names[:-2], *of_bags.names, *names[-2:])
            own = state.fixed[OWN + "first"], prior_width(LENGTH[1])
            at = kernel.n_theta
            prior = np.insert(prior[0], at, own[0]), np.insert(prior[1], at, own[1])
        self._bags = slice(kernel.n_theta, len(names) - 2)  # parameters of the bags' statistics
        self._prior = prior
        self._free = np.ones(len(names), dtype=bool)
        self._free[-2] = self._settings.has_temperature
        self._lengths = np.array(
            [".lengthscale" in name and "_space" not in name for name in names]
        )

    def step(self, state: State) -> tuple[State, Info]:
        """Take one step of the fit."""
        self._evidence.passes = 0
        stage = int(state.memory["stage"])
        step = {CLIMB: self._climb, CALIBRATE: self._calibrated}[stage]
        state = step(state)
        passes = int(state.memory["passes"]) + self._evidence.passes
        state = replace(
            state, memory={**state.memory, "passes": np.array(passes)}, step=state.step + 1
        )
        memory, done = state.memory, int(state.memory["stage"]) == DONE
        if done:
            self._at_end()
        value = float(memory["best_value"] if "best_value" in memory else memory["value"])
        report = {"stage": float(stage), "passes": float(self._evidence.passes)}
        return state, Info(value, report=report)

    def terminate(self, state: State, info: Info) -> tuple[bool, str]:
        """End where the last stage has."""
        del info
        return int(state.memory["stage"]) == DONE, ""

    def phase(self, state: State) -> str:
        """Return what the next step does, in a few words."""
        stage = int(state.memory.get("stage", CLIMB))
        if stage == CLIMB:
            return f"climb from start {int(state.memory.get('start', 0)) + 1}"
        return "calibration" if stage == CALIBRATE else "done"

    # -- the stages ----------------------------------------------------------------------------

    def _climb(self, state: State) -> State:
        memory = state.memory
        if "grad" not in memory:
            begun = self._unpack(state, self._start(state))
            begun.params["v_mean"] = np.zeros_like(state.params["v_mean"])
            at, value, grad = self._point(begun)
            inverse = START_INVERSE * np.eye(grad.size)
            return replace(at.state, memory=self._remember(memory, value, grad, inverse))
        phi, value, grad = self._pack(state.params), float(memory["value"]), memory["grad"]
        inverse = memory["inverse"]
        step = inverse @ grad
        promised = float(grad @ step)
        largest = float(np.abs(step).max(initial=0.0))
        if largest > LONGEST:
            step *= LONGEST / largest
        if 0.5 * promised < self._settings.tolerance:
            return self._ended(state)
        for _ in range(BACKTRACKS):
            try:
                at, new, new_grad = self._point(self._unpack(state, phi + step))
            except NumericalError:
                new = -np.inf
            if new > value + 1e-4 * float(grad @ step):
                break
            step *= 0.3
        else:
            if memory["fresh"]:  # not even along the gradient
                return self._ended(state)
            inverse = START_INVERSE * np.eye(grad.size)
            return replace(state, memory=self._remember(memory, value, grad, inverse))
        inverse = _updated(inverse, self._pack(at.state.params) - phi, grad - new_grad)
        memory = {**self._remember(memory, new, new_grad, inverse), "fresh": np.array(False)}
        return replace(at.state, memory=memory)

    def _ended(self, state: State) -> State:
        """Keep the end of a climb if it is the best, and go on to the next start, or stage."""
        memory = dict(state.memory)
        value = float(memory["value"])
        if "best_value" not in memory or value > float(memory["best_value"]):
            memory |= {"best_value": memory["value"], "best_phi": self._pack(state.params)}
            memory["best_v"], memory["best_factor"] = (
                state.params["v_mean"],
                state.params["factor"],
            )
        for name in ("grad", "value", "inverse"):
            del memory[name]
        memory["start"] = memory["start"] + 1
        params = state.params
        both = self._bags.stop > self._bags.start
        if int(memory["start"]) >= self._settings.n_starts * (1 + both):
            best = self._unpack(state, memory["best_phi"])
            params = {**best.params, "v_mean": memory["best_v"], "factor": memory["best_factor"]}
            memory["stage"] = np.array(CALIBRATE if self._settings.calibrate else DONE)
            for name in ("best_phi", "best_v", "best_factor", "first"):
                del memory[name]
        return replace(state, params=params, memory=memory)

    def _calibrated(self, state: State) -> State:
        prior = OF_BAGS if self._settings.has_temperature else OF_INSTANCES
        params = {**state.params, "calibration": self._evidence.calibration(state, prior)}
        return replace(state, params=params, memory={**state.memory, "stage": np.array(DONE)})

    # -- parts ---------------------------------------------------------------------------------

    def _point(self, state: State) -> tuple[Mode, float, np.ndarray]:
        """Return the mode, the evidence with the prior, and its gradient by what is free."""
        at = self._evidence.mode(state)
        density, slope = self._log_prior(self._pack(state.params), self._without(state))
        grad = self._evidence.gradient(at)[self._free]
        if self._without(state):
            grad[self._bags] = 0.0
        return at, at.evidence + density, grad + slope

    def _without(self, state: State) -> bool:
        """Tell whether a climb leaves the statistics out; those that have them come first."""
        return int(state.memory["start"]) >= self._settings.n_starts

    def _log_prior(self, phi: np.ndarray, without: bool) -> tuple[float, np.ndarray]:
        middle, width = (each[self._free] for each in self._prior)
        off = (phi - middle) / width
        if without:
            off[self._bags] = 0.0
        return -0.5 * float(off @ off), -off / width

    def _pack(self, params: Arrays) -> np.ndarray:
        of_bags = [params[OWN + "theta"]] if OWN + "theta" in params else []
        last = params["log_t"], params["log_intercept_sd"]
        whole = np.concatenate([params["theta"], *of_bags, *last])
        return whole[self._free]

    def _unpack(self, state: State, phi: np.ndarray) -> State:
        whole = np.zeros(self._free.size)
        middle = self._prior[0][self._free]
        whole[self._free] = np.clip(phi, middle - FARTHEST, middle + FARTHEST)
        n_theta = self._kernel.n_theta
        of_bags = {OWN + "theta": whole[n_theta:-2]} if OWN + "theta" in state.params else {}
        params = {
            **state.params,
            **of_bags,
            "theta": whole[:n_theta],
            "log_t": whole[-2:-1],
            "log_intercept_sd": whole[-1:],
        }
        return replace(state, params=params)

    def _start(self, state: State) -> np.ndarray:
        first = state.memory["first"].copy()
        number = int(state.memory["start"]) % self._settings.n_starts
        whole = np.zeros(self._free.size)
        whole[self._free] = first
        if number < len(STARTS):
            whole[-2] += STARTS[number][0]
            whole[self._lengths] += STARTS[number][1]
        else:
            rng = np.random.default_rng([self._settings.seed, 5, number])
            whole = self._prior[0] + 0.5 * self._prior[1] * rng.standard_normal(whole.size)
        if self._without(state):  # a part of no variance, which stays so
            whole[self._bags] = self._prior[0][self._bags] - FARTHEST
        return whole[self._free]

    @staticmethod
    def _remember(memory: Arrays, value: float, grad: np.ndarray, inverse: np.ndarray) -> Arrays:
        new = {"value": np.array(value), "grad": grad, "inverse": inverse}
        return {**memory, **new, "fresh": np.array(True)}


def prior_of(
    names: tuple[str, ...], start: np.ndarray, distance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return medians and deviations of the hyperparameters' logarithms: (n_theta + 2,) each.

    Parameters
    ----------
    names : tuple of str
        Of the kernel's parameters, then ``t`` and ``intercept``.
    start : (n_theta,) float64
        The kernel's start at a variance of 1, which shares it out between its terms.
    distance : float
        Median distance of instances.
    """
    middle, width = np.empty(len(names)), np.empty(len(names))
    middle[-2:], width[-2:] = (T[0], INTERCEPT[0]), (T[1], INTERCEPT[1])
    for place, name in enumerate(names[:-2]):
        if ".lengthscale" in name:
            near = "_space" in name or name.startswith("smooth")
            length = LENGTH if name.endswith(".lengthscale") and not near else OWN_LENGTH
            middle[place] = start[place] if near else length[0] + np.log(distance)
            width[place] = length[1]
        else:
            middle[place], width[place] = start[place] + 2.0 * SD[0], 2.0 * SD[1]
    return middle, width


def _updated(inverse: np.ndarray, step: np.ndarray, fall: np.ndarray) -> np.ndarray:
    """Return the BFGS inverse Hessian after ``step``, along which the gradient fell by ``fall``."""
    along = float(step @ fall)
    if along <= 1e-10 * float(np.linalg.norm(step) * np.linalg.norm(fall)):
        return inverse
    left = np.eye(step.size) - np.outer(step, fall) / along
    return np.asarray(left @ inverse @ left.T + np.outer(step, step) / along)
