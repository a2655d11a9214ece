"""A print layout of a QGIS project: a page with title, map, legend and scale bar.

Types of items are those of QGIS' registry of layout items (3.22).
"""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from geo.grids.grid import Bounds

PAGE, MAP, LABEL, LEGEND, SCALE_BAR = "65638", "65639", "65641", "65642", "65646"
NAME = "A4 landscape"
WIDTH, HEIGHT = 297, 210  # of the page, mm
MAP_BOX = (10, 22, 205, 172)  # left, top, width, height
BESIDE = 220  # left edge of the legend
FONTS = {"title": "Sans Serif,16,-1,5,75,0,0,0,0,0", "text": "Sans Serif,8,-1,5,50,0,0,0,0,0"}


@dataclass(frozen=True)
class LegendEntry:
    """A layer in the legend, as the project lists it."""

    id: str
    name: str
    source: str
    provider: str


def layouts(title: str, note: str, legend: Sequence[LegendEntry], view: Bounds) -> ET.Element:
    """Return the ``Layouts`` of a project: one page that shows what the project shows first.

    Parameters
    ----------
    title, note : str
        Above the map, and below its legend.
    legend : sequence of LegendEntry
        The first on top.
    view : tuple of float
        Left, bottom, right, top of the map, in the project's CRS.
    """
    root = ET.Element("Layouts")
    layout = ET.SubElement(root, "Layout", name=NAME, units="mm", printResolution="300")
    layout.set("worldFileMap", _uuid("map"))
    pages = ET.SubElement(layout, "PageCollection")
    _item(pages, PAGE, "page", (0, 0, WIDTH, HEIGHT))
    shown = _item(layout, MAP, "map", MAP_BOX, frame="true", mapRotation="0")
    shown.set("drawCanvasItems", "true")
    shown.set("keepLayerSet", "false")  # layers that are ticked appear on the page
    names = ("xmin", "ymin", "xmax", "ymax")
    ends = _filling(view, MAP_BOX[2] / MAP_BOX[3])
    found = {name: f"{end:.17g}" for name, end in zip(names, ends, strict=True)}
    ET.SubElement(shown, "Extent", found)
    _text(layout, "title", title, (10, 8, 277, 11), "title")
    _text(layout, "note", note, (BESIDE, 178, 67, 24), "text")
    listed = _item(layout, LEGEND, "legend", (BESIDE, 22, 67, 120), title="", columnCount="1")
    listed.set("map_uuid", _uuid("map"))
    listed.set("resizeToContents", "1")
    listed.set("wrapChar", "|")
    tree = ET.SubElement(listed, "layer-tree-group")
    for entry in legend:
        ET.SubElement(
            tree, "layer-tree-layer", id=entry.id, name=entry.name, source=entry.source,
            providerKey=entry.provider, checked="Qt::Checked", expanded="1", legend_exp="",
        )  # fmt: skip
    _item(
        layout, SCALE_BAR, "scale bar", (BESIDE, 160, 60, 12), mapUuid=_uuid("map"),
        style="Single Box", unitType="km", unitLabel="km", numMapUnitsPerScaleBarUnit="1",
        numSegments="2", numSegmentsLeft="0", segmentSizeMode="1", minBarWidth="25",
        maxBarWidth="55", height="2", labelBarSpace="2", boxContentSpace="1",
    )  # fmt: skip
    return root


def _item(
    parent: ET.Element, kind: str, name: str, box: tuple[int, int, int, int], **more: str
) -> ET.Element:
    left, top, width, height = box
    at = f"{left},{top},mm"
    given = {
        "type": kind,
        "id": name,
        "uuid": _uuid(name),
        "templateUuid": _uuid(name),
        "position": at,
        "positionOnPage": at,
        "size": f"{width},{height},mm",
        "referencePoint": "0",
        "visibility": "1",
        "zValue": str(len(parent)),
        "opacity": "1",
        "background": "true",
        "frame": "false",
    }
    return ET.SubElement(parent, "LayoutItem", given | more)


def _text(
    layout: ET.Element, name: str, text: str, box: tuple[int, int, int, int], font: str
) -> None:
    item = _item(layout, LABEL, name, box, labelText=text, htmlState="0", halign="1", valign="32")
    ET.SubElement(item, "LabelFont", description=FONTS[font], style="")


def _filling(view: Bounds, wide: float) -> Bounds:
    """Return the view, made wider or higher to the ratio of a box."""
    left, bottom, right, top = view
    across, up = max(right - left, wide * (top - bottom)), max(top - bottom, (right - left) / wide)
    x, y = (left + right) / 2, (bottom + top) / 2
    return x - across / 2, y - up / 2, x + across / 2, y + up / 2


def _uuid(name: str) -> str:
    return f"{{{uuid.uuid5(uuid.NAMESPACE_URL, f'disagg layout {name}')}}}"
