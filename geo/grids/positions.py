"""Positions of pixels, km, whose straight-line distances are true for any CRS and extent.

A position is a point of the ellipsoid in the right-handed axes east, north, up of a reference point
(EPSG method 9837, "Geographic/topocentric conversions"). The distance of two positions is the
chord of the ellipsoid between them: that along the surface, less its part d^2 / (24 R^2). The
reference turns and moves all positions alike, so that no distance depends on it. See
``docs/design/distances.md``.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from pyproj import CRS, Transformer

from geo.grids.grid import Grid, plane_km, same_crs

#: Pixels whose mean position the reference is.
N_SAMPLE = 10_000


class Positions:
    """Positions of a grid's pixels in a CRS of two or three axes.

    Parameters
    ----------
    grid : Grid
    crs : pyproj.CRS or str
        The CRS of the positions, in metres, or its WKT: that of :func:`topocentric_crs`, or the
        plane that stores of version 1 have.

    Attributes
    ----------
    n_axis : int
        3, or 2 in a plane.
    """

    def __init__(self, grid: Grid, crs: CRS | str) -> None:
        self._grid = grid
        self.crs = crs if isinstance(crs, CRS) else CRS.from_wkt(crs)
        self.n_axis = len(self.crs.axis_info)

    @classmethod
    def of(cls, grid: Grid, wkt: str | None) -> Positions:
        """Return the positions of an aligned grid with the attribute ``coords_crs``.

        Grids of earlier versions lack it: theirs are those in :func:`geo.grids.grid.plane_km`.
        """
        return cls(grid, plane_km(grid) if wkt is None else wkt)

    @cached_property
    def _there(self) -> Transformer | None:
        if self.n_axis == 2 and same_crs(self._grid.crs, self.crs):
            return None
        return Transformer.from_crs(self._grid.crs, self.crs, always_xy=True)

    def km(self, row: Any, col: Any) -> np.ndarray:
        """Return the positions of pixel centres, (n, n_axis) float64, km.

        PROJ computes each point by itself: its position does not depend on the other points.
        """
        t = self._grid.transform
        x = t.c + (np.asarray(col, np.float64) + 0.5) * t.a
        y = t.f + (np.asarray(row, np.float64) + 0.5) * t.e
        axes: tuple[Any, ...] = (x, y) if self.n_axis == 2 else (x, y, np.zeros_like(x))
        if self._there is not None:
            axes = self._there.transform(*axes)
        return np.column_stack(axes) / 1000.0


def positions_about(grid: Grid, pixel: np.ndarray) -> Positions:
    """Return positions about the middle of some pixels, to a whole degree.

    Parameters
    ----------
    grid : Grid
    pixel : (n,) int array
        Numbers of the pixels inside areas; without any, the whole grid counts.

    Returns
    -------
    Positions
        Of three axes.
    """
    row: np.ndarray
    col: np.ndarray
    if pixel.size == 0:
        n_row, n_col = grid.shape
        rows, cols = np.meshgrid(np.linspace(0, n_row - 1, 9), np.linspace(0, n_col - 1, 9))
        row, col = rows.ravel(), cols.ravel()
    else:
        row, col = grid.row_col(pixel[:: -(-pixel.size // N_SAMPLE)])
    from_centre = Positions(grid, _geocentric_crs(grid)).km(row, col)
    from_centre = from_centre[np.isfinite(from_centre).all(axis=1)]
    x, y, z = from_centre.mean(axis=0) if from_centre.size else (1.0, 0.0, 0.0)
    if math.hypot(x, y, z) < 1.0:  # km; all around the Earth: every reference is as good
        x, y, z = 1.0, 0.0, 0.0
    if math.hypot(x, y) < 1.0:  # a pole
        x, y = 1e-9, 0.0
    lon, lat = math.degrees(math.atan2(y, x)), math.degrees(math.atan2(z, math.hypot(x, y)))
    # Whole degrees: the text is the same on every machine, and mostly when an area is added or
    # left out. Surfaces are drawn from waves in these positions: another reference draws others.
    return Positions(grid, topocentric_crs(grid, float(round(lon)), float(round(lat))))


def topocentric_crs(grid: Grid, lon: float, lat: float) -> CRS:
    """Return the CRS east, north, up (metres) about a point of the grid's ellipsoid.

    Its datum is the grid's: a shift between datums would only move all points alike.

    Parameters
    ----------
    grid : Grid
    lon, lat : float
        The reference, degrees.
    """
    geodetic = _geodetic(grid)
    origin = (
        ("Latitude of topocentric origin", lat, "degree", 8834),
        ("Longitude of topocentric origin", lon, "degree", 8835),
        ("Ellipsoidal height of topocentric origin", 0.0, "metre", 8836),
    )
    axes = (("East", "U", "east"), ("North", "V", "north"), ("Height", "W", "up"))
    return CRS.from_json_dict(
        {
            "type": "DerivedGeodeticCRS",
            "name": f"topocentric about {lat:.3f} {lon:.3f}",
            "base_crs": geodetic.to_json_dict(),
            "conversion": {
                "name": "topocentric",
                "method": {
                    "name": "Geographic/topocentric conversions",
                    "id": {"authority": "EPSG", "code": 9837},
                },
                "parameters": [
                    {
                        "name": name,
                        "value": value,
                        "unit": unit,
                        "id": {"authority": "EPSG", "code": code},
                    }
                    for name, value, unit, code in origin
                ],
            },
            "coordinate_system": {
                "subtype": "Cartesian",
                "axis": [
                    {"name": name, "abbreviation": short, "direction": way, "unit": "metre"}
                    for name, short, way in axes
                ],
            },
        }
    )


def _geodetic(grid: Grid) -> CRS:
    return grid.crs.geodetic_crs or CRS.from_epsg(4326)


def _geocentric_crs(grid: Grid) -> CRS:
    """Return the CRS of points relative to the Earth's centre, with the grid's datum."""
    described = _geodetic(grid).to_json_dict()
    described.pop("id", None)
    described["type"] = "GeodeticCRS"
    described["coordinate_system"] = {
        "subtype": "Cartesian",
        "axis": [
            {"name": f"Geocentric {a}", "abbreviation": a, "direction": f"geocentric{a}",
             "unit": "metre"}
            for a in "XYZ"
        ],
    }  # fmt: skip
    return CRS.from_json_dict(described)
