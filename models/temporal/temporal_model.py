"""What the fit and the posterior of several periods ask of their model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from models.aggregate.surface_model import SurfaceModel
from models.core.block import BagBlock
from models.core.protocol import Arrays, State, Stats
from models.temporal.path_prior import PathPrior
from models.temporal.time_text import SpaceTimeText


class TemporalModel(SurfaceModel, Protocol):
    """A model whose rates follow one sparse Gaussian process in each period, tied over time."""

    nats_left: float

    @property
    def n_member(self) -> int:
        """Draws of the hyperparameters."""

    @property
    def longest_step(self) -> float:
        """Most that an inducing value moves in a natural step, in deviations of the prior."""

    def text(self, fixed: Arrays) -> SpaceTimeText:
        """Return the parts of the kernel's description."""

    def split_times(self, fixed: Arrays) -> np.ndarray:
        """Return the number of the time of each of the kernel's split terms."""

    def state_space(self, state: State, times: np.ndarray | None = None) -> PathPrior:
        """Return the prior over the periods of a fit, or over other times."""

    def time_slopes(self, state: State, by_time: Sequence[np.ndarray]) -> np.ndarray:
        """Return the slopes of ``log Z`` by ``time``, (n_time,), of those by group."""

    def log_prior(self, state: State) -> tuple[float, Arrays]:
        """Return the log density of all priors, and its gradient by name."""

    def constant_values(self, fixed: Arrays) -> np.ndarray:
        """Return the inducing values of the function 1, had by one term alone: (n_value,)."""

    def shared_params(self, state: State) -> Arrays:
        """Return what the blocks of all periods need alike."""

    def with_area(self, params: Arrays, block: BagBlock) -> BagBlock:
        """Return a block whose inputs hold the number of the area, where the kernel has them."""

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Return the sums of a block."""

    def named(self, fixed: Arrays, params: Arrays) -> dict[str, float]:
        """Return the kernel's parameters by name."""
