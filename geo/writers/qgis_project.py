"""A QGIS project (``.qgz``) of some layers, written without QGIS: XML of version 3.22 in a zip.

Sources are relative to the project. The same layers give the same bytes.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyproj import CRS

from geo.grids.conventions import crs_code
from geo.grids.grid import Bounds
from geo.writers.qgis_layout import LegendEntry, layouts
from geo.writers.styles import DOCTYPE

VERSION = "3.22.0"
#: Number and unit of a step of the temporal controller.
STEPS = {
    "day": ("1", "d"),
    "week": ("1", "wk"),
    "month": ("1", "mon"),
    "quarter": ("3", "mon"),
    "year": ("1", "y"),
}
MARGIN = 0.03  # share of the extent that the first view shows around it


@dataclass(frozen=True, kw_only=True)
class ProjectLayer:
    """A layer of a project.

    Attributes
    ----------
    id : str
        Unique in the project.
    name : str
        Shown in the list of layers.
    source : str
        As QGIS writes it, relative to the project: ``./a.tif``, ``./a.gpkg|layername=b``.
    kind : {"raster", "vector"}
    crs : pyproj.CRS
    style : str
        Text of a QGIS style (QML).
    label : str
        Expression of the labels of a vector layer; none if empty.
    visible, expanded : bool
        Whether it is drawn, and its legend shown, when the project opens.
    about : str
        Abstract.
    when : tuple of datetime, optional
        First and last second that QGIS's temporal controller shows it; always if not given.
    """

    id: str
    name: str
    source: str
    kind: str
    crs: CRS
    style: str
    label: str = ""
    visible: bool = False
    expanded: bool = False
    about: str = ""
    when: tuple[datetime, datetime] | None = None

    @property
    def provider(self) -> str:
        """QGIS's reader of the source."""
        return "gdal" if self.kind == "raster" else "ogr"


@dataclass(frozen=True)
class ProjectGroup:
    """Layers that the list of layers shows together, the first on top; none unless it is ticked."""

    name: str
    layers: Sequence[ProjectLayer]
    ticked: bool = True


def project_file(
    title: str,
    groups: Sequence[ProjectGroup],
    crs: CRS,
    view: Bounds,
    note: str = "",
    step: str = "",
) -> bytes:
    """Return the bytes of a ``.qgz``: a zip of the project's XML, ``disagg.qgs``.

    Parameters
    ----------
    title : str
    groups : sequence of ProjectGroup
        The first is drawn on top.
    crs : pyproj.CRS
        Of the map.
    view : tuple of float
        Left, bottom, right, top of what the map shows first, in the CRS, without the margin.
    note : str
        Below the legend of the print layout.
    step : {"", "day", "week", "month", "quarter", "year"}
        Of the temporal controller, where some layers have a time.
    """
    root = _project(title, groups, crs, view, note)
    times = [each.when for group in groups for each in group.layers if each.when]
    if times:
        number, unit = STEPS[step]
        settings = ET.SubElement(
            root, "ProjectTimeSettings", timeStep=number, timeStepUnit=unit, frameRate="1"
        )
        settings.append(_range("TemporalRange", min(times)[0], max(end for _, end in times)))
        ET.indent(root)
    text = DOCTYPE + ET.tostring(root, encoding="unicode") + "\n"
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo("disagg.qgs", (1980, 1, 1, 0, 0, 0))
        member.external_attr = 0o644 << 16
        member.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(member, text.encode())
    return held.getvalue()


def _project(
    title: str, groups: Sequence[ProjectGroup], crs: CRS, view: Bounds, note: str
) -> ET.Element:
    root = ET.Element("qgis", projectname=title, version=VERSION)
    ET.SubElement(root, "title").text = title
    ET.SubElement(root, "projectCrs").append(_srs(crs))
    tree = ET.SubElement(root, "layer-tree-group")
    for group in groups:
        seen = group.ticked and any(layer.visible for layer in group.layers)
        branch = ET.SubElement(
            tree,
            "layer-tree-group",
            name=group.name,
            checked=_tick(group.ticked),
            expanded=_flag(seen),
        )
        for layer in group.layers:
            ET.SubElement(
                branch,
                "layer-tree-layer",
                id=layer.id,
                name=layer.name,
                source=layer.source,
                providerKey=layer.provider,
                checked=_tick(layer.visible),
                expanded=_flag(layer.expanded),
                legend_exp="",
            )
    shown = _with_margin(view)
    canvas = ET.SubElement(root, "mapcanvas", name="theMapCanvas", annotationsVisible="1")
    ET.SubElement(canvas, "units").text = "degrees" if crs.is_geographic else "meters"
    canvas.append(_extent("extent", shown))
    ET.SubElement(canvas, "rotation").text = "0"
    ET.SubElement(canvas, "destinationsrs").append(_srs(crs))
    layers = [layer for group in groups for layer in group.layers]
    listed = ET.SubElement(root, "projectlayers")
    order = ET.SubElement(root, "layerorder")
    for layer in layers:
        listed.append(_raster(layer) if layer.kind == "raster" else _vector(layer))
        ET.SubElement(order, "layer", id=layer.id)
    properties = ET.SubElement(root, "properties")
    for section, key, kind, text in (
        ("Paths", "Absolute", "bool", "false"),
        ("SpatialRefSys", "ProjectionsEnabled", "int", "1"),
    ):
        ET.SubElement(ET.SubElement(properties, section), key, type=kind).text = text
    settings = ET.SubElement(root, "ProjectViewSettings", UseProjectScales="0")
    names = ("xmin", "ymin", "xmax", "ymax")
    ends = {name: f"{v:.17g}" for name, v in zip(names, shown, strict=True)}
    ET.SubElement(settings, "DefaultViewExtent", ends).append(_srs(crs))
    legend = [
        LegendEntry(each.id, each.name, each.source, each.provider)
        for group in groups
        for each in group.layers
        if group.ticked and each.visible
    ]
    root.append(layouts(title, note, legend, shown))
    ET.indent(root)
    return root


def _raster(layer: ProjectLayer) -> ET.Element:
    return _layer(layer, {"type": "raster"})


def _vector(layer: ProjectLayer) -> ET.Element:
    labelled = _flag(bool(layer.label))
    found = _layer(layer, {"type": "vector", "geometry": "Polygon", "labelsEnabled": labelled})
    if layer.label:
        found.append(_labels(layer.label))
    return found


def _layer(layer: ProjectLayer, kind: dict[str, str]) -> ET.Element:
    found = ET.Element("maplayer", {**kind, "styleCategories": "AllStyleCategories"})
    for name, text in (
        ("id", layer.id),
        ("datasource", layer.source),
        ("layername", layer.name),
        ("abstract", layer.about),
    ):
        ET.SubElement(found, name).text = text
    ET.SubElement(found, "srs").append(_srs(layer.crs))
    ET.SubElement(found, "provider", encoding="UTF-8").text = layer.provider
    found.extend(list(ET.fromstring(layer.style)))
    if layer.when:
        # Mode 0: a range of its own, whatever the file says.
        temporal = ET.SubElement(found, "temporal", enabled="1", mode="0", fetchMode="0")
        temporal.append(_range("fixedRange", *layer.when))
    return found


def _labels(expression: str) -> ET.Element:
    """Return labels inside the polygons, with a white rim; QGIS leaves out what would overlap."""
    labels = ET.Element("labeling", type="simple")
    settings = ET.SubElement(labels, "settings", calloutType="simple")
    style = ET.SubElement(
        settings,
        "text-style",
        fieldName=expression,
        isExpression="1",
        fontSize="7",
        fontSizeUnit="Point",
        textColor="40,40,40,255",
        textOpacity="1",
    )
    ET.SubElement(
        style,
        "text-buffer",
        bufferDraw="1",
        bufferSize="0.6",
        bufferSizeUnits="MM",
        bufferColor="255,255,255,255",
        bufferOpacity="0.8",
    )
    # 1: over the point of the polygon that is farthest from its border.
    ET.SubElement(settings, "placement", placement="1", centroidInside="1", centroidWhole="1")
    ET.SubElement(settings, "rendering", drawLabels="1", fitInPolygonOnly="0", obstacle="1")
    return labels


def _srs(crs: CRS) -> ET.Element:
    found = ET.Element("spatialrefsys", nativeFormat="Wkt")
    for name, text in (
        ("wkt", crs.to_wkt()),
        ("authid", crs_code(crs) or ""),
        ("description", crs.name),
        ("geographicflag", "true" if crs.is_geographic else "false"),
    ):
        ET.SubElement(found, name).text = text
    return found


def _extent(name: str, bounds: Bounds) -> ET.Element:
    found = ET.Element(name)
    for key, value in zip(("xmin", "ymin", "xmax", "ymax"), bounds, strict=True):
        ET.SubElement(found, key).text = f"{value:.17g}"
    return found


def _range(name: str, start: datetime, end: datetime) -> ET.Element:
    found = ET.Element(name)
    for key, time in (("start", start), ("end", end)):
        ET.SubElement(found, key).text = f"{time:%Y-%m-%dT%H:%M:%SZ}"
    return found


def _with_margin(view: Bounds) -> Bounds:
    left, bottom, right, top = view
    across, up = MARGIN * (right - left), MARGIN * (top - bottom)
    return left - across, bottom - up, right + across, top + up


def _tick(value: bool) -> str:
    return "Qt::Checked" if value else "Qt::Unchecked"


def _flag(value: bool) -> str:
    return "1" if value else "0"
