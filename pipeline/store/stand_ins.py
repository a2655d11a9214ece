"""What stands for covariates that are not known of a period: means of others, beside its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from pipeline.storage.location import Place

#: Of the output directory: a directory of each forecast that has covariates of its own.
AHEAD = "work/ahead"
#: In it: of each forecast, what is ``known`` of its own, why the rest is ``lacking``, by name, and
#: the periods that it is ``like``.
AHEAD_FILE = f"{AHEAD}/ahead.json"


@dataclass(frozen=True)
class Ahead:
    """A period after the series, of which something that moves is known.

    Attributes
    ----------
    place : Place
        Directory of the period: its grid and its pixels, complete, with what stands in for the
        rest.
    known : tuple of str
        Covariates that are its own.
    whole : bool
        Whether all that moves is its own.
    """

    place: Place
    known: tuple[str, ...]
    whole: bool

    @property
    def grid(self) -> Place:
        """Of what moves, aligned."""
        return self.place / "grid.zarr"

    @property
    def pixels(self) -> Place:
        """Of areas, in the order of the store."""
        return self.place / "pixels"


@dataclass(frozen=True)
class MeanArray:
    """The mean of arrays of the same shape, read piece by piece."""

    parts: Sequence[Any]

    def __getitem__(self, key: slice) -> np.ndarray:
        """Read a piece of all, and return its mean."""
        pieces = [np.asarray(part[key]) for part in self.parts]
        return np.mean(pieces, axis=0, dtype=np.float64).astype(pieces[0].dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each."""
        return tuple(self.parts[0].shape)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Of each."""
        return tuple(self.parts[0].chunks)


@dataclass(frozen=True)
class MeanGroup:
    """Groups of the same arrays, as one group of their means."""

    parts: Sequence[zarr.Group]

    @property
    def attrs(self) -> dict[str, Any]:
        """Those of the first."""
        return dict(self.parts[0].attrs)

    def __contains__(self, name: str) -> bool:
        """Whether an array is in each."""
        return all(name in part for part in self.parts)

    def __getitem__(self, name: str) -> MeanArray:
        """Return the mean of the arrays of a name."""
        return MeanArray([part[name] for part in self.parts])


@dataclass(frozen=True)
class JoinedArray:
    """An array with some of its last axis from another."""

    rest: Any
    own: Any
    columns: Sequence[int]

    def __getitem__(self, key: slice) -> np.ndarray:
        """Read a piece of both."""
        found = np.array(self.rest[key])
        found[..., self.columns] = np.asarray(self.own[key])[..., self.columns]
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of both."""
        return tuple(self.own.shape)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Of both."""
        return tuple(self.own.chunks)


@dataclass(frozen=True)
class JoinedGroup:
    """What a period knows of itself, and the rest as in others.

    Attributes
    ----------
    rest, own : group
        ``own`` has all arrays; its weights hold.
    known : sequence of str
        Covariates of ``own`` that hold.
    """

    rest: Any
    own: zarr.Group
    known: Sequence[str]

    @property
    def attrs(self) -> dict[str, Any]:
        """Those of the period."""
        return dict(self.own.attrs)

    def __contains__(self, name: str) -> bool:
        """Whether the period has an array."""
        return name in self.own

    def __getitem__(self, name: str) -> Any:
        """Return an array of the period, its covariates joined."""
        if name not in ("x", "moments"):
            return self.own[name]
        names: Any = self.attrs["covariates"]
        columns = [k for k, each in enumerate(names) if each in self.known]
        return JoinedArray(self.rest[name], self.own[name], columns)
