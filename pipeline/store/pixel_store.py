"""The pixels of areas: a Zarr group of areas x pixels, which no response is part of.

``docs/bag-store.md`` specifies the format; :mod:`pipeline.store.bag_writer` writes it. What moves
from period to period lies in groups beside it, see :mod:`pipeline.store.period_store`.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import zarr

from geo.grids.grid import Grid
from pipeline.core.errors import StoreError
from pipeline.storage.local_commit import read_marker
from pipeline.storage.location import Location, Place, StorageError
from pipeline.storage.object_commit import zarr_at
from pipeline.store.bag_writer import FORMAT, PERIODS, READABLE, PixelRows
from pipeline.store.stand_ins import NOTHING, Ahead, JoinedGroup, MeanGroup, StandIns

CACHE_MB = 256
_AGAIN = "delete the store and ingest again"
#: Format of what moves in a period, and its version.
PERIOD_FORMAT, PERIOD_VERSION = "disagg-period", 1
#: Arrays of a period: those that are joined to the store's, or take their place.
PERIOD_ARRAYS = ("x", "moments", "weight", "bag_weight")
_TABLES = ("offsets", "block_offsets", "bag_weight", "moments", "id_bytes", "id_offsets")


class PixelStore:
    """The finished pixels of areas, open for reading: small, and safe to share among threads.

    It caches decoded pixels, up to ``cache_mb``: whole shards if the store fits, so that all passes
    read the disk once; else the requested pieces.

    Parameters
    ----------
    path : Place
        The store's directory, or its place on an object store.
    cache_mb : float
        Memory for decoded pixels, MB; two pieces are always cached.
    period : str, optional
        Period of the covariates and weights that move; without it, those that stand still alone.
    like : StandIns
        What stands for what moves in that period: of a forecast, the same season.
    ahead : Ahead, optional
        What is known of a period after the series. Without ``like`` it stands whole.

    Raises
    ------
    StoreError
        If the store, or its period, is absent, unfinished, damaged or of another format.

    Attributes
    ----------
    n_pix, n_bag, n_feat, n_block : int
        Numbers of pixels, areas, covariates and blocks.
    covariates, units : tuple of str
        Name and unit of each covariate: those that stand still, then those that move.
    offsets : (n_bag + 1,) int64 array
        Pixels of area ``a`` are ``offsets[a]:offsets[a + 1]``.
    block_offsets : (n_block + 1,) int64 array
        Areas of block ``i`` are ``block_offsets[i]:block_offsets[i + 1]``.
    bag_weight : (n_bag,) float64 array
        Sum of the weights of each area's pixels.
    moments : (n_bag, 2, n_feat) float64 array
        Mean, and sum of squared deviations, of each covariate over the pixels of each area.
    data : Place
        Directory of the arrays.
    moving : str
        Fingerprint of what moves in the period; empty if nothing does.
    """

    moving = ""

    def __init__(
        self,
        path: Place,
        cache_mb: float = CACHE_MB,
        period: str | None = None,
        like: StandIns = NOTHING,
        ahead: Ahead | None = None,
    ) -> None:
        self.path, self.cache_mb, self.period = path, cache_mb, period
        marker = read_marker(path, FORMAT, READABLE)
        self.fingerprint, self.version = marker.fingerprint, marker.version
        self.data: Place = path / marker.data
        self.group = zarr.open_group(zarr_at(self.data, read_only=True), mode="r", zarr_format=3)
        self.attrs: dict[str, Any] = dict(self.group.attrs)
        covariates, units = list(self.attrs["covariates"]), list(self.attrs["units"])
        self._arrays: dict[str, list[Any]] = {
            name: [self.group[name]] for name in ("x", "weight", "coords", "pixel", *_TABLES)
        }
        if period is not None and self.periods:
            moving, each = people, _ = self._moving_group(period, like, ahead)
            if like.of_people.like != like.like:
                people, more = self._moving_group(period, like.of_people, ahead)
                each = [*each, *more]
            about: dict[str, Any] = dict(moving.attrs)
            self.moving = ",".join(str(own.attrs.get("fingerprint", "")) for own in each)
            covariates += about["covariates"]
            units += about["units"]
            for name in (each for each in PERIOD_ARRAYS if each in moving):
                # Columns are added; a weight that moves takes the place of the other.
                columns = name in ("x", "moments")
                kept = self._arrays[name] if columns else []
                self._arrays[name] = [*kept, (moving if columns else people)[name]]
        self.covariates, self.units = tuple(covariates), tuple(units)
        self.n_pix, self.n_feat = int(self._arrays["x"][0].shape[0]), len(covariates)
        self.offsets = self.table("offsets")
        self.block_offsets = self.table("block_offsets")
        self.bag_weight = self.table("bag_weight")
        self.n_bag, self.n_block = self.offsets.size - 1, self.block_offsets.size - 1
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], PixelRows] = OrderedDict()
        self._held = 0  # bytes in the cache

    @property
    def periods(self) -> list[str]:
        """Periods of which what moves is there, in the order of their labels; none if nothing."""
        place = self.data / PERIODS
        if isinstance(place, Location):
            return sorted(place.children())
        names = (path.name for path in place.iterdir()) if place.is_dir() else ()
        return sorted(name for name in names if not name.startswith("."))

    def _moving_group(
        self, period: str, like: StandIns, ahead: Ahead | None
    ) -> tuple[Any, list[zarr.Group]]:
        """Return the arrays of what moves in a period, and the groups that they are made of."""
        named = like.like if like.like or ahead is not None else (period,)
        each = [self._open_period(own) for own in named]
        moving: Any = each[0] if each else None
        if each and like.like:
            open_rest = partial(self._open_all, like.rest)
            standing, offsets = self.group["weight"], self.table("offsets")
            moving = MeanGroup(tuple(each), open_rest, standing, offsets)
        if ahead is not None:
            own = self._open_moving(ahead.pixels)
            moving = JoinedGroup(moving, own, ahead.known) if each else own
            each.append(own)
        return moving, each

    def _open_all(self, periods: Sequence[str]) -> list[zarr.Group]:
        return [self._open_period(period) for period in periods]

    def _open_period(self, period: str) -> zarr.Group:
        place, there = self.data / PERIODS / period, self.periods
        if period not in there:
            found = f"{self.path}: nothing is known of period {period}, but of {', '.join(there)}"
            raise StoreError(found)
        return self._open_moving(place)

    def _open_moving(self, place: Place) -> zarr.Group:
        marker = read_marker(place, PERIOD_FORMAT, PERIOD_VERSION)
        if marker.fingerprint != self.fingerprint:
            found = f"{place}: of other pixels than the store's; ingest this period again"
            raise StoreError(found)
        at = zarr_at(place / marker.data, read_only=True)
        return zarr.open_group(at, mode="r", zarr_format=3)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Identifier of each area, in the store's order."""
        raw = self.table("id_bytes").tobytes()
        ends = self.table("id_offsets").tolist()
        return tuple(raw[a:b].decode("utf-8") for a, b in itertools.pairwise(ends))

    @property
    def chunks(self) -> tuple[int, int]:
        """Pixels of a chunk, and of a shard."""
        x = self._arrays["x"][0]
        return int(x.chunks[0]), int(x.shards[0])

    @cached_property
    def moments(self) -> np.ndarray:
        """See the class."""
        return self.table("moments")

    @cached_property
    def grid(self) -> Grid | None:
        """Grid that the pixel indices refer to; None for bags without a grid."""
        described = self.attrs["grid"]
        return None if described is None else Grid.from_dict(described)

    @property
    def n_axis(self) -> int:
        """Number of coordinates of a position: three, or two in a store of an earlier version."""
        return int(self._arrays["coords"][0].shape[1])

    @property
    def decoded_bytes(self) -> int:
        """Memory of all pixels."""
        return int(self.n_pix * (4 * self.n_feat + 8 * self.n_axis + 16))

    def rows(self, start: int, stop: int) -> PixelRows:
        """Return pixels ``start:stop``; StoreError if a chunk is damaged."""
        if self.decoded_bytes > self.cache_mb * 1e6:
            # Blocks are read in random order: whole shards would be read 16 times.
            return self._piece(start, stop)
        step = self.chunks[1]
        parts = []
        for shard in range(start // step, max(start // step + 1, -(-stop // step))):
            base = shard * step
            piece = self._piece(base, min(base + step, self.n_pix))
            parts.append(piece.cut(max(start - base, 0), min(stop - base, step)))
        return parts[0] if len(parts) == 1 else PixelRows.join(parts)

    def read(self, names: Sequence[str], start: int, stop: int) -> list[np.ndarray]:
        """Decode arrays of pixels ``start:stop`` by chunks, and cache nothing."""
        arrays = [self._read(name, start, stop) for name in names]
        if not np.isfinite(arrays[names.index("weight")]).all():
            # Zarr reads an absent chunk as the fill value: here NaN.
            found = f"{self.path}: array weight lacks a chunk in pixels {start}:{stop}; {_AGAIN}"
            raise StoreError(found)
        for array in arrays:
            array.setflags(write=False)
        return arrays

    def table(self, name: str, array: Any = None) -> np.ndarray:
        """Return an array whole, read-only."""
        arrays = self._arrays[name] if array is None else [array]
        found = self._read(name, 0, int(arrays[0].shape[0]), arrays)
        found.setflags(write=False)
        return found

    def _piece(self, start: int, stop: int) -> PixelRows:
        """Read pixels ``start:stop`` as one piece, and cache it."""
        with self._lock:
            if (start, stop) in self._cache:
                self._cache.move_to_end((start, stop))
                return self._cache[start, stop]
        rows = PixelRows(*self.read(("x", "weight", "coords", "pixel"), start, stop))
        with self._lock:
            self._held += 0 if (start, stop) in self._cache else rows.n_byte
            self._cache[start, stop] = rows
            while self._held > self.cache_mb * 1e6 and len(self._cache) > 2:
                self._held -= self._cache.popitem(last=False)[1].n_byte
        return rows

    def _read(
        self, name: str, start: int, stop: int, arrays: list[Any] | None = None
    ) -> np.ndarray:
        arrays = arrays or self._arrays[name]
        parts = [self._part(name, array, start, stop) for array in arrays]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def _part(self, name: str, array: Any, start: int, stop: int, retries: int = 2) -> np.ndarray:
        try:
            return np.asarray(array[start:stop])
        except StorageError:  # the read failed: the chunk itself may be intact
            raise
        except Exception as error:  # zarr raises whatever its codecs raise
            if retries and isinstance(self.path, Location):  # perhaps damaged in transfer
                return self._part(name, array, start, stop, retries - 1)
            found = self._damage(name, array, start, stop, error)
            raise StoreError(found) from error

    def _damage(self, name: str, array: Any, start: int, stop: int, error: Exception) -> str:
        """Return a message that names the damaged chunk, found by reading them one by one."""
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
