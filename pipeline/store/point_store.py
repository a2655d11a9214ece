"""Points beside areas: their bag store, and the blocks of both for the training loop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Summary
from models.training.executor import N_SAMPLE
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore
from pipeline.store.block_cache import BlockCache
from pipeline.store.block_source import KEEP_MB, BlockReference, StoreBlockSource

FILE = "work/points.zarr"


#: Why points and zones are left out, by the keys of the store's attribute ``left_out``.
LEFT_OUT = {
    "without_value_or_place": "without a value or a place",
    "outside": "off the areas",
    "all_counted": "whose areas all have a count",
    "lacking_pixels": "with an area that has neither a count nor a pixel",
}


def left_out_words(left: Mapping[str, int]) -> str:
    """Say how many points of a source are left out, and why; empty if none is."""
    return ", ".join(f"{left[key]:,} {words}" for key, words in LEFT_OUT.items() if left.get(key))


class PointStore:
    """Points of a run: a bag store whose attribute ``points`` tells of each bag.

    Parameters
    ----------
    store : BagStore

    Attributes
    ----------
    names : tuple of str
        Of the sources; the first has the number 1.
    source : (n_point,) int64
        Source of each point.
    area : (n_point,) object
        Id of the area that most of each point's weight is in.
    """

    def __init__(self, store: BagStore) -> None:
        self.store, about = store, store.attrs["points"]
        self.about = about
        self.names = tuple(about["names"])
        self.source = np.array(about["source"], dtype=np.int64)
        self.area = np.array(about["area"], dtype=object)

    @classmethod
    def open(cls, place: Place) -> PointStore:
        """Open a finished store."""
        return cls(BagStore.open(place))

    def beside(self, areas: BagStore, train: np.ndarray | None) -> np.ndarray:
        """Return the points that are read with some areas of a store: (n_point,) bool.

        Those of areas that are held out are left out with them; those of areas without a count,
        which are in no training, stay.

        Parameters
        ----------
        areas : BagStore
        train : (n_bag,) bool, or None
            Areas that are read; None for all with a count.
        """
        if train is None:
            return np.ones(self.source.size, bool)
        out = {name for name, kept in zip(areas.ids, train, strict=True) if not kept}
        return np.array([name not in out for name in self.area], bool)

    def block(self, number: int, first: int) -> BagBlock:
        """Return a block of points, numbered from ``first`` on."""
        return numbered(self.store.read_block(number), self.source, first)


def numbered(block: BagBlock, source: np.ndarray, first: int) -> BagBlock:
    """Return a block of points with their sources, and numbers behind those of the areas."""
    return replace(block, source=source[block.bag], bag=block.bag + first)


@dataclass(frozen=True)
class BesideReference:
    """A source by the paths of its stores, as it travels to workers."""

    areas: BlockReference
    points: BlockReference | None
    source: np.ndarray

    def open(self, keep_mb: float = KEEP_MB) -> BesideSource:
        """Open the stores."""
        points = None if self.points is None else self.points.open(0.0)
        return BesideSource(self.areas.open(0.0), points, self.source, keep_mb)


class BesideSource:
    """The training areas of a store, then the points beside them, block by block.

    Parameters
    ----------
    areas : StoreBlockSource
    points : StoreBlockSource or None
        Of the points that are read; None where there are none.
    source : (n_point,) int64
        Source of every point.
    keep_mb : float
        Memory for decoded blocks, MB.

    Attributes
    ----------
    cache : BlockCache
    block_bags : (n_block,) int64
        Training bags in each block.
    """

    def __init__(
        self,
        areas: StoreBlockSource,
        points: StoreBlockSource | None,
        source: np.ndarray,
        keep_mb: float = KEEP_MB,
    ) -> None:
        self._areas, self._points, self._source = areas, points, source
        self._n_areas = len(areas.block_bags)
        own = [areas] if points is None else [areas, points]
        self._own = own
        self.block_bags = np.concatenate([each.block_bags for each in own])
        self.cache = BlockCache(self.load, keep_mb * 1e6)

    @classmethod
    def of(cls, areas: BagStore, points: PointStore, bags: np.ndarray | None) -> BesideSource:
        """Join the areas where ``bags`` (n_bag,) is true, all with a count if None, to points."""
        chosen = points.beside(areas, bags)
        own = StoreBlockSource(points.store, chosen, 0.0) if chosen.any() else None
        return cls(StoreBlockSource(areas, bags, 0.0), own, points.source)

    @property
    def reference(self) -> BesideReference:
        """What travels to workers."""
        points = None if self._points is None else self._points.reference
        return BesideReference(self._areas.reference, points, self._source)

    @property
    def place(self) -> Place:
        """Where the areas are."""
        return self._areas.place

    @property
    def n_bag(self) -> int:
        """Number of training bags."""
        return sum(each.n_bag for each in self._own)

    @property
    def n_pix(self) -> int:
        """Number of their pixels."""
        return sum(each.n_pix for each in self._own)

    @property
    def bag_weight(self) -> np.ndarray:
        """Exposure of each training bag: (n_bag,)."""
        return np.concatenate([each.bag_weight for each in self._own])

    def summary(self, rng: np.random.Generator) -> Summary:
        """Summarise the areas as without points; pixels of the points join the sample."""
        areas = self._areas.summary(rng)
        if self._points is None:
            return areas
        points = self._points.summary(rng, N_SAMPLE)
        first = self._areas.store.n_bag
        trials = (
            np.full(each.y.shape, np.nan) if each.trials is None else each.trials
            for each in (areas, points)
        )
        joined = {
            name: np.concatenate([getattr(areas, name), getattr(points, name)])
            for name in ("x", "coords", "y", "weight", "bag_y", "pixel_weight")
            if getattr(areas, name) is not None
        }
        own, at = self._source[self._points.bags], points.bag
        assert areas.bag is not None
        assert at is not None
        return replace(
            areas,
            **joined,  # type: ignore[arg-type]
            trials=np.concatenate(list(trials)),
            bag=np.concatenate([areas.bag, at + first]),
            source=np.concatenate([np.zeros(areas.n_bag, np.int64), own]),
            pixel_source=np.concatenate([np.zeros(areas.bag.size, np.int64), self._source[at]]),
        )

    def read(self, number: int) -> BagBlock:
        """Return the training bags of a block."""
        return self.cache.get(number)

    def load(self, number: int) -> BagBlock:
        """Read a block from its store, whatever is in memory."""
        if number < self._n_areas:
            block = _with_trials(self._areas.load(number))
            return replace(block, source=np.zeros(block.n_bag, np.int64))
        assert self._points is not None
        block = _with_trials(self._points.load(number - self._n_areas))
        if self._areas.store.margin is not None:  # blocks of both are joined on the way
            block = block.with_margin()
        return numbered(block, self._source, self._areas.store.n_bag)

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Start reading blocks that will be requested next."""
        self.cache.ahead(numbers)

    def fingerprint(self) -> str:
        """Return the fingerprint of both stores, and of the choice of bags."""
        text = "/".join(each.fingerprint() for each in self._own)
        return hashlib.sha256(text.encode() + self._source.tobytes()).hexdigest()


def _with_trials(block: BagBlock) -> BagBlock:
    """Return a block with trials, NaN where it has none: blocks of both are joined on the way."""
    none = np.full(block.n_bag, np.nan)
    return block if block.trials is not None else replace(block, trials=none)


def open_points(work: Path) -> PointStore | None:
    """Return the points of a run, whose directory of intermediate results is given; or None."""
    place = work / Path(FILE).name
    return PointStore.open(place) if place.exists() else None
