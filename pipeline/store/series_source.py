"""The training bags of several periods, block by block, for the training loop.

A block is a period and some whole areas of it. The number of a bag tells both, as in
:mod:`models.temporal.periods`: ``period * n_area + area``, where ``area`` is the number of the area
among all of the pixels' store, the same in every period.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Summary
from models.core.unions import OWN, union_bags, union_order
from models.temporal.periods import PeriodSummary
from models.training.executor import N_SAMPLE
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore
from pipeline.store.block_cache import BlockCache
from pipeline.store.block_source import KEEP_MB, BlockReference, StoreBlockSource
from pipeline.store.moments import scaling_of


@dataclass(frozen=True)
class SeriesReference:
    """A source of several periods by its paths, as it travels to workers.

    Attributes
    ----------
    times : tuple of float
        Of all periods.
    parts : tuple of BlockReference or None
        What each period has; None where it has no response.
    numbers : tuple of (n_bag,) int64 arrays
        Number of the area of each bag of each part.
    n_area : int
    unions : tuple of (n_bag,) int64 array or None
        Number of the union of each bag of each part, see :mod:`models.core.unions`.
    """

    times: tuple[float, ...]
    parts: tuple[BlockReference | None, ...]
    numbers: tuple[np.ndarray, ...]
    n_area: int
    unions: tuple[np.ndarray | None, ...]

    def open(self, keep_mb: float = KEEP_MB) -> SeriesSource:
        """Open the stores."""
        parts = [None if part is None else part.open(0.0) for part in self.parts]
        return SeriesSource(self.times, parts, self.numbers, self.n_area, self.unions, keep_mb)


class SeriesSource:
    """The training bags of several periods.

    Parameters
    ----------
    times : sequence of float
        By rising time; one of which nothing is known has a place in the model all the same.
    parts : sequence of StoreBlockSource or None
        What each period has.
    numbers : sequence of (n_bag,) int64 arrays
        Number of the area of each bag of each part's store; anything where the part is None.
    n_area : int
        Areas in all.
    unions : sequence of (n_bag,) int64 array or None
        Number of the union of each bag of each part: a union is one bag of a block.
    keep_mb : float
        Memory for decoded blocks, MB.

    Attributes
    ----------
    cache : BlockCache
    block_bags, block_period : (n_block,) int64 arrays
        Training bags in each block, and the number of its period.
    """

    def __init__(
        self,
        times: Sequence[float],
        parts: Sequence[StoreBlockSource | None],
        numbers: Sequence[np.ndarray],
        n_area: int,
        unions: Sequence[np.ndarray | None],
        keep_mb: float = KEEP_MB,
    ) -> None:
        self.times, self.n_area = np.asarray(times, dtype=np.float64), n_area
        self._parts, self._numbers, self._unions = list(parts), list(numbers), list(unions)
        self._joins = any(own is not None for own in unions)
        self._known = [(t, part) for t, part in enumerate(self._parts) if part is not None]
        if not self._known:
            found = f"{len(self._parts)} periods without any response; give one at least"
            raise ValueError(found)
        counts = [len(part.block_bags) for _, part in self._known]
        self._starts = np.cumsum([0, *counts])
        self.block_bags = np.concatenate([self._bags_of(t, part) for t, part in self._known])
        self.block_period = np.repeat([t for t, _ in self._known], counts)
        self.cache = BlockCache(self._load, keep_mb * 1e6)

    @classmethod
    def of(
        cls, stores: Sequence[BagStore], times: Sequence[float], ids: Sequence[str]
    ) -> SeriesSource:
        """Join the training bags of one store a period.

        Parameters
        ----------
        stores : sequence of BagStore
        times : sequence of float
        ids : sequence of str
            Of all areas, in the order of their numbers.
        """
        at = {name: number for number, name in enumerate(ids)}
        numbers = [np.array([at[name] for name in store.ids], dtype=np.int64) for store in stores]
        parts = [
            StoreBlockSource(store, keep_mb=0.0) if store.in_training.any() else None
            for store in stores
        ]
        return cls(times, parts, numbers, len(ids), [store.unions for store in stores])

    @property
    def reference(self) -> SeriesReference:
        """What travels to workers."""
        parts = tuple(None if part is None else part.reference for part in self._parts)
        times, numbers = tuple(self.times.tolist()), tuple(self._numbers)
        return SeriesReference(times, parts, numbers, self.n_area, tuple(self._unions))

    @property
    def place(self) -> Place:
        """Where the first period is."""
        return self._known[0][1].place

    @property
    def n_bag(self) -> int:
        """Number of training bags of all periods."""
        return int(self.block_bags.sum())

    @property
    def n_pix(self) -> int:
        """Number of their pixels."""
        return sum(part.n_pix for _, part in self._known)

    @property
    def bag_weight(self) -> np.ndarray:
        """Exposure of each training bag: (n_bag,)."""
        return np.concatenate(
            [_joined_bags(part.bag_weight, self._union_of(t, part)) for t, part in self._known]
        )

    def summary(self, rng: np.random.Generator) -> PeriodSummary:
        """Summarise the training bags; each period has its share of the sample of pixels."""
        share = -(-N_SAMPLE // len(self._known))
        found = []
        for t, part in self._known:
            own = part.summary(rng, share)
            found.append(replace(own, bag=self._numbered(t, own.bag)))
        counts, moments = zip(*(part.moments for _, part in self._known), strict=True)
        mean, sd = scaling_of(np.concatenate(counts), np.concatenate(moments))
        held: dict[str, Any] = {
            each.name: _joined([getattr(own, each.name) for own in found]) for each in _FIELDS
        }
        return PeriodSummary(
            **held,
            x_mean=mean,
            x_sd=sd,
            times=self.times,
            block_period=self.block_period,
            n_area=self.n_area,
            unions=self._joins,
        )

    def read(self, number: int) -> BagBlock:
        """Return the training bags of a block."""
        return self.cache.get(number)

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Start reading blocks that will be requested next."""
        self.cache.ahead(numbers)

    def of_period(self, period: int) -> BagBlock | None:
        """Return all training bags of one period, with the numbers of their areas; maybe none."""
        blocks = np.flatnonzero(self.block_period == period)
        if not blocks.size:
            return None
        bags = BagBlock.join([self._load(int(k)) for k in blocks if self.block_bags[k]])
        return replace(bags, bag=bags.bag % self.n_area)

    def fingerprint(self) -> str:
        """Return the fingerprint of all stores, their blocks and the choice of bags."""
        own = ["" if part is None else part.fingerprint() for part in self._parts]
        text = "\n".join([*own, *map(str, self.times.tolist())])
        return hashlib.sha256(text.encode()).hexdigest()

    def _load(self, number: int) -> BagBlock:
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        t, part = self._known[place]
        block = part.load(number - int(self._starts[place]))
        if any(each.store.margin is not None for _, each in self._known):
            block = block.with_margin()
        bag, union = block.bag, self._unions[t]
        block = replace(block, bag=self._numbered(t, bag))
        if not self._joins:
            return block
        own = np.full(bag.size, OWN) if union is None else union[bag]
        return union_bags(block, own, self._numbers[t][bag])

    def _union_of(self, t: int, part: StoreBlockSource) -> np.ndarray | None:
        union = self._unions[t]
        return None if union is None else union[part.bags]

    def _bags_of(self, t: int, part: StoreBlockSource) -> np.ndarray:
        """Return the bags in each block of a part: unions are one."""
        union = self._union_of(t, part)
        if union is None:
            return part.block_bags
        ends = np.cumsum(part.block_bags)
        return np.array(
            [
                union_order(union[start:stop])[1].size
                for start, stop in zip(ends - part.block_bags, ends, strict=True)
            ]
        )

    def _numbered(self, period: int, bag: np.ndarray | None) -> np.ndarray:
        assert bag is not None
        found: np.ndarray = period * self.n_area + self._numbers[period][bag]
        return found


_FIELDS = [each for each in fields(Summary) if each.name not in ("x_mean", "x_sd")]


def _joined_bags(weight: np.ndarray, union: np.ndarray | None) -> np.ndarray:
    """Return the exposure of each bag, (n_bag,), those of a union added up."""
    if union is None:
        return weight
    order, first = union_order(union)
    found: np.ndarray = np.add.reduceat(weight[order], first)
    return found


def _joined(values: Sequence[Any]) -> Any:
    """Return arrays one after the other, and numbers added up; None where one is missing."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return sum(values)
