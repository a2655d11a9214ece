"""Bags: the pixels of areas with the responses of one period, in blocks of whole areas.

Pixels (:mod:`pipeline.store.pixel_store`) and responses (:mod:`pipeline.store.responses`) are kept
apart; here they meet. ``docs/bag-store.md`` specifies both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from models.core.block import BagBlock
from pipeline.storage.location import Location, Place
from pipeline.storage.object_commit import place_of
from pipeline.store.bag_writer import NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.earlier_store import responses_beside
from pipeline.store.moments import scaling_of
from pipeline.store.pixel_store import CACHE_MB, PixelStore
from pipeline.store.responses import Responses, no_responses
from pipeline.store.stand_ins import NOTHING, Ahead, StandIns

if TYPE_CHECKING:
    from geo.grids.grid import Grid

__all__ = ["BagStore", "NewBags", "PixelRows", "StoreLayout", "write_bags"]


@dataclass(frozen=True)
class StoreReference:
    """A bag store by its path, as it travels to workers: to unpickle it opens no file.

    Attributes
    ----------
    path : Place
    cache_mb : float
    period : str or None
    responses : Responses or None
        Other responses than those on disk, of all areas of the pixel store.
    bags : (n_bag,) int64 array or None
        Areas of the pixel store; None for all.
    scaled : StoreReference or None
        The store by whose pixels the covariates are scaled; None for its own.
    numbers : (n_bag,) int64 array or None
        Number of each area of the pixel store.
    in_inputs : bool
        Whether the numbers are the last column of the inputs.
    like : StandIns
        What stands for what moves in a period after the series.
    ahead : Ahead or None
        What is known of it.
    unions : bool
        Whether areas have their share of what is known of their union alone.
    """

    path: Place
    cache_mb: float = CACHE_MB
    period: str | None = None
    responses: Responses | None = None
    bags: np.ndarray | None = None
    scaled: StoreReference | None = None
    numbers: np.ndarray | None = None
    in_inputs: bool = True
    like: StandIns = NOTHING
    ahead: Ahead | None = None
    unions: bool = False

    def open(self) -> BagStore:
        """Open the store."""
        place, period, given = self.path, self.period, self.responses
        pixels = PixelStore(place, self.cache_mb, period, self.like, self.ahead)
        if given is None:
            given = responses_beside(pixels, period, unions=self.unions)
        return BagStore.joined(pixels, given, self)


class BagStore:
    """A finished bag store, open for reading.

    The object is small, thread-safe and can be pickled (it reopens by path). It caches decoded
    pixels, up to ``cache_mb``: whole shards if the store fits, so that all passes read the disk
    once; else the requested blocks.

    Parameters
    ----------
    path : path-like, or address
        The store's directory, or its address on an object store (``s3://bucket/bags.zarr``).
    cache_mb : float
        Memory for decoded pixels, MB; two pieces are always cached.
    period : str, optional
        Of the responses, and of what moves among covariates and weights; not needed where the
        responses have one period.
    unions : bool, optional
        Whether areas have a share of what is known of their union alone; else they have none.

    Raises
    ------
    StoreError
        If the store is absent, unfinished, damaged or of another format, or has several periods of
        which none is chosen.

    Attributes
    ----------
    n_pix, n_bag, n_feat, n_block : int
        Numbers of pixels, bags, covariates and blocks.
    covariates, units : tuple of str
        Name and unit of each covariate.
    y : (n_bag,) float64 array
        Response of each bag; NaN where there is none. Of averages, the total over the bag.
    observed : (n_bag,) float64 array
        The same, NaN where the count is suppressed and ``y`` the middle of its interval.
    in_training : (n_bag,) bool array
        Whether a model may be fitted to the bag.
    offsets : (n_bag + 1,) int64 array
        Pixels of bag ``a`` are ``offsets[a]:offsets[a + 1]``.
    block_offsets : (n_block + 1,) int64 array
        Bags of block ``i`` are ``block_offsets[i]:block_offsets[i + 1]``.
    bag_weight : (n_bag,) float64 array
        Exposure of each bag: the sum of its pixels' weights.
    trials : (n_bag,) float64 array or None
        Number tested in each bag, if ``y`` counts the positives among them; NaN where unknown.
    margin : (n_bag,) float64 array or None
        Of suppressed counts: see :class:`models.core.block.BagBlock`; None where there are none.
    responses : Responses
        As they were given.
    fingerprint : str
        Of the store's inputs.
    attrs : dict
        The other attributes of the store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Location,
        cache_mb: float = CACHE_MB,
        period: str | None = None,
        *,
        unions: bool = False,
    ) -> None:
        pixels = PixelStore(place_of(path), cache_mb, period)
        reference = StoreReference(pixels.path, cache_mb, period, unions=unions)
        self._set(pixels, responses_beside(pixels, period, unions=unions), reference)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Location,
        cache_mb: float = CACHE_MB,
        period: str | None = None,
        *,
        unions: bool = False,
    ) -> BagStore:
        """Open a finished store; see the class for parameters and errors."""
        return cls(path, cache_mb, period, unions=unions)

    @classmethod
    def ahead(
        cls,
        path: str | os.PathLike[str] | Location,
        period: str,
        like: StandIns,
        cache_mb: float = CACHE_MB,
        before: Sequence[str] = (),
        ahead: Ahead | None = None,
    ) -> BagStore:
        """Open the pixels of a period of which no response is known.

        Parameters
        ----------
        path, cache_mb
            As of the class.
        period : str
        like : StandIns
            What stands for what moves, where nothing is known of the period's own.
        before : sequence of str
            Periods whose last exposure of each area holds, where exposures are given.
        ahead : Ahead, optional
            What is known of the period's own.
        """
        pixels = PixelStore(place_of(path), cache_mb, period, like, ahead)
        none = no_responses(pixels.data, pixels.ids, before, pixels.fingerprint)
        reference = StoreReference(
            pixels.path, cache_mb, period, responses=none, like=like, ahead=ahead
        )
        return cls.joined(pixels, none, reference)

    @staticmethod
    def create(path: str | os.PathLike[str] | Location, bags: NewBags, **options: Any) -> BagStore:
        """Write a store with :func:`write_bags` (same arguments) and open it."""
        write_bags(path, bags, **options)
        return BagStore(path)

    @classmethod
    def joined(
        cls, pixels: PixelStore, responses: Responses, reference: StoreReference
    ) -> BagStore:
        """Join open pixels to the responses of all of them; the reference chooses areas."""
        store = cls.__new__(cls)
        store._set(pixels, responses, reference)
        return store

    def _set(self, pixels: PixelStore, responses: Responses, reference: StoreReference) -> None:
        self.pixels, self.reference, self._everywhere = pixels, reference, responses
        self.path, self.attrs = pixels.path, pixels.attrs
        self.covariates, self.units, self.n_feat = pixels.covariates, pixels.units, pixels.n_feat
        own = reference.bags is None
        bags = np.arange(pixels.n_bag) if reference.bags is None else reference.bags
        self._bags = bags
        self.responses = responses if own else responses.at(bags)
        # Blocks of the pixels that hold a chosen area.
        held = np.diff(np.searchsorted(bags, pixels.block_offsets))
        self._blocks = np.flatnonzero(held)
        self.block_offsets = _frozen(np.concatenate([[0], np.cumsum(held[self._blocks])]))
        self.n_bag, self.n_block = bags.size, self._blocks.size
        self.sizes = np.diff(pixels.offsets)[bags]
        self.offsets = _frozen(np.concatenate([[0], np.cumsum(self.sizes)]))
        self.n_pix = int(self.offsets[-1])
        weight = self.responses.weight
        self.known_exposure = np.ones(self.n_bag, bool) if weight is None else np.isfinite(weight)
        self.bag_weight = pixels.bag_weight if own else pixels.bag_weight[bags]
        self._factor: np.ndarray | None = None  # of the pixels' weights
        if weight is not None and not self.responses.scaled:
            given = np.where(self.known_exposure, weight, self.bag_weight)
            self._factor, self.bag_weight = given / self.bag_weight, given
        value = self.responses.value
        self.y = _frozen(value * self.bag_weight if self.responses.averaged else value)
        self.in_training = _frozen(self.responses.training)
        hidden = None if self.responses.margin is None else self.responses.margin > 0
        self.observed = self.y if hidden is None else _frozen(np.where(hidden, np.nan, self.y))
        self.trials, self.margin = self.responses.tested, self.responses.margin
        self.known_trials = np.ones(self.n_bag, bool) if self.trials is None else self.trials > 0
        thinned = self.attrs.get("thinned") or {}  # where pixels stand for more: of all of them
        whole = thinned.get("squares"), thinned.get("sizes")
        self.squares, self.all_sizes = (None if w is None else np.asarray(w)[bags] for w in whole)
        same = responses.fingerprint == pixels.fingerprint
        self.fingerprint = pixels.fingerprint
        if not same:
            self.fingerprint += f"/{responses.fingerprint}"
        if reference.period is not None:  # another month has other responses, of one table
            self.fingerprint += f"/period {reference.period}{pixels.moving}"
        self.fingerprint += "/unions" if responses.union is not None else ""
        self._scaled_by: BagStore | StoreReference | None = reference.scaled

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreReference.open, (self.reference,)

    def __repr__(self) -> str:
        return (
            f"BagStore({str(self.path)!r}: {self.n_bag} bags, {self.n_pix} pixels, "
            f"{self.n_feat} covariates, {self.n_block} blocks)"
        )

    @property
    def exposure_factor(self) -> np.ndarray | None:
        """What the weights of the pixels of each bag are multiplied by, (n_bag,); None: by 1."""
        return self._factor

    @cached_property
    def training(self) -> BagStore:
        """The bags that a model may be fitted to: the store itself where all are."""
        return self if self.in_training.all() else self.select(self.in_training)

    def select(self, keep: np.ndarray) -> BagStore:
        """Return the bags where ``keep`` (n_bag,) bool is true, of the same pixels."""
        reference = replace(self.reference, bags=self._bags[keep])
        return self.joined(self.pixels, self._everywhere, reference)

    def with_responses(self, y: np.ndarray) -> BagStore:
        """Return the same bags with other responses: nothing is rewritten.

        Parameters
        ----------
        y : (n_bag,) float64 array

        Raises
        ------
        ValueError
            If ``y`` has another shape, or a value that is not finite.
        """
        responses = self._everywhere.with_values(self._bags, y)
        return self.joined(self.pixels, responses, replace(self.reference, responses=responses))

    @property
    def unions(self) -> np.ndarray | None:
        """Number of each bag's union (:mod:`models.core.unions`): (n_bag,); None without any."""
        return self.responses.unions

    @property
    def together(self) -> np.ndarray | None:
        """Number of the neighbours that each bag is kept with, (n_bag,) int64; None without any."""
        found = self.attrs.get("together")
        return None if found is None else np.asarray(found, np.int64)[self._bags]

    def scaled_by(self, other: BagStore) -> BagStore:
        """Return this store with the covariates' scaling of another of the same bags."""
        reference = replace(self.reference, scaled=other.reference)
        found = self.joined(self.pixels, self._everywhere, reference)
        found._scaled_by = other
        return found

    def numbered(self, ids: Sequence[str], *, in_inputs: bool = True) -> BagStore:
        """Return this store with the number of each area, the last column of its blocks' inputs.

        Models with effects of areas ask for it: see ``numbers_areas``. ``covariates``, ``n_feat``
        and the scaling do not count it.

        Parameters
        ----------
        ids : sequence of str
            Areas in the order of the model's numbers.
        in_inputs : bool
            Whether blocks have the column.
        """
        at = {name: number for number, name in enumerate(ids)}
        numbers = np.array([at.get(name, -1) for name in self.pixels.ids], dtype=np.int64)
        reference = replace(self.reference, numbers=numbers, in_inputs=in_inputs)
        return self.joined(self.pixels, self._everywhere, reference)

    @property
    def numbers(self) -> np.ndarray | None:
        """Number of each bag's area in its model: (n_bag,) int64; None unless numbered."""
        numbers = self.reference.numbers
        return None if numbers is None else numbers[self._bags]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Identifier of each bag, in the store's order."""
        return tuple(self.pixels.ids[k] for k in self._bags.tolist())

    @property
    def grid(self) -> Grid | None:
        """Grid that the pixel indices refer to; None for bags without a grid."""
        return self.pixels.grid

    @property
    def has_coords(self) -> bool:
        """Whether pixels have positions; the instances of a table have none."""
        return bool(self.attrs.get("has_coords", True))

    @property
    def n_axis(self) -> int:
        """Number of coordinates of a position: three, or two in a store of an earlier version."""
        return self.pixels.n_axis

    def scaling(self, bags: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each covariate over the pixels of some bags.

        Pixels are not weighted. Reads no pixel: the store has the mean and the sum of squared
        deviations of each bag.

        Parameters
        ----------
        bags : (n_bag,) bool array, optional
            Training bags; all where not given.

        Returns
        -------
        mean, sd : (n_feat,) float64 arrays
            In the covariates' units; ``sd`` (divisor n) is 1 where the covariate is constant.

        Raises
        ------
        ValueError
            If ``bags`` has another shape or is all false.
        """
        chosen = np.ones(self.n_bag, bool) if bags is None else np.asarray(bags)
        if chosen.shape != (self.n_bag,) or chosen.dtype != bool:
            found = f"bags has shape {chosen.shape} of {chosen.dtype}; give ({self.n_bag},) bool"
            raise ValueError(found)
        return scaling_of(*self.moments(chosen))

    def moments(self, bags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels and the moments of the covariates of the bags where ``bags`` is true.

        Parameters
        ----------
        bags : (n_bag,) bool array

        Returns
        -------
        count : (n_chosen,) int64 array
        moments : (n_chosen, 2, n_feat) float64 array
            Mean, and sum of squared deviations: of all pixels of a bag, where few stand for them.
        """
        if isinstance(self._scaled_by, StoreReference):
            self._scaled_by = self._scaled_by.open()
        if self._scaled_by is not None:
            return self._scaled_by.moments(bags)
        own = self._bags[bags]
        return np.diff(self.pixels.offsets)[own], self.pixels.moments[own]

    def read_block(self, block: int, *, whole_shards: bool = True) -> BagBlock:
        """Read one block of whole bags into read-only arrays.

        Parameters
        ----------
        block : int
            0 to ``n_block - 1``.
        whole_shards : bool
            Decode and cache its shards, for sequential reads; else decode its chunks alone, and
            cache nothing.

        Raises
        ------
        IndexError
            If there is no such block.
        StoreError
            If a chunk is damaged.
        """
        first, last, start, stop = self._span(block)
        if whole_shards:
            rows = self.pixels.rows(start, stop)
            x, weight, coords = rows.x, rows.weight, rows.coords
        else:
            x, weight, coords = self.pixels.read(("x", "weight", "coords"), start, stop)
        kept = self._kept(block)
        if kept is not None:
            x, weight, coords = x[kept], weight[kept], coords[kept]
        if self.numbers is not None and self.reference.in_inputs:
            area = np.repeat(self.numbers[first:last], self.sizes[first:last])
            x = _frozen(np.column_stack([x, area.astype(x.dtype)]))
        trials = self.trials
        if trials is not None:  # of a bag to predict it may be unknown
            trials = np.where(self.in_training | (trials > 0), trials, 1.0)[first:last]
        return BagBlock(
            x,
            self._scaled(weight, first, last),
            coords if self.has_coords else None,
            self.offsets[first : last + 1] - self.offsets[first],
            self.y[first:last],
            np.arange(first, last, dtype=np.int64),
            trials,
            None if self.squares is None else self.squares[first:last],
            None if self.margin is None else self.margin[first:last],
        )

    def blocks(self) -> Iterator[BagBlock]:
        """Yield all blocks in the store's order, which is random."""
        return (self.read_block(i) for i in range(self.n_block))

    def read_pixel(self, block: int) -> np.ndarray:
        """Grid index (row * n_col + column) of a block's pixels, (n_pix,) int64; -1 off grids."""
        return self.block_rows(block).pixel

    def block_rows(self, block: int) -> PixelRows:
        """Return the pixels of a block; see :meth:`read_block` for errors."""
        first, last, start, stop = self._span(block)
        rows, kept = self.pixels.rows(start, stop), self._kept(block)
        if kept is not None:
            rows = PixelRows(rows.x[kept], rows.weight[kept], rows.coords[kept], rows.pixel[kept])
        return replace(rows, weight=self._scaled(rows.weight, first, last))

    def read_rows(self, start: int, stop: int) -> PixelRows:
        """Read pixels ``start:stop`` in the store's order; see :meth:`read_block` for errors."""
        edges = self.offsets[self.block_offsets]
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, stop, side="left"))
        rows = PixelRows.join([self.block_rows(k) for k in range(first, last)])
        return rows.cut(start - int(edges[first]), stop - int(edges[first]))

    def _span(self, block: int) -> tuple[int, int, int, int]:
        """Return the first bag of a block and the end, and the same of its rows on disk."""
        if not 0 <= block < self.n_block:
            found = f"block {block} of a store of {self.n_block}"
            raise IndexError(found)
        first, last = (int(k) for k in self.block_offsets[block : block + 2])
        own, offsets = self._bags[first], self.pixels.offsets
        return first, last, int(offsets[own]), int(offsets[self._bags[last - 1] + 1])

    def _kept(self, block: int) -> np.ndarray | None:
        """Return the rows of a block's span that are of chosen areas; None if all are."""
        first, last = (int(k) for k in self.block_offsets[block : block + 2])
        bags = self._bags[first:last]
        if bags[-1] - bags[0] == bags.size - 1:
            return None
        chosen = np.zeros(bags[-1] - bags[0] + 1, bool)
        chosen[bags - bags[0]] = True
        return np.flatnonzero(
            np.repeat(chosen, np.diff(self.pixels.offsets[bags[0] : bags[-1] + 2]))
        )

    def _scaled(self, weight: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return weights that add up to the exposure of each bag."""
        if self._factor is None:
            return weight
        return _frozen(weight * np.repeat(self._factor[first:last], self.sizes[first:last]))


def _frozen(array: np.ndarray) -> np.ndarray:
    if array.flags.writeable:
        array.setflags(write=False)
    return array
