"""Shares of pixels and people where the prior rules the map, it extrapolates, or is unsure.

A pixel *extrapolates* if one of its covariates is outside the range of the pixels with people in
the areas that the model was fitted to: negative multivariate environmental similarity (MESS: Elith,
Kearney & Phillips 2010, Methods in Ecology and Evolution 1, 330-342).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.threads import map_in_order
from pipeline.products.products import DATA_SUPPORT
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels
from pipeline.storage.files import write_json
from pipeline.store.balance import made_of

#: Where predict leaves the shares for evaluate, in the output directory.
SUPPORT_FILE = "work/support.json"
_SUPPORT = DATA_SUPPORT.file.removesuffix(".tif")
RULED = 0.2  # data support below which the prior rules: 80 % of its variance is left
WIDE = 4.0  # upper over lower end of an interval that leaves the pixel's rate open
_ENDS = ("rate_lower", "rate_upper")
_OF_COVARIATES = 10  # sums before those of each covariate: pixels and people of five kinds


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


class SupportShares(Consumer):
    """Counts the pixels and the people that extrapolate, and those that the prior rules.

    Parameters
    ----------
    limits : (2, n_feat) array
        Of :func:`covariate_range`.
    names : tuple of str
        Of the covariates.
    mask : {"areas", "all"}
        Whether a pixel's people are those of its share inside areas, or all.

    Attributes
    ----------
    result : dict
        ``n_pixels``; ``pixels_extrapolating``, ``people_extrapolating``, ``pixels_prior``,
        ``people_prior``, ``pixels_wide``, ``people_wide``: shares; ``covariates``: by name, the
        share of pixels where it is outside its range, if any is; ``below``: data support that the
        prior rules below; ``times``: the ends of a wide interval differ by more than this factor
        (no shares of wide ones where a lower end is negative).
    """

    def __init__(self, limits: np.ndarray, names: tuple[str, ...], mask: str) -> None:
        self._limits, self._names, self._mask = limits, names, mask
        self._total = np.zeros(_OF_COVARIATES + len(names))

    def begin(self, pixels: TilePixels) -> np.ndarray:
        """Count the pixels of a tile."""
        support, limits = pixels.values[_SUPPORT], self._limits
        known = np.isfinite(support)
        people, x = pixels.people[known], pixels.x[:, known]
        if self._mask == "areas":
            people = people * pixels.covered[known]
        found = np.zeros_like(self._total)
        outside = (x < limits[0][:, None]) | (x > limits[1][:, None])
        whole = np.ones(x.shape[1], bool)
        low, high = (pixels.values[name][known] for name in _ENDS)
        kinds = (
            whole,
            outside.any(axis=0),
            support[known] < RULED,
            (low >= 0) & (high > WIDE * low),
            low < 0,
        )
        for k, which in enumerate(kinds):
            found[2 * k : 2 * k + 2] = which.sum(), people[which].sum(dtype=np.float64)
        found[_OF_COVARIATES:] = outside.sum(axis=1)
        return found

    def add(self, pixels: TilePixels, found: np.ndarray) -> None:
        """Add the counts of a tile."""
        del pixels
        self._total += found

    @property
    def result(self) -> dict[str, Any]:
        """See the class."""
        total = self._total
        n, people = total[:2]

        def share(part: float, whole: float) -> float | None:
            return float(part / whole) if whole > 0 else None

        outside = zip(self._names, total[_OF_COVARIATES:], strict=True)
        # Of values of either sign one end is no multiple of the other.
        wide = (
            {}
            if total[8] > 0
            else {
                "pixels_wide": share(total[6], n),
                "people_wide": share(total[7], people),
                "times": WIDE,
            }
        )
        return {
            "n_pixels": int(n),
            "pixels_extrapolating": share(total[2], n),
            "people_extrapolating": share(total[3], people),
            "pixels_prior": share(total[4], n),
            "people_prior": share(total[5], people),
            **wide,
            "covariates": {name: float(part / n) for name, part in outside if part > 0},
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
