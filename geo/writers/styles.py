"""Styles of rasters: a ``.qml`` for QGIS and an ``.sld`` for servers and others beside each."""

from __future__ import annotations

import os
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path

from geo.writers.colours import Scale

DOCTYPE = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


def write_style(path: str | Path, scale: Scale, unit: str = "") -> Path:
    """Write the styles of a GeoTIFF: one band in false colours, missing pixels transparent.

    Parameters
    ----------
    path : str or Path
        The GeoTIFF; its styles have its name with ``.qml`` and ``.sld``.
    scale : Scale
        Colours; its breaks are the entries of the legend.
    unit : str
        Unit in the legend.

    Returns
    -------
    Path
        The QGIS style.
    """
    style = Path(path).with_suffix(".qml")
    for file, text in (
        (style, raster_style(scale, unit)),
        (style.with_suffix(".sld"), raster_sld(style.stem, scale, unit)),
    ):
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    return style


def raster_sld(name: str, scale: Scale, unit: str = "") -> str:
    """Return the text of a raster's style as a Styled Layer Descriptor 1.0 (OGC 02-070).

    Colours are interpolated between the breaks, as in the QGIS style; pixels without a value are
    not drawn. The name is that of the layer, which a server asks for.
    """
    root = ET.Element(
        "StyledLayerDescriptor",
        {
            "version": "1.0.0",
            "xmlns": "http://www.opengis.net/sld",
            "xmlns:ogc": "http://www.opengis.net/ogc",
            "xmlns:xlink": "http://www.w3.org/1999/xlink",
        },
    )
    layer = ET.SubElement(root, "NamedLayer")
    ET.SubElement(layer, "Name").text = name
    style = ET.SubElement(layer, "UserStyle")
    ET.SubElement(style, "Name").text = name
    rule = ET.SubElement(ET.SubElement(style, "FeatureTypeStyle"), "Rule")
    symbolizer = ET.SubElement(rule, "RasterSymbolizer")
    channels = ET.SubElement(symbolizer, "ChannelSelection")
    ET.SubElement(ET.SubElement(channels, "GrayChannel"), "SourceChannelName").text = "1"
    colours = ET.SubElement(symbolizer, "ColorMap", type="ramp")
    for value, colour, label in zip(scale.breaks, scale.colours, scale.labels(unit), strict=True):
        entry = {"color": colour, "quantity": f"{value:.10g}", "label": label, "opacity": "1"}
        ET.SubElement(colours, "ColorMapEntry", entry)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


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
