"""What areas' counts add to the surface, made again from the store and the model."""

from __future__ import annotations

import numpy as np


def drawn_areas(model, store, n_draws, seed):
    """Functions, drawn sums of areas and the factors of both: (n_draws, n_bag) each."""
    functions = model.sample_functions(n_draws, np.random.default_rng([seed, 1]))
    rows = store.read_rows(0, store.n_pix)
    drawn = functions.rate(rows.x, rows.coords) * rows.weight
    total = np.add.reduceat(drawn, store.offsets[:-1], axis=1)
    factors = np.ones(total.shape)
    for block in store.blocks():
        factors[:, block.bag] = functions.observed_factors(block, total[:, block.bag])
    return functions, total, factors


def area_factors(model, store, n_draws, seed):
    """Factors of each draw (n_draws, n_bag), and those of the mean (n_bag,)."""
    _, total, factors = drawn_areas(model, store, n_draws, seed)
    return factors, (factors * total).mean(axis=0) / total.mean(axis=0)


def pixel_factors(model, store, n_draws, seed, n_pixel):
    """Factors of the mean of each pixel of the grid, flat."""
    _, mean = area_factors(model, store, n_draws, seed)
    rows = store.read_rows(0, store.n_pix)
    bag = np.repeat(np.arange(store.n_bag), np.diff(store.offsets))
    people = np.bincount(rows.pixel, rows.weight, n_pixel)
    summed = np.bincount(rows.pixel, rows.weight * mean[bag], n_pixel)
    return np.divide(summed, people, out=np.ones(n_pixel), where=people > 0)
