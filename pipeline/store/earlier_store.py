"""Bag stores of versions 1 and 2: their responses, and how they become stores of this version.

They have the responses among their arrays, weights that are scaled to a given exposure already, and
a second store of the areas without a response.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.store.bag_writer import NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.pixel_store import PixelStore
from pipeline.store.responses import Responses, read_responses, responses_of

#: The store of the areas without a response, beside the other.
WITHOUT_RESPONSE = "areas_without_counts.zarr"
_OLD = ("has_responses", "exposure_known", "exposure_without_counts", "n_without_counts",
        "without_counts", "format", "version", "fingerprint", "covariates", "units", "grid",
        "coords_crs", "has_coords", "seed", "block_pixels", "block_bags", "scaling",
        "Conventions", "coordinates")  # fmt: skip


def earlier_responses(pixels: PixelStore) -> Responses:
    """Return the responses of a store of version 1 or 2."""
    y = pixels.table("y", pixels.group["y"])
    tested = pixels.table("trials", pixels.group["trials"]) if "trials" in pixels.group else None
    known = pixels.attrs.get("exposure_known")
    weight = None if known is None else np.where(known, pixels.bag_weight, np.nan)
    training = np.isfinite(y) & bool(pixels.attrs.get("has_responses", True))
    return Responses(y, training, tested, weight, scaled=True, fingerprint=pixels.fingerprint)


def responses_beside(pixels: PixelStore, period: str | None, *, unions: bool = False) -> Responses:
    """Return the responses beside the pixels; of an earlier version, those among their arrays."""
    if pixels.version < 3:
        return earlier_responses(pixels)
    frame, about = read_responses(pixels.data)
    return responses_of(frame, about, pixels.ids, period, pixels.path, unions=unions)


def lacks_areas(pixels: PixelStore) -> bool:
    """Return whether some of a run's areas are in another store, as up to version 2."""
    return pixels.version < 3 and bool(pixels.attrs.get("n_without_counts", 0))


def migrate_store(path: Path) -> None:
    """Bring a store of version 1 or 2 to this version, with the areas without a response.

    The new store takes the place of the old one in one move; bags keep their order, and a fit its
    result.
    """
    first = PixelStore(path)
    stores, other = [first], path.parent / WITHOUT_RESPONSE
    if lacks_areas(first):
        stores.append(PixelStore(other))
    responses = [earlier_responses(store) for store in stores]
    number = np.cumsum([0, *(store.n_bag for store in stores)])

    def joined(name: str) -> Any:
        parts = [getattr(each, name) for each in responses]
        return None if parts[0] is None else np.concatenate(parts)

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        parts = []
        for area, begin, end in zip(bag.tolist(), start.tolist(), stop.tolist(), strict=True):
            at = int(np.searchsorted(number, area, side="right")) - 1
            base = int(stores[at].offsets[area - number[at]])
            parts.append(stores[at].rows(base + begin, base + end))
        return PixelRows.join(parts)

    attrs = first.attrs
    layout = StoreLayout(
        block_pixels=int(attrs["block_pixels"]),
        block_bags=int(attrs["block_bags"]),
        chunk_pixels=first.chunks[0],
        shard_pixels=first.chunks[1],
    )
    new = NewBags(
        sizes=np.concatenate([np.diff(store.offsets) for store in stores]),
        rows=rows,
        y=joined("value"),
        training=joined("training"),
        trials=joined("tested"),
        exposure=joined("weight"),
        ids=[area for store in stores for area in store.ids],
        covariates=first.covariates,
        units=first.units,
        grid=attrs["grid"],
        coords_crs=attrs["coords_crs"],
        n_axis=first.n_axis,
        has_coords=bool(attrs.get("has_coords", True)),
        attrs={key: value for key, value in attrs.items() if key not in _OLD},
    )
    order = np.arange(int(number[-1]))
    seed, fingerprint = int(attrs["seed"]), first.fingerprint
    write_bags(path, new, seed=seed, fingerprint=fingerprint, layout=layout, order=order)
    shutil.rmtree(other, ignore_errors=True)
