"""Stores that represent large areas by some of their pixels (:mod:`models.core.thinning`)."""

from __future__ import annotations

import os

import numpy as np

from models.core.thinning import features_of, thin
from pipeline.core.sources import code_hash
from pipeline.core.threads import map_in_order
from pipeline.storage.local_commit import is_current
from pipeline.storage.location import Location
from pipeline.store.bag_store import BagStore
from pipeline.store.bag_writer import (
    FORMAT,
    VERSION,
    NewBags,
    PixelRows,
    write_bags,
)


def thinned_store(
    store: BagStore, path: str | os.PathLike[str] | Location, cap: int | str, seed: int
) -> BagStore:
    """Write the store of the chosen pixels, unless it is there; return it.

    Parameters
    ----------
    store : BagStore
    path : path-like, or address
        Of the thinned store.
    cap : int or "all"
        Most pixels of an area. Where no area has more, ``store`` itself is returned.
    seed : int

    Returns
    -------
    BagStore
        The same bags in the same order.
    """
    if cap == "all" or int(store.sizes.max(initial=0)) <= int(cap):
        return store
    fingerprint = f"{store.fingerprint}/thinned {code_hash(__name__)} {cap} {seed}"
    if not is_current(path, FORMAT, VERSION, fingerprint):
        kept, offsets, squares = _choose(store, int(cap), seed)

        def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
            spans = zip(
                (offsets[bag] + start).tolist(), (offsets[bag] + stop).tolist(), strict=True
            )
            at = np.concatenate([np.arange(a, b) for a, b in spans])
            return PixelRows(kept.x[at], kept.weight[at], kept.coords[at], kept.pixel[at])

        write_bags(
            path,
            NewBags(
                sizes=np.diff(offsets),
                rows=rows,
                y=store.y,
                ids=store.ids,
                trials=store.trials,
                margin=store.margin,
                union=store.responses.union,
                together=store.together,
                covariates=store.covariates,
                units=store.units,
                grid=store.attrs["grid"],
                coords_crs=store.attrs.get("coords_crs"),
                n_axis=store.n_axis,
                has_coords=store.has_coords,
                attrs={
                    "thinned": {
                        "area_pixels": int(cap),
                        "seed": seed,
                        # Of all pixels, in the order of the store.
                        "squares": squares.tolist(),
                        "sizes": store.sizes.tolist(),
                    }
                },
            ),
            seed=seed,
            fingerprint=fingerprint,
            order=np.arange(store.n_bag),
        )
    # Workers scale nothing: the scaling of the covariates is the driver's affair.
    return BagStore.open(path, unions=True).scaled_by(store)


def _choose(store: BagStore, cap: int, seed: int) -> tuple[PixelRows, np.ndarray, np.ndarray]:
    """Return the chosen pixels of all bags, in the store's order, with offsets and squares."""
    mean, sd = store.scaling()

    def choose(number: int) -> tuple[PixelRows, np.ndarray, np.ndarray]:
        first, last = (int(k) for k in store.block_offsets[number : number + 2])
        rows, offsets = store.block_rows(number), store.offsets[first : last + 1]
        offsets = offsets - offsets[0]
        coords = rows.coords if store.has_coords else None
        features = features_of(rows.x, coords, offsets, mean, sd)
        rng = np.random.default_rng([seed, 5, number])
        found = thin(features, rows.weight, offsets, cap, rng)
        at = found.pixel
        kept = PixelRows(rows.x[at], found.weight, rows.coords[at], rows.pixel[at])
        squares = np.add.reduceat(rows.weight.astype(np.float64) ** 2, offsets[:-1])
        return kept, np.diff(found.offsets), squares

    parts = list(map_in_order(choose, range(store.n_block)))
    kept, sizes, squares = zip(*parts, strict=True)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return PixelRows.join(kept), offsets, np.concatenate(squares)
