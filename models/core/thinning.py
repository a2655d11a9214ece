"""Represent large bags by some of their pixels, one from each stratum of equal weight.

The strata of a bag come from repeated cuts of its pixels at a quantile of the weight, across
the covariate or coordinate in which they differ most. Of each stratum one pixel is drawn in
proportion to its weight, and bears the weight of all. So a bag's exposure stays what it was, and
the sum of any function of the pixels, weighted, is estimated without bias; its variance is what
varies inside the strata alone (stratified sampling: Cochran 1977, section 5A).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.core.block import BagBlock


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
    each: int = 1,
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
        At least ``each``.
    rng : numpy Generator
    each : int
        Pixels drawn of each stratum of a bag that is thinned, maybe the same one again. Several of
        a stratum follow one another, and pixels are then in the order of the strata.
    """
    n_bag = offsets.size - 1
    sizes = np.diff(offsets)
    bag = np.repeat(np.arange(n_bag), sizes)
    total = np.bincount(bag, weight, n_bag)
    small = sizes <= cap
    # Where an area has no weight at all its pixels are alike: any of them stands for the others.
    share = np.where((total > 0)[bag], weight, 1.0)
    order = np.flatnonzero(small[bag] | (share > 0))
    start = strata(features, share, order, bag, np.where(small, sizes, cap // each))
    times = np.where(small[bag[order[start]]], 1, each)
    borne = np.repeat(np.add.reduceat(weight[order], start) / times, times)
    stop = np.repeat(np.append(start[1:], order.size), times)
    start = np.repeat(start, times)
    # A pixel in proportion to its share, where strata have several.
    ends = np.cumsum(share[order])
    before = np.where(start > 0, ends[start - 1], 0.0)
    aim = before + rng.random(start.size) * (ends[stop - 1] - before)
    chosen = order[np.clip(np.searchsorted(ends, aim, side="right"), start, stop - 1)]
    inside = chosen if each == 1 else np.where(small[bag[chosen]], chosen, np.arange(chosen.size))
    place = np.lexsort((inside, bag[chosen]))
    pixel = chosen[place]
    counts = np.bincount(bag[pixel], minlength=n_bag)
    return Thinned(pixel, borne[place], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def strata(
    features: np.ndarray, share: np.ndarray, order: np.ndarray, bag: np.ndarray, quota: np.ndarray
) -> np.ndarray:
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
    (n_stratum,) int64 array
        First place of each in ``order``.
    """
    start = np.flatnonzero(np.diff(bag[order], prepend=-1))
    while True:
        size = np.diff(np.append(start, order.size))
        open_ = np.flatnonzero((quota > 1) & (size > quota))
        if not open_.size:
            # Of as many pixels as they may keep each pixel is a stratum.
            first = np.repeat(size <= quota, size)
            first[start] = True
            return np.flatnonzero(first)
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


def features_of(
    x: np.ndarray, coords: np.ndarray | None, offsets: np.ndarray, mean: np.ndarray, sd: np.ndarray
) -> np.ndarray:
    """Return in what the pixels of a stratum shall be alike: (n_pix, n) float64.

    Covariates in deviations of all pixels. Inside bags positions differ by less than over the map:
    they have each bag's own scale.

    Parameters
    ----------
    x : (n_pix, n_feat);  coords : (n_pix, n_axis) or None;  offsets : (n_bag + 1,)
    mean, sd : (n_feat,)
    """
    features = (x - mean) / sd
    if coords is None:
        return np.asarray(features)
    sizes = np.diff(offsets)
    centre = np.add.reduceat(coords, offsets[:-1]) / sizes[:, None]
    away = coords - np.repeat(centre, sizes, axis=0)
    spread = np.sqrt(np.add.reduceat(away**2, offsets[:-1]) / sizes[:, None])
    scale = np.repeat(spread.max(axis=1, keepdims=True), sizes, axis=0)
    return np.hstack([features, away / np.where(scale > 0, scale, 1.0)])


def thinned_block(
    block: BagBlock, cap: int, mean: np.ndarray, sd: np.ndarray, seed: int, each: int = 1
) -> BagBlock:
    """Return the bags of a block with at most ``cap`` pixels each.

    Parameters
    ----------
    block : BagBlock
    cap : int
    mean, sd : (n_feat,)
        Scaling of the covariates.
    seed : int
        A block is thinned alike whenever it is read.
    each : int
        As of :func:`thin`.
    """
    if (np.diff(block.offsets) <= cap).all():
        return block
    rng = np.random.default_rng([seed, 6, int(block.bag[0])])
    features = features_of(block.x, block.coords, block.offsets, mean, sd)
    found = thin(features, block.weight.astype(np.float64), block.offsets, cap, rng, each)
    coords = None if block.coords is None else block.coords[found.pixel]
    return BagBlock(
        block.x[found.pixel],
        found.weight.astype(block.weight.dtype),
        coords,
        found.offsets,
        block.y,
        block.bag,
        block.trials,
        block.squared_weights,
        block.margin,
        block.source,
        None if block.area is None else block.area[found.pixel],
    )
