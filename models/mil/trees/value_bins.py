"""Bins of the values of each feature, and their ranges in each bag: made once for all trees."""

from __future__ import annotations

import numpy as np

N_BIN = 4096
N_SAMPLE = 4 * N_BIN  # values that the edges of bins are taken from


def bin_values(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put the values of each feature into bins.

    Parameters
    ----------
    x : (n_feat, n_pix) float64
        NaN goes into any bin; features that hold it are not counted by bins.

    Returns
    -------
    codes : (n_feat, n_pix) uint16
        Bins, ascending with the values.
    edges : (n_feat, 4095) float64
        Ascending; a value's bin is the number of edges below it.
    """
    sample = np.sort(x[:, :: -(-x.shape[1] // N_SAMPLE)], axis=1)
    places = np.arange(1, N_BIN) * sample.shape[1] // N_BIN
    edges = np.ascontiguousarray(sample[:, places])
    codes = np.empty(x.shape, np.uint16)
    for f in range(x.shape[0]):
        codes[f] = np.minimum(np.searchsorted(edges[f], x[f]), N_BIN - 1)
    return codes, edges


def bag_ranges(x: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the lowest and the highest value in each bag: (n_feat, n_bag, 2) float64."""
    low = np.minimum.reduceat(x, offsets[:-1], axis=1)
    return np.stack([low, np.maximum.reduceat(x, offsets[:-1], axis=1)], axis=-1)
