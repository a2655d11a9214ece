"""Names of the classes of a raster, from the table that GDAL keeps beside it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from geo.core.errors import InputError, Problem
from geo.sources.mosaic import files_of
from geo.sources.vrt import MAX_BYTES, is_vrt

_COUNT, _NAME, _VALUE = 1, 2, 5  # GDALRATFieldUsage: number of pixels, name, value
_INTEGER, _TEXT = 0, 2  # GDALRATFieldType


def class_names(path: str, band: int = 1) -> dict[float, str]:
    """Return the name of each class, by its value; {} where the raster has none.

    GDAL writes an attribute table, or names of categories, into ``<raster>.aux.xml``; a VRT has the
    latter itself. Values are those that are stored; classes without a name are left out.

    Parameters
    ----------
    path : str
        A local file; of a pattern of files, the first one's names are returned.
    band : int, optional

    Raises
    ------
    InputError
        If the table is damaged.
    """
    path = next(iter(files_of(path)), path)
    for file in (f"{path}.aux.xml", *((path,) if is_vrt(path) else ())):
        if not Path(file).is_file() or Path(file).stat().st_size > MAX_BYTES:
            continue
        text = Path(file).read_bytes()
        if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
            raise InputError(Problem(file, "declares entities", "remove it"))
        try:
            root = ElementTree.fromstring(text)
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            found = f"is damaged ({error})"
            raise InputError(Problem(file, found, "remove it, or copy it again")) from error
        for tag in ("PAMRasterBand", "VRTRasterBand"):
            for each in root.iter(tag):
                if each.get("band") == str(band) and (found_names := _named(each)):
                    return found_names
    return {}


def _named(band: ElementTree.Element) -> dict[float, str]:
    table = band.find("GDALRasterAttributeTable")
    names = {} if table is None else _of_table(table)
    if not names:
        categories = band.findall("CategoryNames/Category")
        names = {float(k): (each.text or "").strip() for k, each in enumerate(categories)}
    return {value: name for value, name in names.items() if name}


def _of_table(table: ElementTree.Element) -> dict[float, str]:
    """Return the names of an attribute table: by usage, or the first columns of fitting types."""
    fields = [
        (int(each.findtext("Usage") or 0), int(each.findtext("Type") or 0))
        for each in table.findall("FieldDefn")
    ]
    uses, types = [use for use, _ in fields], [kind for _, kind in fields]
    if _TEXT not in types:
        return {}
    name = uses.index(_NAME) if _NAME in uses else types.index(_TEXT)
    value = next((k for k, use in enumerate(uses) if use == _VALUE), None)
    if value is None:
        value = next(
            (k for k, kind in enumerate(types) if kind == _INTEGER and uses[k] != _COUNT), 0
        )
    rows = [[cell.text or "" for cell in row.findall("F")] for row in table.findall("Row")]
    found = {}
    for row in rows:
        try:
            found[float(row[value])] = row[name].strip()
        except (ValueError, IndexError):
            continue
    return found
