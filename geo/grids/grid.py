"""The grid that a run resamples all rasters to, and its tiles; no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from pyproj import CRS, Geod, Transformer
from pyproj.exceptions import CRSError

from geo.core.errors import GridError

Bounds = tuple[float, float, float, float]


@dataclass(frozen=True)
class Tile:
    """A rectangle of a grid's pixels: first row and column, numbers of rows and columns."""

    row: int
    col: int
    n_row: int
    n_col: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns as slices, to index an array of the whole grid."""
        return (
            slice(self.row, self.row + self.n_row),
            slice(self.col, self.col + self.n_col),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.n_row, self.n_col

    def halves(self, axis: int) -> tuple[Tile, Tile]:
        """Split the tile along its rows (``axis`` 0) or its columns (1)."""
        row, col, n_row, n_col = self.row, self.col, self.n_row, self.n_col
        if axis == 0:
            n = n_row // 2
            return Tile(row, col, n, n_col), Tile(row + n, col, n_row - n, n_col)
        n = n_col // 2
        return Tile(row, col, n_row, n), Tile(row, col + n, n_row, n_col - n)


@dataclass(frozen=True, eq=False)
class Grid:
    """Pixels of equal size in a coordinate reference system, north up.

    Two grids are equal if their shapes and transforms are equal and their CRSs are equivalent,
    however each is written.

    Parameters
    ----------
    crs : pyproj.CRS
        Coordinate reference system; anything that ``CRS.from_user_input`` accepts.
    transform : affine.Affine
        From (column, row) to (x, y), in units of the CRS.
    shape : tuple of int
        Numbers of rows and columns.

    Raises
    ------
    GridError
        If the grid is rotated or south-up, has no pixel, or the CRS cannot be understood.
    """

    crs: CRS
    transform: Affine
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        """Check the arguments and convert them to their types."""
        try:
            crs = CRS.from_user_input(self.crs)
        except CRSError as error:
            msg = f"the grid's CRS {self.crs!r} is not known ({error}); give one as EPSG:xxxx"
            raise GridError(msg) from error
        t = Affine(*(float(v) for v in tuple(self.transform)[:6]))
        n_row, n_col = (int(n) for n in self.shape)
        # A rotation that moves corners by less than a thousandth of a pixel is rounding.
        if abs(t.b) * n_row > 1e-3 * abs(t.a) or abs(t.d) * n_col > 1e-3 * abs(t.e):
            msg = f"the grid is rotated (transform {tuple(t)[:6]}); warp it north-up (gdalwarp)"
            raise GridError(msg)
        if not (t.a > 0 and t.e < 0):
            msg = (
                f"the grid's pixels are {t.a:g} x {t.e:g}, not north-up (expected > 0 and < 0); "
                "warp it north-up (gdalwarp)"
            )
            raise GridError(msg)
        if n_row < 1 or n_col < 1:
            msg = f"the grid has {n_row} rows and {n_col} columns; give at least one of each"
            raise GridError(msg)
        object.__setattr__(self, "crs", crs)
        object.__setattr__(self, "transform", Affine(t.a, 0.0, t.c, 0.0, t.e, t.f))
        object.__setattr__(self, "shape", (n_row, n_col))

    def __eq__(self, other: object) -> bool:
        """Compare shape, transform and CRS."""
        if not isinstance(other, Grid):
            return NotImplemented
        return (
            self.shape == other.shape
            and tuple(self.transform) == tuple(other.transform)
            and same_crs(self.crs, other.crs)
        )

    def __hash__(self) -> int:
        """Hash without the CRS: equivalent CRSs may be written differently."""
        return hash((tuple(self.transform), self.shape))

    @classmethod
    def from_bounds(cls, crs: Any, bounds: Bounds, res: float | tuple[float, float]) -> Grid:
        """Return the smallest grid of resolution ``res`` that covers ``bounds``.

        Its edges are multiples of ``res``, so that the grids of neighbouring bounds share pixels.

        Parameters
        ----------
        crs : pyproj.CRS or str
            Coordinate reference system.
        bounds : tuple of float
            Left, bottom, right, top, in units of the CRS.
        res : float or tuple of float
            Size of a pixel, in units of the CRS.
        """
        res_x, res_y = (float(r) for r in (res if isinstance(res, tuple) else (res, res)))
        left, bottom, right, top = (float(b) for b in bounds)
        finite = all(map(math.isfinite, (left, bottom, right, top)))
        if not (res_x > 0 and res_y > 0 and finite and right > left and top > bottom):
            msg = f"no grid of resolution {res} covers bounds {tuple(bounds)}; give both > 0"
            raise GridError(msg)
        # The tolerance of a millionth of a pixel keeps bounds on an edge from adding a column.
        col_0, col_1 = math.floor(left / res_x + 1e-6), math.ceil(right / res_x - 1e-6)
        row_0, row_1 = math.floor(bottom / res_y + 1e-6), math.ceil(top / res_y - 1e-6)
        transform = Affine(res_x, 0.0, col_0 * res_x, 0.0, -res_y, row_1 * res_y)
        return cls(crs, transform, (max(row_1 - row_0, 1), max(col_1 - col_0, 1)))

    @property
    def n_pix(self) -> int:
        """Number of pixels."""
        return self.shape[0] * self.shape[1]

    @property
    def res(self) -> tuple[float, float]:
        """Width and height of a pixel, in units of the CRS."""
        return self.transform.a, -self.transform.e

    @property
    def bounds(self) -> Bounds:
        """Left, bottom, right, top, in units of the CRS."""
        return self.tile_bounds(self.whole)

    @property
    def whole(self) -> Tile:
        """The tile of all pixels."""
        return Tile(0, 0, *self.shape)

    def tile_bounds(self, tile: Tile) -> Bounds:
        """Return left, bottom, right, top of a tile, in units of the CRS."""
        t = self.transform
        return (
            t.c + tile.col * t.a,
            t.f + (tile.row + tile.n_row) * t.e,
            t.c + (tile.col + tile.n_col) * t.a,
            t.f + tile.row * t.e,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the grid as JSON-able values: crs (WKT), transform (6 floats), shape."""
        return {
            "crs": self.crs.to_wkt(),
            "transform": [float(v) for v in tuple(self.transform)[:6]],
            "shape": list(self.shape),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Grid:
        """Return the grid that :meth:`to_dict` wrote."""
        n_row, n_col = values["shape"]
        return cls(CRS.from_wkt(values["crs"]), Affine(*values["transform"]), (n_row, n_col))

    def tiles(self, size: int = 512) -> Iterator[Tile]:
        """Yield tiles of at most ``size`` x ``size`` pixels, row by row, that cover the grid."""
        for row in range(0, self.shape[0], size):
            for col in range(0, self.shape[1], size):
                yield Tile(row, col, min(size, self.shape[0] - row), min(size, self.shape[1] - col))

    def centres(self, tile: Tile | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the centres of a tile's pixels: x and y, each (n_row, n_col), units of the CRS."""
        tile = tile or self.whole
        x = self.transform.c + (tile.col + np.arange(tile.n_col) + 0.5) * self.transform.a
        y = self.transform.f + (tile.row + np.arange(tile.n_row) + 0.5) * self.transform.e
        return np.broadcast_to(x, tile.shape), np.broadcast_to(y[:, None], tile.shape)

    def pixel_index(self, row: Any, col: Any) -> np.ndarray:
        """Return the number of a pixel in the grid, ``row * n_col + col``, int64."""
        return np.asarray(row, np.int64) * self.shape[1] + np.asarray(col, np.int64)

    def row_col(self, pixel: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and column, int64, of each pixel number (see :meth:`pixel_index`)."""
        row, col = np.divmod(np.asarray(pixel, np.int64), self.shape[1])
        return row, col

    def area_km2(self, tile: Tile | None = None) -> np.ndarray:
        """Return the true area on the ellipsoid of each pixel of a tile.

        Exact where the CRS is geographic (Snyder 1987, eq. 3-12: the zone between two
        parallels). In a projected CRS the corners are transformed to Lambert's cylindrical
        equal-area projection, where the pixel is a quadrilateral. Planar area would have the error
        of the projection's scale: 12 % in Web Mercator at 20 degrees, 0.1 % in UTM.

        Returns
        -------
        (n_row, n_col) float64 array, km2
        """
        tile = tile or self.whole
        if self.crs.is_geographic:
            # Every pixel of a row has the same area.
            one = Tile(tile.row, tile.col, tile.n_row, 1)
            return np.repeat(pixel_area_km2(self.crs, self.transform, one), tile.n_col, axis=1)
        return pixel_area_km2(self.crs, self.transform, tile)


def pixel_area_km2(crs: CRS, transform: Affine, tile: Tile) -> np.ndarray:
    """Return the true area on the ellipsoid of each pixel of a tile, see :meth:`Grid.area_km2`.

    Parameters
    ----------
    crs : pyproj.CRS
    transform : Affine
        From (column, row) to (x, y); south-up and rotated pixels have an area, too.
    tile : Tile

    Returns
    -------
    (n_row, n_col) float64 array, km2
    """
    t = transform
    col = (tile.col + np.arange(tile.n_col + 1))[None, :]
    row = (tile.row + np.arange(tile.n_row + 1))[:, None]
    # A north-up transform adds exact zeros here.
    x, y = t.c + col * t.a + row * t.b, t.f + row * t.e + col * t.d
    geod = crs.get_geod() or Geod(ellps="WGS84")
    if crs.is_geographic:
        unit = crs.axis_info[0].unit_conversion_factor  # radians in one unit (a degree)
        lon, lat = x * unit, y * unit
    else:
        geographic = crs.geodetic_crs or CRS.from_epsg(4326)
        to_degrees = Transformer.from_crs(crs, geographic, always_xy=True)
        unit = geographic.axis_info[0].unit_conversion_factor
        lon, lat = (np.asarray(v) * unit for v in to_degrees.transform(x, y))
    height = _authalic_height_km2(np.clip(lat, -np.pi / 2, np.pi / 2), geod)
    # Relative to the first corner, the short way round: the date line may cross the pixel.
    corners = [
        (_wrap_angle(lon[s] - lon[:-1, :-1]), height[s] - height[:-1, :-1])
        for s in (np.s_[:-1, 1:], np.s_[1:, 1:], np.s_[1:, :-1])
    ]
    twice = sum(a[0] * b[1] - a[1] * b[0] for a, b in pairwise(corners))
    return np.abs(0.5 * np.asarray(twice))


def _wrap_angle(angle: np.ndarray) -> np.ndarray:
    """Return an angle, radians, wrapped to [-pi, pi]."""
    return angle - 2 * np.pi * np.round(angle / (2 * np.pi))


def _authalic_height_km2(latitude: np.ndarray, geod: Geod) -> np.ndarray:
    """Return the area per radian of longitude between the equator and a latitude, km2.

    Snyder (1987), Map projections, eq. 3-12 times half the squared equatorial radius.
    """
    e, s = math.sqrt(geod.es), np.sin(latitude)
    inverse = np.arctanh(e * s) / e if e > 0 else s
    return 0.5 * geod.b**2 / 1e6 * (s / (1.0 - geod.es * s * s) + inverse)


@lru_cache(maxsize=256)
def _same_wkt(a: str, b: str) -> bool:
    first, second = CRS.from_wkt(a), CRS.from_wkt(b)
    if first.equals(second, ignore_axis_order=True):
        return True
    # The same CRS from a GeoTIFF and from EPSG may differ in a name alone.
    if bool(rasterio.crs.CRS.from_wkt(a) == rasterio.crs.CRS.from_wkt(b)):
        return True
    code = first.to_epsg()
    return code is not None and code == second.to_epsg()


def same_crs(a: CRS, b: CRS) -> bool:
    """Return whether two CRSs are equivalent, whatever their wording and axis order."""
    return a is b or _same_wkt(a.to_wkt(), b.to_wkt())


def is_mappable(crs: CRS) -> bool:
    """Return whether a CRS is geographic or projected: not geocentric, local or vertical."""
    return not crs.is_geocentric and (crs.is_geographic or crs.is_projected)


def plane_km(grid: Grid) -> CRS:
    """Return the CRS, in metres, in which distances on a grid are measured.

    The grid's CRS if it is projected in metres; else Lambert's azimuthal equal-area projection
    about the grid's centre.
    """
    if grid.crs.is_projected and math.isclose(grid.crs.axis_info[0].unit_conversion_factor, 1.0):
        return grid.crs
    left, bottom, right, top = grid.bounds
    geographic = grid.crs.geodetic_crs or CRS.from_epsg(4326)
    lon, lat = Transformer.from_crs(grid.crs, geographic, always_xy=True).transform(
        0.5 * (left + right), 0.5 * (bottom + top)
    )
    # Rounded to a thousandth of a degree, so that the text is the same on every machine.
    text = f"+proj=laea +lat_0={lat:.3f} +lon_0={lon:.3f} +units=m +no_defs +type=crs"
    geod = grid.crs.get_geod()
    ellipsoid = f" +a={geod.a} +b={geod.b}" if geod is not None else " +ellps=WGS84"
    return CRS.from_proj4(text + ellipsoid)
