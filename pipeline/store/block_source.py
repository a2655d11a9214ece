"""The training bags of a store, block by block, for the training loop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Summary
from models.training.executor import N_SAMPLE
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore, StoreReference
from pipeline.store.block_cache import BlockCache

KEEP_MB = 1024.0  # default size of the cache of decoded blocks
_SAMPLE_BLOCKS = 64


@dataclass(frozen=True)
class BlockReference:
    """A source by its store's path, as it travels to workers: to unpickle it opens no file.

    Attributes
    ----------
    store : StoreReference
    bags : (n_bag,) bool array
    """

    store: StoreReference
    bags: np.ndarray

    def open(self, keep_mb: float = KEEP_MB) -> StoreBlockSource:
        """Open the store."""
        return StoreBlockSource(self.store.open(), self.bags, keep_mb)


class StoreBlockSource:
    """The training bags of a store, block by block.

    Parameters
    ----------
    store : BagStore
    bags : (n_bag,) bool array, optional
        Training bags; all that have a response where not given.
    keep_mb : float
        Memory for decoded blocks, MB; blocks that do not fit are read again in each epoch.

    Attributes
    ----------
    cache : BlockCache
    block_bags : (n_block,) int64 array
        Training bags in each block.
    """

    def __init__(
        self, store: BagStore, bags: np.ndarray | None = None, keep_mb: float = KEEP_MB
    ) -> None:
        self.store = store
        self.bags = store.in_training if bags is None else np.asarray(bags, bool)
        if self.bags.shape != (store.n_bag,) or not self.bags.any():
            found = (
                f"bags has shape {self.bags.shape} and chooses {int(self.bags.sum())} bags; "
                f"give ({store.n_bag},) with at least one true"
            )
            raise ValueError(found)
        if (lacking := self.bags & ~store.in_training).any():
            first = store.ids[int(np.argmax(lacking))]
            found = f"bags chooses {int(lacking.sum())} bags without a response, first {first}"
            raise ValueError(found)
        self.block_bags = np.add.reduceat(self.bags.astype(np.int64), store.block_offsets[:-1])
        self.cache = BlockCache(partial(_load, store, self.bags), keep_mb * 1e6)

    @property
    def n_bag(self) -> int:
        """Number of training bags."""
        return int(self.bags.sum())

    @property
    def place(self) -> Place:
        """Where the store is."""
        return self.store.path

    @property
    def n_pix(self) -> int:
        """Number of their pixels."""
        return int(self.store.sizes[self.bags].sum())

    @property
    def bag_weight(self) -> np.ndarray:
        """Exposure of each training bag: (n_bag,)."""
        return self.store.bag_weight[self.bags]

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of each training bag, and the moments of their covariates."""
        return self.store.moments(self.bags)

    @property
    def reference(self) -> BlockReference:
        """What travels to workers."""
        store, path = self.store.reference, self.store.path
        absolute = path.resolve() if isinstance(path, Path) else path
        return BlockReference(replace(store, path=absolute), self.bags)

    def summary(self, rng: np.random.Generator, n_sample: int = N_SAMPLE) -> Summary:
        """Summarise the training bags; the sample of pixels is from a few random blocks."""
        store = self.store
        mean, sd = store.scaling(self.bags)
        blocks = np.flatnonzero(self.block_bags)
        # Drawn only where some are left out: otherwise `rng` stays in step with that of bags in
        # memory, and a fit begins at the same inducing points.
        if blocks.size > _SAMPLE_BLOCKS:
            blocks = np.sort(rng.permutation(blocks)[:_SAMPLE_BLOCKS])
        sizes = np.add.reduceat(store.sizes * self.bags, store.block_offsets[:-1])[blocks]
        ends = np.cumsum(sizes)
        rows = np.sort(rng.permutation(int(ends[-1]))[:n_sample])
        # Block by block, so that memory has only the rows of the sample.
        parts = []
        for number, start, stop in zip(blocks.tolist(), ends - sizes, ends, strict=True):
            block = self.read(number)
            at = rows[(rows >= start) & (rows < stop)] - start
            bag = np.repeat(np.arange(block.n_bag), np.diff(block.offsets))[at]
            coords = None if block.coords is None else block.coords[at]
            x, weight = block.x[at].astype(np.float64), block.weight[at].astype(np.float64)
            parts.append((x, coords, block.y[bag], block.bag[bag], weight))
        x, coords, bag_y, bag, weight = zip(*parts, strict=True)
        return Summary(
            x=np.concatenate(x),
            coords=None if coords[0] is None else np.concatenate(coords),
            x_mean=mean,
            x_sd=sd,
            y=store.y[self.bags],
            weight=store.bag_weight[self.bags],
            trials=None if store.trials is None else store.trials[self.bags],
            n_pix=self.n_pix,
            bag_y=np.concatenate(bag_y),
            bag=np.concatenate(bag),
            pixel_weight=np.concatenate(weight),
            n_all=None if store.all_sizes is None else int(store.all_sizes[self.bags].sum()),
        )

    def read(self, number: int) -> BagBlock:
        """Return the training bags of a block."""
        return self.cache.get(number)

    def load(self, number: int) -> BagBlock:
        """Read the training bags of a block from the store, whatever is in memory."""
        return _load(self.store, self.bags, number)

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Start reading blocks that will be requested next."""
        self.cache.ahead(numbers)

    def read_all(self) -> BagBlock:
        """Return all training bags as one block, for models that need them at once."""
        return BagBlock.join(
            [_load(self.store, self.bags, int(i)) for i in np.flatnonzero(self.block_bags)]
        )

    def fingerprint(self) -> str:
        """Return the fingerprint of the store, its blocks and the choice of bags."""
        parts = (np.packbits(self.bags), self.store.offsets, self.store.block_offsets)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
        return f"{self.store.fingerprint}/{digest}"


def _load(store: BagStore, bags: np.ndarray, number: int) -> BagBlock:
    # Not by whole shards: a step's blocks are scattered, and would decode sixteen times as much.
    block = store.read_block(number, whole_shards=False)
    return block.select(bags[block.bag])
