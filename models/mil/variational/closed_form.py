"""What VWSGP and psi-VGPMIL share: sites of bags or instances, and a kernel that moves seldom."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays, State, Summary, Sweep, override
from models.gp.kernel_model import KernelModel
from models.gp.scaling import scaled_inputs, scaling_of
from models.gp.sparse_gp import Whitened, factorise, lower_backward
from models.mil.data.classifier import Classifier, without_unused_coords
from models.training.optim import adam_step

LENGTHSCALES = (1.0, 0.5, 2.0)  # that "auto" chooses from, the first one to begin with
SETTLED = 1e-3  # nats a bag and update: a smaller rise, and the kernel may move


class ClosedFormClassifier(KernelModel, Classifier):
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

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means, ``q`` at the prior."""
        self.check_params()
        self.check_responses(sample.y)
        sample = without_unused_coords(sample, self.kernel)
        fixed = {k: v for k, v in scaling_of(sample, 1.0).items() if k != "base_rate"}
        z = scaled_inputs(fixed, sample.x, sample.coords, np.float64)
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

    def _lower_inv(self, state: State) -> np.ndarray:
        params, kernel = state.params, self._kernel(state.fixed)
        n_ind = params["w"].shape[0]
        prior = Whitened(np.zeros(n_ind), np.zeros((n_ind, n_ind)))
        return factorise(kernel.matrix(params["theta"], params["w"], params["w"]), prior).lower_inv

    def _inputs(self, params: Arrays, bags: BagBlock) -> np.ndarray:
        return self._scaled(params, bags.x, bags.coords)
