"""Represent large areas by some of their pixels, one from each stratum of equal population.

The strata of an area come from repeated cuts of its pixels at a quantile of the population, across
the covariate or coordinate in which they differ most. Of each stratum one pixel is drawn in
proportion to its weight, and bears the weight of all. So an area's exposure stays what it was, and
the sum of any function of the pixels, weighted, is estimated without bias; its variance is what
varies inside the strata alone (stratified sampling: Cochran 1977, section 5A).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from pipeline.core.threads import map_in_order
from pipeline.storage.local_commit import is_current
from pipeline.storage.location import Location
from pipeline.store.bag_store import BagStore
from pipeline.store.bag_writer import (
    FORMAT,
    VERSION,
    NewBags,
    PixelRows,
    bag_order,
    write_bags,
)

METHOD = 1  # part of the fingerprint of a thinned store


@dataclass(frozen=True)
class Thinned:
    """Chosen pixels of some bags.

    Attributes
    ----------
    pixel : (n,) int64 array
        Their places among all pixels, ascending.
    weight : (n,) float64 array
        What each of them stands for.
    offsets : (n_bag + 1,) int64 array
    """

    pixel: np.ndarray
    weight: np.ndarray
    offsets: np.ndarray


def thin(
    features: np.ndarray,
    weight: np.ndarray,
    offsets: np.ndarray,
    cap: int,
    rng: np.random.Generator,
) -> Thinned:
    """Choose at most ``cap`` pixels of each bag.

    Bags of at most ``cap`` pixels stay as they are. Of others, pixels without weight are left out,
    unless no pixel of the bag has any.

    Parameters
    ----------
    features : (n_pix, n) float array
        In which the pixels of a stratum shall be alike, each of about unit variance.
    weight : (n_pix,) float64 array
        At least 0.
    offsets : (n_bag + 1,) int64 array
        Pixels of bag ``a`` are ``offsets[a]:offsets[a + 1]``.
    cap : int
        At least 1.
    rng : numpy Generator
    """
    n_bag = offsets.size - 1
    sizes = np.diff(offsets)
    bag = np.repeat(np.arange(n_bag), sizes)
    total = np.bincount(bag, weight, n_bag)
    small = sizes <= cap
    # Where an area has no weight at all its pixels are alike: any of them stands for the others.
    share = np.where((total > 0)[bag], weight, 1.0)
    order = np.flatnonzero(small[bag] | (share > 0))
    start, quota = _strata(features, share, order, bag, np.where(small, sizes, cap))
    # Strata of as many pixels as they may keep: each pixel is a stratum.
    size = np.diff(np.append(start, order.size))
    whole = size <= quota
    own = np.repeat(whole, size)
    first = np.zeros(order.size, bool)
    first[start] = True
    start = np.flatnonzero(first | own)
    stop = np.append(start[1:], order.size)
    # A pixel in proportion to its share, where strata have several.
    ends = np.cumsum(share[order])
    before = np.where(start > 0, ends[start - 1], 0.0)
    aim = before + rng.random(start.size) * (ends[stop - 1] - before)
    chosen = order[np.clip(np.searchsorted(ends, aim, side="right"), start, stop - 1)]
    borne = np.add.reduceat(weight[order], start)
    place = np.argsort(chosen, kind="stable")
    pixel = chosen[place]
    counts = np.bincount(bag[pixel], minlength=n_bag)
    return Thinned(pixel, borne[place], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def _strata(
    features: np.ndarray, share: np.ndarray, order: np.ndarray, bag: np.ndarray, quota: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cut bags into strata, all bags at once, level by level; sort ``order`` by stratum in place.

    Parameters
    ----------
    features, share : (n_pix, n), (n_pix,) arrays
    order : (n,) int64 array
        Pixels, by bag; every bag has one.
    bag : (n_pix,) int64 array
    quota : (n_bag,) int64 array
        Strata of each bag.

    Returns
    -------
    start, quota : (n_stratum,) int64 arrays
        First place of each in ``order``, and the pixels that it may keep.
    """
    start = np.flatnonzero(np.diff(bag[order], prepend=-1))
    while True:
        size = np.diff(np.append(start, order.size))
        open_ = np.flatnonzero((quota > 1) & (size > quota))
        if not open_.size:
            return start, quota
        # Places of the pixels of strata to be cut, and the stratum of each.
        node = np.repeat(np.arange(open_.size), size[open_])
        begin = np.concatenate([[0], np.cumsum(size[open_])[:-1]])
        place = np.arange(node.size) - begin[node] + start[open_][node]
        pixel = order[place]
        z, p = features[pixel], share[pixel]
        mass = np.add.reduceat(p, begin)
        mean = np.add.reduceat(p[:, None] * z, begin) / mass[:, None]
        spread = np.add.reduceat(p[:, None] * (z - mean[node]) ** 2, begin)
        along = z[np.arange(node.size), np.argmax(spread, axis=1)[node]]
        inside = np.lexsort((along, node))
        order[place] = pixel[inside]
        ends = np.cumsum(p[inside])
        before = np.where(begin > 0, ends[begin - 1], 0.0)
        left = quota[open_] // 2
        aim = before + mass * (left / quota[open_])
        cut = np.searchsorted(ends, aim, side="left") + 1 - begin
        cut = np.clip(cut, 1, size[open_] - 1) + start[open_]
        right = quota[open_] - left
        quota = quota.copy()
        quota[open_] = left
        at = open_ + 1
        start, quota = np.insert(start, at, cut), np.insert(quota, at, right)


class ThinnedStore(BagStore):
    """A store of some pixels of another's areas, scaled as all of the other's pixels are.

    Workers read it as any store: the scaling of the covariates is the driver's affair.
    """

    def __init__(self, path: str | os.PathLike[str] | Location, full: BagStore) -> None:
        super().__init__(path)
        self._full = full

    def scaling(self, bags: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each covariate over all pixels of some bags."""
        return self._full.scaling(bags)


def thinned_store(
    store: BagStore, path: str | os.PathLike[str] | Location, cap: int | str, seed: int
) -> BagStore:
    """Write the store of the chosen pixels, unless it is there; return it.

    Parameters
    ----------
    store : BagStore
    path : path-like, or address
        Of the thinned store.
    cap : int or "all"
        Most pixels of an area. Where no area has more, ``store`` itself is returned.
    seed : int

    Returns
    -------
    BagStore
        The same bags in the same order.
    """
    if cap == "all" or int(store.sizes.max()) <= int(cap):
        return store
    fingerprint = f"{store.fingerprint}/thinned {METHOD} {cap} {seed}"
    order = bag_order(store.n_bag, seed)
    to_store = np.empty_like(order)  # the writer shuffles: hand it the bags so that none moves
    to_store[order] = np.arange(store.n_bag)
    if not is_current(path, FORMAT, VERSION, fingerprint):
        kept, offsets = _choose(store, int(cap), seed)

        def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
            first = offsets[to_store[bag]]
            spans = zip((first + start).tolist(), (first + stop).tolist(), strict=True)
            at = np.concatenate([np.arange(a, b) for a, b in spans])
            return PixelRows(kept.x[at], kept.weight[at], kept.coords[at], kept.pixel[at])

        write_bags(
            path,
            NewBags(
                sizes=np.diff(offsets)[to_store],
                rows=rows,
                y=store.y[to_store],
                ids=[store.ids[k] for k in to_store],
                trials=None if store.trials is None else store.trials[to_store],
                covariates=store.covariates,
                units=store.units,
                grid=store.attrs["grid"],
                coords_crs=store.attrs.get("coords_crs"),
                n_axis=store.n_axis,
                has_coords=store.has_coords,
                attrs={"thinned": {"area_pixels": int(cap), "seed": seed}},
            ),
            seed=seed,
            fingerprint=fingerprint,
        )
    return ThinnedStore(path, store)


def _choose(store: BagStore, cap: int, seed: int) -> tuple[PixelRows, np.ndarray]:
    """Return the chosen pixels of all bags, in the store's order, and the offsets of the bags."""
    mean, sd = store.scaling()

    def choose(number: int) -> tuple[PixelRows, np.ndarray]:
        first, last = (int(k) for k in store.block_offsets[number : number + 2])
        begin = int(store.offsets[first])
        rows = store.read_rows(begin, int(store.offsets[last]))
        offsets = store.offsets[first : last + 1] - begin
        features = (rows.x - mean) / sd
        if store.has_coords:
            # Inside areas positions differ by less than over the map: each area's own scale.
            sizes = np.diff(offsets)
            centre = np.add.reduceat(rows.coords, offsets[:-1]) / sizes[:, None]
            away = rows.coords - np.repeat(centre, sizes, axis=0)
            spread = np.sqrt(np.add.reduceat(away**2, offsets[:-1]) / sizes[:, None])
            scale = np.repeat(spread.max(axis=1, keepdims=True), sizes, axis=0)
            features = np.hstack([features, away / np.where(scale > 0, scale, 1.0)])
        rng = np.random.default_rng([seed, 5, number])
        found = thin(features, rows.weight, offsets, cap, rng)
        at = found.pixel
        kept = PixelRows(rows.x[at], found.weight, rows.coords[at], rows.pixel[at])
        return kept, np.diff(found.offsets)

    parts = list(map_in_order(choose, range(store.n_block)))
    kept, sizes = zip(*parts, strict=True)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return PixelRows.join(kept), offsets
