"""Stores of areas whose pixels lie in memory, area by area."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags


def write_store(
    path: Path,
    sizes: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None = None,
    coords: np.ndarray | None = None,
    *,
    pixel: np.ndarray | None = None,
    seed: int = 0,
    fingerprint: str = "inputs",
    layout: StoreLayout | None = None,
    **columns: Any,
) -> BagStore:
    """Write areas of ``sizes`` pixels, whose rows are those of ``x``, one area after another."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n_pix = int(offsets[-1])
    weight = np.ones(n_pix) if weight is None else weight
    places = np.full((n_pix, 2), np.nan) if coords is None else coords
    pixel = np.arange(n_pix) if pixel is None else pixel

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        cuts = zip(offsets[bag], start, stop, strict=True)
        at = np.concatenate([np.arange(b + i, b + j) for b, i, j in cuts])
        return PixelRows(x[at], weight[at], places[at], pixel[at])

    new = NewBags(
        sizes=np.asarray(sizes),
        rows=rows,
        y=y,
        has_coords=coords is not None,
        **{
            "ids": [str(k) for k in range(len(sizes))],
            "covariates": list("abcdefg"[: x.shape[1]]),
            **columns,
        },
    )
    write_bags(path, new, seed=seed, fingerprint=fingerprint, layout=layout)
    return BagStore.open(path)
