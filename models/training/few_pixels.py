"""A fit's bags with few pixels each, brought to the driver once.

Steps on few pixels are short: sent to workers, or cut into blocks of a few bags, they would take
more time for that than for their arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from models.core.block import BagBlock, cut_blocks
from models.core.protocol import Arrays, Model, State, Stats
from models.training.executor import Executor, Local, ThreadExecutor

ALL_PIXELS = 2**31 - 1  # the most pixels of a bag that leaves none out
BLOCK = 2048  # pixels of a block of such bags: enough blocks for the threads of a small country
FIELDS = (
    *("x", "weight", "coords", "offsets", "y", "bag"),
    *("trials", "squares", "margin", "source", "area"),
)


def block_arrays(block: BagBlock) -> Arrays:
    """Return a block as a dict of arrays, without what it lacks."""
    return {name: value for name in FIELDS if (value := getattr(block, name)) is not None}


class FewPixels:
    """Sums over all bags, each of few pixels.

    Attributes
    ----------
    bags : BagBlock
        All of them, in the order of their numbers.

    Parameters
    ----------
    model : Model
        Its :meth:`block_stats` answers the parameter ``gather`` (1,), the most pixels of a bag, by
        the arrays of the block so thinned, and computes in float64 under ``thin`` (1,).
    executor : Executor
        Visits all blocks once.
    blocks : list of int
    state : State
    cap : int
    """

    def __init__(
        self, model: Model, executor: Executor, blocks: list[int], state: State, cap: int
    ) -> None:
        found: Local = {}
        ask = {**model.block_params(state), "gather": np.array([cap])}
        executor.sum(ask, blocks, {}, found, ())
        bags = BagBlock.join([_block(found[number]) for number in blocks])
        # By number: the same blocks from any cut of the source.
        self.bags = bags.at(np.argsort(bags.bag, kind="stable"))
        source: Any = _Pieces(self.bags)
        self._model, self.cap = model, cap
        self._all = list(range(len(source.block_bags)))
        threads = min(len(os.sched_getaffinity(0)), len(self._all))
        self._executor = ThreadExecutor(model, source, threads)

    def sum(self, state: State, *, slopes: bool) -> Stats:
        """Return the sums of all bags under a state."""
        params = {**asked(self._model, state, slopes=slopes), "thin": np.array([self.cap])}
        return self._executor.sum(params, self._all)

    def close(self) -> None:
        """Stop the threads."""
        self._executor.__exit__()


class WholeSums:
    """Sums over all bags, of all their pixels or of few.

    Parameters
    ----------
    model : Model
    executor : Executor
    blocks : list of int
        All that hold training bags.

    Attributes
    ----------
    on_pass : callable
        Called after each pass over the bags.
    """

    def __init__(self, model: Model, executor: Executor, blocks: list[int]) -> None:
        self._model, self._executor, self._blocks = model, executor, blocks
        self._few: dict[int, FewPixels] = {}
        self.on_pass: Callable[[], None] = lambda: None

    def __enter__(self) -> WholeSums:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Let go of the few pixels."""
        for each in self._few.values():
            each.close()
        self._few.clear()
        self.on_pass = lambda: None  # it knows the fit, which knows these sums

    def __call__(self, state: State, cap: int, slopes: bool) -> Stats:
        """Return the sums under a state, of at most ``cap`` pixels a bag.

        0: all of them, where they are; ``ALL_PIXELS``: all of them, brought here.

        ``slopes`` by the kernel's parameters take longer.
        """
        if not cap:
            found = self._executor.sum(asked(self._model, state, slopes=slopes), self._blocks)
        else:
            found = self._brought(state, cap).sum(state, slopes=slopes)
        self.on_pass()
        return found

    def bags(self, state: State, cap: int) -> BagBlock:
        """Return all bags, of at most ``cap`` pixels each."""
        return self._brought(state, cap).bags

    def parts(self, asked_of: Iterable[tuple[Arrays, Sequence[int]]]) -> Iterator[Stats]:
        """Yield the sums over some blocks under parameters of their own, each: one pass."""
        for params, blocks in asked_of:
            yield self._executor.sum(params, blocks)
        self.on_pass()

    def _brought(self, state: State, cap: int) -> FewPixels:
        if cap not in self._few:
            self._few[cap] = FewPixels(self._model, self._executor, self._blocks, state, cap)
        return self._few[cap]


def asked(model: Model, state: State, *, slopes: bool) -> Arrays:
    """Return the parameters of blocks that say whether slopes by the kernel's are wanted."""
    return {**model.block_params(state), "slopes": np.array([slopes])}


class _Pieces:
    """Bags in memory, cut in their order."""

    def __init__(self, bags: BagBlock) -> None:
        # Pieces are alike, and even in number: two threads end together. The cut, and so each bit
        # of a sum, depends on the bags alone, not on the machine.
        n = 2 * max(1, round(bags.n_pix / (2 * BLOCK)))
        cuts = cut_blocks(np.diff(bags.offsets), -(-bags.n_pix // n), bags.n_bag).tolist()
        self._blocks = [bags.at(np.arange(start, stop)) for start, stop in pairwise(cuts)]
        self.block_bags = np.array([block.n_bag for block in self._blocks])

    def read(self, number: int) -> BagBlock:
        """Return a block."""
        return self._blocks[number]

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Do nothing: all blocks are in memory."""


def _block(arrays: Arrays) -> BagBlock:
    fields: dict[str, Any] = {"coords": None, **arrays}
    return BagBlock(**fields)
