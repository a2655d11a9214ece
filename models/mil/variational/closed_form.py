"""What VWSGP and psi-VGPMIL share: sites of bags or instances, and a kernel that moves seldom."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays, Info, State, Summary, Sweep, override
from models.gp.kernel_model import whitened
from models.gp.sparse_gp import Whitened, factorise, lower_backward
from models.mil.data.classifier import Classifier, without_unused_coords
from models.mil.data.spread_columns import (
    SpreadKernelModel,
    classifier_scaling,
    scaled_columns,
)
from models.training.optim import adam_step

LENGTHSCALES = (1.0, 0.5, 2.0)  # that "auto" chooses from, the first one to begin with
SETTLED = 1e-3  # nats a bag and update: a smaller rise, and the kernel may move


class ClosedFormClassifier(SpreadKernelModel, Classifier):
    """Base of the classifiers whose ``q`` over the whitened inducing values has a closed form.

    The intercept is one more of those values, with its prior deviation as its loading.
    """

    sweep: ClassVar[Sweep] = "full"
    keeps_local: ClassVar[bool] = True
    batch_bags = 1

    n_inducing: int
    variance: Any
    lengthscale: Any
    intercept_sd: float
    learn_kernel: bool
    tolerance: float

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means, ``q`` at the prior."""
        self.check_params()
        self.check_responses(sample.y)
        sample = without_unused_coords(sample, self.kernel)
        fixed = classifier_scaling(sample)
        z = scaled_columns(fixed, sample.x, sample.coords, np.float64)
        w = self.start_points(z, sample.bag_y, rng)
        n_value = w.shape[0] + int(self.intercept_sd > 0)
        params = {
            "v_mean": np.zeros(n_value),
            "root": np.zeros((n_value, n_value)),
            "theta": self.start_theta(fixed),
            "w": w,
        }
        memory = {"moves": np.zeros(1), "settled": np.zeros(1), "bound": np.full(1, -np.inf)}
        return State(params, fixed, memory, rate=self.learning_rate)

    @override
    def block_params(self, state: State) -> Arrays:
        params = state.params
        return {
            **state.fixed,
            "theta": params["theta"],
            "w": params["w"],
            "lower_inv": self._lower_inv(state),
            "v_mean": params["v_mean"],
            "factor": whitened(params).factor(),
        }

    @abstractmethod
    def start_points(
        self, z: np.ndarray, bag_y: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose inducing points among scaled inputs ``z`` of bags of responses ``bag_y``."""

    def start_theta(self, fixed: Arrays) -> np.ndarray:
        """Return the kernel's first parameters: (n_theta,)."""
        kernel = self._kernel(fixed)
        ours = [".lengthscale" in name and "_space" not in name for name in kernel.names]
        first = [1.0 if each == "auto" else each for each in (self.variance, self.lengthscale)]
        return kernel.start(first[0]) + np.log(first[1]) * np.array(ours)

    def kernel_gradient(self, state: State, sums: Arrays) -> np.ndarray:
        """Return the gradient of the bound by ``theta``, ``q`` held: (n_theta,).

        Held is ``q`` over the whitened inducing values, not over ``u``: the KL term does not see
        the kernel, ``u`` follows it, and the stationary points are the same.
        """
        kernel, params = self._kernel(state.fixed), state.params
        w, theta = params["w"], params["theta"]
        cache = kernel.forward(theta, w, w)[1]
        d_k = lower_backward(self._lower_inv(state), sums["lower"])
        by_w = kernel.backward(theta, w, w, cache, d_k, want_w=False)[0]
        return np.asarray(sums["theta"] + by_w)

    def move_kernel(
        self, state: State, params: Arrays, memory: Arrays, sums: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Return ``params`` and ``memory`` after a step of Adam on the kernel's parameters."""
        grad = {"theta": self.kernel_gradient(state, sums)}
        moves = memory["moves"]
        new, moments = adam_step(params, grad, memory, int(moves[0]), state.rate)
        return new, {**moments, "moves": moves + 1}

    def updated(
        self,
        state: State,
        new: tuple[Arrays, Arrays],
        sums: Arrays,
        bound: float,
        n_bag_total: int,
    ) -> tuple[State, Info]:
        """Return the state after ``q`` went to its optimum; the kernel moves once ``q`` settled.

        ``new`` are ``params`` and ``memory`` with that ``q``, ``bound`` is its bound.
        """
        params, memory = new
        rise = (bound - float(memory["bound"][0])) / n_bag_total
        memory["bound"] = np.array([bound])
        if "lower" in sums:
            params, memory = self.move_kernel(state, params, memory, sums)
        elif self.learn_kernel and rise < SETTLED:
            memory["settled"] = np.ones(1)
        done = None if self.learn_kernel else bool(rise < self.tolerance)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound, done)

    def _lower_inv(self, state: State) -> np.ndarray:
        params, kernel = state.params, self._kernel(state.fixed)
        n_ind = params["w"].shape[0]
        prior = Whitened(np.zeros(n_ind), np.zeros((n_ind, n_ind)))
        return factorise(kernel.matrix(params["theta"], params["w"], params["w"]), prior).lower_inv

    def _inputs(self, params: Arrays, bags: BagBlock) -> np.ndarray:
        return self._scaled(params, bags.x, bags.coords)
