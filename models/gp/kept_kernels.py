"""Kernel matrices of blocks, kept from one pass over the bags to the next.

The natural steps of ``q`` leave the kernel's parameters as they are: all passes but the first find
the block's covariances made.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays

BUDGET = 1 << 28  # bytes that a model keeps
# Share of it that may be filled with by-products, which slopes by the kernel alone read.
WITH_BY_PRODUCTS = 0.25


@dataclass
class KeptBlock:
    """Matrices of one block under one set of parameters.

    Attributes
    ----------
    made : bytes
        The parameters.
    k : (n_pix, n_ind) array or None
        Covariances of the pixels with the inducing variables; None until they are made.
    tiles, strips : list
        By-products of each tile of pixels, empty where they are not kept; the covariances of each
        strip of pairs, and theirs or None.
    """

    made: bytes
    k: Any = None
    tiles: list[Any] = field(default_factory=list)
    strips: list[tuple[Any, Any]] = field(default_factory=list)

    def size(self) -> int:
        """Return the bytes of all arrays."""
        return sum(each.nbytes for each in _arrays([self.k, self.tiles, self.strips]).values())

    def bare(self) -> KeptBlock:
        """Return the covariances without their by-products."""
        return KeptBlock(self.made, self.k, [], [(prior, None) for prior, _ in self.strips])


class KeptKernels:
    """Matrices of as many blocks as there is room for, first come, first kept."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._blocks: dict[Any, tuple[KeptBlock, int]] = {}
        self._lock = threading.Lock()

    def find(self, block: Any, made: bytes) -> KeptBlock:
        """Return what is kept of a block under some parameters; empty where nothing is."""
        found = self._blocks.get(block)
        return found[0] if found is not None and found[0].made == made else KeptBlock(made)

    def keep(self, block: Any, kept: KeptBlock) -> None:
        """Keep a block's matrices if there is room, in place of those under other parameters."""
        found = self._blocks.get(block)
        if found is not None and found[0] is kept:
            return
        bare = kept.bare()
        sizes = kept.size(), bare.size()
        with self._lock:
            self._blocks.pop(block, None)
            held = sum(other for _, other in self._blocks.values())
            if held + sizes[0] <= WITH_BY_PRODUCTS * self._budget:
                self._blocks[block] = kept, sizes[0]
            elif held + sizes[1] <= self._budget:
                self._blocks[block] = bare, sizes[1]

    def __reduce__(self) -> Any:
        """Go to other processes empty."""
        return KeptKernels, (self._budget,)

    def clear(self) -> None:
        """Let go of everything."""
        self._blocks.clear()


def place_of(params: Arrays, block: BagBlock) -> tuple[bool, int, int]:
    """Return by what a block of a fit is known."""
    return "thin" in params, int(block.bag[0]), block.n_pix


def made_of(params: Arrays) -> bytes:
    """Return what a block's kernel matrices follow from."""
    names = ("theta", "w", "x_mean", "x_sd")
    return b"".join(np.asarray(params[name]).tobytes() for name in names)


def _arrays(value: Any) -> dict[int, np.ndarray]:
    """Return the arrays inside nested lists and tuples, each once."""
    if isinstance(value, np.ndarray):
        return {id(value): value}
    found: dict[int, np.ndarray] = {}
    if isinstance(value, list | tuple):
        for each in value:
            found |= _arrays(each)
    return found
