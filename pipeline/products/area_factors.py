"""What the counts of areas add to the surface, as factors of the cases of their pixels.

The draws of a training area are conditioned on the part of its count that the posterior of the
surface cannot hold (:mod:`models.aggregate.observed_draws`). Tables and the rasters of cases have
these factors, so that they add up to each other; rasters of rates show the surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import diags_array

from pipeline.products.areas import AreaDraws
from pipeline.products.tile_pixels import TilePixels
from pipeline.store.bag_store import BagStore


@dataclass(frozen=True)
class AreaFactors:
    """Factors of the areas of a run.

    Attributes
    ----------
    ids : sequence of str
    drawn : (n_draws, n_bag) float64 array
        Of each drawn total; 1 for areas without a count.
    mean : (n_bag,) float64 array
        Of the mean total.
    """

    ids: Sequence[str]
    drawn: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[str], drawn: np.ndarray, expected: np.ndarray) -> AreaFactors:
        """Make them of the factors and the totals that they gave, (n_draws, n_bag) each."""
        before = (expected / drawn).mean(axis=0)
        mean = np.ones(before.shape)
        np.divide(expected.mean(axis=0), before, out=mean, where=before > 0)
        return cls(ids, drawn, mean)

    def deviations(self, draws: AreaDraws) -> np.ndarray:
        """Return how far each draw puts the expected counts from their mean.

        Parameters
        ----------
        draws : AreaDraws
            Whose ``mean`` is that of the surface, times ``mean`` here.

        Returns
        -------
        (n_draws, n_bag) array
            Their average over draws is 0; its standard error is that of ``draws.mean``, in which
            the surface has none.
        """
        surface = draws.expected / self.drawn
        scale = np.ones_like(draws.mean)
        np.divide(draws.mean, draws.expected.mean(axis=0), out=scale, where=draws.mean > 0)
        own: np.ndarray = scale * (draws.expected - self.mean * surface)
        return own

    def of_pixels(self, areas: BagStore, shape: tuple[int, int], directory: Path) -> np.ndarray:
        """Return the factor of the mean of each pixel.

        A pixel of several areas has the average of theirs, by the people that each has in it.

        Parameters
        ----------
        areas : BagStore
            In the order of the factors.
        shape : (n_row, n_col)
            Of the grid.
        directory : Path
            Of two files that hold the grid while it is made and used.

        Returns
        -------
        (n_row, n_col) float32 array, on disk
            1 where no area has people.
        """
        made = [
            np.lib.format.open_memmap(directory / f".{name}.npy", "w+", np.float32, shape)
            for name in ("factor", "people")
        ]
        factor, people = (array.reshape(-1) for array in made)
        for block in range(areas.n_block):
            part, first = areas.block_rows(block), int(areas.block_offsets[block])
            mean = np.repeat(self.mean[first:], areas.sizes[first:])[: part.weight.size]
            np.add.at(factor, part.pixel, (part.weight * mean).astype(np.float32))
            np.add.at(people, part.pixel, part.weight.astype(np.float32))
        for start in range(0, factor.size, 1 << 22):
            rows = slice(start, start + (1 << 22))
            known = people[rows] > 0
            factor[rows] = np.where(known, factor[rows] / np.where(known, people[rows], 1.0), 1.0)
        (directory / ".people.npy").unlink()
        return made[0]

    def of_tiles(self, ids: Sequence[str], exposure: np.ndarray | None = None) -> TileFactors:
        """Return the factors of the draws for areas in another order; 1 for those unknown.

        ``exposure`` (n_area,) is :attr:`TileFactors.exposure`.
        """
        at = {name: number for number, name in enumerate(self.ids)}
        known = np.array([at.get(name, -1) for name in ids], dtype=np.int64)
        drawn = np.where(known >= 0, self.drawn[:, np.maximum(known, 0)], 1.0)
        mean = np.where(known >= 0, self.mean[np.maximum(known, 0)], 1.0)
        return TileFactors(drawn, mean, exposure)


@dataclass(frozen=True)
class TileFactors:
    """Factors of the cases of pixels.

    Attributes
    ----------
    drawn : (n_draws, n_area) float64 array
        Of drawn cases, of the areas of the first level.
    mean : (n_area,) float64 array
        Of the mean.
    exposure : (n_area,) float64 array, optional
        Exposure over people: of a pixel of several areas, each counts by the exposure that it has
        there. Without it, by its share.
    """

    drawn: np.ndarray
    mean: np.ndarray
    exposure: np.ndarray | None = None

    def __call__(self, pixels: TilePixels, part: slice) -> np.ndarray:
        """Return the factors of the draws of some pixels of a tile: (n_draws, n_part)."""
        return self._of_pixels(self.drawn, pixels, part)

    def of_means(self, pixels: TilePixels) -> np.ndarray:
        """Return the factors of the means of a tile's pixels: (n_pix,)."""
        return self._of_pixels(self.mean[None], pixels, slice(None))[0]

    def _of_pixels(self, factor: np.ndarray, pixels: TilePixels, part: slice) -> np.ndarray:
        own = pixels.area < self.mean.size
        share: Any = pixels.fraction[own][:, part]
        if self.exposure is not None:
            share = diags_array(self.exposure[pixels.area[own]]) @ share
        whole = np.asarray(share.sum(axis=0)).ravel()
        summed = np.asarray((share.T @ factor[:, pixels.area[own]].T).T)
        return np.where(whole > 0, summed / np.where(whole > 0, whole, 1.0), 1.0)
