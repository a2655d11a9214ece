"""How the values of a variable are stored, by the CF conventions (sections 2.5.1 and 8.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from geo.sources.source import ANY_VALUE


@dataclass(frozen=True)
class Packing:
    """How values are stored: see :class:`geo.sources.source.Description`.

    Attributes
    ----------
    dtype : numpy.dtype
    nodata : tuple of float
    valid : (float, float)
    scale, offset : float
    """

    dtype: np.dtype[Any]
    nodata: tuple[float, ...]
    valid: tuple[float, float]
    scale: float
    offset: float


def packing(own: Any) -> Packing:
    """Return how an xarray.DataArray, of which nothing is decoded, is stored."""
    attrs, stored = {**own.encoding, **own.attrs}, own.dtype
    fills = [np.ravel(attrs[key]) for key in ("_FillValue", "missing_value") if key in attrs]
    unsigned = str(attrs.get("_Unsigned", "")).lower() == "true" and stored.kind == "i"
    if unsigned:  # of NetCDF 3
        stored = np.dtype(f"u{stored.itemsize}")
        fills = [each.astype(own.dtype).view(stored) for each in fills]
    scale, offset = float(attrs.get("scale_factor", 1.0)), float(attrs.get("add_offset", 0.0))
    valid = _valid(attrs, stored, scale, offset)
    return Packing(stored, tuple(float(v) for f in fills for v in f), valid, scale, offset)


def _valid(
    attrs: dict[str, Any], stored: np.dtype[Any], scale: float, offset: float
) -> tuple[float, float]:
    """Return the least and greatest stored value of `valid_range`, `valid_min`, `valid_max`.

    They are stored numbers; by NetCDF's attribute conventions they are values where they are
    fractional numbers and the stored ones, which are packed, are whole.
    """
    limits = np.ravel(attrs.get("valid_range", ()))
    if limits.size != 2:
        limits = np.array([attrs.get("valid_min"), attrs.get("valid_max")], object)
    found = list(ANY_VALUE)
    for k, limit in enumerate(limits):
        try:
            number = float(limit)
        except (TypeError, ValueError):  # none, or text
            continue
        whole, packed = stored.kind in "iu", (scale, offset) != (1.0, 0.0)
        if whole and packed and np.asarray(limit).dtype.kind == "f":
            number = round((number - offset) / scale, 6)
            k = 1 - k if scale < 0 else k
        elif stored.kind == "u" and number < 0:  # written as a signed number
            number += 2.0 ** (8 * stored.itemsize)
        elif stored.kind == "f":
            with np.errstate(over="ignore"):
                number = float(stored.type(number))
        found[k] = number
    return found[0], found[1]
