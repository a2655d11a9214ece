"""Bags that are several areas together: of a count that is known of their union alone.

A district of before a split is the union of the districts after it. Each area has pixels of its
own, and a share of the count; where a model reads them, the areas of a union are one bag.
"""

from __future__ import annotations

import numpy as np

from models.core.block import BagBlock

OWN = -1  # union of an area that is a bag by itself
FINE = 2.0**20  # parts of a whole in exact shares


def union_bags(block: BagBlock, union: np.ndarray, area: np.ndarray) -> BagBlock:
    """Return a block in which the areas of each union are one bag.

    Parameters
    ----------
    block : BagBlock
        One bag an area, with its share of the union's response, of those tested and of the margin.
    union : (n_bag,) int64 array
        Number of each bag's union, :data:`OWN` for an area by itself.
    area : (n_bag,) int64 array
        Number of each bag's area.

    Returns
    -------
    BagBlock
        A union has the place and the number of its first area, and ``area`` by pixel.
    """
    area_of = np.repeat(area, np.diff(block.offsets)).astype(np.int64)
    own = {each: getattr(block, each) for each in ("x", "weight", "coords", "offsets", "bag")}
    sums = {each: getattr(block, each) for each in ("y", "trials", "squares", "margin")}
    placed = BagBlock(**own, **sums, source=block.source, area=area_of)
    order, first = union_order(union)
    if first.size == block.n_bag:
        return placed
    placed = placed.at(order)

    def total(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.add.reduceat(values, first)

    return BagBlock(
        placed.x,
        placed.weight,
        placed.coords,
        np.append(placed.offsets[first], placed.n_pix),
        np.add.reduceat(placed.y, first),
        placed.bag[first],
        total(placed.trials),
        total(placed.squares),
        total(placed.margin),
        None if placed.source is None else placed.source[first],
        placed.area,
    )


def union_order(union: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order that brings the areas of each union together, and where each bag begins.

    Parameters
    ----------
    union : (n_area,) int64 array
        See :func:`union_bags`.

    Returns
    -------
    order : (n_area,) int64 array
        A union stands where its first area did; areas by themselves keep their order.
    first : (n_bag,) int64 array
        Places in that order.
    """
    place = np.arange(union.size)
    known = union != OWN
    lead = place.copy()
    if known.any():
        _, at, which = np.unique(union[known], return_index=True, return_inverse=True)
        lead[known] = place[known][at][which]
    order = np.argsort(lead, kind="stable")
    first = np.flatnonzero(np.diff(lead[order], prepend=-1))
    return order, first


def exact_shares(weight: np.ndarray) -> np.ndarray:
    """Return the shares of a whole, (n,) float64, whose multiples of a count add up to it exactly.

    Parameters
    ----------
    weight : (n,) float64 array
        Not negative, one at least above 0.
    """
    parts = np.floor(FINE * weight / weight.sum())
    parts[np.argmax(weight)] += FINE - parts.sum()
    found: np.ndarray = parts / FINE
    return found
