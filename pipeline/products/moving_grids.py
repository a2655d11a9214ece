"""The aligned grids of what moves in a period: its own, or those of periods that stand for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.storage.location import Place
from pipeline.store.aligned_grid import known_people, open_aligned_grid, read_part
from pipeline.store.stand_ins import mean_where


@dataclass(frozen=True)
class MovingPlaces:
    """Where the grids of a period are; nowhere if nothing moves.

    Attributes
    ----------
    like : tuple of Place
        Of the period, or of those whose mean stands for it.
    rest : tuple of Place
        Of periods that stand for it where a pixel is known in none of these.
    each : tuple of Place
        Of past periods any of which it may be like, where it is not known.
    own : tuple of str
        Covariates of ``like`` that are of the period all the same.
    """

    like: tuple[Place, ...] = ()
    rest: tuple[Place, ...] = ()
    each: tuple[Place, ...] = ()
    own: tuple[str, ...] = ()

    def open(self) -> MovingGrids | None:
        """Open the grids; None if nothing moves."""
        if not self.like:
            return None
        opened = {
            place: open_aligned_grid(place)
            for place in dict.fromkeys((*self.like, *self.rest, *self.each))
        }
        like, rest, each = (
            [opened[place] for place in places] for places in (self.like, self.rest, self.each)
        )
        return MovingGrids(like, rest, each, self.own)


NOWHERE = MovingPlaces()


@dataclass(frozen=True)
class MovingGrids:
    """Open grids, see :class:`MovingPlaces`; a pixel is known in a period that has all of it."""

    like: Sequence[Any]
    rest: Sequence[Any] = ()
    each: Sequence[Any] = ()
    own: Sequence[str] = ()

    @property
    def has_population(self) -> bool:
        """Whether people move."""
        return bool(self.like[0].attrs["has_population"])

    def read(self, rows: slice, cols: slice, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read what moves at the pixels of a tile, as in the bags (``MeanGroup``).

        Parameters
        ----------
        rows, cols : slice
        wanted : (n_row, n_col) bool array
            Pixels that are asked for.

        Returns
        -------
        covariates : (n_feat, n_pix) array
            NaN where a pixel is known in no period.
        people : (n_pix,) float64 array
            Empty where people do not move.
        """
        x, people = self._mean(self.like, rows, cols, wanted)
        lacking = ~np.isfinite(x).all(axis=0)
        if self.rest and lacking.any():
            at = wanted.copy()
            at[wanted] = lacking
            x[:, lacking], others = self._mean(self.rest, rows, cols, at)
            if self.has_population:
                people[lacking] = others
        return x, people

    def alternatives(
        self, rows: slice, cols: slice, wanted: np.ndarray, x: np.ndarray
    ) -> list[np.ndarray]:
        """Return what the covariates may be instead of ``x``, the mean, as :meth:`read` does.

        Where a past period lacks a pixel, it has the mean.
        """
        names: Any = self.like[0].attrs["covariates"]
        kept = np.array([name in self.own for name in names], dtype=bool)
        read: dict[int, np.ndarray] = {}  # a period may stand several times
        for group in self.each:
            if id(group) not in read:
                own = read_part(group, "covariates", slice(None), rows, cols)[:, wanted]
                known = np.isfinite(own) & ~kept[:, None]
                read[id(group)] = np.where(known, own, x).astype(x.dtype)
        return [read[id(group)] for group in self.each]

    def _mean(
        self, groups: Sequence[Any], rows: slice, cols: slice, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        each = [read_part(group, "covariates", slice(None), rows, cols) for group in groups]
        x = np.stack([own[:, wanted].T for own in each])
        known, people = np.isfinite(x).all(axis=2), np.zeros((len(groups), 0))
        if self.has_population:
            own = [read_part(group, "population", rows, cols)[wanted] for group in groups]
            people = known_people(np.stack(own))
            counts = known & (people > 0)
            known = np.where(counts.any(axis=0), counts, known)
            people = mean_where(people, known)
        else:
            people = people[0]
        mean = mean_where(np.where(known[:, :, None], x, 0), known)
        mean[~known.any(axis=0)] = np.nan
        return mean.T, people
