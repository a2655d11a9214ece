"""The Zarr bag store: pixels sorted by bag, bags in random order, blocks of whole bags.

``docs/bag-store.md`` specifies the format; :mod:`pipeline.store.bag_writer` writes it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from models.core.block import BagBlock
from pipeline.core.errors import StoreError
from pipeline.storage.local_commit import read_marker
from pipeline.storage.location import Location, Place, StorageError
from pipeline.storage.object_commit import place_of, zarr_at
from pipeline.store.bag_writer import (
    FORMAT,
    READABLE,
    NewBags,
    PixelRows,
    StoreLayout,
    scaling_of,
    write_bags,
)

if TYPE_CHECKING:
    from geo.grid import Grid

__all__ = ["BagStore", "NewBags", "PixelRows", "StoreLayout", "write_bags"]

_CACHE_MB = 256
_ARRAYS = (
    *("x", "weight", "coords", "pixel"),
    *("offsets", "block_offsets", "y", "bag_weight", "moments", "id_bytes", "id_offsets"),
)


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

    Raises
    ------
    StoreError
        If the store is absent, unfinished, damaged or of another format.

    Attributes
    ----------
    n_pix, n_bag, n_feat, n_block : int
        Numbers of pixels, bags, covariates and blocks.
    covariates, units : tuple of str
        Name and unit of each covariate.
    y : (n_bag,) float64 array
        Response of each bag.
    offsets : (n_bag + 1,) int64 array
        Pixels of bag ``a`` are ``offsets[a]:offsets[a + 1]``.
    block_offsets : (n_block + 1,) int64 array
        Bags of block ``i`` are ``block_offsets[i]:block_offsets[i + 1]``.
    bag_weight : (n_bag,) float64 array
        Sum of the weights of each bag's pixels.
    trials : (n_bag,) float64 array or None
        Number tested in each bag, if ``y`` counts the positives among them.
    fingerprint : str
        Of the store's inputs.
    attrs : dict
        The other attributes of the store.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Location, cache_mb: float = _CACHE_MB
    ) -> None:
        self.path: Place = place_of(path)
        self.cache_mb = cache_mb
        marker = read_marker(self.path, FORMAT, READABLE)
        self.fingerprint = marker.fingerprint
        self._data = self.path / marker.data
        group = zarr_at(self._data, read_only=True)
        self._group = zarr.open_group(group, mode="r", zarr_format=3)
        named = (*_ARRAYS, *(["trials"] if "trials" in self._group else []))
        self._arrays: dict[str, Any] = {name: self._group[name] for name in named}
        self.attrs: dict[str, Any] = dict(self._group.attrs)
        self.covariates: tuple[str, ...] = tuple(self.attrs["covariates"])
        self.units: tuple[str, ...] = tuple(self.attrs["units"])
        self.n_pix, self.n_feat = (int(n) for n in self._arrays["x"].shape)
        self.offsets = self._table("offsets")
        self.block_offsets = self._table("block_offsets")
        self.y = self._table("y")
        self.bag_weight = self._table("bag_weight")
        self.trials = self._table("trials") if "trials" in self._arrays else None
        thinned = self.attrs.get("thinned") or {}  # where pixels stand for more: of all of them
        whole = thinned.get("squares"), thinned.get("sizes")
        self.squares, self.all_sizes = (None if w is None else np.asarray(w) for w in whole)
        self.n_bag = int(self.y.shape[0])
        self.n_block = int(self.block_offsets.shape[0]) - 1
        shards = self._arrays["x"].shards
        self._shard_pixels = int(shards[0])
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], PixelRows] = OrderedDict()
        self._held = 0  # bytes in the cache

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Location, cache_mb: float = _CACHE_MB) -> BagStore:
        """Open a finished store; see the class for parameters and errors."""
        return cls(path, cache_mb)

    @staticmethod
    def create(path: str | os.PathLike[str] | Location, bags: NewBags, **options: Any) -> BagStore:
        """Write a store with :func:`write_bags` (same arguments) and open it."""
        write_bags(path, bags, **options)
        return BagStore(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return BagStore, (self.path, self.cache_mb)

    def __repr__(self) -> str:
        return (
            f"BagStore({str(self.path)!r}: {self.n_bag} bags, {self.n_pix} pixels, "
            f"{self.n_feat} covariates, {self.n_block} blocks)"
        )

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Identifier of each bag, in the store's order."""
        raw = self._table("id_bytes").tobytes()
        ends = self._table("id_offsets").tolist()
        return tuple(raw[a:b].decode("utf-8") for a, b in itertools.pairwise(ends))

    @cached_property
    def grid(self) -> Grid | None:
        """Grid that the pixel indices refer to; None for bags without a grid."""
        from geo.grid import Grid

        described = self.attrs["grid"]
        return None if described is None else Grid.from_dict(described)

    @property
    def has_coords(self) -> bool:
        """Whether pixels have positions; the instances of a table have none."""
        return bool(self.attrs.get("has_coords", True))

    @property
    def n_axis(self) -> int:
        """Number of coordinates of a position: three, or two in a store of an earlier version."""
        return int(self._arrays["coords"].shape[1])

    @property
    def sizes(self) -> np.ndarray:
        """Number of pixels of each bag, (n_bag,) int64."""
        return np.diff(self.offsets)

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
        return scaling_of(self.sizes[chosen], self._moments[chosen])

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
        first, last = self._bags_of(block)
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        if whole_shards:
            rows = self.read_rows(start, stop)
            x, weight, coords = rows.x, rows.weight, rows.coords
        else:
            x, weight, coords = self._pixels(("x", "weight", "coords"), start, stop)
        return BagBlock(
            x,
            weight,
            coords if self.has_coords else None,
            self.offsets[first : last + 1] - start,
            self.y[first:last],
            np.arange(first, last, dtype=np.int64),
            None if self.trials is None else self.trials[first:last],
            None if self.squares is None else self.squares[first:last],
        )

    def blocks(self) -> Iterator[BagBlock]:
        """Yield all blocks in the store's order, which is random."""
        return (self.read_block(i) for i in range(self.n_block))

    def read_pixel(self, block: int) -> np.ndarray:
        """Grid index (row * n_col + column) of a block's pixels, (n_pix,) int64; -1 off grids."""
        first, last = self._bags_of(block)
        return self.read_rows(int(self.offsets[first]), int(self.offsets[last])).pixel

    def read_rows(self, start: int, stop: int) -> PixelRows:
        """Read pixels ``start:stop`` in the store's order.

        Raises
        ------
        StoreError
            If a chunk is damaged.
        """
        if self.n_pix * self._pixel_bytes > self.cache_mb * 1e6:
            # Blocks are read in random order: whole shards would be read 16 times.
            return self._rows(start, stop)
        step = self._shard_pixels
        parts = []
        for shard in range(start // step, max(start // step + 1, -(-stop // step))):
            base = shard * step
            rows = self._rows(base, min(base + step, self.n_pix))
            parts.append(rows.cut(max(start - base, 0), min(stop - base, step)))
        return parts[0] if len(parts) == 1 else PixelRows.join(parts)

    @cached_property
    def _moments(self) -> np.ndarray:
        return self._table("moments")

    def _bags_of(self, block: int) -> tuple[int, int]:
        if not 0 <= block < self.n_block:
            found = f"block {block} of a store of {self.n_block}"
            raise IndexError(found)
        return int(self.block_offsets[block]), int(self.block_offsets[block + 1])

    def _table(self, name: str) -> np.ndarray:
        array = self._read(name, 0, int(self._arrays[name].shape[0]))
        array.setflags(write=False)
        return array

    @property
    def _pixel_bytes(self) -> int:
        return 4 * self.n_feat + 8 * self.n_axis + 16

    def _rows(self, start: int, stop: int) -> PixelRows:
        """Read pixels ``start:stop`` as one piece, and cache it."""
        with self._lock:
            if (start, stop) in self._cache:
                self._cache.move_to_end((start, stop))
                return self._cache[start, stop]
        rows = PixelRows(*self._pixels(("x", "weight", "coords", "pixel"), start, stop))
        with self._lock:
            self._held += 0 if (start, stop) in self._cache else rows.n_byte
            self._cache[start, stop] = rows
            while self._held > self.cache_mb * 1e6 and len(self._cache) > 2:
                self._held -= self._cache.popitem(last=False)[1].n_byte
        return rows

    def _pixels(self, names: tuple[str, ...], start: int, stop: int) -> list[np.ndarray]:
        arrays = [self._read(name, start, stop) for name in names]
        if not np.isfinite(arrays[names.index("weight")]).all():
            # Zarr reads an absent chunk as the fill value: here NaN.
            found = f"{self.path}: array weight lacks a chunk in pixels {start}:{stop}; {_AGAIN}"
            raise StoreError(found)
        for array in arrays:
            array.setflags(write=False)
        return arrays

    def _read(self, name: str, start: int, stop: int, retries: int = 2) -> np.ndarray:
        array = self._arrays[name]
        try:
            return np.asarray(array[start:stop])
        except StorageError:  # the read failed: the chunk itself may be intact
            raise
        except Exception as error:  # zarr raises whatever its codecs raise
            if retries and isinstance(self.path, Location):  # perhaps damaged in transfer
                return self._read(name, start, stop, retries - 1)
            found = self._damage(name, start, stop, error)
            raise StoreError(found) from error

    def _damage(self, name: str, start: int, stop: int, error: Exception) -> str:
        """Return a message that names the damaged chunk, found by reading them one by one."""
        array = self._arrays[name]
        step = int(array.chunks[0])
        for at in range(start - start % step, stop, step):
            try:
                array[at : min(at + step, int(array.shape[0]))]
            except Exception:
                return (
                    f"{self.path}: array {name}, chunk {at // step} (rows {at}:{at + step}) is "
                    f"damaged ({error}); {_AGAIN}"
                )
        return f"{self.path}: array {name}, rows {start}:{stop} cannot be read ({error}); {_AGAIN}"


_AGAIN = "delete the store and ingest again"
