r"""Pixel models fitted to bags without their insides: what is lost without them.

Two ways to make pixels out of a bag, then an ordinary sparse Gaussian process of one-pixel bags:

* :class:`BagPixel`, the baseline of Law et al. (2018, app. B): the bag is one pixel, at the mean of
  its pixels' covariates weighted by exposure, ``y_a ~ p(. | p_a Psi(f(x_a)))``;
* :class:`Dasymetric`, common practice: each pixel is given its share of the response,
  ``y_i = y_a p_i / p_a``, as if it had been counted there. For Poisson counts this is Jensen's
  bound of the bag's own likelihood, ``log sum_i p_i r_i >= log p_a + sum_i (p_i / p_a) log r_i``,
  which pulls the rates of a bag together. Other likelihoods take its pixels for so many independent
  responses, and are too sure as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from models.aggregate.vbagg import VBAgg
from models.backend.arrays import like, segment_sum, spread, to_host
from models.core.block import BagBlock
from models.core.protocol import Arrays, State, Stats, Summary, override


class BagPixel(VBAgg):
    """A sparse GP fitted to one pixel a bag: its weighted mean covariates, its whole exposure.

    Predicts pixels as if they were bags. Parameters are those of :class:`models.VBAgg`; ``auto`` is
    200 inducing points and the ``additive`` kernel.
    """

    averages, takes_sources = False, False
    auto_kernel = "additive"
    kind = "bag_pixel"
    about = "baseline: an area as one pixel"
    source = "Law et al. 2018"

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Start the normal noise at that of one pixel."""
        return super().init(replace(sample, n_pix=sample.n_bag), rng)

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        return super().block_stats(params, collapse(block), local)


class Dasymetric(VBAgg):
    """A sparse GP fitted to responses shared out to the pixels by their weight.

    Parameters are those of :class:`models.VBAgg`; ``auto`` is as of :class:`BagPixel`.
    """

    averages, takes_sources = False, False
    auto_kernel = "additive"

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        stats, local = super().block_stats(params, explode(block), local)
        return replace(stats, n_bag=block.n_bag), local  # the loop counts bags


def collapse(block: BagBlock) -> BagBlock:
    """Make each bag one pixel, at the weighted mean of its pixels (plainly where none weighs)."""
    share = _shares(block)
    coords = None
    if block.coords is not None:
        coords = segment_sum((share[:, None] * block.coords).T, block.offsets).T
    return BagBlock(
        segment_sum((share[:, None] * block.x).T, block.offsets).T,
        segment_sum(block.weight, block.offsets),
        coords,
        np.arange(block.n_bag + 1),
        block.y,
        block.bag,
        block.trials,
        margin=block.margin,
    )


def explode(block: BagBlock) -> BagBlock:
    """Make each pixel a bag, with its share of the response (and of those tested).

    Of a count that is known as an interval the middle is shared out: no pixel has an interval.
    Pixels without a share are left out: nothing can be observed there.
    """
    share = _shares(block)
    used = share > 0
    bag = np.repeat(np.arange(block.n_bag), np.diff(block.offsets))[to_host(used)]
    whole = like(bag, share)
    share = share[used]
    return BagBlock(
        block.x[used],
        block.weight[used],
        None if block.coords is None else block.coords[used],
        np.arange(share.shape[0] + 1),
        share * block.y[whole],
        block.bag[bag],
        None if block.trials is None else share * block.trials[whole],
    )


def _shares(block: BagBlock) -> np.ndarray:
    """Return each pixel's share of its bag's weight: (n_pix,)."""
    total = segment_sum(block.weight, block.offsets)
    sizes = like(np.diff(block.offsets), total, np.float64)
    return np.where(
        spread(total > 0, block.offsets),
        block.weight / spread(np.where(total > 0, total, 1.0), block.offsets),
        1.0 / spread(sizes, block.offsets),
    )
