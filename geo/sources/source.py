"""A source of values on a grid: what it is, and its values in a window.

:data:`geo.sources.registry.SOURCES` has the classes of sources by suffix. One that is not among
them yet is a subclass of :class:`Source` with ``describe`` and ``read``; everything else follows.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from affine import Affine
from pyproj import CRS

from geo.core.calendar import days_of
from geo.core.columns import suggest
from geo.core.errors import GridError, InputError, Problem, name_first
from geo.grids.grid import Grid, Tile
from geo.sources.raster_header import Level, RasterHeader, check_packing

#: What to do about a source without a CRS; a NetCDF file, say, cannot be given one.
CRS_REMEDY = "assign the one it is in (crs: EPSG:xxxx, beside its path)"

N_NAMED = 12
N_AT_ONCE = 2_000_000  # pixels that are read whole for a coarse look
#: Least and greatest value where all are valid.
ANY_VALUE = (-math.inf, math.inf)


@dataclass(frozen=True)
class Band:
    """What one band of a source is.

    Attributes
    ----------
    number : int
        From 1.
    variable, time, label : str
        Variable, time as ISO text, and what else names the band; "" for none.
    levels : tuple of (str, str)
        Name and value of each axis besides rows, columns and time: a height, a member.
    """

    number: int = 1
    variable: str = ""
    time: str = ""
    label: str = ""
    levels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Description:
    """What a source holds, before any value is read.

    Attributes
    ----------
    crs : pyproj.CRS or None
        Coordinate reference system; None if there is none.
    transform : affine.Affine
        From (column, row) to (x, y).
    shape : tuple of int
        Rows, columns.
    dtype : str
        Type of the stored values.
    bands : tuple of Band
        The bands that were asked for: one, or one of each time.
    nodata : tuple of float
        Stored values of missing pixels.
    valid : (float, float)
        Least and greatest stored value; others are missing.
    scale, offset : float
        A value is the stored one times ``scale``, plus ``offset``.
    unit, description : str
        "" for none.
    trouble : (str, str) or None
        What is wrong with the axes, and the remedy.
    calendar : str
        Of the times, by its name in CF (section 4.4.1).
    climatology : str
        Variable of the bounds of climatological times (CF, section 7.4), "" for none: a value is
        of the same days of many years.
    """

    crs: CRS | None
    transform: Affine
    shape: tuple[int, int]
    dtype: str = "float64"
    bands: tuple[Band, ...] = (Band(),)
    nodata: tuple[float, ...] = ()
    valid: tuple[float, float] = ANY_VALUE
    scale: float = 1.0
    offset: float = 0.0
    unit: str = ""
    description: str = ""
    trouble: tuple[str, str] | None = None
    calendar: str = "standard"
    climatology: str = ""

    @classmethod
    def on(cls, grid: Grid, variable: str, unit: str) -> Description:
        """Describe one variable that is made on a grid."""
        return cls(grid.crs, grid.transform, grid.shape, bands=(Band(1, variable),), unit=unit)

    @property
    def times(self) -> tuple[str, ...]:
        """Times of the bands, ISO text; () for a source without times."""
        return tuple(each.time for each in self.bands if each.time)

    @property
    def north_up(self) -> bool:
        """Whether rows run from north to south and nothing is rotated."""
        t = self.transform
        return t.b == 0 and t.d == 0 and t.a > 0 and t.e < 0

    @property
    def grid(self) -> Grid | None:
        """The source's own grid; None without a CRS, and for one that is not north-up."""
        if self.crs is None or not self.north_up:
            return None
        return Grid(self.crs, self.transform, self.shape)

    def declared(self, header: RasterHeader, path: str = "") -> Description:
        """Return the description with what a user declares in place of what it says.

        Parameters
        ----------
        header : RasterHeader
        path : str, optional
            For messages.

        Raises
        ------
        InputError
            If one of scale and offset is declared, of a source that has its own.
        """
        check_packing(path, (self.scale, self.offset), header)
        given = {
            name: value
            for name in ("nodata", "scale", "offset", "unit")
            if (value := getattr(header, name)) is not None
        }
        crs = self.crs if header.crs is None else CRS.from_user_input(header.crs)
        valid = ANY_VALUE if header.nodata == () else self.valid
        return replace(self, crs=crs, valid=valid, **given)

    def values(self, stored: np.ndarray, missing: np.ndarray | None = None) -> np.ndarray:
        """Return stored values in the unit of the source, float64, NaN where missing.

        Parameters
        ----------
        stored : (...) array
        missing : (...) bool array, optional
            What a mask marks besides.
        """
        if np.iscomplexobj(stored):
            stored = stored.real
        absent = np.zeros(stored.shape, bool) if missing is None else missing.copy()
        for value in self.nodata:
            absent |= _is_nodata(stored, value)
        if self.valid != ANY_VALUE:
            absent |= (stored < self.valid[0]) | (stored > self.valid[1])
        values = stored.astype(np.float64)
        if self.scale != 1.0 or self.offset != 0.0:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * self.scale + self.offset
        absent |= ~np.isfinite(values)
        values[absent] = np.nan
        return values

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Return values, (...) float64, as the source stores them."""
        if self.scale != 1.0 or self.offset != 0.0:
            values = (values - self.offset) / self.scale
        return np.rint(values) if np.dtype(self.dtype).kind in "iu" else values


def crs_remedy(about: Description) -> str:
    """Return what to do about a raster without a CRS; its extent tells degrees from metres."""
    transform, (height, width) = about.transform, about.shape
    xs, ys = zip(transform @ (0, 0), transform @ (width, height), strict=True)
    west, east, south, north = min(xs), max(xs), min(ys), max(ys)
    if transform.is_identity or not np.isfinite([west, east, south, north]).all():
        return CRS_REMEDY
    extent = f"; it reaches from {west:,.6g} to {east:,.6g} and from {south:,.6g} to {north:,.6g}"
    if -181 <= west < east <= 361 and -91 <= south < north <= 91:
        return f"{CRS_REMEDY}{extent}: if these are degrees, crs: EPSG:4326"
    return f"{CRS_REMEDY}{extent}"


class Source(ABC):
    """Values on a grid of their own.

    A subclass is called with a path, a :class:`geo.sources.raster_header.BandChoice` and a
    :class:`geo.sources.raster_header.RasterHeader`. It is thread-safe and can be pickled.

    Attributes
    ----------
    path : str
        File or address, for messages.
    """

    path: str
    _about: Description

    def describe(self) -> Description:
        """Return what the source holds; reads no value."""
        return self._about

    @abstractmethod
    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window (all of the source by default).

        Parameters
        ----------
        window : Tile, optional
            Must lie inside the source.
        time : str, optional
            One of the times, or the beginning of one, ``2023-01``; may be left out of a source with
            one band.

        Returns
        -------
        (n_row, n_col) float64 array
            In the source's unit, with its scale and offset applied; NaN where missing.

        Raises
        ------
        InputError
            If the source is truncated or damaged, or several times fit.
        """

    def steps(self, window: Tile | None, times: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the values of a window at some times; a source may read several at once."""
        for time in times:
            yield self.read(window, time)

    def coarse(self, window: Tile, shape: tuple[int, int]) -> np.ndarray:
        """Return about the middle pixel of each of ``shape`` equal parts of a window.

        For a first look: a source may take them from overviews, which hold means as well.

        Parameters
        ----------
        window : Tile
            Must lie inside the source.
        shape : (int, int)
            Rows and columns of the result, at most those of the window.

        Returns
        -------
        shape float64 array
            As of :meth:`read`.

        Raises
        ------
        InputError
            As :meth:`read`.
        """
        row, col = (
            ((np.arange(n) + 0.5) * of / n).astype(np.int64)
            for n, of in zip(shape, window.shape, strict=True)
        )
        if window.n_row * window.n_col <= N_AT_ONCE:
            found: np.ndarray = self.read(window)[np.ix_(row, col)]
            return found
        rows = [Tile(window.row + k, window.col, 1, window.n_col) for k in row.tolist()]
        return np.stack([self.read(each)[0, col] for each in rows])

    def band_of(self, time: str | None = None) -> Band:
        """Return the band of a time, see :meth:`read`; InputError if none fits, or several."""
        return one_band(self.path, of_time(self.path, self.describe().bands, time))

    def damage(self) -> str:
        """Return a sign of damage that shows without reading values; "" if there is none."""
        return ""

    def unwritten(self, window: Tile) -> float | None:
        """Return the value of all pixels of a window that holds nothing; None if it may hold any.

        In the source's unit; NaN if such pixels are missing.
        """
        del window
        return None

    def squeezed(self) -> float | None:
        """Return the compressed share of the bytes of the values; None if it is not known."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close this thread's handles; the next read opens them anew."""

    def __repr__(self) -> str:
        """Return path and shape."""
        return f"{type(self).__name__}({self.path!r}, shape={self.shape})"

    @property
    def crs(self) -> CRS | None:
        """See `Description`."""
        return self.describe().crs

    @property
    def transform(self) -> Affine:
        """See `Description`."""
        return self.describe().transform

    @property
    def shape(self) -> tuple[int, int]:
        """See `Description`."""
        return self.describe().shape

    @property
    def north_up(self) -> bool:
        """See `Description`."""
        return self.describe().north_up

    @property
    def grid(self) -> Grid:
        """The source's own grid; GridError if it is rotated, south-up or without a CRS."""
        if self.crs is None:
            msg = f"{self.path}: has no CRS; {crs_remedy(self.describe())}"
            raise GridError(msg)
        return Grid(self.crs, self.transform, self.shape)


def check_band(path: str, band: int, n: int) -> None:
    """Refuse the number of a band that a source of ``n`` does not have."""
    if not 1 <= band <= n:
        found = f"has {n} band(s), but band {band} is requested"
        raise InputError(Problem(path, found, f"give a band from 1 to {n}"))


def of_time(path: str, bands: Sequence[Band], time: str | None) -> list[Band]:
    """Return the bands whose time is, begins with, or lies in a given one; InputError if none."""
    if time is None:
        return list(bands)
    start = re.escape(time.strip().replace(" ", "T"))
    kept = [each for each in bands if re.match(rf"{start}(?!\d)", each.time)]
    if not kept and (span := days_of(time)):
        own = [days_of(each.time[:10]) for each in bands]
        kept = [
            each
            for each, of in zip(bands, own, strict=True)
            if of is not None and span[0] <= of[0] and of[1] <= span[1]
        ]
    if not kept:
        raise unknown(path, "time", time, names(bands, "time"))
    return kept


def of_level(path: str, bands: Sequence[Band], level: Level) -> list[Band]:
    """Return the bands at some values of axes, an axis "" being any; InputError if none is."""
    kept = list(bands)
    for axis, value in level:
        axes = list(dict.fromkeys(name for each in bands for name, _ in each.levels))
        if axes and axis not in ("", *axes):
            pairs = [pair for each in bands for pair in each.levels]
            own, one = next((pair for pair in pairs if _same(value, pair[1])), pairs[0])
            there = name_first(axes, N_NAMED)
            found = f"has no axis {axis!r} beside rows, columns and times, but {there}"
            remedy = f"name the axis as the file does, such as `level: {{{own}: {one}}}`"
            raise InputError(Problem(path, found, remedy))
        known = [pair for each in kept for pair in each.levels if axis in ("", pair[0])]
        kept = [
            each
            for each in kept
            if any(axis in ("", name) and _same(value, own) for name, own in each.levels)
        ]
        if not kept:
            raise unknown(path, axis or "level", value, list(dict.fromkeys(v for _, v in known)))
    return kept


def one_band(path: str, bands: Sequence[Band]) -> Band:
    """Return the only one of some bands; else InputError names what they differ in, and the key."""
    if len(bands) == 1:
        return bands[0]
    axes = dict.fromkeys(name for each in bands for name, _ in each.levels)
    for key in ("variable", *axes, "time"):
        if key in axes:
            values = list(dict.fromkeys(v for b in bands for name, v in b.levels if name == key))
            one = f"level: {values[0]}" if len(axes) == 1 else f"level: {{{key}: {values[0]}}}"
        else:
            values = names(bands, key)
            one = f"{key}: {values[0]}" if values else ""
        if len(values) > 1:
            found = f"has {len(values)} {key}s ({name_first(values, N_NAMED)})"
            remedy = f"choose one with the key `{one.partition(':')[0]}`, such as `{one}`"
            raise InputError(Problem(path, found, remedy))
    labels = [f"{each.number}{each.label and ': '}{each.label}" for each in bands]
    found = f"has {len(bands)} bands ({name_first(labels, N_NAMED)})"
    remedy = f"choose one with the key `band`, such as `band: {bands[0].number}`"
    raise InputError(Problem(path, found, remedy))


def unknown(path: str, key: str, given: str, known: list[str]) -> InputError:
    """Return the error of a variable or time that a source does not have."""
    remedy = suggest(given, known, key) if known else f"remove the key `{key}`: it names none"
    return InputError(Problem(path, f"has no {key} {given!r}", remedy))


def names(bands: Sequence[Band], key: str) -> list[str]:
    """Return the different variables or times of some bands."""
    return list(dict.fromkeys(value for each in bands if (value := getattr(each, key))))


def _same(given: str, own: str) -> bool:
    """Return whether two texts are the same, or the same number: 850 and 850.0."""
    try:
        return math.isclose(float(given), float(own), rel_tol=1e-6)
    except ValueError:
        return given == own


def _is_nodata(stored: np.ndarray, nodata: float) -> np.ndarray:
    """Compare in the stored type: conversion to float64 can change a float32 nodata value."""
    if math.isnan(nodata):
        return np.zeros(stored.shape, bool)  # all that is not finite is missing
    if stored.dtype.kind == "f":
        with np.errstate(over="ignore"):
            missing: np.ndarray = stored == stored.dtype.type(nodata)
        if abs(nodata) > 1e30:
            # Programs write the lowest float32 as -3.4e38, too; no measurement is near it.
            missing |= np.abs(stored) > 0.9 * abs(nodata)
        return missing
    info = np.iinfo(stored.dtype) if stored.dtype.kind in "iu" else None
    if info is None or not info.min <= nodata <= info.max or nodata != int(nodata):
        return np.zeros(stored.shape, bool)
    return np.asarray(stored == stored.dtype.type(int(nodata)))
