"""Several bag stores read as one: the areas of the training, then those that are predicted only.

All have the same covariates. Areas keep their order, so that the numbers of the training areas and
of their blocks are those of the first store, and a prediction of both differs in nothing from a
prediction of the first alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.core.block import BagBlock
from pipeline.core.errors import StoreError
from pipeline.storage.location import Place
from pipeline.store.bag_store import BagStore

#: The store of the areas without a count, in the output directory.
WITHOUT_COUNTS = "work/areas_without_counts.zarr"


class JoinedStores:
    """Bag stores, one after the other.

    Parameters
    ----------
    stores : sequence of BagStore
        The first is that of the training.

    Attributes
    ----------
    n_bag, n_block : int
    block_offsets : (n_block + 1,) int64 array
    ids : tuple of str
    in_training : (n_bag,) bool array
    known_trials : (n_bag,) bool array
        Whether the number tested is known, where there is one; else true.
    known_exposure : (n_bag,) bool array
        Whether the exposure is known, where a column of the counts gives it; else true.
    """

    def __init__(self, stores: Sequence[BagStore]) -> None:
        self.stores = tuple(stores)
        first = self.stores[0]
        for other in self.stores[1:]:
            if other.covariates != first.covariates:
                found = (
                    f"{other.path}: has the covariates {', '.join(other.covariates)}, but "
                    f"{first.path} has {', '.join(first.covariates)}; ingest again"
                )
                raise StoreError(found)
        self._bags = np.cumsum([0, *(store.n_bag for store in self.stores)])
        self._blocks = np.cumsum([0, *(store.n_block for store in self.stores)])
        self.n_bag, self.n_block = int(self._bags[-1]), int(self._blocks[-1])
        parts = zip(self.stores, self._bags[:-1], strict=True)
        self.block_offsets = np.concatenate(
            [[0], *(store.block_offsets[1:] + start for store, start in parts)]
        ).astype(np.int64)
        self.ids = tuple(text for store in self.stores for text in store.ids)
        self.in_training = np.arange(self.n_bag) < first.n_bag
        self.known_trials = np.concatenate(
            [
                np.ones(store.n_bag, bool) if store.trials is None else store.trials > 0
                for store in self.stores
            ]
        )

        self.known_exposure = np.concatenate(
            [
                np.asarray(store.attrs.get("exposure_known", [True] * store.n_bag), bool)
                for store in self.stores
            ]
        )

    def read_block(self, block: int) -> BagBlock:
        """Read one block; bags without a known number of people tested have 1."""
        at = int(np.searchsorted(self._blocks, block, side="right")) - 1
        found = self.stores[at].read_block(block - int(self._blocks[at]))
        trials = found.trials
        if trials is not None:
            trials = np.where(trials > 0, trials, 1.0)
        return replace(found, bag=found.bag + self._bags[at], trials=trials)


def open_without_counts(store: BagStore, path: Place) -> BagStore | None:
    """Open the store of the areas without a count that belongs to a bag store.

    Returns
    -------
    BagStore or None
        None if every area has a count.

    Raises
    ------
    StoreError
        If it is absent, damaged or of another run.
    """
    if not store.attrs.get("n_without_counts", 0):
        return None
    found = BagStore.open(path)
    if found.fingerprint != store.fingerprint:
        message = f"{path}: of another run than {store.path}; ingest again"
        raise StoreError(message)
    return found
