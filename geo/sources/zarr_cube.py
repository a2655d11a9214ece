"""Zarr stores of cubes, as xarray writes and reads them (CF conventions).

Only the chunks of a window and of a time are read.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from pyproj import CRS
from pyproj.exceptions import CRSError

from geo.core.errors import InputError, Problem, name_first
from geo.core.stopping import stop_if_asked
from geo.grids.conventions import GRID_MAPPING, are_degrees, is_latitude, is_longitude
from geo.grids.grid import Tile
from geo.sources.raster_bands import texts_of_times
from geo.sources.raster_header import ANY_BAND, AS_IT_IS, BandChoice, RasterHeader
from geo.sources.source import N_NAMED, Band, Description, Source, of_time, unknown

UNEVEN = 1e-3  # of a step: coordinates are often rounded


class ZarrCube(Source):
    """A variable of a Zarr store: one band, or one of each time.

    Parameters
    ----------
    path : str
        A directory.
    choice : BandChoice, optional
    header : RasterHeader, optional

    Raises
    ------
    InputError
        If it is no Zarr store with a grid, or several variables or bands fit.
    """

    def __init__(
        self, path: str | Path, choice: BandChoice = ANY_BAND, header: RasterHeader = AS_IT_IS
    ) -> None:
        self.path = str(path)
        self._local = threading.local()
        data = self._open()
        self._name = _variable(self.path, data, choice.variable)
        own = data[self._name]
        self._y, self._x = _axes(self.path, own)
        others = [str(dim) for dim in own.dims if dim not in (self._y, self._x)]
        self._time = next((dim for dim in others if own[dim].dtype.kind == "M"), "")
        deep = [dim for dim in others if dim != self._time and own.sizes[dim] > 1]
        if deep:
            found = f"has {own.sizes[deep[0]]} steps of {deep[0]!r} besides rows and columns"
            raise InputError(Problem(self.path, found, f"choose one: .isel({deep[0]}=0)"))
        x, y = (own[axis].to_numpy().astype(np.float64) for axis in (self._x, self._y))
        self._flipped = bool(y.size > 1 and y[0] < y[-1])
        if self._flipped:
            y = y[::-1]
        steps = [_step(self.path, axis, at) for axis, at in ((self._x, x), (self._y, y))]
        if steps[0] < 0:
            found = f"has falling {self._x}"
            raise InputError(Problem(self.path, found, f"sort it: .sortby({self._x!r})"))
        times = [""]
        if self._time:
            times = texts_of_times(own[self._time].to_numpy().astype("datetime64[m]"))
        every = [Band(k, self._name, time) for k, time in enumerate(times, 1)]
        if choice.band is not None:
            every = [each for each in every if each.number == choice.band]
        bands = of_time(self.path, every, None if choice.time == self._time else choice.time)
        attrs = {**own.attrs, **own.encoding}
        fills = [attrs[key] for key in ("_FillValue", "missing_value") if key in attrs]
        self._about = Description(
            crs=_crs(data, own, x, y),
            transform=Affine(
                steps[0], 0.0, x[0] - steps[0] / 2, 0.0, steps[1], y[0] - steps[1] / 2
            ),
            shape=(y.size, x.size),
            dtype=str(own.dtype),
            bands=tuple(bands),
            nodata=tuple(float(each) for each in fills),
            scale=float(attrs.get("scale_factor", 1.0)),
            offset=float(attrs.get("add_offset", 0.0)),
            unit=str(attrs.get("units", "")),
            description=str(attrs.get("long_name", "")),
        ).declared(header)

    def describe(self) -> Description:
        """Return what the store says, and what is declared."""
        return self._about

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        stop_if_asked()
        tile, band = window or Tile(0, 0, *self.shape), self.band_of(time)
        top = self.shape[0] - tile.row - tile.n_row if self._flipped else tile.row
        own = self._open()[self._name]
        at: dict[Any, Any] = {dim: 0 for dim in own.dims}
        at[self._y] = slice(top, top + tile.n_row)
        at[self._x] = slice(tile.col, tile.col + tile.n_col)
        if self._time:
            at[self._time] = band.number - 1
        try:
            stored = own.isel(at).transpose(self._y, self._x).to_numpy()
        except (OSError, ValueError, RuntimeError) as error:
            where = f"row {tile.row}, column {tile.col}"
            found = f"cannot be read at {where}: damaged ({str(error).splitlines()[0]})"
            raise InputError(Problem(self.path, found, "copy or write it again")) from error
        return self._about.values(stored[::-1] if self._flipped else stored)

    def __getstate__(self) -> dict[str, Any]:
        """Drop what is open."""
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen at the first read."""
        self.__dict__.update(state)
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's store; the next read opens it anew."""
        self._local.data = None

    def _open(self) -> Any:
        if getattr(self._local, "data", None) is None:
            import xarray as xr

            if not Path(self.path).exists():
                raise InputError(Problem(self.path, "no such file", "correct the path"))
            try:
                # Scale and nodata are the description's: a user may declare others.
                data = xr.open_zarr(
                    self.path, chunks=None, mask_and_scale=False, consolidated=False
                )
            except Exception as error:  # of zarr's own kinds
                cause = (str(error) or type(error).__name__).splitlines()[0]
                found = f"is not a Zarr store that xarray can read ({cause})"
                raise InputError(Problem(self.path, found, "write it with to_zarr")) from error
            self._local.data = data
        return self._local.data


def _variable(path: str, data: Any, wanted: str | None) -> str:
    """Return the name of the variable to read; InputError unless one alone fits."""
    known = [str(name) for name, each in data.data_vars.items() if each.ndim >= 2]
    if wanted is not None:
        if wanted not in known:
            raise unknown(path, "variable", wanted, known)
        return wanted
    if len(known) == 1:
        return known[0]
    if not known:
        found = "has no variable with rows and columns"
        raise InputError(Problem(path, found, "give a store of a grid"))
    found = f"has {len(known)} variables ({name_first(known, N_NAMED)})"
    remedy = f"choose one with the key `variable`, such as `variable: {known[0]}`"
    raise InputError(Problem(path, found, remedy))


def _axes(path: str, own: Any) -> tuple[str, str]:
    """Return the names of the axes of rows and columns, by names, units and CF's attributes."""
    found = []
    for fits, letter in ((is_latitude, "y"), (is_longitude, "x")):
        names = [
            str(dim)
            for dim in own.dims
            if dim in own.coords
            and (
                fits(str(dim), str(own[dim].attrs.get("units", "")))
                or str(dim).lower() == letter
                or str(own[dim].attrs.get("axis", "")).lower() == letter
                or own[dim].attrs.get("standard_name") == f"projection_{letter}_coordinate"
            )
        ]
        found += names[:1]
    if len(found) < 2:
        what = (
            f"{own.name!r} has no coordinates of rows and columns ({', '.join(map(str, own.dims))})"
        )
        raise InputError(Problem(path, what, "write it with its coordinates y and x"))
    return found[0], found[1]


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


def _crs(data: Any, own: Any, x: np.ndarray, y: np.ndarray) -> CRS | None:
    """Return the CRS of the grid mapping, of GeoZarr's attributes, or of axes in degrees."""
    mapping = own.attrs.get("grid_mapping", own.encoding.get("grid_mapping", GRID_MAPPING))
    attrs = dict(data[mapping].attrs) if mapping in data.variables else {}
    texts = [attrs.get("crs_wkt"), attrs.get("spatial_ref")]
    for given in (data.attrs, own.attrs):
        texts += [given.get("proj:code"), given.get("proj:wkt2"), given.get("crs")]
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
    units = {str(own[dim].attrs.get("units", "")) for dim in own.dims if dim in own.coords}
    inside = x.min() >= -361 and x.max() <= 361 and abs(y).max() <= 91
    return CRS("EPSG:4326") if inside and are_degrees(units) else None
