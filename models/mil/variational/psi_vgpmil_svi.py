"""psi-VGPMIL by stochastic natural gradients, for stores too large for many full sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from models.core.errors import ParameterError
from models.core.protocol import Arrays, Info, State, Stats, Sweep, override
from models.gp.kernel_model import whitened
from models.mil.variational.closing_steps import (
    KEPT,
    Closing,
    best_q,
    posterior_of,
    without_closing,
)
from models.mil.variational.label_factors import MAX_SWEEPS, start_logits, update_logits
from models.mil.variational.psi_vgpmil import PsiVGPMIL
from models.training.parameters import Count, Positive, Range, Share

NO_WAY = (
    "no step raises the bound, though {} nats may be left: the labels of instances jump from "
    "one optimum to another; psi_vgpmil keeps them from sweep to sweep"
)
ENOUGH = 1.0  # sum of an epoch's rates, below which steps on all bags go farther
SUM = KEPT + "sum."  # before the names of an epoch's sums in the memory
KERNEL_SHARE = 0.1  # of a step's rate, that Adam on the kernel has


@dataclass(kw_only=True, eq=False, repr=False)
class PsiVGPMILSVI(PsiVGPMIL):
    """psi-VGPMIL by stochastic variational inference (Hoffman et al. 2013) on batches of bags.

    A step moves the natural parameters of ``q(u)`` by ``rate`` of the way to what the batch asks
    for. ``pi`` is not kept: it is iterated anew under each step's ``q(u)`` until nothing moves, so
    that neither memory nor checkpoints grow with the number of instances. Until ``q(u)`` has left
    the prior ``pi`` stays at its start.

    Parameters
    ----------
    batch_bags : int
        Bags a step.
    learning_rate : float
        Of the natural-gradient steps, at most 1. Adam on the kernel, where that is learnt, has a
        tenth of it.
    decay : float
        The rate of step ``t`` is ``learning_rate (1 + t / 10)^-decay``: above 1/2 and up to 1
        (Robbins-Monro) steps die out; 0 leaves the rate to the loop's schedule, which lowers it
        where the bound stops rising.
    density, alpha, beta, saturation, log_h, n_inducing, kernel, variance, lengthscale, \
intercept_sd, start, learn_kernel, bag_rule, n_draws, max_epochs, tolerance, dtype, seed
        As of :class:`psi_vgpmil.PsiVGPMIL`; an epoch is one pass over all batches. The
        kernel is learnt under the hyperbolic secant alone: ``log Z`` of the other densities is no
        sum over batches.
    """

    kind = "psi_vgpmil_svi"
    about = "the same by stochastic steps, for stores too large for many passes"
    source = "Castro-Macias et al. 2024"
    sweep: ClassVar[Sweep] = "minibatch"
    keeps_local: ClassVar[bool] = False

    n_prior_draws: Count = field(default=64, init=False)
    batch_bags: Count = 32
    learning_rate: Annotated[float, Range(0, 1, above=True)] = 0.5
    decay: Share = 0.6
    tolerance: Positive = 1e-3

    @override
    def check_params(self) -> None:
        super().check_params()
        if self.learn_kernel and not self._density.logistic:
            msg = f"learn_kernel: density {self.density!r} needs full sweeps; use PsiVGPMIL"
            raise ParameterError(msg)

    @override
    def block_params(self, state: State) -> Arrays:
        at_prior = not state.params["v_mean"].any()
        return {**super().block_params(state), "at_prior": np.array([at_prior])}

    @override
    def prediction_params(self, state: State) -> Arrays:
        best = best_q(state.memory)  # `params` has one that no epoch has looked at
        if best is not None:
            params = {**state.params, "v_mean": best.v_mean, "root": best.root}
            state = replace(state, params=params)
        return super().prediction_params(state)

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step from the sums over a batch; in the last phase, one after each epoch.

        The bound is that of ``q(u)`` before the step, estimated from the batch.
        """
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        bound = factor * stats.bound - whitened(state.params).kl()
        if self._saturated(sums):
            return state, Info(bound, stopped=self._too_far)
        if best_q(state.memory) is not None:
            return self._closing_step(state, stats, n_bag_total, bound)
        rate = state.rate * (1.0 + state.step / 10.0) ** -self.decay
        params, memory = self._stochastic_step(state, sums, rate)
        done = state.memory.get("done", np.zeros(2)) + np.array([stats.n_bag, rate])
        memory["done"] = done
        if done[0] >= n_bag_total:
            memory["done"] = np.zeros(2)
            if self._arrived(state, float(done[1])):
                memory |= {**Closing.at(whitened(params)).arrays(), "settled": np.zeros(1)}
        new = State(params, state.fixed, memory, state.step + 1, state.rate)
        return new, Info(bound, converged=False)

    def _arrived(self, state: State, rates: float) -> bool:
        """Say whether steps on all bags pay more than those of another epoch of batches.

        They do where all steps of an epoch, of these ``rates`` together, move ``q`` no farther than
        one of them would, and where the loop's schedule found that the bound no longer rises. A
        kernel moves with each step: it waits for the schedule, and then stands still.
        """
        died = self.decay > 0 and rates <= ENOUGH and not self.learn_kernel
        return died or state.rate < self.learning_rate

    def _stochastic_step(self, state: State, sums: Arrays, rate: float) -> tuple[Arrays, Arrays]:
        params, memory, before = dict(state.params), dict(state.memory), whitened(state.params)
        d_mean = sums["linear"] - sums["precision"] @ before.v_mean
        after = before.natural_step(d_mean, -0.5 * sums["precision"], rate, longest=np.inf)
        params["v_mean"], params["root"] = after.v_mean, after.root
        if "lower" in sums:
            slow = replace(state, rate=KERNEL_SHARE * rate)
            params, memory = self.move_kernel(slow, params, memory, sums)
        elif self.learn_kernel:
            memory["settled"] = np.ones(1)
        return params, memory

    def _closing_step(
        self, state: State, stats: Stats, n_bag_total: int, bound: float
    ) -> tuple[State, Info]:
        """Add a batch to the sums of the epoch; at its end, choose the next ``q`` by them."""
        memory, params, sums = dict(state.memory), dict(state.params), {}
        for name, value in {**stats.sums, "bound": stats.bound, "done": stats.n_bag}.items():
            sums[name] = memory.get(SUM + name, 0.0) + np.asarray(value, dtype=np.float64)
            memory[SUM + name] = sums[name]
        info = Info(bound, converged=False)
        if sums["done"] >= n_bag_total:
            value = float(sums["bound"]) - whitened(params).kl()
            # Where the density does not hold f, a long step would pass `saturation` by itself.
            longest = np.inf if self._density.logistic else 1.0
            phase = Closing.of(memory).after(sums, value, longest)
            memory = without_closing(memory)
            if phase.left < self.tolerance * n_bag_total:
                info = Info(bound, converged=True)
            elif phase.ended:
                left = f"{phase.left:.2g}" if np.isfinite(phase.left) else "some"
                info = Info(bound, stopped=NO_WAY.format(left))
            else:
                memory |= phase.arrays()
                q = posterior_of(phase.trial)
                params["v_mean"], params["root"] = q.v_mean, q.root
        return State(params, state.fixed, memory, state.step + 1, state.rate), info

    def _logits(
        self,
        params: Arrays,
        y: np.ndarray,
        offsets: np.ndarray,
        m: np.ndarray,
        before: np.ndarray | None,
    ) -> np.ndarray:
        del before
        start = start_logits(self.first_pi, y, offsets)
        # Iterated under the prior, all instances of a negative bag of 45 or more (H = 1e12) would
        # end at 1/2, where they are evidence of nothing, and q(u) would hardly leave the prior.
        if params["at_prior"][0]:
            return start
        return update_logits(start, m, y, offsets, self.log_h, MAX_SWEEPS)
