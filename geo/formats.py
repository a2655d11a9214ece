"""Registries of input formats: the suffix of a file decides what reads it.

:data:`geo.tables.TABLES`, :data:`geo.boundary_formats.BOUNDARIES` and :data:`geo.raster.RASTERS`
are the three. A new format is a file of its own and one call of ``register``, there or from other
code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Formats(Generic[T]):
    """The formats of one kind of input.

    Attributes
    ----------
    default : object
        Reads files of every suffix that no other format has.
    by_suffix : dict
        Reader of each suffix, which is in lower case with its dot: ``".parquet"``.
    """

    default: T
    by_suffix: dict[str, T] = field(default_factory=dict)

    def register(self, reader: T, *suffixes: str) -> None:
        """Have a reader read files of some suffixes; the last one registered counts."""
        self.by_suffix.update(dict.fromkeys((each.lower() for each in suffixes), reader))

    def of(self, path: str | Path) -> T:
        """Return what reads a file or an address."""
        name = str(path).lower()
        fitting = [suffix for suffix in self.by_suffix if name.endswith(suffix)]
        return self.by_suffix[max(fitting, key=len)] if fitting else self.default


def is_local(path: str | Path) -> bool:
    """Return whether a path is a file of this machine, not an address."""
    return "://" not in str(path) and not str(path).startswith("/vsi")
