"""How GDAL opens what users give: allow-listed drivers, no references elsewhere, sane headers."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.io import DatasetReader

from geo.core.errors import InputError, Problem
from geo.core.trust import Trust, is_web_address
from geo.sources.gdal_paths import ARCHIVE, PART, file_of
from geo.sources.raster_bands import choose_variable
from geo.sources.vrt import check_side_cars, is_vrt, read_vrt, web_path

#: Drivers of rasters. Each reads the pixels of files and no more. The others of GDAL's hundred
#: reach servers (WMS, STACIT, EEDA, HTTP), make one raster of others (VRT by content, GTI, STACTA,
#: MRF), or are seldom met; a VRT is opened by its name alone, see :mod:`geo.sources.vrt`.
RASTER_DRIVERS = (
    "GTiff", "netCDF", "HDF5", "HDF5Image", "GRIB", "AAIGrid", "ENVI", "EHdr", "HFA",
    "JP2OpenJPEG", "PNG", "JPEG", "SRTMHGT", "SAGA", "RST",
)  # fmt: skip
#: Drivers of the syntaxes of a part of a file.
_PARTS = {"NETCDF": "netCDF", "HDF5": "HDF5Image", "GTIFF_DIR": "GTiff", "GPKG": "GPKG"}

N_BAND_MAX = 65_536
#: Bytes that one block may have: GDAL reads a whole block for any pixel of it.
BLOCK_BYTES_MAX = 1 << 31
#: A raster of more bytes than this may not be more than `EXPANSION_MAX` times its file.
PLAIN_BYTES_MAX = 10**10
#: Deflate packs 1,000 to 1 at most and Zstandard some 20,000; a sparse file has empty blocks.
EXPANSION_MAX = 10**5
#: Of an archive: the compressed share of a member, and the bytes below which it does not matter.
ARCHIVE_EXPANSION_MAX, ARCHIVE_BYTES_FREE = 200, 1 << 28

_FORMATS = "give a GeoTIFF"
VIEW_S = 5.0  # in which all rows of a GeoPackage's view have to come
# Virtual tables that SQLite itself makes within the file: spatial and text indexes.
_OWN_TABLES = re.compile(r"\busing\s+[\"'`\[]?(rtree|fts\d)\b", re.IGNORECASE)
_REACHING = re.compile(
    r"\b(load_extension|readfile|writefile|virtualogr|ogr_\w+|gdal_\w+|blobfromfile|blobtofile|"
    r"importshp|exportshp|attach)\b",
    re.IGNORECASE,
)


def open_dataset(path: str, trust: Trust, variable: str | None = None) -> DatasetReader:
    """Open a raster for reading.

    Parameters
    ----------
    path : str
        A file, a URL (http, https), a file in an archive (``/vsizip/maps.zip/rain.tif``), or a part
        of a file (``NETCDF:rain.nc:tp``).
    trust : Trust
        Places that a VRT may refer to.
    variable : str, optional
        Which to open of a file of several datasets, such as a NetCDF.

    Returns
    -------
    DatasetReader
        Its header is sane; no pixel has been read.

    Raises
    ------
    InputError
        If the path is of another kind, a VRT or side-car file leads elsewhere, or the header
        promises an absurd size.
    rasterio.errors.RasterioError
        If GDAL cannot open it.
    """
    with rasterio.Env():
        source = _open(path, trust)
        if source.count == 0 and source.subdatasets:
            with source:
                name = choose_variable(path, variable, source.subdatasets)
            source = _reader(name, (source.driver, "HDF5Image"))
    try:
        _check_header(path, source)
    except InputError:
        source.close()
        raise
    return source


def _open(path: str, trust: Trust) -> Any:
    if is_web_address(path):
        if is_vrt(path.partition("?")[0]):
            found = "is a VRT on a server"
            raise InputError(Problem(path, found, "download it together with its sources"))
        return _reader(web_path(path), RASTER_DRIVERS)
    file = file_of(path)
    if file is None:
        found = "is not an address that is read"
        raise InputError(Problem(path, found, "give a file, or an address at https:// or s3://"))
    part, archive = PART.match(path), ARCHIVE.match(path)
    if archive:
        return _reader(_archive_path(path, file, archive[1] or archive[2], archive[4]))
    if is_vrt(file):
        if not os.path.exists(file):
            raise InputError(Problem(path, "no such file", "correct the path"))
        return _reader(read_vrt(file, trust).xml, ("VRT",))
    if os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
        # GDAL would wait for a writer of a named pipe for ever.
        raise InputError(Problem(path, "is no regular file (a named pipe, a device)", _FORMATS))
    check_side_cars(file)
    if part:
        inner = os.path.abspath(file)
        if not os.path.isfile(inner):
            raise InputError(Problem(path, f"no file {file}", "correct the path"))
        kind = part[1].upper()
        quoted = inner if kind == "GPKG" else f'"{inner}"'
        name = f"{kind}:{part[2]}:{inner}" if part[2] else f"{kind}:{quoted}{part[5]}"
        if kind == "GPKG":
            check_geopackage(path, inner)
        return _reader(name, (_PARTS[kind],))
    if file.lower().endswith(".gpkg") and os.path.isfile(file):
        check_geopackage(path, file)
        return _reader(file, ("GPKG",))
    return _reader(file, RASTER_DRIVERS)


def _reader(path: str, drivers: tuple[str, ...] = RASTER_DRIVERS) -> Any:
    return DatasetReader(path, driver=list(drivers))


def _archive_path(path: str, file: str, kind: str, member: str) -> str:
    if is_vrt(member):
        raise InputError(Problem(path, "is a VRT in an archive", "unpack the archive"))
    check_archive(path, file, kind)
    return f"/vsi{kind}/{{{os.path.abspath(file)}}}/{member}"


def check_archive(path: str, file: str, kind: str = "zip") -> list[str]:
    """Refuse an archive that expands absurdly or has paths outside itself.

    Returns
    -------
    list of str
        Its members.
    """
    if not os.path.isfile(file):
        raise InputError(Problem(path, f"no file {file}", "correct the path"))
    if kind != "zip":  # a plain tar is not compressed
        return []
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InputError(
            Problem(path, f"is a damaged archive ({error})", "copy or download it again")
        ) from error
    for each in members:
        if each.filename.startswith("/") or ".." in each.filename.split("/"):
            found = f"has a member outside itself ({each.filename})"
            raise InputError(Problem(path, found, "pack the archive again"))
        expanded = each.file_size > ARCHIVE_EXPANSION_MAX * max(each.compress_size, 1)
        if expanded and each.file_size > ARCHIVE_BYTES_FREE:
            found = f"{each.filename} expands from {each.compress_size:,} to {each.file_size:,}"
            raise InputError(Problem(path, f"{found} bytes", "give the file without an archive"))
    return [each.filename for each in members if not each.is_dir()]


def check_geopackage(place: str, path: str) -> None:
    """Refuse a GeoPackage whose schema has tables not stored in it, or views that hardly end."""
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as opened:
            rows = opened.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            views = [str(name) for kind, name, _ in rows if kind == "view"]
            endless = {name for name in views if not _ends(opened, name)}
    except sqlite3.Error as error:
        found = f"cannot be read ({error})"
        raise InputError(Problem(place, found, "copy or download the file again")) from error
    for kind, name, sql in rows:
        text = str(sql or "")
        virtual = re.match(r"\s*create\s+virtual\s+table", text, re.IGNORECASE)
        reaching = kind == "view" and _REACHING.search(text)
        if (virtual and not _OWN_TABLES.search(text)) or reaching or name in endless:
            what = "view" if kind == "view" else "virtual table"
            why = f"may never end (it took {VIEW_S:g} s)" if name in endless else "may reach files"
            found = f"has a {what} ({name}) that {why}"
            raise InputError(Problem(place, found, "copy its layers into a new GeoPackage"))


def _ends(opened: sqlite3.Connection, view: str) -> bool:
    """Return whether a view's rows come in a short time; those that its own database can make."""
    until = time.monotonic() + VIEW_S
    opened.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    quoted = view.replace('"', '""')
    for _ in range(100):
        try:
            for _row in opened.execute(f'SELECT * FROM "{quoted}"'):
                if time.monotonic() > until:  # rows that cost less than the handler's steps
                    return False
        except sqlite3.Error as error:
            absent = re.match(r"no such function: (\w+)", str(error))
            if absent is None:
                return time.monotonic() < until
            # GDAL may have it; reaching ones are refused by name.
            opened.create_function(absent[1], -1, lambda *_: None)
        else:
            return True
    return False


def _check_header(path: str, source: Any) -> None:
    """Refuse sizes that no file of this kind has, before any pixel is read."""
    if source.count > N_BAND_MAX:
        found = f"has {source.count:,} bands"
        raise InputError(Problem(path, found, f"give a raster of at most {N_BAND_MAX:,} bands"))
    if source.count == 0:
        raise InputError(Problem(path, "has no band", _FORMATS))
    n_row, n_col = source.shape
    kind = source.dtypes[0]
    each = np.dtype(kind).itemsize if kind in _NUMPY else 8
    high, wide = source.block_shapes[0]
    if min(high, n_row) * min(wide, n_col) * each > BLOCK_BYTES_MAX and source.driver == "GTiff":
        found = f"is stored in blocks of {high:,} x {wide:,} pixels, each of which is read whole"
        remedy = "write it in tiles (gdal_translate -co TILED=YES)"
        raise InputError(Problem(path, found, remedy))
    file = file_of(path)
    if file is None or is_vrt(file) or not os.path.isfile(file):
        return
    plain, size = n_row * n_col * each, os.path.getsize(file)
    if plain > max(PLAIN_BYTES_MAX, EXPANSION_MAX * size):
        found = f"claims {n_row:,} x {n_col:,} pixels in a file of {size:,} bytes"
        raise InputError(Problem(path, found, "give the raster itself, cut to the areas"))


_NUMPY = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
                    "float32", "float64", "complex64", "complex128"))  # fmt: skip
