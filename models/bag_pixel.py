"""Bags as single pixels: what is lost without the pixels inside (Law et al. 2018, app. B)."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.block import BagBlock
from models.protocol import Arrays, Stats
from models.vbagg import VBAgg
from models.xp import segment_sum


class BagPixel(VBAgg):
    """A sparse GP fitted to one pixel a bag: its weighted mean covariates, its whole exposure.

    Predicts pixels as if they were bags. Parameters are those of :class:`models.VBAgg`.
    """

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """See :class:`models.protocol.Model`."""
        return super().block_stats(params, collapse(block), local)


def collapse(block: BagBlock) -> BagBlock:
    """Make each bag one pixel, at the weighted mean of its pixels (plainly where none weighs)."""
    sizes = np.diff(block.offsets)
    total = segment_sum(block.weight, block.offsets)
    share = np.where(
        np.repeat(total > 0, sizes),
        block.weight / np.repeat(np.where(total > 0, total, 1.0), sizes),
        1.0 / np.repeat(sizes, sizes),
    )
    coords = None
    if block.coords is not None:
        coords = segment_sum((share[:, None] * block.coords).T, block.offsets).T
    return BagBlock(
        segment_sum((share[:, None] * block.x).T, block.offsets).T,
        total,
        coords,
        np.arange(block.n_bag + 1),
        block.y,
        block.bag,
        block.trials,
    )
