"""Attribute tables of vector files: GeoPackage, Shapefile, GeoJSON and others that GDAL reads."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyogrio
import pyogrio.errors

from geo.boundary_formats import check_layer
from geo.errors import InputError, Problem, one_line
from geo.table_format import TableFormat

#: Suffixes of files that are read as vector files.
SUFFIXES = (
    *(".gpkg", ".shp", ".dbf", ".geojson", ".geojsonl", ".json", ".fgb", ".gml", ".kml", ".kmz"),
    *(".sqlite", ".gdb", ".tab", ".mif", ".shz", ".shp.zip", ".gpkg.zip"),
)


class Vector(TableFormat):
    """Reads the attributes of vector files; their geometries are not read."""

    name = "vector"
    first_row = 1
    row_word = "feature"
    part = "layer"

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read the attributes of the only layer."""
        return self.read_part(path, None)

    def read_part(self, path: str | Path, part: str | None) -> pd.DataFrame:
        """Read the attributes of a layer."""
        try:
            check_layer(path, part)
            table = pyogrio.read_dataframe(path, layer=part, read_geometry=False)
        except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
            found = f"cannot be read as vector data ({one_line(error)})"
            remedy = "give a GeoPackage, Shapefile or GeoJSON file, or a table"
            raise InputError(Problem(str(path), found, remedy)) from error
        table.index = pd.RangeIndex(1, len(table) + 1)
        return table
