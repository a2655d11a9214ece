"""psi-VGPMIL by stochastic natural gradients, for stores too large for many full sweeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from models.core.errors import ParameterError
from models.core.protocol import Info, State, Stats, Sweep
from models.gp.sparse_gp import Whitened
from models.mil.label_factors import MOST_SWEEPS, start_logits, update_logits
from models.mil.psi_vgpmil import PsiVGPMIL

KERNEL_SHARE = 0.1  # of a step's rate, that Adam on the kernel has


class PsiVGPMILSVI(PsiVGPMIL):
    """psi-VGPMIL by stochastic variational inference (Hoffman et al. 2013) on batches of bags.

    A step moves the natural parameters of ``q(u)`` by ``rate`` of the way to what the batch asks
    for. ``pi`` is not kept: it is iterated anew under each step's ``q(u)`` until nothing moves, so
    that neither memory nor checkpoints grow with the number of instances.

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
        As of :class:`models.mil.psi_vgpmil.PsiVGPMIL`; an epoch is one pass over all batches. The
        kernel is learnt under the hyperbolic secant alone: ``log Z`` of the other densities is no
        sum over batches.
    """

    sweep: Sweep = "minibatch"
    keeps_local: ClassVar[bool] = False

    def __init__(
        self,
        *,
        density: str = "hyperbolic_secant",
        alpha: float = 1.0,
        beta: float = 4.0,
        saturation: float = 4.0,
        log_h: float = 27.631021115928547,
        n_inducing: int = 100,
        kernel: str = "rbf",
        variance: float = 1.0,
        lengthscale: float = 1.0,
        intercept_sd: float = 3.0,
        start: float = 0.5,
        learn_kernel: bool = False,
        bag_rule: str = "largest",
        n_draws: int = 500,
        batch_bags: int = 32,
        max_epochs: int = 100,
        learning_rate: float = 0.5,
        decay: float = 0.6,
        tolerance: float = 1e-3,
        dtype: str = "float64",
        seed: int = 0,
    ) -> None:
        super().__init__(
            density=density,
            alpha=alpha,
            beta=beta,
            saturation=saturation,
            log_h=log_h,
            n_inducing=n_inducing,
            kernel=kernel,
            variance=variance,
            lengthscale=lengthscale,
            intercept_sd=intercept_sd,
            start=start,
            learn_kernel=learn_kernel,
            bag_rule=bag_rule,
            n_draws=n_draws,
            max_epochs=max_epochs,
            learning_rate=learning_rate,
            tolerance=tolerance,
            dtype=dtype,
            seed=seed,
        )
        self.batch_bags = batch_bags
        self.decay = decay

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        super().check_params()
        wrong = None
        if self.learning_rate > 1:
            wrong = f"learning_rate: {self.learning_rate} is above 1, the whole way of a step"
        elif not 0 <= self.decay <= 1:
            wrong = f"decay: {self.decay} is not between 0 and 1"
        elif self.learn_kernel and not self._law.logistic:
            wrong = f"learn_kernel: not with density {self.density!r} by batches; use PsiVGPMIL"
        if wrong:
            raise ParameterError(wrong)

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """See :class:`models.core.protocol.Model`: a step from the sums over a batch.

        The bound is that of ``q(u)`` before the step, estimated from the batch.
        """
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        params, memory = dict(state.params), dict(state.memory)
        before = Whitened(params["v_mean"], params["root"])
        bound = factor * stats.bound - before.kl()
        if self._saturated(sums):
            return state, Info(bound, stopped=self._too_far)
        rate = state.rate * (1.0 + state.step / 10.0) ** -self.decay
        d_mean = sums["linear"] - sums["precision"] @ before.v_mean
        after = before.natural_step(d_mean, -0.5 * sums["precision"], rate, longest=np.inf)
        params["v_mean"], params["root"] = after.v_mean, after.root
        if "lower" in sums:
            slow = replace(state, rate=KERNEL_SHARE * rate)
            params, memory = self._move_kernel(slow, params, memory, sums)
        elif self.learn_kernel:
            memory["settled"] = np.ones(1)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)

    def _logits(self, y: np.ndarray, offsets: np.ndarray, m: np.ndarray, before: Any) -> np.ndarray:
        del before
        start = start_logits(self.start, y, offsets)
        return update_logits(start, m, y, offsets, self.log_h, MOST_SWEEPS)
