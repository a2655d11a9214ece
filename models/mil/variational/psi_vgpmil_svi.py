"""psi-VGPMIL by stochastic natural gradients, for stores too large for many full sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from models.core.errors import ParameterError
from models.core.protocol import Arrays, Info, State, Stats, Sweep, override
from models.gp.kernel_model import whitened
from models.mil.variational.label_factors import MAX_SWEEPS, start_logits, update_logits
from models.mil.variational.psi_vgpmil import PsiVGPMIL
from models.training.parameters import Count, Positive, Range, Share

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
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step from the sums over a batch.

        The bound is that of ``q(u)`` before the step, estimated from the batch.
        """
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        params, memory = dict(state.params), dict(state.memory)
        before = whitened(params)
        bound = factor * stats.bound - before.kl()
        if self._saturated(sums):
            return state, Info(bound, stopped=self._too_far)
        rate = state.rate * (1.0 + state.step / 10.0) ** -self.decay
        d_mean = sums["linear"] - sums["precision"] @ before.v_mean
        after = before.natural_step(d_mean, -0.5 * sums["precision"], rate, longest=np.inf)
        params["v_mean"], params["root"] = after.v_mean, after.root
        if "lower" in sums:
            slow = replace(state, rate=KERNEL_SHARE * rate)
            params, memory = self.move_kernel(slow, params, memory, sums)
        elif self.learn_kernel:
            memory["settled"] = np.ones(1)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)

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
