"""Cubes that xarray opens: Zarr stores and NetCDF, by the CF conventions and GeoZarr.

Only the chunks of a window and of some times are read.
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from geo.core.errors import InputError, Problem, VariablesError, name_first
from geo.core.stopping import stop_if_asked
from geo.grids.grid import Tile
from geo.sources.cube_axes import NoGridError, cube_crs, grid_axes, is_coordinate
from geo.sources.cube_packing import packing
from geo.sources.cube_times import TimeAxis, check_times, time_axis
from geo.sources.icechunk_store import SUFFIX, committed_store, is_repository
from geo.sources.raster import RasterSource
from geo.sources.raster_header import ANY_BAND, AS_IT_IS, BandChoice, RasterHeader
from geo.sources.source import (
    N_NAMED,
    Band,
    Description,
    Source,
    check_band,
    of_level,
    of_time,
    one_band,
    unknown,
)

#: Stored bytes read at once; a period of more is read in parts.
BYTES_AT_ONCE = 1 << 28
_HDF5, _NETCDF3 = b"\x89HDF", b"CDF"


class Cube(Source):
    """A variable of a Zarr store or NetCDF file: one band, or one of each time.

    Parameters
    ----------
    path : str
        A directory, or a file.
    choice : BandChoice, optional
    header : RasterHeader, optional

    Raises
    ------
    InputError
        If several variables or bands fit; NoGridError if there is no grid by coordinates.
    """

    def __init__(
        self, path: str | Path, choice: BandChoice = ANY_BAND, header: RasterHeader = AS_IT_IS
    ) -> None:
        self.path = str(path)
        self._local = threading.local()
        data = self._open()
        self._name, band = _variable(self.path, data, choice)
        own = data[self._name]
        self._axes = axes = grid_axes(self.path, data, own)
        self._others = [str(dim) for dim in own.dims if dim not in (axes.y_name, axes.x_name)]
        self._sizes = [own.sizes[dim] for dim in self._others]
        time = time_axis(self.path, data, own, self._others)
        every: Sequence[Band] = _bands(own, self._name, self._others, time)
        if band is not None:
            check_band(self.path, band, len(every))
            every = [every[band - 1]]
        every = of_level(self.path, every, choice.level)
        bands = of_time(self.path, every, None if choice.time == time.name else choice.time)
        if len({each.levels for each in bands}) > 1:
            check_times(self.path, own, bands)
            one_band(self.path, bands)
        packed = packing(own)
        self._stored = packed.dtype
        self._about = Description(
            crs=cube_crs(data, own, axes),
            transform=axes.transform,
            shape=axes.shape,
            dtype=str(packed.dtype),
            bands=tuple(bands),
            nodata=packed.nodata,
            valid=packed.valid,
            scale=packed.scale,
            offset=packed.offset,
            unit=str(own.attrs.get("units", "")),
            description=str(own.attrs.get("long_name", "")),
            calendar=time.calendar,
            climatology=time.climatology,
        ).declared(header, self.path)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        return self._values(window, [self.band_of(time)])[0]

    def steps(self, window: Tile | None, times: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the values of a window at some times, which are read together."""
        tile, by_time = window or Tile(0, 0, *self.shape), {b.time: b for b in self._about.bands}
        bands = [by_time[time] if time in by_time else self.band_of(time) for time in times]
        each = tile.n_row * tile.n_col * self._stored.itemsize
        most = max(BYTES_AT_ONCE // max(each, 1), 1)
        for start in range(0, len(bands), most):
            yield from self._values(tile, bands[start : start + most])

    def _values(self, window: Tile | None, bands: Sequence[Band]) -> list[np.ndarray]:
        stop_if_asked()
        tile, axes = window or Tile(0, 0, *self.shape), self._axes
        own = self._open()[self._name]
        at: dict[Any, Any] = {axes.y_name: axes.rows(tile), axes.x_name: axes.columns(tile)}
        numbers = np.array([each.number - 1 for each in bands])
        where = np.unravel_index(numbers, self._sizes) if self._others else ()
        varying = ""
        for dim, index in zip(self._others, where, strict=True):
            if (index == index[0]).all():
                at[dim] = int(index[0])
                continue
            # Bands of several times differ in these alone; a slice reads each chunk once.
            varying = dim
            rising = (np.diff(index) == 1).all()
            at[dim] = slice(int(index[0]), int(index[-1]) + 1) if rising else index
        dims = [*([varying] if varying else []), axes.y_name, axes.x_name]
        try:
            stored = own.isel(at).transpose(*dims).to_numpy()
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            where_text = f"row {tile.row}, column {tile.col}"
            cause = (str(error) or type(error).__name__).splitlines()[0]
            found = f"cannot be read at {where_text}: damaged ({cause})"
            raise InputError(Problem(self.path, found, "copy or write it again")) from error
        if not varying:
            stored = stored[np.newaxis]
        if stored.dtype != self._stored:
            stored = stored.view(self._stored)
        return [self._about.values(axes.north_up(each)) for each in stored]

    def __getstate__(self) -> dict[str, Any]:
        """Drop what is open."""
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen at the first read."""
        self.__dict__.update(state)
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's store; the next read opens it anew."""
        if getattr(self._local, "data", None) is not None:
            self._local.data.close()
        self._local.data = None

    def _open(self) -> Any:
        if getattr(self._local, "data", None) is None:
            self._local.data = self._opened()
        return self._local.data

    def _opened(self) -> Any:
        return open_cube(self.path)


def netcdf_source(
    path: str | Path, choice: BandChoice = ANY_BAND, header: RasterHeader = AS_IT_IS
) -> Source:
    """Open a NetCDF file as a cube; by GDAL where it has no grid by coordinates.

    Such are files with their variables in groups, and those that xarray's engines do not open.
    """
    try:
        return Cube(path, choice, header)
    except NoGridError:
        return RasterSource(path, choice, header)


def open_cube(path: str, store: Any = None) -> Any:
    """Open a file or store with nothing decoded: an xarray.Dataset; NoGridError if it is none.

    Parameters
    ----------
    path : str
    store : zarr.abc.store.Store, optional
        What reads the path; it lists nothing, so that its metadata have to be consolidated.
    """
    import xarray as xr

    def refused(cause: str) -> NoGridError:
        found = f"is not a {kind} that xarray can read ({cause})"
        return NoGridError(Problem(path, found, "write it with xarray"))

    listed = store is None
    zarr = path.lower().rstrip("/").endswith((".zarr", SUFFIX))
    if store is None and is_repository(path):
        store = committed_store(path)
    elif store is None and zarr:
        from geo.sources.zarr_raw import raw_store

        store = raw_store(path)
    kind = "Zarr store" if zarr else "NetCDF file"
    if not Path(path).exists():
        raise NoGridError(Problem(path, "no such file", "correct the path"))
    engine, more = "zarr", dict[str, Any](consolidated=False if listed else None)
    if not zarr:
        try:
            with open(path, "rb") as stream:
                head = stream.read(4)
        except OSError as error:
            raise refused(error.strerror or "") from error
        engine, more = "h5netcdf" if head == _HDF5 else "scipy", {}
        if not head.startswith((_HDF5, _NETCDF3)):
            cause = "its first bytes are not those of one"
            raise refused(cause)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not decoded here
            # Scale, nodata and times are the description's: a user may declare others.
            return xr.open_dataset(
                path if store is None else store, engine=engine, chunks=None, cache=False,
                mask_and_scale=False, decode_times=False, decode_timedelta=False,
                decode_coords=False, **more,
            )  # fmt: skip
    except Exception as error:  # of zarr's and HDF5's own kinds
        raise refused((str(error) or type(error).__name__).splitlines()[0]) from error


def _variable(path: str, data: Any, choice: BandChoice) -> tuple[str, int | None]:
    """Return the name of the variable to read, and the band within it.

    GDAL writes each band as a variable, Band1, Band2: there ``band: 2`` is one of them.

    Raises
    ------
    InputError
        Unless one variable alone fits.
    """
    bounds = {
        data[name].attrs.get(key) for name in data.variables for key in ("bounds", "climatology")
    }
    every = [
        str(name)
        for name, each in data.data_vars.items()
        if each.ndim >= 2 and each.dtype.kind in "iufb" and name not in bounds
    ]
    wanted, band = choice.variable, choice.band
    if wanted is not None:
        if wanted not in every:
            if not every:
                raise NoGridError([unknown(path, "variable", wanted, every).problems[0]])
            raise unknown(path, "variable", wanted, every)
        return wanted, band
    known = [name for name in every if not is_coordinate(data, name)] or every
    if len(known) == 1:
        return known[0], band
    if not known:
        found = "has no variable with rows and columns"
        raise NoGridError(Problem(path, found, "give a store of a grid"))
    if band is not None and known == [f"Band{k}" for k in range(1, len(known) + 1)]:
        check_band(path, band, len(known))
        return f"Band{band}", None
    found = f"has {len(known)} variables ({name_first(known, N_NAMED)})"
    remedy = f"choose one with the key `variable`, such as `variable: {known[0]}`"
    raise VariablesError(Problem(path, found, remedy), known)


def _bands(own: Any, name: str, others: Sequence[str], time: TimeAxis) -> tuple[Band, ...]:
    """Return a band of each step of the axes besides rows and columns, as they are stored."""
    steps = []
    for dim in others:
        at: tuple[str, ...] = time.texts if dim == time.name else ("",)
        if dim != time.name and own.sizes[dim] > 1:
            known = dim in own.coords
            values = own[dim].to_numpy().tolist() if known else range(own.sizes[dim])
            at = tuple(_text(each) for each in values)
        steps.append((dim, at))
    return _product(name, tuple(steps), time.name)


def _text(value: Any) -> str:
    """Return a value of an axis as text: 850 of 850.0, and all digits of 20220101.0."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:g}"


@functools.lru_cache(maxsize=16)
def _product(
    name: str, steps: tuple[tuple[str, tuple[str, ...]], ...], time: str
) -> tuple[Band, ...]:
    dims, found = [dim for dim, _ in steps], []
    for number, values in enumerate(itertools.product(*(at for _, at in steps)), 1):
        pairs = [pair for pair in zip(dims, values, strict=True) if pair[1]]
        when = next((value for dim, value in pairs if dim == time), "")
        levels = tuple(pair for pair in pairs if pair[0] != time)
        label = ", ".join(f"{dim} {value}" for dim, value in levels)
        found.append(Band(number, name, when, label, levels))
    return tuple(found)
