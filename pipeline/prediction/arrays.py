"""Arrays with one element, or one column, an area: selected, joined and kept together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Self

import numpy as np

from pipeline.core.errors import StoreError
from pipeline.storage.files import whole_file


class AreaArrays:
    """Base of dataclasses whose fields are arrays (..., n_bag)."""

    def select(self, keep: np.ndarray) -> Self:
        """Return the areas where ``keep`` (n_bag,) bool is true."""
        return type(self)(**{name: getattr(self, name)[..., keep] for name in self._names()})

    def save(self, path: Path) -> None:
        """Write the arrays to an ``.npz`` that appears only when complete."""
        with whole_file(path) as file:
            np.savez(file, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises
        ------
        StoreError
            If it is damaged.
        """
        try:
            return cls._read(path)
        except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
            found = f"{path}: damaged ({error}); delete it and go on"
            raise StoreError(found) from error

    @classmethod
    def _read(cls, path: Path) -> Self:
        # NumPy leaves a file that it opened itself open when the file is damaged.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in cls._names()})

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        """Put the areas of several parts one after the other."""
        return cls(
            **{
                name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
                for name in cls._names()
            }
        )

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]
