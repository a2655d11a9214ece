r"""GPMIL-S: the likelihoods of GPMIL (Kim & De la Torre 2010) on a sparse variational GP.

The bound is ``sum_b E_q log P(T_b | f_b) - KL(q(u) || p(u))``, a sum over bags: the training loop
feeds it in blocks, from memory or from a store. :mod:`expected_max` computes the expectation
under the joint distribution of a bag's latent values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from models.core.block import BagBlock
from models.core.errors import NumericalError
from models.core.protocol import Arrays, Info, State, Stats, Summary, Sweep, override
from models.gp import sparse_gp
from models.gp.inducing_points import choose_inducing_points
from models.gp.kernel_model import whitened
from models.mil.data.classifier import without_unused_coords
from models.mil.data.spread_columns import classifier_scaling, scaled_columns
from models.mil.gpmil import expected_max
from models.mil.gpmil.gpmil_evidence import COOLING, WARMEST, log_prior, scale_by_range, start_mean
from models.mil.gpmil.latent_gp import LatentGP
from models.training.optim import adam_step
from models.training.parameters import Count, Positive, Precision, Range

START_ROOT = 0.3  # deviation of q(v) at the start, where the prior's is 1


@dataclass(kw_only=True, eq=False, repr=False)
class GPMILS(LatentGP):
    """Sparse Gaussian process for labels of bags, for any number of instances.

    Parameters
    ----------
    likelihood : {"softmax", "witness"}
        See :class:`models.mil.gpmil.gpmil.GPMIL`.
    n_inducing : int
        Number of inducing points; fewer where there are fewer distinct instances.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`.
    scaling : {"deviation", "range"}
        What every covariate is divided by.
    priors : {"weak", "none"}
        Of the kernel's variances and the mean, see :func:`gpmil_evidence.log_prior`; the
        bound then holds their log density. The paper has none.
    learn_kernel : bool
        Learn the kernel's parameters; else they stay where they start.
    learn_mean : bool
        Learn a constant mean of the latent function, from one at which bags are positive as often
        as they are; else it is 0, as in the paper.
    learn_inducing : bool
        Move the inducing points during the fit; else they stay where k-means++ put them.
    coldest : float
        Inverse temperature that the witness shares are annealed to.
    anneal_epochs : int
        Epochs at each temperature before the last.
    n_samples : int
        Draws of a bag's latent values for its expected soft-max likelihood, in pairs: even. They
        are the same in every step.
    pair_pixels : int
        Largest bag whose instances are drawn together; the soft-max likelihood of larger ones is
        bounded, the witness likelihood's variance taken from so many of its pixels.
    batch_bags, max_epochs, learning_rate, tolerance, natural_rate, dtype, seed
        See :class:`models.aggregate.vbagg.VBAgg`.
    n_draws : int
        Draws of each bag's probability in predictions.

    Attributes
    ----------
    state_, params_, history_, converged_, bound_
        See :class:`models.training.estimator.Estimator`.
    """

    kind = "gpmil_s"
    about = "the same on a sparse GP; any size"
    source = "Kim and De la Torre 2010"
    sweep: ClassVar[Sweep] = "minibatch"
    needs_calibration: ClassVar[bool] = True

    n_inducing: Count = 200
    learn_kernel: bool = True
    learn_inducing: bool = True
    anneal_epochs: Count = 10
    n_samples: Annotated[int, Range(2, 99998, even=True)] = 64
    pair_pixels: Count = 256
    batch_bags: Count = 32
    max_epochs: Count = 300
    learning_rate: Positive = 0.05
    tolerance: Positive = 1e-3
    natural_rate: Positive = 0.5
    dtype: Precision = "float64"

    # -- the contract with the training loop ---------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means++; the mean explains how many bags are positive."""
        self.check_params()
        sample = without_unused_coords(sample, self.kernel)
        fixed = classifier_scaling(sample)
        if self.scaling == "range":
            fixed = scale_by_range(fixed, sample.x)
        w = choose_inducing_points(
            scaled_columns(fixed, sample.x, sample.coords, np.float64), self.n_inducing, rng
        )
        mean = start_mean(sample.y, sample.n_pix, self.likelihood) if self.learn_mean else 0.0
        fixed["mean_centre"] = np.array([mean])
        # What tuning chooses must be in the state: the arguments stay as they are.
        fixed["witness"] = np.array(self.likelihood == "witness")
        params = {
            "mean": np.array([mean]),
            "v_mean": np.zeros(w.shape[0]),
            "root": np.diag(np.full(w.shape[0], np.log(START_ROOT))),
            "theta": self._kernel(fixed).start(1.0),
            "w": w,
        }
        return State(params, fixed, {"epochs": np.zeros(1)}, rate=self.learning_rate)

    @override
    def block_params(self, state: State) -> Arrays:
        """``theta w mean alpha q`` and the scalings."""
        params = state.params
        fac = self._factored(self._kernel(state.fixed), params, state.fixed)[2]
        return {
            **state.fixed,
            "theta": params["theta"],
            "w": params["w"],
            "mean": params["mean"],
            "alpha": fac.alpha,
            "q": fac.q,
            "inverse_temperature": np.array([self._heat(state)]),
        }

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the bound, and its adjoints by ``params``."""
        fwd = self._latent(params, block.x, block.coords, learn=True)
        sign = 2.0 * block.y - 1.0
        if self.likelihood == "softmax":
            term = expected_max.soft_max(
                fwd, sign, block.offsets, block.bag, self.n_samples, self.pair_pixels, self.seed
            )
        else:
            heat = float(params["inverse_temperature"][0])
            term = expected_max.witness(fwd, sign, block.offsets, block.bag, heat, self.pair_pixels)
        if not np.isfinite(term.value):
            msg = "the bound is not finite: the fit diverged; lower the learning rate"
            raise NumericalError(msg)
        sums = fwd.backward(term.d_m, term.d_s, term.pairs)
        return Stats(term.value, block.n_bag, sums), local

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a natural step on q(u), and one of Adam on the rest."""
        params = state.params
        kernel, q = self._kernel(state.fixed), whitened(params)
        _, cache, fac = self._factored(kernel, params, state.fixed)
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        d_mean, d_cov, d_k = sparse_gp.factorise_backward(fac, q, sums["alpha"], sums["q"])
        d_theta, d_w = kernel.backward(
            params["theta"], params["w"], params["w"], cache, d_k, want_w=True
        )
        bound = factor * stats.bound - q.kl()
        slope = np.zeros(params["theta"].shape[0] + 1)
        if self.priors == "weak":
            point, centre = np.append(params["theta"], params["mean"]), state.fixed["mean_centre"]
            density, slope = log_prior(kernel.names, point, float(centre[0]))
            bound += density
        grad: Arrays = {}
        if self.learn_kernel:
            grad["theta"] = sums["theta"] + d_theta + slope[:-1]
        if self.learn_mean:
            grad["mean"] = sums["mean"] + slope[-1:]
        if self.learn_inducing:
            # W stands on both sides of the symmetric K_WW: its adjoint counts twice.
            grad["w"] = sums["w"] + 2.0 * d_w
        new, memory = adam_step(params, grad, state.memory, state.step, state.rate)
        rate = min(1.0, self.natural_rate * state.rate / self.learning_rate)
        stepped = q.natural_step(d_mean, d_cov, rate)
        new["v_mean"], new["root"] = stepped.v_mean, stepped.root
        epochs = float(state.memory["epochs"][0])
        memory["epochs"] = np.array([epochs + 1.0 / factor])
        annealing = self.likelihood == "witness" and self._heat(state) < self.coldest
        info = Info(bound, converged=False if annealing else None)
        return State(new, state.fixed, memory, state.step + 1, state.rate), info

    def _heat(self, state: State) -> float:
        """Return the inverse temperature of the witness shares; 0 under the soft-max likelihood."""
        # Saved before, a model has no "witness".
        if not state.fixed.get("witness", self.likelihood == "witness"):
            return 0.0
        # A little slack: epochs are added up from shares of them.
        stage = int(float(state.memory["epochs"][0]) / self.anneal_epochs + 1e-6)
        return min(self.coldest, WARMEST * COOLING**stage)
