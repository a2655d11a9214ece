"""Windowed reads of one band of a raster as float64, NaN where missing."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from pyproj import CRS
from pyproj.exceptions import CRSError
from rasterio.enums import MaskFlags
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from geo.conventions import axes_trouble, degrees_by_units
from geo.errors import GridError, InputError, Problem
from geo.formats import Formats
from geo.gdal_access import open_dataset
from geo.gdal_paths import file_of
from geo.grid import Grid, Tile, is_mappable
from geo.raster_bands import choose_band
from geo.raster_header import BandChoice, RasterHeader
from geo.stopping import stop_if_asked
from geo.trust import current_trust
from geo.web_errors import web_problem

#: Size of GDAL's block cache; its default is a twentieth of the machine's memory.
CACHE_MB = 256
#: Blocks whose offset in the file is checked when a raster is opened.
N_BLOCK_PROBED = 4096
#: What to do about a raster without a CRS; a NetCDF file, say, cannot be given one.
CRS_REMEDY = "assign the one it is in (crs: EPSG:xxxx, beside its path)"


class RasterSource:
    """One band of a raster.

    Thread-safe (each thread has its own handle). Can be pickled (it reopens by path).

    Parameters
    ----------
    path : str or Path
        A file, or a URL that GDAL reads (s3://, gs://, https://, /vsi...).
    band : int or BandChoice, optional
        Band number, from 1, or what else is known of the band; by default the only one.

    Attributes
    ----------
    band : int
        Band number.
    crs : pyproj.CRS or None
        Coordinate reference system; None if the file has none.
    transform : affine.Affine
        From (column, row) to (x, y).
    shape : tuple of int
        Rows, columns.
    nodata : float or None
        The value of missing pixels in the file.
    more_nodata : tuple of float
        Further such values, of a declared header.
    dtype : str
        Type of the stored values.
    unit : str
        Unit of the band; "" if the file has none.
    description : str
        Description of the band; "" if the file has none.
    scale, offset : float
        A value is the stored number times ``scale``, plus ``offset``.
    trouble : (str, str) or None
        What is wrong with the axes, and the remedy; see :func:`geo.conventions.axes_trouble`.

    Raises
    ------
    InputError
        If the file cannot be opened as a raster, or has no such band, or several.
    """

    trouble: tuple[str, str] | None = None

    def __init__(self, path: str | Path, band: int | BandChoice | None = None) -> None:
        self.path = str(path)
        choice = band if isinstance(band, BandChoice) else BandChoice(band)
        self._variable = choice.variable
        self._trust = current_trust()  # of who opens it: threads and workers reopen it
        self._local = threading.local()
        with self._reading():
            src = self._open()
            self.band = choose_band(self.path, src, choice)
            self.crs = _crs(src)
            self.trouble = axes_trouble(src)
            self.transform: Affine = src.transform
            self.shape: tuple[int, int] = (src.height, src.width)
            self.nodata: float | None = src.nodatavals[self.band - 1]
            self.more_nodata: tuple[float, ...] = ()
            self.dtype: str = src.dtypes[self.band - 1]
            self.unit: str = src.units[self.band - 1] or ""
            self.description: str = src.descriptions[self.band - 1] or ""
            self.scale: float = src.scales[self.band - 1]
            self.offset: float = src.offsets[self.band - 1]
            flags = src.mask_flag_enums[self.band - 1]
            # A stored mask, not one that follows from the nodata value.
            self._masked: bool = MaskFlags.per_dataset in flags or MaskFlags.alpha in flags

    def declare(self, header: RasterHeader) -> None:
        """Replace what the file's header says by what a user declares."""
        if header.nodata is not None:
            self.nodata = header.nodata[0] if header.nodata else None
            self.more_nodata = header.nodata[1:]
        if header.crs is not None:
            self.crs = CRS.from_user_input(header.crs)
        self.scale = self.scale if header.scale is None else header.scale
        self.offset = self.offset if header.offset is None else header.offset
        self.unit = self.unit if header.unit is None else header.unit

    def __getstate__(self) -> dict[str, Any]:
        """Drop the open handles."""
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen at the first read."""
        self.__dict__.update(state)
        self._local = threading.local()

    def __repr__(self) -> str:
        """Return path and shape."""
        return f"RasterSource({self.path!r}, band={self.band}, shape={self.shape})"

    @property
    def grid(self) -> Grid:
        """The source's own grid.

        Raises
        ------
        GridError
            If the source is rotated, south-up or without a CRS.
        """
        if self.crs is None:
            msg = f"{self.path}: has no CRS; {CRS_REMEDY}"
            raise GridError(msg)
        return Grid(self.crs, self.transform, self.shape)

    @property
    def north_up(self) -> bool:
        """Whether rows run from north to south and nothing is rotated."""
        t = self.transform
        return t.b == 0 and t.d == 0 and t.a > 0 and t.e < 0

    def read(self, window: Tile | None = None) -> np.ndarray:
        """Return the values of a window (all of the raster by default).

        Parameters
        ----------
        window : Tile, optional
            Must lie inside the raster.

        Returns
        -------
        (n_row, n_col) float64 array
            In the band's unit, with its scale and offset applied; NaN where missing.

        Raises
        ------
        InputError
            If the file is truncated or damaged.
        """
        stop_if_asked()
        tile = window or Tile(0, 0, *self.shape)
        where = Window(tile.col, tile.row, tile.n_col, tile.n_row)
        with self._reading(where=f" at row {tile.row}, column {tile.col}"):
            src = self._open()
            raw = src.read(self.band, window=where)
            mask = src.read_masks(self.band, window=where) == 0 if self._masked else None
        if np.iscomplexobj(raw):
            raw = raw.real
        missing = _is_nodata(raw, self.nodata)
        for value in self.more_nodata:
            missing |= _is_nodata(raw, value)
        if mask is not None:
            missing |= mask
        values = raw.astype(np.float64)
        if self.scale != 1.0 or self.offset != 0.0:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * self.scale + self.offset
        missing |= ~np.isfinite(values)
        values[missing] = np.nan
        return values

    def lost_block(self) -> str:
        """Return a description of a block past the end of a local GeoTIFF, "" if there is none.

        An incomplete download can be opened. Its header has the offset of each block, so that this
        check reads no values.
        """
        path = Path(self.path)
        if not path.is_file():
            return ""
        src = self._open()
        if src.driver != "GTiff":
            return ""
        size = path.stat().st_size
        n_high, n_wide = (
            math.ceil(n / block) for n, block in zip(src.shape, src.block_shapes[0], strict=True)
        )
        step = max(1, math.ceil(n_high * n_wide / N_BLOCK_PROBED))
        last = n_high * n_wide - 1
        for block in {*range(0, last + 1, step), last}:
            i, j = divmod(block, n_wide)
            begin = src.get_tag_item(f"BLOCK_OFFSET_{j}_{i}", "TIFF", bidx=self.band)
            length = src.get_tag_item(f"BLOCK_SIZE_{j}_{i}", "TIFF", bidx=self.band)
            if begin and length and int(begin) + int(length) > size:
                return (
                    f"is truncated: block at row {i}, column {j} should end at byte "
                    f"{int(begin) + int(length)}, the file has {size}"
                )
        return ""

    def _open(self) -> Any:
        if getattr(self._local, "dataset", None) is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                self._local.dataset = open_dataset(self.path, self._trust, self._variable)
        return self._local.dataset

    def close(self) -> None:
        """Close this thread's handle; the next read opens it anew."""
        dataset = getattr(self._local, "dataset", None)
        if dataset is not None:
            dataset.close()
            self._local.dataset = None

    @contextlib.contextmanager
    def _reading(self, where: str = "") -> Iterator[None]:
        """Convert GDAL's exceptions to an InputError that names the file."""
        try:
            yield
        except (RasterioError, OSError) as error:
            self.close()
            raise InputError(_unreadable(self.path, error, where)) from error


@contextlib.contextmanager
def bounded_cache() -> Iterator[None]:
    """Limit GDAL's block cache to :data:`CACHE_MB` within the context."""
    with rasterio.Env(GDAL_CACHEMAX=CACHE_MB):
        yield


def _unreadable(path: str, error: BaseException, where: str = "") -> Problem:
    file = file_of(path)
    if file is not None and not Path(file).exists():
        return Problem(path, "no such file", "correct the path")
    if file is not None and Path(file).is_dir():
        return Problem(path, "is a directory", "give a raster file, such as a GeoTIFF")
    cause = str(error).splitlines()[0] if str(error) else type(error).__name__
    if file is None:
        if "not recognized as being in a supported file format" in cause:
            return Problem(path, "is not a raster that GDAL can read", "give a GeoTIFF")
        return web_problem(path, cause, where)
    if "not recognized as being in a supported file format" in cause:
        return Problem(path, *_other_format(file))
    if "does not exist in the file system" in cause:
        return Problem(path, "no such member of the archive", "correct the path")
    found = f"cannot be read{where}: truncated or damaged ({cause})"
    return Problem(path, found, "copy or download the file again")


def _other_format(file: str) -> tuple[str, str]:
    with contextlib.suppress(OSError), open(file, "rb") as stream:
        head = stream.read(1024)
        if not head:
            return "is empty", "copy or download the file again"
        if head.lstrip().startswith(b"<VRTDataset"):
            return "is a VRT by another name", "name it .vrt, so that its sources are checked"
    return "is not a raster that GDAL can read", "give a GeoTIFF"


def _is_nodata(raw: np.ndarray, nodata: float | None) -> np.ndarray:
    """Compare in the stored type: conversion to float64 can change a float32 nodata value."""
    if nodata is None or math.isnan(nodata):
        return np.zeros(raw.shape, bool)  # `read` marks all non-finite values
    if raw.dtype.kind == "f":
        with np.errstate(over="ignore"):
            missing: np.ndarray = raw == raw.dtype.type(nodata)
        if abs(nodata) > 1e30:
            # Programs write the lowest float32 as -3.4e38, too; no measurement is near it.
            missing |= np.abs(raw) > 0.9 * abs(nodata)
        return missing
    info = np.iinfo(raw.dtype) if raw.dtype.kind in "iu" else None
    if info is None or not info.min <= nodata <= info.max or nodata != int(nodata):
        return np.zeros(raw.shape, bool)
    return np.asarray(raw == raw.dtype.type(int(nodata)))


def _crs(src: Any) -> CRS | None:
    if src.crs is None:
        return degrees_by_units(src)
    try:
        return CRS.from_user_input(src.crs)
    except CRSError:
        return None


#: Readers of rasters; another one is a subclass of :class:`RasterSource` with the same attributes.
RASTERS: Formats[type[RasterSource]] = Formats(RasterSource)


def raster_source(path: str | Path, band: int | BandChoice | None = None) -> RasterSource:
    """Open a raster with the reader of its format, without further checks.

    Raises
    ------
    InputError
        If the file cannot be opened as a raster, or has no such band, or several.
    """
    reader = RASTERS.of(path)
    return reader(path) if band is None else reader(path, band)


def open_raster(
    path: str | Path,
    place: str,
    problems: list[Problem],
    band: int | BandChoice | None = None,
    header: RasterHeader | None = None,
) -> RasterSource | None:
    """Open a raster and check its header.

    Parameters
    ----------
    path : str or Path
        File or URL.
    place : str
        Configuration key that problems name ("covariates.rainfall").
    problems : list of Problem
        Problems are appended: no such file, not a raster, truncated, no CRS, no georeferencing,
        several bands.
    band : int or BandChoice, optional
        See :class:`RasterSource`.
    header : RasterHeader, optional
        What replaces the header of the file.

    Returns
    -------
    RasterSource or None
        None if a problem was found.
    """
    name = f"{place} ({path})"
    try:
        source = raster_source(path, band)
    except InputError as error:
        for each in error.problems:
            # A mask beside the raster, or a VRT that this one refers to.
            other = "" if each.place in ("", str(path)) else f"{each.place} "
            problems.append(replace(each, place=name, found=f"{other}{each.found}"))
        return None
    if header is not None:
        source.declare(header)
    n_before = len(problems)
    if source.trouble is not None:
        problems.append(Problem(name, *source.trouble))
    elif source.crs is None:
        found = "has no coordinate reference system (CRS)"
        remedy = CRS_REMEDY
        if place.startswith("grid"):
            remedy = "give grid: {crs: EPSG:xxxx, resolution: ...} instead"
        problems.append(Problem(name, found, remedy))
    elif not is_mappable(source.crs):
        found = f"has a CRS that is neither geographic nor projected ({source.crs.name})"
        problems.append(Problem(name, found, "give a geographic or projected raster"))
    if source.trouble is None and (source.transform.is_identity or source.transform.is_degenerate):
        found = "has no georeferencing (no transform from pixels to coordinates)"
        problems.append(
            Problem(name, found, "give a GeoTIFF with its bounds (gdal_translate -a_ullr)")
        )
    if np.dtype(source.dtype).kind == "c":
        problems.append(Problem(name, "has complex numbers", "give a real-valued band"))
    lost = source.lost_block()
    if lost:
        problems.append(Problem(name, lost, "copy or download the file again"))
    if len(problems) > n_before:
        source.close()
        return None
    return source
