"""VWSGP by stochastic variational inference (Kandemir et al. 2016, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from models.core.errors import ParameterError
from models.core.protocol import Info, State, Stats, Summary, Sweep, override
from models.gp.kernel_model import whitened
from models.likelihoods.labels import EVIDENCE_LIKELIHOODS
from models.mil.variational.vwsgp import VWSGP
from models.training.optim import adam_step
from models.training.parameters import Count, Positive

LABEL_LIKELIHOODS = tuple(name for name, each in EVIDENCE_LIKELIHOODS.items() if each.labels)


@dataclass(kw_only=True, eq=False, repr=False)
class VWSGPSVI(VWSGP):
    """VWSGP by stochastic variational inference on batches of bags.

    Where the closed form needs no learning rate, this needs one. It stands beside :class:`VWSGP`
    for likelihoods without a closed form (the probit), and to be compared with it.

    Parameters
    ----------
    likelihood : {"probit", "logistic"}
        Probit by quadrature; logistic by the bound of the closed form.
    steps : {"natural", "adam"}
        Natural-gradient steps of ``learning_rate`` (at most 1) on ``q``, or Adam's on its mean and
        Cholesky factor.
    batch_bags : int
        Bags a step.
    learning_rate : float
        Of the steps on ``q``; of Adam on the kernel, where that is learnt, too.
    aggregate, n_inducing, kernel, lengthscale, variance, intercept_sd, learn_kernel, max_epochs, \
tolerance, dtype, seed
        As of :class:`VWSGP`; an epoch is one pass over all batches.
    """

    kind = "vwsgp_svi"
    about = "the same by stochastic steps, probit too"
    source = "Kandemir et al. 2016"
    sweep: ClassVar[Sweep] = "minibatch"
    evidence_variances: ClassVar[tuple[float, ...]] = (5.0,)  # a fit takes many passes

    likelihood: Annotated[str, LABEL_LIKELIHOODS] = "probit"
    steps: Literal["natural", "adam"] = "natural"
    batch_bags: Count = 32
    learning_rate: Positive = 0.1
    tolerance: Positive = 1e-3
    learn_variance: bool | None = field(default=False, init=False)
    accelerate: bool = field(default=False, init=False)

    @override
    def check_params(self) -> None:
        super().check_params()
        if self.steps == "natural" and self.learning_rate > 1:
            msg = f"learning_rate: {self.learning_rate} is above 1; natural steps take at most 1"
            raise ParameterError(msg)

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Let the kernel move from the first step."""
        state = super().init(sample, rng)
        if self.learn_kernel:
            state.memory["settled"] = np.ones(1)
        return state

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step from the sums over a batch."""
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        q = whitened(state.params)
        bound = factor * stats.bound - q.kl()
        d_mean, d_cov = sums["slope"], -0.5 * sums["precision"][0]
        params, memory = dict(state.params), dict(state.memory)
        if self.steps == "natural":
            # The likelihoods are log-concave: the sites' precision is always positive definite.
            stepped = q.natural_step(d_mean, d_cov, state.rate, longest=np.inf)
            params["v_mean"], params["root"] = stepped.v_mean, stepped.root
        else:
            kl_mean, kl_root = q.kl_backward()
            grad = {
                "v_mean": d_mean - kl_mean,
                "root": q.root_adjoint(d_cov) - kl_root,
            }
            params, memory = adam_step(params, grad, memory, state.step, state.rate)
        if self.learn_kernel:
            params, memory = self.move_kernel(state, params, memory, sums)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)
