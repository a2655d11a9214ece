"""Shares of pixels and of people where the prior rules the map, and where it extrapolates.

A pixel *extrapolates* if one of its covariates is outside the range of the pixels with people in
the areas that the model was fitted to: negative multivariate environmental similarity (MESS: Elith,
Kearney & Phillips 2010, Methods in Ecology and Evolution 1, 330-342).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.windows import Window

from geo.grid import Grid
from pipeline.core.threads import map_in_order
from pipeline.prediction.products import DATA_SUPPORT
from pipeline.storage.files import write_json
from pipeline.store.aligned_grid import open_aligned_grid, read_part
from pipeline.store.balance import made_of

#: Where predict leaves the shares for evaluate, in the output directory.
SUPPORT_FILE = "work/support.json"
RULED = 0.2  # data support below which the prior rules: 80 % of its variance is left


def covariate_range(store: Any, n_thread: int | None = None) -> np.ndarray:
    """Return the least and the largest of each covariate over the areas' pixels with people.

    Returns
    -------
    (2, n_feat) float64 array
        One pass over the store. Of all pixels, if none has people.
    """

    def of(number: int) -> np.ndarray:
        block = store.read_block(number)
        found = np.full((2, 2, block.x.shape[1]), np.nan)
        for kind, keep in enumerate((block.weight > 0, slice(None))):
            x = np.asarray(block.x[keep], dtype=np.float64)
            if x.size:
                found[kind] = np.nanmin(x, axis=0), np.nanmax(x, axis=0)
        return found

    each = np.stack(list(map_in_order(of, range(store.n_block), n_thread)))
    kind = 0 if np.isfinite(each[:, 0]).any() else 1
    return np.stack([np.nanmin(each[:, kind, 0], axis=0), np.nanmax(each[:, kind, 1], axis=0)])


def support_shares(
    directory: Path,
    cube_path: Any,
    limits: np.ndarray,
    names: tuple[str, ...],
    mask: str,
    n_thread: int | None = None,
) -> dict[str, Any]:
    """Count the pixels and the people that extrapolate, and those that the prior rules.

    Parameters
    ----------
    directory : Path
        Directory of ``data_support.tif``.
    cube_path : path-like or Location
        The aligned grid that it was predicted on.
    limits : (2, n_feat) array
        Of :func:`covariate_range`.
    names : tuple of str
        Of the covariates.
    mask : {"areas", "all"}
        Whether a pixel's people are those of its share inside areas, or all.
    n_thread : int, optional

    Returns
    -------
    dict
        ``n_pixels``; ``pixels_extrapolating``, ``people_extrapolating``, ``pixels_prior``,
        ``people_prior``: shares; ``covariates``: by name, the share of pixels where it is outside
        its range, if any is; ``below``: data support that the prior rules below.
    """
    aligned = open_aligned_grid(cube_path)
    described: Any = aligned.attrs["grid"]
    tiles = list(Grid.from_dict(described).tiles(int(aligned.attrs["tile"])))
    path = directory / DATA_SUPPORT.file

    def of(tile: Any) -> np.ndarray:
        found = np.zeros(6 + len(names))
        with rasterio.open(path) as file:
            window = Window(tile.col, tile.row, tile.n_col, tile.n_row)
            support = file.read(1, window=window)
        known = np.isfinite(support)
        if not known.any():
            return found
        people = np.nan_to_num(read_part(aligned, "population", *tile.slices)[known])
        if mask == "areas":
            people = people * read_part(aligned, "coverage", *tile.slices)[known]
        x = read_part(aligned, "covariates", slice(None), *tile.slices)[:, known]
        outside = (x < limits[0][:, None]) | (x > limits[1][:, None])
        whole = np.ones(x.shape[1], bool)
        for k, which in enumerate((whole, outside.any(axis=0), support[known] < RULED)):
            found[2 * k : 2 * k + 2] = which.sum(), people[which].sum(dtype=np.float64)
        found[6:] = outside.sum(axis=1)
        return found

    total = np.sum(list(map_in_order(of, tiles, n_thread)), axis=0)
    n, people = total[:2]

    def share(part: float, whole: float) -> float | None:
        return float(part / whole) if whole > 0 else None

    return {
        "n_pixels": int(n),
        "pixels_extrapolating": share(total[2], n),
        "people_extrapolating": share(total[3], people),
        "pixels_prior": share(total[4], n),
        "people_prior": share(total[5], people),
        "covariates": {
            name: float(part / n) for name, part in zip(names, total[6:], strict=True) if part > 0
        },
        "below": RULED,
    }


def write_support(out: Path, store: Any, found: dict[str, Any]) -> None:
    """Write the shares for the evaluate stage, and what they are of."""
    write_json(out / SUPPORT_FILE, {"of": made_of(out, store), "support": found})


def read_support(out: Path, store: Any) -> dict[str, Any] | None:
    """Read the shares that predict wrote; None if there are none of this store and model."""
    try:
        found = json.loads((out / SUPPORT_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if found.get("of") != made_of(out, store):
        return None
    support: dict[str, Any] = found["support"]
    return support
