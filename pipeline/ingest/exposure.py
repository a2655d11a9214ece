"""The exposure of areas: the people (or km2) of their pixels, or a column of their table.

Pixels say where the exposure of an area lies, the column how much it is: weights of the pixels of
an area are scaled to add up to its entry (``docs/design/responses.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.store.bag_writer import PixelRows, Rows

CHUNK_PIXELS = 1 << 20  # read at once to add up an area


@dataclass(frozen=True)
class Exposure:
    """Exposure of each bag, and the rows of its pixels that have it.

    Attributes
    ----------
    total : (n_bag,) float64 array
        Exposure of each bag, > 0.
    rows : callable
        As in :class:`NewBags`.
    """

    total: np.ndarray
    rows: Rows

    @classmethod
    def of(cls, rows: Rows, sizes: np.ndarray, given: np.ndarray | None) -> Exposure:
        """Scale the weights of pixels to the exposure of their bags.

        Parameters
        ----------
        rows : callable
            Rows whose weights are people or km2.
        sizes : (n_bag,) int array
            Pixels of each bag.
        given : (n_bag,) float64 array or None
            Exposure of each bag, > 0; the sum of its pixels' weights if None or NaN.
        """
        summed = pixel_sums(rows, sizes)
        if given is None:
            return cls(summed, rows)
        given = np.where(np.isfinite(given), given, summed)
        factor = given / summed

        def scaled(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
            found = rows(bag, start, stop)
            weight = found.weight * np.repeat(factor[bag], stop - start)
            return PixelRows(found.x, weight, found.coords, found.pixel)

        return cls(np.asarray(given, np.float64), scaled)


def pixel_sums(rows: Rows, sizes: np.ndarray) -> np.ndarray:
    """Return the sum of the weights of each bag's pixels, (n_bag,) float64."""
    total = np.zeros(len(sizes))
    for bag, size in enumerate(np.asarray(sizes).tolist()):
        for start in range(0, size, CHUNK_PIXELS):
            stop = min(start + CHUNK_PIXELS, size)
            part = rows(np.array([bag]), np.array([start]), np.array([stop]))
            total[bag] += float(part.weight.sum())
    return total
