"""Bags of pixels as plain arrays: the only shape in which data reaches a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from models.core.errors import BagsError

BLOCK_PIXELS, BLOCK_BAGS = 4096, 8


@dataclass(frozen=True)
class BagBlock:
    """Some whole bags, their pixels stored one bag after the other (CSR).

    Attributes
    ----------
    x : (n_pix, n_feat) float array
        Covariates as measured, not scaled.
    weight : (n_pix,) float array
        Exposure of the pixel inside its bag, >= 0 (people, say).
    coords : (n_pix, n_axis) float64 array or None
        Position, km: two columns in a plane, three in space.
    offsets : (n_bag + 1,) int64 array
        Pixels of bag ``a`` are ``offsets[a]:offsets[a + 1]``.
    y : (n_bag,) float64 array
        Observed response of each bag.
    bag : (n_bag,) int64 array
        Number of each bag in the whole data set.
    trials : (n_bag,) float64 array or None
        Number tested in each bag, where ``y`` counts the positives among them.
    squares : (n_bag,) float64 array or None
        Sum of the squared weights of all pixels of each bag, where the block has some of them.
    margin : (n_bag,) float64 array or None
        Half of the width of the interval that is all that is known of a count, and ``y`` its
        middle: of ``<5``, 0 to 4, the margin is 2 around 2. 0 where the count itself is known.
    source : (n_bag,) int64 array or None
        Source of each bag's response: 0, also where None, are the areas, k the k-th other source of
        the model (:mod:`models.likelihoods.sources`).
    area : (n_pix,) int64 array or None
        Number of the area that each pixel is in, where bags are of several areas
        (:func:`models.core.unions.union_bags`); None where a bag is one area.
    """

    x: np.ndarray
    weight: np.ndarray
    coords: np.ndarray | None
    offsets: np.ndarray
    y: np.ndarray
    bag: np.ndarray
    trials: np.ndarray | None = None
    squares: np.ndarray | None = None
    margin: np.ndarray | None = None
    source: np.ndarray | None = None
    area: np.ndarray | None = None

    @property
    def n_pix(self) -> int:
        """Number of pixels."""
        return int(self.x.shape[0])

    @property
    def n_bag(self) -> int:
        """Number of bags."""
        return int(self.y.shape[0])

    @property
    def squared_weights(self) -> np.ndarray:
        """Sum of the squared weights of all pixels of each bag: (n_bag,) float64."""
        if self.squares is not None:
            return self.squares
        weight = self.weight.astype(np.float64)
        return np.asarray(np.add.reduceat(weight * weight, self.offsets[:-1]))

    def select(self, keep: np.ndarray) -> BagBlock:
        """Return the block with only the bags where ``keep`` (n_bag,) bool is true."""
        if keep.all():
            return self
        return self.at(np.flatnonzero(keep))

    def at(self, bags: np.ndarray) -> BagBlock:
        """Return a block of the bags at places ``bags`` (n,) int, in that order."""
        sizes = np.diff(self.offsets)[bags]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        pixel = np.arange(offsets[-1]) + np.repeat(self.offsets[bags] - offsets[:-1], sizes)
        coords = None if self.coords is None else self.coords[pixel]
        area = None if self.area is None else self.area[pixel]

        def of(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[bags]

        return BagBlock(
            self.x[pixel], self.weight[pixel], coords, offsets, self.y[bags], self.bag[bags],
            of(self.trials), of(self.squares), of(self.margin), of(self.source), area,
        )  # fmt: skip

    def with_margin(self) -> BagBlock:
        """Return the block with a margin, 0 where it has none: other blocks have intervals."""
        if self.margin is not None:
            return self
        own = {each.name: getattr(self, each.name) for each in fields(BagBlock)}
        return BagBlock(**{**own, "margin": np.zeros(self.n_bag)})

    @staticmethod
    def join(blocks: Sequence[BagBlock]) -> BagBlock:
        """Put the bags of several blocks one after the other."""
        if any(block.margin is not None for block in blocks):
            blocks = [block.with_margin() for block in blocks]
        # Of blocks with all of their pixels, where others have some.
        some = any(block.squares is not None for block in blocks)

        def joined(name: str) -> Any:
            parts = [getattr(block, name) for block in blocks]
            if name == "squares" and some:
                parts = [block.squared_weights for block in blocks]
            return None if parts[0] is None else np.concatenate(parts)

        sizes = np.concatenate([np.diff(block.offsets) for block in blocks])
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        named = ("y", "bag", "trials", "squares", "margin", "source", "area")
        return BagBlock(
            joined("x"), joined("weight"), joined("coords"), offsets, *map(joined, named)
        )


class Bags(BagBlock):
    """Bags given by hand: checks the arrays, then is an ordinary :class:`BagBlock`.

    Parameters
    ----------
    x : (n_pix, n_feat) array_like
        Covariates.
    offsets : (n_bag + 1,) array_like of int
        CSR offsets: starts at 0, ends at ``n_pix``, strictly increasing.
    y : (n_bag,) array_like
        Responses.
    weight : (n_pix,) array_like, optional
        Exposure of each pixel; 1 where not given.
    coords : (n_pix, 2) or (n_pix, 3) array_like, optional
        Positions, km, in a plane or in space (on the Earth's surface); needed by kernels with a
        spatial part.
    trials : (n_bag,) array_like, optional
        Number tested in each bag, at least ``y``; needed by the binomial likelihood. NaN in bags
        of several sources whose law has none.
    margin : (n_bag,) array_like, optional
        Of counts that are suppressed: see :class:`BagBlock`.
    source : (n_bag,) array_like of int, optional
        Source of each bag's response: 0 the areas, k the k-th of ``sources`` of the model.
    allow_missing : bool
        Let ``x`` hold NaN for what is unknown, for models that allow missing values.

    Raises
    ------
    BagsError
        If shapes disagree, a value is not finite, a weight is negative or a bag is empty.
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, x, offsets, y, weight=None, coords=None, trials=None, *, margin=None, source=None,
        allow_missing=False,
    ) -> None:  # fmt: skip
        x = np.asarray(x)
        if x.dtype not in (np.float32, np.float64):
            x = x.astype(np.float64)
        offsets = np.asarray(offsets, dtype=np.int64)
        y = np.asarray(y, dtype=np.float64)
        n_pix = x.shape[0] if x.ndim else 0
        weight = np.ones(n_pix) if weight is None else np.asarray(weight, dtype=np.float64)
        coords = None if coords is None else np.asarray(coords, dtype=np.float64)
        trials = None if trials is None else np.asarray(trials, dtype=np.float64)
        margin = None if margin is None else np.asarray(margin, dtype=np.float64)
        source = None if source is None else np.asarray(source, dtype=np.int64)
        _check(x, offsets, y, weight, coords, trials, margin, source, bool(allow_missing))
        bag = np.arange(y.shape[0], dtype=np.int64)
        for name, value in zip(
            ("x", "weight", "coords", "offsets", "y", "bag", "trials", "margin", "source"),
            (x, weight, coords, offsets, y, bag, trials, margin, source),
            strict=True,
        ):
            object.__setattr__(self, name, value)


def _check(
    x: np.ndarray,
    offsets: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    coords: np.ndarray | None,
    trials: np.ndarray | None,
    margin: np.ndarray | None,
    source: np.ndarray | None,
    allow_missing: bool,
) -> None:
    found = None
    most = y if margin is None or margin.shape != y.shape else y + margin
    if source is not None and trials is not None and trials.shape == y.shape:
        trials = np.where(np.isnan(trials), most, trials)
    if x.ndim != 2:
        found = f"x has shape {x.shape}; give (n_pix, n_feat)"
    elif y.ndim != 1 or offsets.shape != (y.shape[0] + 1,):
        found = f"offsets has shape {offsets.shape} and y {y.shape}; give n_bag + 1 and n_bag"
    elif offsets[0] != 0 or offsets[-1] != x.shape[0]:
        found = f"offsets run from {offsets[0]} to {offsets[-1]}; give 0 to n_pix = {x.shape[0]}"
    elif (np.diff(offsets) <= 0).any():
        bag = int(np.argmax(np.diff(offsets) <= 0))
        found = f"bag {bag} is empty or its offset falls; drop empty bags"
    elif weight.shape != (x.shape[0],):
        found = f"weight has shape {weight.shape}; give one value for each of {x.shape[0]} pixels"
    elif coords is not None and coords.shape not in {(x.shape[0], 2), (x.shape[0], 3)}:
        found = f"coords has shape {coords.shape}; give ({x.shape[0]}, 2) or ({x.shape[0]}, 3)"
    elif (row := _unusable(x, allow_missing)) is not None:
        value = "infinity" if allow_missing else "NaN or infinity"
        found = f"x holds {value}, first in pixel {row}; leave such pixels out"
    elif not np.isfinite(y).all():
        found = f"y of bag {int(np.argmax(~np.isfinite(y)))} is not finite; drop that bag"
    elif not (np.isfinite(weight).all() and (weight >= 0).all()):
        found = "weight holds a negative or non-finite value; give exposures >= 0"
    elif coords is not None and not np.isfinite(coords).all():
        found = "coords hold a non-finite value; leave such pixels out"
    elif trials is not None and trials.shape != y.shape:
        found = f"trials has shape {trials.shape}; give the number tested in each of the bags"
    elif margin is not None and not (
        margin.shape == y.shape and ((margin >= 0) & (margin <= y)).all()
    ):
        found = "margin has another shape than y, or is not between 0 and y; give 0 to y a bag"
    elif source is not None and (source.shape != y.shape or (source < 0).any()):
        found = f"source has shape {source.shape}; give a number from 0 on for each of the bags"
    elif source is not None and margin is not None and ((source > 0) & (margin > 0)).any():
        bag = int(np.argmax((source > 0) & (margin > 0)))
        found = f"bag {bag} of source {source[bag]} has a margin; give margins of areas alone"
    elif trials is not None and not ((trials >= most) & (y >= 0) & np.isfinite(trials)).all():
        bag = int(np.argmin((trials >= most) & (y >= 0) & np.isfinite(trials)))
        found = f"bag {bag} has {y[bag]:g} positives of {trials[bag]:g} tested; correct one of them"
    if found:
        raise BagsError(found)


def _unusable(x: np.ndarray, allow_missing: bool) -> int | None:
    """Return the first pixel with an unusable covariate, None where there is none."""
    usable = np.isfinite(x)
    if allow_missing:
        usable |= np.isnan(x)
    return None if usable.all() else int(np.argmin(usable.all(axis=1)))


def refuse_missing(bags: BagBlock) -> None:
    """Raise BagsError if a covariate is NaN, as ``Bags(..., allow_missing=True)`` lets it be."""
    if np.isnan(bags.x).any():
        row = int(np.argmax(np.isnan(bags.x).any(axis=1)))
        msg = f"x holds NaN, first in pixel {row}; leave such pixels out, or use BLRT(missing=True)"
        raise BagsError(msg)


def refuse_weightless(weight: np.ndarray) -> None:
    """Raise BagsError if a bag has no exposure: its response then tells nothing of any rate.

    Parameters
    ----------
    weight : (n_bag,) float array
        Summed weights of the bags.
    """
    empty = np.flatnonzero(~(weight > 0))
    if empty.size:
        which = f"bag {empty[0]}" + (f" and {empty.size - 1} more" if empty.size > 1 else "")
        msg = f"weight is 0 in all pixels of {which}; drop bags without exposure from the fit"
        raise BagsError(msg)


def cut_blocks(
    sizes: np.ndarray,
    block_pixels: int = BLOCK_PIXELS,
    block_bags: int = BLOCK_BAGS,
    together: np.ndarray | None = None,
) -> np.ndarray:
    """Cut consecutive bags into blocks of about ``block_pixels`` pixels.

    A block closes where its number of pixels is nearest to ``block_pixels``, or at
    ``block_bags`` bags. A bag of ``block_pixels`` or more has a block of its own.

    Parameters
    ----------
    sizes : (n_bag,) int array
        Pixels of each bag.
    block_pixels, block_bags : int
        Pixels that a block aims at, bags that it holds at most.
    together : (n_bag,) int64 array, optional
        Neighbours with the same number, not below 0, are in one block, as one bag.

    Returns
    -------
    (n_block + 1,) int64 array
        Bags of block ``i`` are ``[i]:[i + 1]``.
    """
    if together is not None and (together >= 0).any():
        alone = (np.diff(together, prepend=-1) != 0) | (together < 0)
        first = np.flatnonzero(alone)
        runs = cut_blocks(np.add.reduceat(sizes, first), block_pixels, block_bags)
        return np.asarray(np.append(first, len(sizes))[runs], dtype=np.int64)
    cuts = [0]
    held = 0
    for bag, size in enumerate(int(n) for n in sizes):
        oversize = size >= block_pixels
        farther = held + size - block_pixels > block_pixels - held
        if bag > cuts[-1] and (oversize or farther or bag - cuts[-1] >= block_bags):
            cuts.append(bag)
            held = 0
        held += size
        if held >= block_pixels:
            cuts.append(bag + 1)
            held = 0
    if cuts[-1] != len(sizes):
        cuts.append(len(sizes))
    return np.asarray(cuts, dtype=np.int64)


def check_labels(y: np.ndarray) -> None:
    """Raise BagsError unless ``y`` (n_bag,) holds 0 and 1, both of them."""
    wrong = (y != 0) & (y != 1)
    found = None
    if wrong.any():
        bag = int(np.argmax(wrong))
        found = f"y of bag {bag} is {y[bag]:g}; a classifier needs labels 0 and 1"
    elif y.size == 0 or (y == y[0]).all():
        held = f"all labels are {y[0]:g}" if y.size else "there are no bags"
        found = f"{held}; a classifier needs bags of both classes"
    if found:
        raise BagsError(found)
