"""Bags of several periods: a block is a period and some whole areas of it.

The number of a bag tells both: ``period * n_area + area``. So a block is a
:class:`models.core.block.BagBlock` like any other, whatever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np

from models.core.block import BagBlock, cut_blocks, refuse_missing, refuse_weightless
from models.core.errors import BagsError
from models.core.protocol import Summary, override
from models.training.executor import BagsSource

BLOCK_PIXELS = 8192  # of a block: a period's areas are not shuffled


@dataclass(frozen=True)
class Period:
    """What is known of one period.

    Attributes
    ----------
    time : float
        When, in the unit of the kernel's times (months, say).
    bags : BagBlock or None
        Areas with a response; None where there is none at all.
    area : (n_bag,) int64 array or None
        Number of each bag's area, the same in all periods; the bags' own numbers where None.
    """

    time: float
    bags: BagBlock | None
    area: np.ndarray | None = None

    @property
    def areas(self) -> np.ndarray:
        """Number of each bag's area: (n_bag,) int64."""
        if self.bags is None:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.bags.bag if self.area is None else self.area, dtype=np.int64)

    def numbered(self, number: int, n_area: int) -> BagBlock:
        """Return the bags with the numbers that a model of several periods reads."""
        assert self.bags is not None
        return replace(_plain(self.bags), bag=number * n_area + self.areas)


@dataclass(frozen=True)
class PeriodSummary(Summary):
    """Statistics of the training data of several periods.

    Attributes
    ----------
    times : (n_period,) float64
    block_period : (n_block,) int64
        Period of each block.
    n_area : int
    unions : bool
        Whether some bags are unions of areas (:mod:`models.core.unions`).
    """

    times: np.ndarray = field(default_factory=lambda: np.zeros(0))
    block_period: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    n_area: int = 1
    unions: bool = False


class PeriodSource:
    """Periods in memory, as a source of blocks of whole areas.

    Parameters
    ----------
    periods : sequence of Period
        By rising time.
    n_area : int, optional
        Areas in all; the largest number + 1 where not given.
    block_pixels : int
        Pixels of a block, about.
    numbers : sequence of int, optional
        Number of each period, where others are known besides these.

    Raises
    ------
    BagsError
        If times do not rise, an area has two bags in a period, or no period has any.
    """

    def __init__(
        self,
        periods: Sequence[Period],
        n_area: int | None = None,
        block_pixels: int = BLOCK_PIXELS,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.times = np.array([period.time for period in periods], dtype=np.float64)
        _check(periods, self.times, n_area)
        most = max(int(period.areas.max(initial=-1)) for period in periods) + 1
        self.n_area = n_area or most
        self._blocks, self._period = [], []
        for number, period in zip(numbers or range(len(periods)), periods, strict=True):
            if period.bags is None or not period.bags.n_bag:
                continue
            bags = period.numbered(number, self.n_area)
            sizes = np.diff(bags.offsets)
            for start, stop in pairwise(cut_blocks(sizes, block_pixels, bags.n_bag).tolist()):
                self._blocks.append(bags.at(np.arange(start, stop)))
                self._period.append(number)
        if any(block.margin is not None for block in self._blocks):
            self._blocks = [block.with_margin() for block in self._blocks]
        if any(block.area is not None for block in self._blocks):
            self._blocks = [_with_area(block, self.n_area) for block in self._blocks]
        self.block_bags = np.array([block.n_bag for block in self._blocks])
        self.block_period = np.array(self._period)

    @override
    def summary(self, rng: np.random.Generator) -> PeriodSummary:
        found = BagsSource(BagBlock.join(self._blocks), 0).summary(rng)
        held = {each.name: getattr(found, each.name) for each in fields(Summary)}
        return PeriodSummary(
            **held,
            times=self.times,
            block_period=self.block_period,
            n_area=self.n_area,
            unions=any(block.area is not None for block in self._blocks),
        )

    @override
    def read(self, number: int) -> BagBlock:
        return self._blocks[number]

    @override
    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Do nothing: all blocks are in memory."""


def _with_area(block: BagBlock, n_area: int) -> BagBlock:
    """Return a block with the area of each pixel: in other periods some bags are several."""
    if block.area is not None:
        return block
    return replace(block, area=np.repeat(block.bag % n_area, np.diff(block.offsets)))


def _plain(bags: BagBlock) -> BagBlock:
    """Return bags given by hand as an ordinary block."""
    return BagBlock(**{each.name: getattr(bags, each.name) for each in fields(BagBlock)})


def _check(periods: Sequence[Period], times: np.ndarray, n_area: int | None) -> None:
    found = None
    if not any(period.bags is not None and period.bags.n_bag for period in periods):
        found = f"{len(periods)} periods without any bag; give responses of one at least"
    elif not (np.isfinite(times).all() and (np.diff(times) > 0).all()):
        late = int(np.argmax(~(np.diff(times) > 0)))
        found = f"times of periods {late} and {late + 1} do not rise; order them, each time once"
    for number, period in enumerate(periods):
        areas = period.areas
        if period.bags is not None and areas.shape != (period.bags.n_bag,):
            found = f"period {number} has {areas.size} areas for {period.bags.n_bag} bags"
        elif areas.size and (areas.min() < 0 or areas.max() >= (n_area or np.inf)):
            found = f"an area of period {number} is not in 0 to {n_area}; number areas from 0"
        elif np.unique(areas).size < areas.size:
            found = f"period {number} has two bags of one area; join them"
        elif period.bags is not None and period.bags.n_bag:
            refuse_missing(period.bags)
            refuse_weightless(np.add.reduceat(period.bags.weight, period.bags.offsets[:-1]))
    if found:
        raise BagsError(found)
