"""The exposure of areas: the people (or km2) of their pixels."""

from __future__ import annotations

import numpy as np

from pipeline.store.bag_writer import Rows

CHUNK_PIXELS = 1 << 20  # read at once to add up an area


def pixel_sums(rows: Rows, sizes: np.ndarray) -> np.ndarray:
    """Return the sum of the weights of each bag's pixels, (n_bag,) float64."""
    total = np.zeros(len(sizes))
    for bag, size in enumerate(np.asarray(sizes).tolist()):
        for start in range(0, size, CHUNK_PIXELS):
            stop = min(start + CHUNK_PIXELS, size)
            part = rows(np.array([bag]), np.array([start]), np.array([stop]))
            total[bag] += float(part.weight.sum())
    return total
