"""Render the maps of a run with QGIS: each raster with its style, the areas, and their legends.

To look at, not to test: it needs QGIS's Python, ``/usr/bin/python3 benchmarks/qgis_render.py OUT
PICTURES`` with ``QT_QPA_PLATFORM=offscreen`` on a machine without a screen.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qgis.core import (
    QgsApplication,
    QgsLayerTree,
    QgsLayerTreeModel,
    QgsLegendRenderer,
    QgsLegendSettings,
    QgsMapRendererParallelJob,
    QgsMapSettings,
    QgsProject,
    QgsRasterLayer,
    QgsRenderContext,
    QgsVectorLayer,
)
from qgis.PyQt.QtCore import QSize
from qgis.PyQt.QtGui import QColor, QImage, QPainter

SIDE, LEGEND, DPI = 900, 420, 96


def render(layer: object, path: Path) -> None:
    """Draw a layer as QGIS opens it, with its legend on the right."""
    QgsProject.instance().addMapLayer(layer)
    extent = layer.extent()
    width = max(300, min(SIDE, round(SIDE * extent.width() / extent.height())))
    settings = QgsMapSettings()
    settings.setLayers([layer])
    settings.setDestinationCrs(layer.crs())
    settings.setExtent(extent)
    settings.setOutputSize(QSize(width, SIDE))
    settings.setOutputDpi(DPI)
    settings.setBackgroundColor(QColor("white"))
    job = QgsMapRendererParallelJob(settings)
    job.start()
    job.waitForFinished()
    picture = QImage(width + LEGEND, SIDE, QImage.Format_ARGB32)
    picture.fill(QColor("white"))
    picture.setDotsPerMeterX(round(DPI / 0.0254))
    picture.setDotsPerMeterY(round(DPI / 0.0254))
    painter = QPainter(picture)
    painter.drawImage(0, 0, job.renderedImage())
    tree = QgsLayerTree()
    tree.addLayer(layer)
    model = QgsLayerTreeModel(tree)
    legend = QgsLegendRenderer(model, QgsLegendSettings())
    painter.translate(width + 10, 10)
    context = QgsRenderContext.fromQPainter(painter)
    context.setScaleFactor(1)
    painter.scale(DPI / 25.4, DPI / 25.4)  # QGIS draws legends in millimetres
    legend.drawLegend(context)
    painter.end()
    picture.save(str(path))
    QgsProject.instance().removeMapLayer(layer.id())


def main(out: Path, pictures: Path) -> None:
    """Render every raster of ``out`` that has a style, and ``areas.gpkg``."""
    pictures.mkdir(parents=True, exist_ok=True)
    application = QgsApplication([], False)
    application.initQgis()
    for path in sorted(out.glob("*.tif")):
        layer = QgsRasterLayer(str(path), path.stem)
        text, found = layer.loadDefaultStyle()
        print(path.name, "style" if found else f"no style: {text}")
        render(layer, pictures / f"{path.stem}.png")
    layer = QgsVectorLayer(f"{out / 'areas.gpkg'}|layername=areas", "areas", "ogr")
    text, found = layer.loadDefaultStyle()
    print("areas.gpkg", "style" if found else f"no style: {text}")
    print({field.name(): layer.attributeDisplayName(k) for k, field in enumerate(layer.fields())})
    render(layer, pictures / "areas.png")
    application.exitQgis()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
