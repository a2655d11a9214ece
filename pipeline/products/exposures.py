"""The exposure of pixels where a table gives that of areas (`counts.weight`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from pipeline.products.tile_pixels import TilePixels
from pipeline.store.bag_store import BagStore


@dataclass(frozen=True)
class Exposures:
    """What the people of a pixel are multiplied by, so that areas have the exposure given to them.

    Attributes
    ----------
    factor : (n_area,) float64 array
        Of the areas of the first level.
    usual : float
        Of pixels outside these areas: given exposure over people, of all areas together.
    known : (n_area,) bool array
        Areas whose exposure is given; the others have the usual factor. Areas that are not in the
        store have none: they were left out for an exposure of 0, or have no pixel with people.
    """

    factor: np.ndarray
    usual: float
    known: np.ndarray

    @classmethod
    def of(cls, areas: BagStore, ids: Sequence[str]) -> Exposures | None:
        """Return those of a store for areas in another order; None if it has no exposure given."""
        factor, given = areas.exposure_factor, areas.bag_weight
        if factor is None:
            return None
        known = areas.known_exposure
        own = given[known] / np.where(factor[known] > 0, factor[known], 1.0)
        usual = float(given[known].sum() / own.sum()) if known.any() else 1.0
        at = {name: number for number, name in enumerate(areas.ids)}
        found = np.array([at.get(name, -1) for name in ids], dtype=np.int64)
        own_factor = np.where(known, factor, usual)
        stored, place = found >= 0, np.maximum(found, 0)
        return cls(np.where(stored, own_factor[place], 0.0), usual, ~stored | known[place])

    def of_pixels(self, pixels: TilePixels) -> np.ndarray:
        """Return the exposure of whole pixels, (n_pix,); of several areas by their shares."""
        own = pixels.area < self.factor.size
        share = pixels.fraction[own]
        whole = np.asarray(share.sum(axis=0)).ravel()
        summed = share.T @ self.factor[pixels.area[own]]
        factor = np.where(whole > 0, summed / np.where(whole > 0, whole, 1.0), self.usual)
        found: np.ndarray = pixels.people * factor
        return found

    def of_areas(self, pixels: TilePixels) -> csr_matrix:
        """Return the exposure of each pixel in each area, (n_local, n_pix).

        In an area of the first level a pixel has that area's factor, so that areas add up to what
        was given.
        """
        own = pixels.area < self.factor.size
        rows = np.repeat(np.arange(pixels.area.size), np.diff(pixels.fraction.indptr))
        exposure = self.of_pixels(pixels)[pixels.fraction.indices]
        factor = self.factor[np.where(own, pixels.area, 0)][rows]
        exposure = np.where(own[rows], pixels.people[pixels.fraction.indices] * factor, exposure)
        data: Any = pixels.fraction.data * exposure
        return csr_matrix((data, pixels.fraction.indices, pixels.fraction.indptr),
                          shape=pixels.fraction.shape)  # fmt: skip
