"""What the fit and the posterior of a sparse Gaussian process ask of its model."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from models.aggregate.objective import Objective
from models.core.protocol import Arrays, State, Stats
from models.gp.kernels import Kernel
from models.gp.pixel_pass import PixelPass
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import Link


class SurfaceModel(Protocol):
    """A model of bags whose rates follow one sparse Gaussian process, such as VBAgg.

    ``fixed`` are constants of a fit, ``params`` block parameters: see
    :class:`models.core.protocol.State` and ``block_params``.
    """

    priors: Literal["none", "weak"]
    seed: int

    @property
    def link_name(self) -> str:
        """Name of the link."""

    @property
    def estimator_name(self) -> str:
        """What estimates the expected log likelihood of a bag."""

    @property
    def resolved_link(self) -> Link:
        """Rate as a function of the latent surface."""

    @property
    def resolved_likelihood(self) -> Likelihood:
        """Distribution of a bag's response."""

    @property
    def phi_names(self) -> tuple[str, ...]:
        """Names of the parameters that ``phi`` has, all hyperparameters in one, in their order."""

    def block_params(self, state: State) -> Arrays:
        """Return what blocks need of a state."""

    def objective(
        self, state: State, stats: Stats, n_bag_total: int, *, slopes: bool = True
    ) -> Objective:
        """Return the bound on all bags and, where ``slopes`` are wanted, its gradient."""

    def forget_kernels(self) -> None:
        """Let go of the kernel matrices that a fit keeps."""

    def _kernel(self, fixed: Arrays) -> Kernel:
        """Return the kernel, with its inducing variables."""

    def _scaled(self, params: Arrays, x: Any, coords: Any) -> np.ndarray:
        """Return scaled inputs: (n_pix, n_dim)."""

    def _precision(self, params: Arrays) -> np.dtype[Any]:
        """Return the precision of scaled inputs."""

    def near(self, params: Arrays, z: Any) -> Arrays:
        """Return the block parameters that matter at scaled inputs (..., n_dim)."""

    def _pass(self, params: Arrays, z: Any, *, learn: bool, **how: Any) -> PixelPass:
        """Return mean and variance of ``f`` at scaled inputs; see :func:`pixel_pass.forward`."""
