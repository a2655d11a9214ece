"""A base class for dataclasses of arrays whose last axis is the area."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline.core.errors import StoreError
from pipeline.core.threads import map_in_order
from pipeline.storage.files import atomic_write


class AreaArrays:
    """Base of dataclasses whose fields are arrays (..., n_bag).

    Attributes
    ----------
    bag : (n_bag,) int64 array
        Number of each area in the bag store.
    """

    bag: np.ndarray

    def __len__(self) -> int:
        return int(self.bag.shape[0])

    def select(self, keep: np.ndarray) -> Self:
        """Return the areas where ``keep`` (n_bag,) bool is true."""
        return type(self)(**{name: getattr(self, name)[..., keep] for name in self._names()})

    def save(self, path: Path) -> None:
        """Write the arrays to an ``.npz`` that appears only when complete."""
        with atomic_write(path) as file:
            np.savez(file, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`save`; StoreError if it is damaged."""
        try:
            # If NumPy opened the file itself, it would not close a damaged one.
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
                return cls(**{name: arrays[name] for name in cls._names()})
        except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
            found = f"{path}: damaged ({error}); delete it and run again"
            raise StoreError(found) from error

    @classmethod
    def of_blocks(
        cls,
        store: Any,
        compute: Callable[[int, Any], Self],
        keep: np.ndarray | None = None,
        advance: Callable[[int], None] | None = None,
        n_thread: int | None = None,
    ) -> Self:
        """Compute some areas of a store, block by block.

        Parameters
        ----------
        store : BagStore
        compute : callable
            From a block's number and its areas in ``keep`` (a BagBlock) to their arrays; called
            from several threads.
        keep : (n_bag,) bool array, optional
            Areas to compute, all if not given; blocks without any are not read.
        advance : callable, optional
            Called with the number of areas done after each block.
        n_thread : int, optional
            Blocks computed at the same time, one a core if not given.
        """
        keep = np.ones(store.n_bag, dtype=bool) if keep is None else keep
        edges = np.asarray(store.block_offsets)
        wanted = [i for i in range(store.n_block) if keep[edges[i] : edges[i + 1]].any()]

        def of_block(number: int) -> Any:
            block = store.read_block(number)
            return compute(number, block.select(keep[block.bag]))

        parts: list[Self] = []
        for part in map_in_order(of_block, wanted, n_thread):
            parts.append(part)
            if advance:
                advance(len(part))
        return cls.concatenate(parts)

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        """Concatenate the areas of several parts."""
        return cls(
            **{
                name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
                for name in cls._names()
            }
        )

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]
