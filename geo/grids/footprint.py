"""Footprints on the globe: longitude and latitude of an extent in any CRS, as GeoJSON has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pyproj import CRS, Transformer
from shapely.geometry import MultiPolygon, Polygon, box, mapping

from geo.grids.grid import Bounds

_EDGE = 21  # points on each edge: an edge that is straight on the map is a curve on the globe
_DIGITS = 7  # of degrees: a centimetre


@dataclass(frozen=True)
class Footprint:
    """A place on the globe.

    Attributes
    ----------
    geometry : dict
        GeoJSON; cut in two at 180 degrees of longitude (RFC 7946, section 3.1.9).
    bbox : list of float
        West, south, east, north, degrees; west > east across 180 degrees.
    """

    geometry: dict[str, Any]
    bbox: list[float]


def footprint(crs: CRS, bounds: Bounds) -> Footprint:
    """Return the footprint of an extent.

    Parameters
    ----------
    crs : pyproj.CRS
    bounds : tuple of float
        Left, bottom, right, top, in units of the CRS; longitudes may run past 180.
    """
    to_degrees = Transformer.from_crs(crs, CRS.from_epsg(4326), always_xy=True)
    west, south, east, north = (
        float(v) for v in to_degrees.transform_bounds(*bounds, densify_pts=_EDGE)
    )
    if crs.is_geographic and bounds[2] - bounds[0] >= 360:
        west, east = -180.0, 180.0
    wraps = west != -180.0 or east != 180.0
    west, east = (_wrapped(v) if wraps else v for v in (west, east))
    if wraps and east == -180.0:
        east = 180.0
    bbox = [round(v, _DIGITS) + 0.0 for v in (west, max(south, -90.0), east, min(north, 90.0))]
    west, south, east, north = bbox
    if west > east:
        parts = [box(west, south, 180.0, north), box(-180.0, south, east, north)]
        return Footprint(_geojson(MultiPolygon(parts)), bbox)
    ring = np.round(np.column_stack(to_degrees.transform(*_outline(bounds))), _DIGITS)
    shape = Polygon(ring)
    inside = (ring[:, 0] >= west - 1e-6) & (ring[:, 0] <= east + 1e-6)
    if not (np.isfinite(ring).all() and inside.all() and shape.is_valid):
        shape = box(*bbox)  # around a pole, or more than the globe
    return Footprint(_geojson(shape), bbox)


def _wrapped(longitude: float) -> float:
    """Return a longitude between -180 and 180."""
    return longitude if -180 <= longitude <= 180 else (longitude + 180) % 360 - 180


def _outline(bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y along the edges of an extent, counter-clockwise, the first point again."""
    left, bottom, right, top = bounds
    t = np.linspace(0.0, 1.0, _EDGE)
    across, up = left + t * (right - left), bottom + t * (top - bottom)
    x = np.concatenate([across, np.full(_EDGE, right), across[::-1], np.full(_EDGE, left)])
    y = np.concatenate([np.full(_EDGE, bottom), up, np.full(_EDGE, top), up[::-1]])
    return x, y


def _geojson(shape: Any) -> dict[str, Any]:
    from shapely.geometry.polygon import orient

    parts = [orient(part) for part in getattr(shape, "geoms", [shape])]
    if len(parts) > 1:
        return _lists(mapping(MultiPolygon(parts)))
    return _lists(mapping(parts[0].simplify(0.0)))


def _lists(value: Any) -> Any:
    """Return tuples as lists: as JSON gives them back."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
