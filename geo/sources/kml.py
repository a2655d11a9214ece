"""Read KML without following it anywhere: GDAL gets the places and their data, written anew.

KML can name other files and servers: network links, overlays, icons, models, styles, schemas. None
of that makes a boundary. What GDAL reads has the elements of an allow-list and no address.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from geo.core.errors import InputError, Problem

MAX_BYTES = 1 << 30
_NAMESPACE = "http://www.opengis.net/kml/2.2"
_TAG_NAMES = """\
    kml Document Folder Placemark name ExtendedData Data value Schema SimpleField SchemaData
    SimpleData MultiGeometry Polygon outerBoundaryIs innerBoundaryIs LinearRing LineString Point
    coordinates"""
_TAGS = frozenset(_TAG_NAMES.split())
_ATTRIBUTES = ("id", "name", "type", "schemaUrl")


def plain_kml(path: str) -> bytes:
    """Return the places of a KML file as a KML file that names no other file.

    Raises
    ------
    InputError
        If it is no KML, declares entities, or takes its places from elsewhere.
    """
    text = Path(path).read_bytes()
    if len(text) > MAX_BYTES or b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise InputError(Problem(path, "declares entities, or is too large", _EXPORT))
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        found = f"cannot be read as vector data (damaged KML: {error})"
        raise InputError(Problem(path, found, "copy or download the file again")) from error
    if _tag(root) != "kml":
        found = f"cannot be read as vector data (it begins with <{_tag(root)}>, not <kml>)"
        raise InputError(Problem(path, found, _EXPORT))
    tags = {_tag(element) for element in root.iter()}
    if "NetworkLink" not in tags and "Placemark" not in tags:
        raise InputError(Problem(path, "holds no place", _EXPORT))
    if "NetworkLink" in tags:
        raise InputError(Problem(path, "takes its places from another file or server", _EXPORT))
    ElementTree.register_namespace("", _NAMESPACE)
    try:
        plain: bytes = ElementTree.tostring(_copied(root), encoding="utf-8", xml_declaration=True)
    except RecursionError as error:
        raise InputError(Problem(path, "is nested too deep", _EXPORT)) from error
    return plain


_EXPORT = "open it in QGIS and export it as a GeoPackage"


def _tag(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _copied(element: ElementTree.Element) -> ElementTree.Element:
    attributes = {key: value for key, value in element.attrib.items() if key in _ATTRIBUTES}
    if not attributes.get("schemaUrl", "#").startswith("#"):
        del attributes["schemaUrl"]
    copy = ElementTree.Element(f"{{{_NAMESPACE}}}{_tag(element)}", attributes)
    copy.text = element.text
    copy.extend(_copied(child) for child in element if _tag(child) in _TAGS)
    return copy
