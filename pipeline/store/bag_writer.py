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
from pipeline.core.errors import StoreInputError
from pipeline.core.threads import run_tasks
from pipeline.storage.local_commit import is_current, staged
from pipeline.storage.location import Location
from pipeline.storage.object_commit import zarr_at
from pipeline.store.labels import BAG_DIMENSIONS, bag_attributes, bag_coordinates, label_group

FORMAT = "disagg-bags"
VERSION = 2
READABLE = (1, VERSION)  # version 1 differs in `coords` alone: two columns
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


def bag_order(n_bag: int, seed: int) -> np.ndarray:
    """Return the random order of the store: entry ``k`` is the input's number of bag ``k``."""
    return np.random.default_rng(seed).permutation(n_bag)


def shard_ranges(n_pix: int, shard_pixels: int = SHARD_PIXELS) -> list[tuple[int, int]]:
    """Return the pixels of each shard; one task writes one shard."""
    return [(s, min(s + shard_pixels, n_pix)) for s in range(0, n_pix, shard_pixels)]


def moments_of(x: np.ndarray) -> np.ndarray:
    """Return mean and sum of squared deviations of each column, (2, n_feat) float64.

    Columns are shifted by their first value, so that columns far from zero lose no digits and the
    deviation of a constant column is exactly zero.
    """
    shifted = x.astype(np.float64)
    shift = shifted[0].copy()
    shifted -= shift
    mean = shifted.mean(axis=0)
    shifted -= mean
    return np.stack([shift + mean, np.einsum("ij,ij->j", shifted, shifted)])


def merge_moments(count: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Merge the moments of disjoint sets of pixels (Chan, Golub & LeVeque 1983, eq. 2.1).

    Parameters
    ----------
    count : (n_set,) int array
        Pixels of each set.
    moments : (n_set, 2, n_feat) float64 array
        Mean and sum of squared deviations of each set.

    Returns
    -------
    (2, n_feat) float64 array
    """
    share = count.astype(np.float64)[:, None]
    shift = moments[0, 0]
    centred = moments[:, 0] - shift
    mean = (share * centred).sum(axis=0) / share.sum()
    spread = (moments[:, 1] + share * (centred - mean) ** 2).sum(axis=0)
    return np.stack([shift + mean, spread])


def scaling_of(count: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation over sets of pixels; 1 for a deviation of zero."""
    if count.shape[0] == 0:
        found = "no bag is chosen, so that the scaling is undefined; choose at least one"
        raise ValueError(found)
    mean, spread = merge_moments(count, moments)
    sd = np.sqrt(spread / count.sum())
    return mean, np.where(sd > 0, sd, 1.0)


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
    trials : (n_bag,) array, optional
        Number tested in each bag, if ``y`` counts the positives among them.
    covariates, units : sequences of str
        Name and unit of each covariate.
    grid : mapping, optional
        ``Grid.to_dict()`` of the grid that pixel indices refer to.
    coords_crs : str, optional
        WKT of the CRS of the coordinates (in km).
    n_axis : int
        Axes of the coordinates: 3, or 2 in a plane.
    has_coords : bool
        False if pixels have no positions (NaN in ``coords``): the instances of a table.
    has_responses : bool
        False if the responses are unknown (NaN in ``y``): areas that are predicted only.
    attrs : mapping
        Further attributes (JSON), such as what was left out.
    """

    sizes: np.ndarray
    rows: Rows
    y: np.ndarray
    ids: Sequence[str]
    covariates: Sequence[str]
    trials: np.ndarray | None = None
    units: Sequence[str] | None = None
    grid: Mapping[str, Any] | None = None
    coords_crs: str | None = None
    n_axis: int = 2
    has_coords: bool = True
    has_responses: bool = True
    attrs: Mapping[str, Any] = field(default_factory=dict)

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
        elif self.has_responses and not np.isfinite(y).all():
            found = f"y of bag {int(np.argmax(~np.isfinite(y)))} is not finite; leave that bag out"
        elif len(set(ids)) != n_bag:
            found = "two bags have the same id; make ids unique"
        elif not all(ids):
            found = "a bag has an empty id; name it"
        elif not n_covariate or n_unit != n_covariate:
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
) -> bool:
    """Write bags in random order to a store, which appears when complete.

    Parameters
    ----------
    path : path-like, or address
        Path or URL (``s3://``) of the store; a store of another fingerprint is replaced.
    bags : NewBags
    seed : int
        Seed of the order.
    fingerprint : str
        Of all inputs; a finished store with the same fingerprint is not written again.
    layout : StoreLayout, optional
    workers : int, optional
        Threads; Dask's default if not given. The result does not depend on it.
    advance : callable, optional
        Called with the number of pixels after each shard.

    Returns
    -------
    bool
        False if a finished store of this fingerprint already exists.

    Raises
    ------
    StoreInputError
        If the arrays are inconsistent or have invalid values.
    """
    layout = layout or StoreLayout()
    bags.check()
    sizes, covariates = np.asarray(bags.sizes, dtype=np.int64), bags.covariates
    if fingerprint and is_current(path, FORMAT, VERSION, fingerprint):
        return False
    chunk_pixels, shard_pixels = layout.chunk_pixels, layout.shard_pixels
    order = bag_order(len(sizes), seed)
    stored = _StoredOrder(order, np.concatenate([[0], np.cumsum(sizes[order])]).astype(np.int64))
    n_pix, n_feat = int(stored.offsets[-1]), len(covariates)
    with staged(path, FORMAT, VERSION, fingerprint) as staging:
        group = zarr.create_group(zarr_at(staging), zarr_format=3)
        widths = {"x": (n_feat,), "coords": (bags.n_axis,)}
        unit = str(bags.attrs.get("weight_unit", "people"))
        arrays: dict[str, Any] = {}
        for name, (dtype, fill) in _PIXEL_ARRAYS.items():
            width = widths.get(name, ())
            arrays[name] = group.create_array(
                name,
                shape=(n_pix, *width),
                dtype=dtype,
                chunks=(chunk_pixels, *width),
                shards=(shard_pixels, *width),
                serializer=BytesCodec(endian="little"),
                compressors=[Crc32cCodec()],
                fill_value=fill,
                # Chunks that equal the fill value are written, too, so that an absent shard
                # is always damage. The setting is not in the file: tasks use these arrays.
                config={"write_empty_chunks": True},
                dimension_names=BAG_DIMENSIONS[name],
                attributes=bag_attributes(name, unit),
            )
        write = partial(_write_shard, arrays, stored, bags.rows, advance)
        parts = run_tasks(write, shard_ranges(n_pix, shard_pixels), workers)
        weight, moments = _merge_pieces(parts, len(sizes), n_feat)
        mean, sd = scaling_of(sizes[order], moments)
        trials = {} if bags.trials is None else {"trials": np.asarray(bags.trials, float)[order]}
        ids = [bags.ids[k] for k in order]
        _write_tables(
            group,
            unit,
            offsets=stored.offsets,
            block_offsets=cut_blocks(sizes[order], layout.block_pixels, layout.block_bags),
            y=np.asarray(bags.y, dtype=np.float64)[order],
            **trials,
            bag_weight=weight,
            moments=moments,
            **_encode_ids(ids),
        )
        group.attrs.update(
            {
                **bags.attrs,
                "format": FORMAT,
                "version": VERSION,
                "fingerprint": fingerprint,
                "covariates": list(covariates),
                "units": list(bags.units or [""] * n_feat),
                "grid": None if bags.grid is None else dict(bags.grid),
                "coords_crs": bags.coords_crs,
                "has_coords": bags.has_coords,
                "has_responses": bags.has_responses,
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
    return True


@dataclass(frozen=True)
class _StoredOrder:
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
    order: _StoredOrder,
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


def _merge_pieces(parts: Sequence[_Part], n_bag: int, n_feat: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge the pieces of bags that straddle shards, in the order of the shards."""
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


def _write_tables(group: zarr.Group, unit: str, **tables: np.ndarray) -> None:
    for name, value in tables.items():
        group.create_array(
            name,
            data=value,
            chunks=(max(1, min(value.shape[0], 65536)), *value.shape[1:]),
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
