"""Registries of input formats: the suffix of a file selects its reader.

There are three: :data:`geo.tables.registry.TABLES`,
:data:`geo.sources.boundary_formats.BOUNDARIES` and :data:`geo.sources.registry.SOURCES`.
To add a format, write a reader and call ``register``, there
or in code outside this package.
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
        Reader of all other files.
    by_suffix : dict
        Reader of each suffix, in lower case with its dot: ``".parquet"``.
    """

    default: T
    by_suffix: dict[str, T] = field(default_factory=dict)

    def register(self, reader: T, *suffixes: str) -> None:
        """Register a reader for some suffixes, in place of earlier ones."""
        self.by_suffix.update(dict.fromkeys((each.lower() for each in suffixes), reader))

    def of(self, path: str | Path) -> T:
        """Return the reader of a file or URL."""
        name = str(path).lower()
        fitting = [suffix for suffix in self.by_suffix if name.endswith(suffix)]
        return self.by_suffix[max(fitting, key=len)] if fitting else self.default


def is_local(path: str | Path) -> bool:
    """Return whether a path is a local file, not a URL."""
    return "://" not in str(path) and not str(path).startswith("/vsi")
