"""Describe a layer of a GeoPackage: aliases of its columns, and a style that QGIS opens it with.

Aliases are those of the GeoPackage schema extension (``gpkg_data_columns``); the style is in the
table ``layer_styles``, as QGIS saves it there.
"""

from __future__ import annotations

import contextlib
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from geo.writers.colours import Scale, number_text
from geo.writers.styles import DOCTYPE, add_options, rgba

N_CLASS = 6  # classes of areas at least
OUTLINE = "60,64,72,255"

_SCHEMA = "http://www.geopackage.org/spec121/#extension_schema"
_TABLES = """
CREATE TABLE IF NOT EXISTS gpkg_extensions (
  table_name TEXT, column_name TEXT, extension_name TEXT NOT NULL, definition TEXT NOT NULL,
  scope TEXT NOT NULL, CONSTRAINT ge_tce UNIQUE (table_name, column_name, extension_name));
CREATE TABLE IF NOT EXISTS gpkg_data_columns (
  table_name TEXT NOT NULL, column_name TEXT NOT NULL, name TEXT, title TEXT, description TEXT,
  mime_type TEXT, constraint_name TEXT,
  CONSTRAINT pk_gdc PRIMARY KEY (table_name, column_name),
  CONSTRAINT gdc_tn UNIQUE (table_name, name));
CREATE TABLE IF NOT EXISTS gpkg_data_column_constraints (
  constraint_name TEXT NOT NULL, constraint_type TEXT NOT NULL, value TEXT, min NUMERIC,
  min_is_inclusive BOOLEAN, max NUMERIC, max_is_inclusive BOOLEAN, description TEXT,
  CONSTRAINT gdcc_ntv UNIQUE (constraint_name, constraint_type, value));
CREATE TABLE IF NOT EXISTS layer_styles (
  id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT(256),
  f_table_schema TEXT(256), f_table_name TEXT(256), f_geometry_column TEXT(256),
  styleName TEXT(30), styleQML TEXT, styleSLD TEXT, useAsDefault BOOLEAN, description TEXT,
  owner TEXT(30), ui TEXT(30), update_time DATETIME DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')));
"""

_CHANGES, _ONE = (24, 92), (1).to_bytes(4)  # of the header of a SQLite file
_NO_TIME = "1970-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class LayerDescription:
    """What a GeoPackage says of one of its layers.

    Attributes
    ----------
    identifier, description : str
        Title and content.
    aliases : mapping of str to str
        Text of each column that has one.
    style : str
        QGIS style (QML); none if empty.
    """

    identifier: str
    description: str
    aliases: Mapping[str, str]
    style: str = ""


def describe_layer(path: Path, layer: str, described: LayerDescription) -> None:
    """Write the description of a layer of features into its GeoPackage.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    try:
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.executescript(_TABLES)
            _write(database, layer, described)
        _forget_changes(path)
    except sqlite3.OperationalError as error:
        raise OSError(f"{path}: {error}") from error  # noqa: EM102


def _forget_changes(path: Path) -> None:
    """Set the number of changes of a database that nobody has open to 1.

    It stands twice in the header, and depends on how fast the file was written: GDAL changes the
    time of a layer once more where a millisecond has passed.
    """
    with path.open("r+b") as file:
        for place in _CHANGES:
            file.seek(place)
            file.write(_ONE)


def _write(database: sqlite3.Connection, layer: str, described: LayerDescription) -> None:
    database.execute(
        "UPDATE gpkg_contents SET identifier = ?, description = ? WHERE table_name = ?",
        (described.identifier, described.description, layer),
    )
    database.executemany(
        "INSERT OR IGNORE INTO gpkg_extensions VALUES (?, NULL, 'gpkg_schema', ?, 'read-write')",
        [("gpkg_data_columns", _SCHEMA), ("gpkg_data_column_constraints", _SCHEMA)],
    )
    database.executemany(
        "INSERT OR REPLACE INTO gpkg_data_columns (table_name, column_name, name, title) "
        "VALUES (?, ?, ?, ?)",
        [(layer, column, alias, alias) for column, alias in described.aliases.items()],
    )
    if described.style:
        _write_style(database, layer, described)
    # The same map has the same bytes, whenever it is made.
    database.execute("UPDATE gpkg_contents SET last_change = ?", (_NO_TIME,))


def _write_style(database: sqlite3.Connection, layer: str, described: LayerDescription) -> None:
    (geometry,) = database.execute(
        "SELECT column_name FROM gpkg_geometry_columns WHERE table_name = ?", (layer,)
    ).fetchone()
    # QGIS registers its table as attributes; other programs then know what it is.
    database.execute(
        "INSERT OR IGNORE INTO gpkg_contents (table_name, data_type, identifier, last_change) "
        "SELECT 'layer_styles', 'attributes', 'layer_styles', last_change FROM gpkg_contents "
        "WHERE table_name = ?",
        (layer,),
    )
    database.execute(
        "INSERT INTO layer_styles (f_table_catalog, f_table_schema, f_table_name, "
        "f_geometry_column, styleName, styleQML, styleSLD, useAsDefault, description, owner, "
        "update_time) VALUES ('', '', ?, ?, ?, ?, '', 1, ?, '', ?)",
        (layer, geometry, layer, described.style, described.description, _NO_TIME),
    )


def graduated_style(
    column: str, scale: Scale, unit: str = "", aliases: Mapping[str, str] | None = None
) -> str:
    """Return a QGIS style that colours areas by a column: a class between each two breaks.

    Parameters
    ----------
    column : str
        Name of the column.
    scale : Scale
        A class has the colour in the middle of its breaks; the first and last go on to whatever
        lies beyond. Areas without a value are not drawn.
    unit : str
        Unit in the legend.
    aliases : mapping of str to str, optional
        Text of each column that has one.
    """
    scale = scale.refined(N_CLASS)
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology|Fields")
    renderer = ET.SubElement(
        root,
        "renderer-v2",
        type="graduatedSymbol",
        attr=column,
        graduatedMethod="GraduatedColor",
        symbollevels="0",
        enableorderby="0",
        forceraster="0",
    )
    ranges, symbols = ET.SubElement(renderer, "ranges"), ET.SubElement(renderer, "symbols")
    n_class = len(scale.breaks) - 1
    for k in range(n_class):
        low, high = scale.breaks[k : k + 2]
        ends = [number_text(low), number_text(high)]
        first, last, label = low, high, f"{ends[0]} \u2013 {ends[1]}"
        if k == 0 and scale.below:
            first, label = -1e300, f"\u2264 {ends[1]}"
        elif k == n_class - 1 and scale.above:
            last, label = 1e300, f"> {ends[0]}"
        ET.SubElement(
            ranges,
            "range",
            symbol=str(k),
            lower=f"{first:.15g}",
            upper=f"{last:.15g}",
            label=f"{label} {unit}".strip() if k == 0 else label,
            render="true",
        )
        symbols.append(_fill(str(k), scale.colour((low + high) / 2)))
    ET.SubElement(renderer, "source-symbol").append(_fill("0", scale.colours[0]))
    texts = ET.SubElement(root, "aliases")
    for name, text in (aliases or {}).items():
        ET.SubElement(texts, "alias", field=name, name=text)
    ET.SubElement(root, "layerGeometryType").text = "2"
    ET.indent(root)
    return DOCTYPE + ET.tostring(root, encoding="unicode") + "\n"


def outline_style() -> str:
    """Return a QGIS style that draws the borders of areas alone."""
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology")
    renderer = ET.SubElement(root, "renderer-v2", type="singleSymbol", symbollevels="0")
    ET.SubElement(renderer, "symbols").append(_fill("0", "#ffffff", "no"))
    ET.SubElement(root, "layerGeometryType").text = "2"
    ET.indent(root)
    return DOCTYPE + ET.tostring(root, encoding="unicode") + "\n"


def layer_style(path: Path, layer: str) -> str | None:
    """Return the QGIS style with which a layer of a GeoPackage opens; None if it has none."""
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        query = "SELECT styleQML FROM layer_styles WHERE f_table_name = ? AND useAsDefault"
        try:
            found = db.execute(query, (layer,)).fetchone()
        except sqlite3.OperationalError:  # no such table
            return None
    return None if found is None else str(found[0])


def _fill(name: str, colour: str, style: str = "solid") -> ET.Element:
    symbol = ET.Element("symbol", name=name, type="fill", alpha="1", clip_to_extent="1")
    layer = ET.SubElement(
        symbol, "layer", {"class": "SimpleFill", "enabled": "1", "locked": "0", "pass": "0"}
    )
    options = {
        "color": rgba(colour),
        "style": style,
        "outline_color": OUTLINE,
        "outline_style": "solid",
        "outline_width": "0.1",
        "outline_width_unit": "MM",
        "joinstyle": "miter",
    }
    add_options(layer, options)
    return symbol
