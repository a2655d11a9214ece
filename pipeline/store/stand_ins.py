"""What stands for covariates that are not known of a period: means of others, beside its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
class StandIns:
    """Periods whose mean stands for what moves in a period that is not of the series.

    Attributes
    ----------
    like : tuple of str
        For the covariates.
    rest : tuple of str
        The same, where a pixel counts in none of ``like``.
    people, people_rest : tuple of str
        For the weights; as the covariates' if empty.
    """

    like: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    people_rest: tuple[str, ...] = ()

    @property
    def of_people(self) -> StandIns:
        """Those of the weights."""
        return StandIns(self.people, self.people_rest) if self.people else self


NOTHING = StandIns()


def mean_where(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean over periods, of those in which a pixel counts; of all where it never does.

    Parameters
    ----------
    values : (n_period, n_pix, ...) array
    counts : (n_period, n_pix) bool array

    Returns
    -------
    (n_pix, ...) array
        Of the type of the values.
    """
    counts = counts | ~counts.any(axis=0)
    share = (counts / counts.sum(axis=0)).reshape(*counts.shape, *[1] * (values.ndim - 2))
    found: np.ndarray = (values * share).sum(axis=0).astype(values.dtype)
    return found


@dataclass(frozen=True)
class MeanArray:
    """An array of a :class:`MeanGroup`, read piece by piece."""

    group: MeanGroup
    name: str

    def __getitem__(self, key: slice) -> np.ndarray:
        """Read a piece of all that it takes, and return the mean."""
        return self.group.piece(self.name, key)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each."""
        return tuple(self.group.like[0][self.name].shape)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Of each."""
        return tuple(self.group.like[0][self.name].chunks)


@dataclass(frozen=True)
class MeanGroup:
    """What stands for a period: the mean of others, at each pixel of those in which it counts.

    A pixel that lacks a covariate in a period has no weight in it. Where it has none in all of
    ``like``, it has the mean of the rest.

    Attributes
    ----------
    like : sequence of zarr group
        The periods.
    open_rest : callable
        Opens the groups of the other candidates; called where a pixel asks for them first.
    standing : array
        Weights of pixels without a period: a pixel that has none here never counts.
    offsets : (n_bag + 1,) int64 array
    """

    like: Sequence[Any]
    open_rest: Callable[[], Sequence[Any]]
    standing: Any
    offsets: np.ndarray

    @property
    def attrs(self) -> dict[str, Any]:
        """Those of the first."""
        return dict(self.like[0].attrs)

    def __contains__(self, name: str) -> bool:
        """Whether an array is in each."""
        return all(name in part for part in self.like)

    def __getitem__(self, name: str) -> Any:
        """Return an array of a name."""
        if name == "bag_weight":
            return self._sums
        return MeanArray(self, name)

    @cached_property
    def _rest(self) -> Sequence[Any]:
        return self.open_rest()

    @cached_property
    def _sums(self) -> np.ndarray:
        """Weights of areas: the sums of those of their pixels."""
        n_pix, step = int(self.offsets[-1]), int(self.like[0]["weight"].shards[0])
        total = np.zeros(self.offsets.size - 1)
        for start in range(0, n_pix, step):
            weight = self.piece("weight", slice(start, min(start + step, n_pix)))
            bag = np.searchsorted(self.offsets, start + np.arange(weight.size), side="right") - 1
            total += np.bincount(bag, weight, total.size)
        return total

    def piece(self, name: str, key: slice) -> np.ndarray:
        """Read a piece of an array: (n_pix, ...)."""
        values, counts = _read(self.like, name, key)
        if name == "moments":  # a pixel that lacks a value has its area's mean
            return mean_where(values, np.ones(counts.shape, bool))
        found = mean_where(values, counts)
        lacking = ~counts.any(axis=0) & (np.asarray(self.standing[key]) > 0)
        if lacking.any() and self._rest:
            values, counts = _read(self._rest, name, key)
            lacking &= counts.any(axis=0)
            found[lacking] = mean_where(values[:, lacking], counts[:, lacking])
        return found


def _read(groups: Sequence[Any], name: str, key: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return a piece of an array of each group, and where its pixels count: (n_group, n_pix)."""
    values = np.stack([np.asarray(group[name][key]) for group in groups])
    if name == "moments" or "weight" not in groups[0]:
        return values, np.ones(values.shape[:2], bool)
    return values, np.stack([np.asarray(group["weight"][key]) > 0 for group in groups])


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
