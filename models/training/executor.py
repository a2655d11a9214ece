"""Where blocks of bags come from, and what computes their sums, in this process.

:mod:`pipeline.training.dask_executor` does the latter on a cluster.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from models.backend.arrays import keep_freed_memory
from models.core.block import BLOCK_BAGS, BLOCK_PIXELS, BagBlock, cut_blocks
from models.core.protocol import Arrays, Model, Stats, Summary, override
from models.training.reduction import Partial, leaves, partial_sums, total

N_SAMPLE = 20_000  # pixels that inducing points are chosen from
READ_AHEAD = 4  # blocks a thread
Local = dict[int, Arrays]  # what a model keeps with each block


class BlockSource(Protocol):
    """Blocks of whole training bags, by number."""

    @property
    def block_bags(self) -> np.ndarray:
        """Number of training bags in each block: (n_block,) int."""

    def summary(self, rng: np.random.Generator) -> Summary:
        """Return the statistics that initialise a model."""

    def read(self, number: int) -> BagBlock:
        """Return block ``number``, training bags alone."""

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Announce the blocks to be read next, which the source may then fetch."""


class Executor(Protocol):
    """Computes the sums of blocks."""

    def sum(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
        ahead: Sequence[int] = (),
    ) -> Stats:
        """Return the sum over blocks, by the tree of :mod:`models.training.reduction`.

        Blocks come by rising number. ``local`` holds what the model kept with the blocks, by
        number; what it keeps of this step is put into ``fresh``. Blocks ``ahead`` will be those
        of the next step.
        """


class ThreadExecutor:
    """Blocks on threads of this process, one BLAS thread each.

    NumPy lets go of the interpreter lock in its loops, so threads over blocks also keep all cores
    busy in the elementwise work that BLAS threads would leave to one.

    Parameters
    ----------
    model : Model
    source : BlockSource
    n_thread : int
    """

    def __init__(self, model: Model, source: BlockSource, n_thread: int) -> None:
        self._model = model
        self._source = source
        self._n_block = len(source.block_bags)
        self._n_thread = n_thread
        keep_freed_memory()
        self._pool = ThreadPoolExecutor(n_thread, thread_name_prefix="block")

    def __enter__(self) -> ThreadExecutor:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @override
    def sum(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
        ahead: Sequence[int] = (),
    ) -> Stats:
        return total(self.partials(params, blocks, local, fresh, ahead))

    def partials(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
        ahead: Sequence[int] = (),
        span: tuple[float, float] = (0, math.inf),
    ) -> list[Partial]:
        """Return the sums over blocks whose leaves are all that a step has in ``span``."""
        stats = self.map(params, blocks, local, fresh, ahead)
        return partial_sums(leaves(stats, blocks, self._n_block), *span)

    def map(
        self,
        params: Arrays,
        blocks: Sequence[int],
        local: Local | None = None,
        fresh: Local | None = None,
        ahead: Sequence[int] = (),
    ) -> Iterator[Stats]:
        """Yield the sums of each block, in the order given."""
        kept = local or {}
        reading = [n for n in (*blocks, *ahead) if self._model.needs_block(params, kept.get(n))]
        waiting: deque[tuple[int, Future[tuple[Stats, Any]]]] = deque()
        for number in [*blocks, None]:
            # A few blocks ahead: finished sums must not pile up behind a slow one.
            while waiting and (number is None or len(waiting) > 2 * self._n_thread):
                done, future = waiting.popleft()
                stats, keep = future.result()
                if fresh is not None and (self._model.keeps_local or "gather" in params):
                    fresh[done] = keep
                yield stats
            if number is not None:
                if reading and reading[0] == number:
                    reading.pop(0)
                self._source.read_ahead(reading[: READ_AHEAD * self._n_thread])
                future = self._pool.submit(self._block_sums, params, number, kept.get(number))
                waiting.append((number, future))

    def _block_sums(self, params: Arrays, number: int, local: Arrays | None) -> tuple[Stats, Any]:
        block: Any = self._source.read(number) if self._model.needs_block(params, local) else None
        return self._model.block_stats(params, block, local)


class BagsSource:
    """Bags in memory, cut into blocks of whole bags in a seeded random order.

    Parameters
    ----------
    bags : BagBlock
    seed : int
    block_pixels, block_bags : int
        A block is closed once it holds so many pixels or bags.
    """

    def __init__(
        self,
        bags: BagBlock,
        seed: int,
        block_pixels: int = BLOCK_PIXELS,
        block_bags: int = BLOCK_BAGS,
    ) -> None:
        self._bags = bags
        order = np.random.default_rng([seed, 2]).permutation(bags.n_bag)
        sizes = np.diff(bags.offsets)[order]
        self._members = [
            order[start:stop]
            for start, stop in pairwise(cut_blocks(sizes, block_pixels, block_bags).tolist())
        ]
        self.block_bags = np.array([len(members) for members in self._members])

    @override
    def summary(self, rng: np.random.Generator) -> Summary:
        bags, source = self._bags, self._bags.source
        of_areas = bags.x
        if source is not None:  # other sources follow the areas' units
            of_areas = bags.x[np.repeat(source == 0, np.diff(bags.offsets))]
        mean, sd = of_areas.mean(axis=0, dtype=np.float64), of_areas.std(axis=0, dtype=np.float64)
        rows = np.sort(rng.permutation(bags.n_pix)[:N_SAMPLE])
        return Summary(
            x=bags.x[rows].astype(np.float64),
            coords=None if bags.coords is None else bags.coords[rows],
            x_mean=mean,
            x_sd=np.where(sd > 0, sd, 1.0),
            y=bags.y,
            weight=np.add.reduceat(bags.weight.astype(np.float64), bags.offsets[:-1]),
            n_pix=of_areas.shape[0],
            trials=bags.trials,
            bag_y=np.repeat(bags.y, np.diff(bags.offsets))[rows],
            bag=np.repeat(bags.bag, np.diff(bags.offsets))[rows],
            pixel_weight=bags.weight[rows].astype(np.float64),
            source=source,
            pixel_source=None if source is None else np.repeat(source, np.diff(bags.offsets))[rows],
        )

    @override
    def read(self, number: int) -> BagBlock:
        return self._bags.at(self._members[number])

    @override
    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Do nothing: all blocks are in memory."""
