"""Rows, columns and CRS of a cube, by its coordinates or by GeoZarr's attributes.

The CF conventions (sections 4 and 5.6) know axes by names, units and attributes, and a CRS by a
grid mapping. GeoZarr (the Zarr conventions ``proj:`` and ``spatial:``) writes both as attributes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from affine import Affine
from pyproj import CRS
from pyproj.exceptions import CRSError

from geo.core.errors import InputError, Problem
from geo.grids.conventions import GRID_MAPPING, are_degrees, is_latitude, is_longitude
from geo.grids.grid import Tile

UNEVEN = 1e-3  # of a step: coordinates are often rounded
_KM = ("km", "kilometer", "kilometers", "kilometre", "kilometres")


class NoGridError(InputError):
    """A file without rows and columns by coordinates."""


@dataclass(frozen=True)
class GridAxes:
    """Rows and columns of a cube, from north to south and from west to east.

    Attributes
    ----------
    y_name, x_name : str
        Dimensions.
    transform : affine.Affine
    shape : tuple of int
    rows_rise, columns_fall : bool
        Whether they are stored from south to north, from east to west.
    """

    y_name: str
    x_name: str
    transform: Affine
    shape: tuple[int, int]
    rows_rise: bool = False
    columns_fall: bool = False

    def rows(self, tile: Tile) -> slice:
        """Return where the rows of a tile are stored."""
        return _stored(tile.row, tile.n_row, self.shape[0], self.rows_rise)

    def columns(self, tile: Tile) -> slice:
        """Return where the columns of a tile are stored."""
        return _stored(tile.col, tile.n_col, self.shape[1], self.columns_fall)

    def north_up(self, stored: np.ndarray) -> np.ndarray:
        """Return an array, (n_row, n_col), as it is stored in the order of the tile."""
        return stored[:: -1 if self.rows_rise else 1, :: -1 if self.columns_fall else 1]


def grid_axes(path: str, data: Any, own: Any) -> GridAxes:
    """Return rows and columns of a variable.

    Raises
    ------
    InputError
        If the steps of an axis are uneven; NoGridError if there are no axes.
    """
    declared = _by_attributes(data, own)
    if declared is not None:
        return declared
    y_name, x_name = _names(path, data, own)
    x, y = (own[axis].to_numpy().astype(np.float64) for axis in (x_name, y_name))
    if is_longitude(x_name, _unit(own, x_name)):
        x = np.unwrap(x, period=360.0)  # 0 to 180, then -180 to 0: one range
    scale = 1000.0 if _unit(own, x_name).lower() in _KM else 1.0
    rise, fall = bool(y.size > 1 and y[0] < y[-1]), bool(x.size > 1 and x[0] > x[-1])
    x, y = scale * (x[::-1] if fall else x), scale * (y[::-1] if rise else y)
    dx, dy = _step(path, x_name, x), _step(path, y_name, y)
    transform = Affine(dx, 0.0, x[0] - dx / 2, 0.0, dy, y[0] - dy / 2)
    return GridAxes(y_name, x_name, transform, (y.size, x.size), rise, fall)


def cube_crs(data: Any, own: Any, axes: GridAxes) -> CRS | None:
    """Return the CRS of the grid mapping, of GeoZarr's or GDAL's attributes, or of degrees."""
    named = str(own.attrs.get("grid_mapping") or own.encoding.get("grid_mapping") or GRID_MAPPING)
    mapping = named.split(":")[0].strip()  # CF also writes "crs: y x"
    attrs = dict(data[mapping].attrs) if mapping in data.variables else {}
    texts = [attrs.get("crs_wkt"), attrs.get("spatial_ref")]
    for given in (data.attrs, own.attrs):
        texts += [given.get("proj:code"), given.get("proj:wkt2"), given.get("crs")]
        if isinstance(of_gdal := given.get("_CRS"), dict):
            texts += [of_gdal.get("wkt"), of_gdal.get("url"), json.dumps(of_gdal.get("projjson"))]
    for text in texts:
        if isinstance(text, str) and text:
            try:
                return CRS.from_user_input(text)
            except CRSError:
                continue
    if attrs.get("grid_mapping_name"):
        try:
            return CRS.from_cf(attrs)
        except (CRSError, KeyError):
            return None
    units = {_unit(own, str(dim)) for dim in own.dims}
    (west, north), (east, south) = axes.transform @ (0, 0), axes.transform @ axes.shape[::-1]
    # As longitudes go on past a full turn, the centres of the outer pixels lie within it.
    inside = -361 - axes.transform.a <= west < east <= 540 + axes.transform.a
    inside &= south >= -91 + axes.transform.e and north <= 91 - axes.transform.e
    return CRS("EPSG:4326") if inside and are_degrees(units) else None


def is_coordinate(data: Any, name: str) -> bool:
    """Return whether a variable of a dataset has latitudes or longitudes, whatever its shape."""
    unit = str(data[name].attrs.get("units", ""))
    return is_latitude(name, unit) or is_longitude(name, unit)


def _by_attributes(data: Any, own: Any) -> GridAxes | None:
    """Return the grid of GeoZarr's attributes, of a variable whose axes have no coordinates."""
    for attrs in (own.attrs, data.attrs):
        numbers, named = attrs.get("spatial:transform"), attrs.get("spatial:dimensions")
        y_name, x_name = (str(each) for each in (named or own.dims[-2:]))
        missing = not ({y_name, x_name} <= set(own.coords))
        if numbers is None or not missing or not {y_name, x_name} <= set(own.dims):
            continue
        transform = Affine(*(float(each) for each in numbers[:6]))
        if attrs.get("spatial:registration") == "node":
            transform = transform @ Affine.translation(-0.5, -0.5)
        return GridAxes(y_name, x_name, transform, (own.sizes[y_name], own.sizes[x_name]))
    return None


def _names(path: str, data: Any, own: Any) -> tuple[str, str]:
    """Return the names of the axes of rows and columns, by names, units and CF's attributes."""
    found = []
    for fits, letter, of_pole in (
        (is_latitude, "y", "grid_latitude"),
        (is_longitude, "x", "grid_longitude"),
    ):
        found += [
            str(dim)
            for dim in own.dims
            if dim in own.coords
            and (
                fits(str(dim), _unit(own, str(dim)))
                or str(dim).lower() == letter
                or str(own[dim].attrs.get("axis", "")).lower() == letter
                or own[dim].attrs.get("standard_name")
                in (f"projection_{letter}_coordinate", of_pole)
            )
        ][:1]
    curved = [
        name
        for name in map(str, data.variables)
        if data[name].ndim == 2 and is_coordinate(data, name) and {*data[name].dims} <= {*own.dims}
    ]
    if len(found) < 2 and len(curved) >= 2:
        what = f"has coordinates of two dimensions ({', '.join(sorted(curved))})"
        what += ": its pixels are no regular grid"
        warp = f"gdalwarp -geoloc -t_srs EPSG:4326 NETCDF:in.nc:{own.name} out.tif"
        remedy = f"resample it to one (cdo remapbil,GRID in.nc out.nc, or {warp})"
        raise InputError(Problem(path, what, remedy))
    if len(found) < 2:
        what = (
            f"{own.name!r} has no coordinates of rows and columns ({', '.join(map(str, own.dims))})"
        )
        raise NoGridError(Problem(path, what, "write it with its coordinates y and x"))
    return found[0], found[1]


def _unit(own: Any, axis: str) -> str:
    return str(own[axis].attrs.get("units", "")) if axis in own.coords else ""


def _stored(first: int, n: int, of: int, turned: bool) -> slice:
    start = of - first - n if turned else first
    return slice(start, start + n)


def _step(path: str, axis: str, at: np.ndarray) -> float:
    """Return the step of an axis; InputError if it is uneven."""
    if at.size < 2:
        found = f"has a single {axis}, so that its step is not known"
        raise InputError(Problem(path, found, "give a GeoTIFF"))
    steps = np.diff(at)
    if np.abs(steps - steps.mean()).max() > UNEVEN * abs(steps.mean()) or steps.mean() == 0:
        found = f"has uneven steps of {axis}: its pixels are no grid"
        even = f"numpy.linspace(*d.{axis}.data[[0, -1]], d.{axis}.size)"
        raise InputError(
            Problem(path, found, f"interpolate it to even steps: d.interp({axis}={even})")
        )
    return float((at[-1] - at[0]) / (at.size - 1))
