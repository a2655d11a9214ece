"""Which vector files are opened, and how: by format, never by what GDAL makes of their content.

GDAL chooses among seventy drivers by content. A file named ``areas.geojson`` can be a list of other
files, a request to a server or a program of GDAL's own. Each format read here is known by its first
bytes, and is then given to GDAL in a way that only its own driver accepts.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from geo.core.errors import InputError, Problem
from geo.core.trust import is_web_address
from geo.sources.gdal_access import check_archive, check_geopackage
from geo.sources.kml import plain_kml

REMEDY = "give a GeoPackage, Shapefile, GeoJSON, GeoParquet or KML file"
_SUFFIXES = (".gpkg", ".shp", ".geojson", ".json", ".fgb", ".gdb")
_HEAD_BYTES = 1024
_ZIP = re.compile(r"^(?:/vsizip/|zip://)?\{?(.+?\.zip)\}?(?:[/!]+(.+))?$", re.IGNORECASE)
# The text "link" in any spelling of JSON.
_LINK = re.compile(
    rb'"(?:l|\\u00[46]c)(?:i|\\u00[46]9)(?:n|\\u00[46]e)(?:k|\\u00[46]b)"', re.IGNORECASE
)


def vector_path(path: str | Path) -> str | bytes:
    """Return what GDAL opens for a vector file: a path, or bytes.

    Parameters
    ----------
    path : str or Path
        A GeoPackage, Shapefile, GeoJSON, FlatGeobuf, KML file or file geodatabase; a zip archive
        with one of them; or the URL of a GeoJSON or FlatGeobuf file.

    Raises
    ------
    InputError
        If it is of another format, or could reach other files or servers.
    """
    name = str(path)
    if is_web_address(name):
        return _of_url(name)
    zipped = _ZIP.match(name)
    if zipped and not os.path.isdir(name):
        return _of_zip(name, zipped[1], zipped[2])
    if name.startswith("/vsi") or "://" in name.removeprefix("file://"):
        found = "is not an address that is read"
        raise InputError(Problem(name, found, "give a file, or an address at https:// or s3://"))
    name = os.path.abspath(name.removeprefix("file://"))
    if os.path.isdir(name):
        if name.lower().endswith(".gdb") and Path(name, "a00000001.gdbtable").is_file():
            return name
        raise InputError(Problem(name, "is a directory", REMEDY))
    try:
        with open(name, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        found = f"cannot be read as vector data ({error.strerror})"
        raise InputError(Problem(name, found, REMEDY)) from error
    if _is_json(head):
        with open(name, "rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as text:
            _check_crs(name, text)
    if name.lower().endswith(".shp"):
        _check_parts(name)
    if name.lower().endswith(".kml"):
        return plain_kml(name)
    if name.lower().endswith(".kmz"):
        remedy = "unpack it (unzip), and give the .kml that it holds"
        raise InputError(Problem(name, "is a KML file in an archive", remedy))
    return _as_format(name, name, head)


def feature_ids(path: str | Path) -> list[Any]:
    """Return what GeoJSON has as ``id`` beside the properties of each feature; [] of other files.

    GDAL makes texts a column, but numbers only its own, which it changes where they are repeated.
    """
    if not str(path).lower().endswith((".geojson", ".json")) or is_web_address(str(path)):
        return []
    try:
        features = json.loads(Path(path).read_bytes())["features"]
        ids = [feature.get("id") for feature in features]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError):
        return []
    return ids if any(each is not None for each in ids) else []


def _check_parts(path: str) -> None:
    """Refuse a Shapefile without its table: it would have no column at all."""
    beside = {each.name.lower() for each in Path(path).parent.iterdir()}
    table = f"{Path(path).stem}.dbf".lower()
    if table not in beside:
        remedy = "copy all files of the Shapefile (.shp, .shx, .dbf, .prj)"
        raise InputError(
            Problem(path, f"has no {table} beside it, which holds its columns", remedy)
        )


def _as_format(place: str, path: str, head: bytes) -> str:
    """Return GDAL's path of a file with these first bytes."""
    if head.startswith(b"SQLite format 3\0"):
        if not path.lower().endswith(".gpkg"):
            found = "is an SQLite file that is not named .gpkg"
            raise InputError(Problem(place, found, REMEDY))
        check_geopackage(place, path)
        return path
    if head.startswith(b"\0\0\x27\x0a") and path.lower().endswith(".shp"):
        return path
    if head.startswith(b"fgb\x03fgb"):
        return path
    if _is_json(head):
        return f"GeoJSON:{path}"  # no other driver takes this name, whatever the JSON says
    if path.lower().endswith(_SUFFIXES):
        found = f"is no {path.rpartition('.')[2].lower()} file, whatever its name says"
        raise InputError(Problem(place, f"cannot be read as vector data (it {found})", REMEDY))
    raise InputError(Problem(place, "cannot be read as vector data (another format)", REMEDY))


def _of_url(url: str) -> str:
    name = unquote(urlsplit(url).path).lower()
    if name.endswith((".geojson", ".json")):
        return f"GeoJSON:{url}"
    raise InputError(
        Problem(url, "is at an address from which only GeoJSON is read", "download the file")
    )


def _of_zip(place: str, file: str, member: str | None) -> str:
    names = check_archive(place, file)
    if member is None:
        fitting = [name for name in names if name.lower().endswith(_SUFFIXES)]
        fitting = [name for name in fitting if not name.startswith("__MACOSX/")]
        if len(fitting) != 1:
            found = f"holds {len(fitting)} vector files"
            one = f"/vsizip/{os.path.abspath(file)}/{(fitting or names or ['...'])[0]}"
            raise InputError(Problem(place, found, f"name one: {one}"))
        member = fitting[0]
    if member not in names:
        raise InputError(Problem(place, f"has no member {member}", "correct the path"))
    if member.lower().endswith(".gpkg"):  # its tables are checked, and those are read from a file
        raise InputError(Problem(place, "holds a GeoPackage", "unpack the archive"))
    with zipfile.ZipFile(file) as archive, archive.open(member) as stream:
        head = stream.read(_HEAD_BYTES)
        if _is_json(head):
            _check_crs(place, head + stream.read())
    return _as_format(place, f"/vsizip/{{{os.path.abspath(file)}}}/{member}", head)


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _check_crs(place: str, text: bytes | mmap.mmap) -> None:
    """Refuse a GeoJSON file whose CRS is a link: GDAL would ask that server for it."""
    if not _LINK.search(text):
        return
    found: list[bool] = []

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # Every pair counts: of two equal keys, readers differ in which they take.
        for key, value in pairs:
            if key.lower() == "crs" and isinstance(value, dict):
                found.append("link" in value.get("types", ()))
        types = [str(value).lower() for key, value in pairs if key.lower() == "type"]
        return {"types": types, **{k: v for k, v in pairs if k in ("crs", "features", "geometry")}}

    try:
        json.loads(bytes(text), object_pairs_hook=note)
    except (ValueError, RecursionError) as error:
        found_text = "cannot be read as vector data (damaged JSON)"
        raise InputError(Problem(place, found_text, "copy or download the file again")) from error
    if any(found):
        remedy = "write its CRS as a name (EPSG:xxxx), or leave it out for longitude, latitude"
        raise InputError(Problem(place, "has a CRS that is a link to a server", remedy))
