"""Paths as GDAL writes them: files in archives, parts of files. No GDAL is needed to tell them."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: A part of a file: ``NETCDF:"rain.nc":tp`` (rasterio writes ``netcdf:rain.nc:tp``),
#: ``GTIFF_DIR:2:pages.tif``; ours for the asset of STAC items, ``STAC:"items.json":data``.
PART = re.compile(
    r'^(NETCDF|HDF5|GTIFF_DIR|GPKG|STAC):(?:(\d+):)?("?)(.+?)\3((?::[^/"]*|:?//.*)?)$',
    re.IGNORECASE,
)
#: A file in an archive: ``/vsizip/maps.zip/rain.tif``, ``zip://maps.zip!rain.tif``.
ARCHIVE = re.compile(r"^(?:/vsi(zip|tar)/|(zip|tar)://)\{?(.+?\.(?:zip|kmz|tar))\}?[/!]+(.+)$")


def file_of(path: str) -> str | None:
    """Return the local file that a path of GDAL names, an archive or a part of a file included.

    Returns
    -------
    str or None
        None for URLs, and for paths that are not opened.
    """
    part, archive = PART.match(path), ARCHIVE.match(path)
    if part:
        path = part[4]
    elif archive:
        path = archive[3]
    path = path.removeprefix("file://")
    return None if "://" in path or path.startswith("/vsi") or _is_connection(path) else path


def with_folder(path: str, folder: Path) -> str:
    """Return the path with the relative file in it taken from a folder."""
    file = file_of(path)
    if file is None or os.path.isabs(file):
        return path
    return path.replace(file, str((folder / file).resolve()), 1)


def _is_connection(path: str) -> bool:
    """Return whether GDAL may take a path for a connection string, such as ``WMS:...``."""
    return bool(re.match(r"^\s*<|^[A-Za-z][A-Za-z0-9_]+:", path)) and not os.path.exists(path)
