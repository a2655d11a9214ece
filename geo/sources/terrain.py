"""Slope and aspect of an elevation raster, by windows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from affine import Affine
from pyproj import Geod

from geo.core.errors import InputError, Problem
from geo.grids.grid import Tile, pixel_area_km2
from geo.grids.longitudes import period
from geo.sources.derived import DerivedSource
from geo.sources.source import Source

#: What is made of an elevation raster, with its unit.
TERRAIN = {"slope": "degrees", "northness": "1", "eastness": "1"}
#: Units of an elevation that are metres; "" is none that is said.
METRES = ("", "m", "metre", "metres", "meter", "meters")
N_NODE = 128  # along each side, between which the scale of a projection is interpolated


class TerrainSource(DerivedSource):
    """Slope of an elevation raster in degrees, or the direction that it faces.

    The gradient is Horn's: that of the eight neighbours of a pixel, those beside it twice. A pixel
    is missing where one of the nine is: at the edge of a raster, too, unless it is one around the
    Earth. In degrees, a pixel is as wide and as high as on the ellipsoid at its latitude. In a
    projection, the scale of the place is taken out as far as it shows in the area of a pixel:
    exactly where angles are kept (UTM, Mercator), not at all where areas are.

    Parameters
    ----------
    source : Source
        Elevation, metres.
    what : str
        A key of :data:`TERRAIN`: ``slope``; ``northness``, the cosine of the aspect, 1 on slopes
        that face north; ``eastness``, its sine. Both are 0 on a plain, which has no aspect.

    Raises
    ------
    InputError
        If the elevation is in another unit.

    References
    ----------
    Horn, B. K. P. (1981). Hill shading and the reflectance map. Proceedings of the IEEE 69(1),
    p. 18, the weighted differences; gdaldem has the same by default.
    """

    def __init__(self, source: Source, what: str) -> None:
        super().__init__(source, TERRAIN[what])
        self._what, unit = what, source.describe().unit
        if unit.strip().lower() not in METRES:
            found = f"is in {unit}, but slope and aspect need an elevation in metres"
            remedy = "give its factor and `units: m`: scale: 0.3048 of feet, say"
            raise InputError(Problem(self.path, found, remedy))
        turn = None
        if source.crs is not None:
            turn = period(source.crs, source.transform, source.shape[1])
        self._around = turn == source.shape[1]

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        tile = window or Tile(0, 0, *self.shape)
        z = self._with_neighbours(tile, time)
        top, middle, bottom = z[:-2], z[1:-1], z[2:]
        right = top[:, 2:] + 2.0 * middle[:, 2:] + bottom[:, 2:]
        left = top[:, :-2] + 2.0 * middle[:, :-2] + bottom[:, :-2]
        below = bottom[:, :-2] + 2.0 * bottom[:, 1:-1] + bottom[:, 2:]
        above = top[:, :-2] + 2.0 * top[:, 1:-1] + top[:, 2:]
        by_col, by_row = (right - left) / 8.0, (below - above) / 8.0
        t = self.transform
        # From pixels to units of the CRS, rotated and south-up rasters included.
        east = (t.e * by_col - t.d * by_row) / t.determinant
        north = (t.a * by_row - t.b * by_col) / t.determinant
        metres_x, metres_y = self._metres(tile)
        east, north = east / metres_x, north / metres_y
        steep = np.hypot(east, north)
        if self._what == "slope":
            found = np.degrees(np.arctan(steep))
        else:
            down = -(north if self._what == "northness" else east)
            found = np.divide(down, steep, out=np.zeros_like(steep), where=steep > 0)
        found[np.isnan(middle[:, 1:-1]) | np.isnan(steep)] = np.nan
        return found

    def _with_neighbours(self, tile: Tile, time: str | None) -> np.ndarray:
        """Return the elevation of a window and of the pixels around it, NaN beyond the raster."""
        n_row, n_col = self.shape
        top, bottom = max(tile.row - 1, 0), min(tile.row + tile.n_row + 1, n_row)
        left, right = max(tile.col - 1, 0), min(tile.col + tile.n_col + 1, n_col)
        found = np.full((tile.n_row + 2, tile.n_col + 2), np.nan)
        first_row, first_col = top - tile.row + 1, left - tile.col + 1
        rows = slice(first_row, first_row + bottom - top)
        inner = Tile(top, left, bottom - top, right - left)
        found[rows, first_col : first_col + right - left] = self._source.read(inner, time)
        if self._around:
            for at, column in ((0, n_col - 1), (-1, 0)):
                if tile.col + (-1 if at == 0 else tile.n_col) in (-1, n_col):
                    beyond = Tile(top, column, bottom - top, 1)
                    found[rows, at] = self._source.read(beyond, time)[:, 0]
        return found

    def _metres(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """Return the metres in a unit of the CRS, eastwards and northwards, of each pixel."""
        t, crs = self.transform, self.crs
        row = (tile.row + 0.5 + np.arange(tile.n_row))[:, None]
        col = (tile.col + 0.5 + np.arange(tile.n_col))[None, :]
        if crs is None:
            return np.ones((1, 1)), np.ones((1, 1))
        unit = crs.axis_info[0].unit_conversion_factor
        if not crs.is_geographic:
            from scipy.ndimage import map_coordinates  # slow to import, and seldom needed

            n_row, n_col = self.shape
            at = np.broadcast_arrays(row * N_NODE / n_row - 0.5, col * N_NODE / n_col - 0.5)
            scale = unit * map_coordinates(self._true_lengths, at, order=1, mode="nearest")
            return scale, scale
        geod = crs.get_geod() or Geod(ellps="WGS84")
        latitude = unit * (t.f + row * t.e + (col * t.d if t.d else 0.0))
        part = 1.0 - geod.es * np.sin(latitude) ** 2
        across = geod.a / np.sqrt(part)
        along = across * (1.0 - geod.es) / part
        # No parallel is shorter than a metre, the pole itself included.
        round_axis = np.maximum(across * np.cos(latitude), 1.0)
        return unit * round_axis, unit * along

    @cached_property
    def _true_lengths(self) -> np.ndarray:
        """Return true lengths over those in the projection, (N_NODE, N_NODE) over the raster."""
        crs, (n_row, n_col) = self.crs, self.shape
        assert crs is not None
        coarse = self.transform @ Affine.scale(n_col / N_NODE, n_row / N_NODE)
        true = pixel_area_km2(crs, coarse, Tile(0, 0, N_NODE, N_NODE))
        unit = crs.axis_info[0].unit_conversion_factor
        ratio = np.sqrt(1e6 * true / (abs(coarse.determinant) * unit**2))
        return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
