"""QGIS styles of rasters: a ``.qml`` beside each."""

from __future__ import annotations

import os
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path

from geo.colours import Scale

DOCTYPE = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


def write_style(path: str | Path, scale: Scale, unit: str = "") -> Path:
    """Write the QGIS style of a GeoTIFF: one band in false colours, missing pixels transparent.

    Parameters
    ----------
    path : str or Path
        The GeoTIFF; the style has its name with ``.qml``.
    scale : Scale
        Colours; its breaks are the entries of the legend.
    unit : str
        Unit in the legend.

    Returns
    -------
    Path
        The style file.
    """
    style = Path(path).with_suffix(".qml")
    draft = style.with_name(f".{style.name}.{uuid.uuid4().hex[:8]}")
    try:
        draft.write_text(raster_style(scale, unit), encoding="utf-8")
        os.replace(draft, style)
    finally:
        draft.unlink(missing_ok=True)
    return style


def raster_style(scale: Scale, unit: str = "") -> str:
    """Return the text of a raster's style."""
    low, high = (f"{scale.breaks[k]:.10g}" for k in (0, -1))
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology")
    pipe = ET.SubElement(root, "pipe")
    renderer = ET.SubElement(
        pipe,
        "rasterrenderer",
        type="singlebandpseudocolor",
        band="1",
        opacity="1",
        alphaBand="-1",
        nodataColor="",
        classificationMin=low,
        classificationMax=high,
    )
    ET.SubElement(renderer, "rasterTransparency")
    # The breaks are fixed: QGIS must not stretch them to the statistics of what it shows.
    origin = ET.SubElement(renderer, "minMaxOrigin")
    for name, text in (("limits", "None"), ("extent", "WholeRaster"), ("statAccuracy", "Exact")):
        ET.SubElement(origin, name).text = text
    shader = ET.SubElement(
        ET.SubElement(renderer, "rastershader"),
        "colorrampshader",
        colorRampType="INTERPOLATED",
        classificationMode="1",
        clip="0",
        labelPrecision="6",
        minimumValue=low,
        maximumValue=high,
    )
    shader.append(_ramp(scale))
    labels = scale.labels(unit)
    for value, colour, label in zip(scale.breaks, scale.colours, labels, strict=True):
        ET.SubElement(shader, "item", value=f"{value:.10g}", color=colour, alpha="255", label=label)
    # A continuous legend (QGIS 3.18 and later) has its two ends alone; a list has every break.
    ET.SubElement(shader, "rampLegendSettings", useContinuousLegend="0")
    ET.indent(root)
    return DOCTYPE + ET.tostring(root, encoding="unicode") + "\n"


def rgba(colour: str) -> str:
    """Return ``#rrggbb`` as QGIS writes it: ``r,g,b,255``."""
    return ",".join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5)) + ",255"


def add_options(parent: ET.Element, options: dict[str, str]) -> None:
    """Add a map of options as QGIS 3.22 and later read it, and as earlier ones do."""
    listed = ET.SubElement(parent, "Option", type="Map")
    for name, value in options.items():
        ET.SubElement(listed, "Option", name=name, value=value, type="QString")
    for name, value in options.items():
        ET.SubElement(parent, "prop", k=name, v=value)


def _ramp(scale: Scale) -> ET.Element:
    """Return the colour ramp that QGIS classifies again with, if a user asks it to."""
    low, high = scale.breaks[0], scale.breaks[-1]
    stops = [
        f"{(value - low) / (high - low):.6g};{rgba(colour)}"
        for value, colour in zip(scale.breaks[1:-1], scale.colours[1:-1], strict=True)
    ]
    ramp = ET.Element("colorramp", type="gradient", name="[source]")
    options = {
        "color1": rgba(scale.colours[0]),
        "color2": rgba(scale.colours[-1]),
        "discrete": "0",
        "rampType": "gradient",
    }
    if stops:
        options["stops"] = ":".join(stops)
    add_options(ramp, options)
    return ramp
