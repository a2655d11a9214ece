"""Aggregates of drawn rates over the bags of several periods, pixel after pixel.

The loop over pixels is outside that over periods: what holds still at a pixel is evaluated once
(:mod:`models.temporal.joint_functions`), also for what conditions the aggregates on the responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from models.aggregate.observed_draws import Whole, WholeSums
from models.aggregate.rate_draws import PooledDraws, SurfaceDraws
from models.core.block import BagBlock
from models.core.protocol import override
from models.gp.draws import ROWS, add_by_bag
from models.gp.scaling import scaled_inputs
from models.likelihoods.links import find_link
from models.likelihoods.observation import bag_weights

if TYPE_CHECKING:
    from models.temporal.joint_functions import FunctionsInTime


@dataclass(frozen=True)
class CountedDraws:
    """Drawn rates of one time, whose aggregates over one block are known.

    Attributes
    ----------
    draws : SurfaceDraws or PooledDraws
    counts : (n_draws, n_bag) float64
    wholes : tuple of Whole or None
        Of each set of hyperparameters; None where every pixel is visited.
    """

    draws: SurfaceDraws | PooledDraws
    counts: np.ndarray
    wholes: tuple[Whole | None, ...]

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""
        return self.draws.n_draws

    @property
    def params(self) -> Any:
        """The likelihood's parameters (logarithms)."""
        return self.draws.params

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        del bags
        return self.counts

    @override
    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        return self.draws.observed_factors(bags, drawn, self.wholes)


def count_over_times(
    draws: Sequence[SurfaceDraws | PooledDraws], blocks: Sequence[BagBlock]
) -> list[CountedDraws]:
    """Aggregate the rates of each time over the bags of its block.

    Parameters
    ----------
    draws : sequence of SurfaceDraws or PooledDraws
        Of several times, drawn together.
    blocks : sequence of BagBlock
        Of each time. Where all have the same pixels, each is evaluated once for all times.
    """
    parts = [list(own.parts) if isinstance(own, PooledDraws) else [own] for own in draws]
    found = [_over_times([own[number] for own in parts], blocks) for number in range(len(parts[0]))]
    counted = []
    for t, own in enumerate(draws):
        counts = np.concatenate([part[t][0] for part in found])
        counts = counts[own.order] if isinstance(own, PooledDraws) else counts
        counted.append(CountedDraws(own, counts, tuple(part[t][1] for part in found)))
    return counted


def _over_times(
    draws: Sequence[SurfaceDraws], blocks: Sequence[BagBlock]
) -> list[tuple[np.ndarray, Whole | None]]:
    """Return the aggregates of one set of hyperparameters, (n_draws, n_bag), and the sums."""
    totals = [_Total(own, block) for own, block in zip(draws, blocks, strict=True)]
    for start in range(0, max(block.n_pix for block in blocks), ROWS):
        for total in totals:
            total.add(start)
    return [total.result for total in totals]


class _Total:
    """The sums of one time."""

    def __init__(self, draws: SurfaceDraws, block: BagBlock) -> None:
        functions: Any = draws.functions
        self._functions: FunctionsInTime = functions
        self._z = scaled_inputs(draws.fixed, block.x, block.coords, np.float64)
        self._p = bag_weights(draws.likelihood, block.weight, block.offsets, 1.0)
        self._bag = np.repeat(np.arange(block.n_bag), np.diff(block.offsets))
        self._sum = np.zeros((block.n_bag, draws.n_draws))
        condition, self._whole = draws.condition, None
        if condition.thins(block):
            self._whole = WholeSums(condition.model, condition.params, block, draws.n_draws)

    def add(self, start: int) -> None:
        """Add the next pixels, if there are any."""
        rows = slice(start, start + ROWS)
        z, bag, surface = self._z[rows], self._bag[rows], self._functions.surface
        if not z.shape[0]:
            return
        if self._whole is None:
            f = self._functions.latent(z)
        else:
            f, about = self._functions.latent_and_about(z)
            self._whole.add(rows, about)
        value = find_link(surface.link).value(f)
        value *= self._p[rows, None]
        add_by_bag(self._sum, bag, value)

    @property
    def result(self) -> tuple[np.ndarray, Whole | None]:
        """The aggregates (n_draws, n_bag) and the sums over all pixels."""
        whole = None if self._whole is None else self._whole.result
        return self._functions.surface.scale * self._sum.T, whole
