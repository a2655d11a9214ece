"""Write a bag store: tasks write whole shards; the store appears once all are written."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from models.core.block import BLOCK_BAGS, BLOCK_PIXELS, cut_blocks
from models.core.unions import union_order
from pipeline.core.errors import StoreInputError
from pipeline.core.threads import run_tasks
from pipeline.storage.local_commit import staged
from pipeline.storage.location import Location
from pipeline.storage.object_commit import zarr_at
from pipeline.store.labels import BAG_DIMENSIONS, bag_attributes, bag_coordinates, label_group
from pipeline.store.moments import merge_moments, moments_of, scaling_of
from pipeline.store.responses import FILE, Responses, write_responses

FORMAT = "disagg-bags"
VERSION = 3
#: Versions 1 and 2 have responses among the arrays, and no area without one; in version 1 `coords`
#: has two columns.
READABLE = (1, 2, VERSION)
PERIODS = "periods"
CHUNK_PIXELS = 4096
SHARD_PIXELS = 65536

_PIXEL_ARRAYS: dict[str, tuple[str, float | int]] = {
    "x": ("float32", np.nan),
    "weight": ("float64", np.nan),
    "coords": ("float64", np.nan),
    "pixel": ("int64", -1),
}


@dataclass(frozen=True)
class PixelRows:
    """Consecutive pixels.

    Attributes
    ----------
    x : (n_pix, n_feat) float32 array
        Covariates, transformed, not scaled.
    weight : (n_pix,) float64 array
        People (km2 without a population) x share of the pixel inside its bag.
    coords : (n_pix, n_axis) float64 array, km
        Position; NaN where bags have none.
    pixel : (n_pix,) int64 array
        Index on the grid, row * n_col + column; -1 where there is no grid.
    """

    x: np.ndarray
    weight: np.ndarray
    coords: np.ndarray
    pixel: np.ndarray

    @property
    def n_byte(self) -> int:
        """Memory, bytes."""
        return sum(a.nbytes for a in (self.x, self.weight, self.coords, self.pixel))

    def cut(self, start: int, stop: int) -> PixelRows:
        """Return rows ``start:stop``, as views."""
        span = slice(start, stop)
        return PixelRows(self.x[span], self.weight[span], self.coords[span], self.pixel[span])

    @staticmethod
    def join(parts: Sequence[PixelRows]) -> PixelRows:
        """Return the rows of all parts, one after the other."""
        arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in _PIXEL_ARRAYS]
        for array in arrays:
            array.setflags(write=False)
        return PixelRows(*arrays)


Rows = Callable[[np.ndarray, np.ndarray, np.ndarray], PixelRows]


def bag_order(training: np.ndarray, seed: int, together: np.ndarray | None = None) -> np.ndarray:
    """Return the order of the store: entry ``k`` is the input's number of bag ``k``.

    Bags to train on come first, in random order, then the others: a fit reads what it would read of
    a store without the others.

    Parameters
    ----------
    training : (n_bag,) bool array
    seed : int
    together : (n_bag,) int64 array, optional
        Bags with the same number, not below 0, are neighbours; one to train on brings the others.
    """
    training = with_neighbours(training, together)
    parts = np.flatnonzero(training), np.flatnonzero(~training)
    order = np.concatenate(
        [part[np.random.default_rng(seed).permutation(part.size)] for part in parts]
    )
    return order if together is None else order[union_order(together[order])[0]]


def with_neighbours(training: np.ndarray, together: np.ndarray | None) -> np.ndarray:
    """Return the bags to train on, and those that are kept together with one: (n_bag,) bool."""
    if together is None:
        return training
    return training | (np.isin(together, together[training]) & (together >= 0))


def shard_ranges(n_pix: int, shard_pixels: int = SHARD_PIXELS) -> list[tuple[int, int]]:
    """Return the pixels of each shard; one task writes one shard."""
    return [(s, min(s + shard_pixels, n_pix)) for s in range(0, n_pix, shard_pixels)]


@dataclass(frozen=True, kw_only=True)
class NewBags:
    """Bags to be stored.

    Attributes
    ----------
    sizes : (n_bag,) int array
        Pixels of each bag, >= 1.
    rows : callable
        ``rows(bag, start, stop)`` -> PixelRows: pixels ``start[k]:stop[k]`` of bag ``bag[k]``
        (numbers of the input's order), one after the other; called from several threads.
    y, ids : (n_bag,) float array, (n_bag,) sequence of str
        Response and identifier of each bag.
    training : (n_bag,) bool array, optional
        Whether models are fitted to a bag, all if not given; the others are predicted only, and
        ``y`` may be NaN there.
    trials : (n_bag,) array, optional
        Number tested in each bag, if ``y`` counts the positives among them.
    exposure : (n_bag,) array, optional
        What the weights of each bag's pixels are scaled to add up to; NaN where unknown.
    margin : (n_bag,) array, optional
        Of suppressed counts, half of the width of the interval that ``y`` is the middle of.
    union : (n_bag,) str array, optional
        Name of the union that ``y`` is a share of; empty for a bag's own.
    together : (n_bag,) int64 array, optional
        See :func:`bag_order`.
    averaged : bool
        Whether ``y`` are averages over the exposure; models then have their totals.
    period, source : str
        Of the responses.
    covariates, units : sequences of str
        Name and unit of each covariate; none where all move from period to period.
    grid : mapping, optional
        ``Grid.to_dict()`` of the grid that pixel indices refer to.
    coords_crs : str, optional
        WKT of the CRS of the coordinates (in km).
    n_axis : int
        Axes of the coordinates: 3, or 2 in a plane.
    has_coords : bool
        False if pixels have no positions (NaN in ``coords``): the instances of a table.
    attrs : mapping
        Further attributes (JSON), such as what was left out.
    """

    sizes: np.ndarray
    rows: Rows
    y: np.ndarray
    ids: Sequence[str]
    covariates: Sequence[str]
    training: np.ndarray | None = None
    trials: np.ndarray | None = None
    exposure: np.ndarray | None = None
    margin: np.ndarray | None = None
    union: np.ndarray | None = None
    together: np.ndarray | None = None
    averaged: bool = False
    period: str = ""
    source: str = ""
    units: Sequence[str] | None = None
    grid: Mapping[str, Any] | None = None
    coords_crs: str | None = None
    n_axis: int = 2
    has_coords: bool = True
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_training(self) -> np.ndarray:
        """Which bags models are fitted to, (n_bag,) bool."""
        n_bag = np.asarray(self.sizes).size
        return np.ones(n_bag, bool) if self.training is None else np.asarray(self.training, bool)

    @property
    def responses(self) -> Responses:
        """What is known of each bag."""
        tested, weight, margin = (
            None if each is None else np.asarray(each, np.float64)
            for each in (self.trials, self.exposure, self.margin)
        )
        value = np.asarray(self.y, np.float64)
        return Responses(
            value, self.is_training, tested, weight, margin, self.averaged, union=self.union
        )

    def check(self) -> None:
        """Raise StoreInputError if the arrays are inconsistent or have invalid values."""
        sizes, y, ids = np.asarray(self.sizes), np.asarray(self.y), self.ids
        n_bag, n_covariate = sizes.size, len(self.covariates)
        n_unit = n_covariate if self.units is None else len(self.units)
        found = None
        if sizes.ndim != 1 or n_bag == 0:
            found = f"sizes has shape {sizes.shape}; give one number of pixels a bag, for >= 1 bags"
        elif (sizes < 1).any():
            found = f"bag {int(np.argmax(sizes < 1))} has no pixel; leave empty bags out"
        elif y.shape != sizes.shape or len(ids) != n_bag:
            found = f"{n_bag} sizes, {y.shape} responses, {len(ids)} ids; give one for each bag"
        elif self.is_training.shape != (n_bag,) or not self.is_training.any():
            found = "no bag to train on; give training, with one at least that is true"
        elif (bad := self.is_training & ~np.isfinite(y)).any():
            found = f"y of bag {int(np.argmax(bad))} is not finite; leave that bag out"
        elif len(set(ids)) != n_bag:
            found = "two bags have the same id; make ids unique"
        elif not all(ids):
            found = "a bag has an empty id; name it"
        elif n_unit != n_covariate:
            found = f"{n_covariate} covariates and {n_unit} units; give one unit for each"
        if found:
            raise StoreInputError(found)


@dataclass(frozen=True, kw_only=True)
class StoreLayout:
    """Sizes of the blocks, chunks and shards of a store.

    Attributes
    ----------
    block_pixels, block_bags : int
        See :func:`cut_blocks`.
    chunk_pixels, shard_pixels : int
        Pixels of an inner chunk and of a shard (a multiple of it).
    """

    block_pixels: int = BLOCK_PIXELS
    block_bags: int = BLOCK_BAGS
    chunk_pixels: int = CHUNK_PIXELS
    shard_pixels: int = SHARD_PIXELS

    def __post_init__(self) -> None:
        """Raise StoreInputError if a shard is not a whole number of chunks."""
        if self.shard_pixels % self.chunk_pixels:
            found = f"shard_pixels {self.shard_pixels} is not a multiple of chunk_pixels "
            raise StoreInputError(found + str(self.chunk_pixels))


def write_bags(
    path: str | os.PathLike[str] | Location,
    bags: NewBags,
    *,
    seed: int = 0,
    fingerprint: str = "",
    layout: StoreLayout | None = None,
    workers: int | None = None,
    advance: Callable[[int], object] | None = None,
    order: np.ndarray | None = None,
) -> None:
    """Write bags in random order to a store, which appears when complete.

    Parameters
    ----------
    path : path-like, or address
        Path or URL (``s3://``) of the store; what is there is replaced.
    bags : NewBags
    seed : int
        Seed of the order.
    fingerprint : str
        Of all inputs, for who reads the store.
    layout : StoreLayout, optional
    workers : int, optional
        Threads; Dask's default if not given. The result does not depend on it.
    advance : callable, optional
        Called with the number of pixels after each shard.
    order : (n_bag,) int array, optional
        The store's order, bags to train on first; :func:`bag_order` if not given.

    Raises
    ------
    StoreInputError
        If the arrays are inconsistent or have invalid values.
    """
    layout = layout or StoreLayout()
    bags.check()
    sizes, covariates = np.asarray(bags.sizes, dtype=np.int64), bags.covariates
    chunk_pixels, shard_pixels = layout.chunk_pixels, layout.shard_pixels
    training = bags.is_training
    together = None if bags.together is None else np.asarray(bags.together, np.int64)
    order = bag_order(training, seed, together) if order is None else np.asarray(order)
    stored = StoredOrder(order, np.concatenate([[0], np.cumsum(sizes[order])]).astype(np.int64))
    n_pix, n_feat = int(stored.offsets[-1]), len(covariates)
    n_training = int(with_neighbours(training, together).sum())

    def cut(own: np.ndarray) -> np.ndarray:
        beside = None if together is None else together[own]
        return cut_blocks(sizes[own], layout.block_pixels, layout.block_bags, beside)

    # A block of both would train on a part of itself.
    blocks = cut(order[:n_training])
    if n_training < len(sizes):
        blocks = np.concatenate([blocks, n_training + cut(order[n_training:])[1:]])
    with staged(path, FORMAT, VERSION, fingerprint, beside=(FILE, PERIODS)) as staging:
        group = zarr.create_group(zarr_at(staging), zarr_format=3)
        unit = str(bags.attrs.get("weight_unit", "people"))
        widths = {"x": n_feat, "coords": bags.n_axis}
        chunks = chunk_pixels, shard_pixels
        arrays = {
            name: new_pixel_array(group, name, n_pix, widths.get(name), chunks, unit)
            for name in _PIXEL_ARRAYS
        }
        write = partial(_write_shard, arrays, stored, bags.rows, advance)
        parts = run_tasks(write, shard_ranges(n_pix, shard_pixels), workers)
        weight, moments = merge_pieces(parts, len(sizes), n_feat)
        mean, sd = scaling_of(sizes[order[:n_training]], moments[:n_training])
        ids = [bags.ids[k] for k in order]
        write_tables(
            group,
            unit,
            offsets=stored.offsets,
            block_offsets=blocks,
            bag_weight=weight,
            moments=moments,
            **_encode_ids(ids),
        )
        group.attrs.update(
            {
                **bags.attrs,
                **({} if together is None else {"together": together[order].tolist()}),
                "format": FORMAT,
                "version": VERSION,
                "fingerprint": fingerprint,
                "covariates": list(covariates),
                "units": list(bags.units or [""] * n_feat),
                "grid": None if bags.grid is None else dict(bags.grid),
                "coords_crs": bags.coords_crs,
                "has_coords": bags.has_coords,
                "seed": seed,
                "block_pixels": layout.block_pixels,
                "block_bags": layout.block_bags,
                "scaling": {"mean": mean.tolist(), "sd": sd.tolist()},
            }
        )
        units = list(bags.units or [""] * n_feat)
        coordinates = bag_coordinates(
            ids, covariates, units, bags.grid, bags.coords_crs, bags.n_axis
        )
        label_group(group, coordinates)
        frame = bags.responses.frame(bags.ids, bags.period, bags.source)
        write_responses(staging, frame, averages=bags.averaged, fingerprint=fingerprint)


def new_pixel_array(
    group: zarr.Group,
    name: str,
    n_pix: int,
    n_column: int | None,
    chunks: tuple[int, int],
    unit: str,
) -> Any:
    """Create an array of pixels in a group.

    Parameters
    ----------
    group : zarr.Group
    name : str
        A name of :class:`PixelRows`.
    n_pix, n_column : int
        Pixels, and columns; None for an array without any.
    chunks : (int, int)
        Pixels of a chunk, and of a shard.
    unit : str
        Of the weights.
    """
    dtype, fill = _PIXEL_ARRAYS[name]
    shape = () if n_column is None else (n_column,)
    width = () if n_column is None else (max(1, n_column),)  # no chunk has a width of 0
    return group.create_array(
        name,
        shape=(n_pix, *shape),
        dtype=dtype,
        chunks=(chunks[0], *width),
        shards=(chunks[1], *width),
        serializer=BytesCodec(endian="little"),
        compressors=[Crc32cCodec()],
        fill_value=fill,
        # Chunks that equal the fill value are written, too, so that an absent shard is always
        # damage. The setting is not in the file: tasks use these arrays.
        config={"write_empty_chunks": True},
        dimension_names=BAG_DIMENSIONS[name],
        attributes=bag_attributes(name, unit),
    )


@dataclass(frozen=True)
class StoredOrder:
    """Order of the bags in the store: the input's number of each, and CSR offsets."""

    order: np.ndarray
    offsets: np.ndarray

    def pieces(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the bags of pixels ``start:stop``, by the store's numbers, and their pixels."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        bag = np.arange(first, last)
        begin = np.maximum(start - self.offsets[bag], 0)
        end = np.minimum(stop, self.offsets[bag + 1]) - self.offsets[bag]
        return bag, begin, end


_Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _write_shard(
    arrays: Mapping[str, Any],
    order: StoredOrder,
    rows: Rows,
    advance: Callable[[int], object] | None,
    start: int,
    stop: int,
) -> _Part:
    """Write one shard; return bag, number of pixels, weight and moments of each piece."""
    bag, begin, end = order.pieces(start, stop)
    filled = rows(order.order[bag], begin, end)
    _check_rows(filled, stop - start)
    for name, array in arrays.items():
        array[start:stop] = getattr(filled, name)
    count = end - begin
    cuts = np.concatenate([[0], np.cumsum(count)])
    spans = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    weight = np.array([filled.weight[s].sum() for s in spans])
    moments = np.stack([moments_of(filled.x[s]) for s in spans])
    if advance is not None:
        advance(stop - start)
    return bag, count, weight, moments


def merge_pieces(parts: Sequence[_Part], n_bag: int, n_feat: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weight and moments of each bag: pieces that straddle shards, merged in their order."""
    pieces: list[list[tuple[int, float, np.ndarray]]] = [[] for _ in range(n_bag)]
    for bag, count, weight, moments in parts:
        for k, number in enumerate(bag):
            pieces[number].append((int(count[k]), float(weight[k]), moments[k]))
    total = np.empty(n_bag)
    merged = np.empty((n_bag, 2, n_feat))
    for number, found in enumerate(pieces):
        total[number] = sum(weight for _, weight, _ in found)
        merged[number] = merge_moments(
            np.array([count for count, _, _ in found]), np.stack([part for _, _, part in found])
        )
    return total, merged


def write_tables(group: zarr.Group, unit: str, **tables: np.ndarray) -> None:
    """Write the small arrays of a store, whose names are keys of :data:`BAG_DIMENSIONS`."""
    for name, value in tables.items():
        group.create_array(
            name,
            data=value,
            chunks=(max(1, min(value.shape[0], 65536)), *(max(1, n) for n in value.shape[1:])),
            serializer=BytesCodec(endian=None if value.dtype == np.uint8 else "little"),
            compressors=[Crc32cCodec()],
            config={"write_empty_chunks": True},
            dimension_names=BAG_DIMENSIONS[name],
            attributes=bag_attributes(name, unit),
        )


def _encode_ids(ids: Sequence[str]) -> dict[str, np.ndarray]:
    raw = [text.encode("utf-8") for text in ids]
    return {
        "id_bytes": np.frombuffer(b"".join(raw), dtype=np.uint8),
        "id_offsets": np.concatenate([[0], np.cumsum([len(r) for r in raw])]).astype(np.int64),
    }


def _check_rows(rows: PixelRows, n_pix: int) -> None:
    found = None
    if rows.x.shape[0] != n_pix or rows.weight.shape != (n_pix,):
        found = f"x {rows.x.shape} and weight {rows.weight.shape}; expected {n_pix} pixels"
    elif not np.isfinite(rows.x).all():
        found = "x has NaN or infinity; leave such pixels out of their bag"
    elif not (np.isfinite(rows.weight).all() and (rows.weight >= 0).all()):
        found = "weight has a negative or non-finite value; leave such pixels out"
    if found:
        raise StoreInputError(found)
