"""Open the project of a run with QGIS, as a user does, and draw it: the first view, each layer.

To look at, and to check what only QGIS can tell: it exits with 1 if a layer cannot be opened, if
the project has another CRS than its maps, or if an SLD is not what QGIS makes of the style. It
needs QGIS's Python, ``/usr/bin/python3 benchmarks/qgis_project.py OUT PICTURES`` with
``QT_QPA_PLATFORM=offscreen`` on a machine without a screen.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from qgis.core import (
    QgsApplication,
    QgsMapRendererParallelJob,
    QgsMapSettings,
    QgsProject,
    QgsRasterLayer,
)
from qgis.PyQt.QtCore import QSize
from qgis.PyQt.QtGui import QColor

SIDE = 1000


def draw(layers: list, path: Path) -> None:
    """Draw layers, the first on top, in the project's CRS and first extent."""
    project = QgsProject.instance()
    settings = QgsMapSettings()
    settings.setLayers(layers)
    settings.setDestinationCrs(project.crs())
    extent = project.viewSettings().defaultViewExtent()
    settings.setExtent(extent)
    settings.setOutputSize(QSize(round(SIDE * extent.width() / extent.height()), SIDE))
    settings.setBackgroundColor(QColor("white"))
    settings.setFlag(QgsMapSettings.DrawLabeling, True)
    job = QgsMapRendererParallelJob(settings)
    job.start()
    job.waitForFinished()
    job.renderedImage().save(str(path))


def colours(path: Path) -> list[tuple[float, str]]:
    """Return values and colours of a style's colour map."""
    entries = (e for e in ET.parse(path).iter() if e.tag.endswith("ColorMapEntry"))
    return [(float(e.get("quantity")), e.get("color")) for e in entries]


def main(out: Path, pictures: Path) -> int:
    """Return the number of things that are wrong."""
    pictures.mkdir(parents=True, exist_ok=True)
    application = QgsApplication([], False)
    application.initQgis()
    project = QgsProject.instance()
    wrong = 0 if project.read(str(out / "disagg.qgz")) else 1
    print("project", project.title(), project.crs().authid(), project.filePathStorage())
    print("QGIS says:", project.error() or "nothing")
    root = project.layerTreeRoot()
    for node in root.findLayers():
        layer = node.layer()
        valid = layer is not None and layer.isValid()
        wrong += not valid
        where = node.parent().name()
        print(f"{where} / {node.name()}: {'opened' if valid else 'NOT OPENED'}")
        if valid:
            wrong += layer.crs() != project.crs()
            draw([layer], pictures / f"{layer.id()}.png")
    draw([n.layer() for n in root.findLayers() if n.isVisible()], pictures / "first_view.png")
    for path in sorted(out.glob("*.sld")):
        layer = QgsRasterLayer(str(path.with_suffix(".tif")), path.stem)
        layer.loadDefaultStyle()
        own = pictures / path.name
        layer.saveSldStyle(str(own))
        same = colours(own) == colours(path)
        wrong += not same
        print(f"{path.name}: {'as' if same else 'NOT AS'} QGIS writes the style")
    return wrong


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(1 if found else 0)  # QGIS 3.22 may crash when Python takes its objects down
