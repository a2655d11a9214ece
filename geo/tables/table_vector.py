"""Attribute tables of vector files, of the formats that :mod:`geo.sources.vector_access` knows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyogrio
import pyogrio.errors

from geo.core.errors import InputError, Problem, one_line
from geo.sources.boundary_formats import check_layer
from geo.sources.vector_access import vector_path
from geo.tables.table_format import TableFormat

#: Suffixes of files that are read as vector files.
SUFFIXES = (".gpkg", ".shp", ".geojson", ".json", ".fgb", ".gdb", ".kml", ".zip")


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
            source = vector_path(path)
            check_layer(path, source, part)
            table = pyogrio.read_dataframe(source, layer=part, read_geometry=False)
        except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
            found = f"cannot be read as vector data ({one_line(error)})"
            remedy = "give a GeoPackage, Shapefile or GeoJSON file, or a table"
            raise InputError(Problem(str(path), found, remedy)) from error
        table.index = pd.RangeIndex(1, len(table) + 1)
        return table


def point_degrees(path: str | Path, part: str | None) -> pd.DataFrame | None:
    """Return longitude and latitude of the points of a layer; None if its shapes are no points.

    Parameters
    ----------
    path : str or Path
    part : str or None
        Name of the layer; the only one where not given.

    Returns
    -------
    DataFrame or None
        ``lon`` and ``lat``, degrees (WGS 84), NaN without a place; None also without a CRS.
    """
    frame = pyogrio.read_dataframe(vector_path(path), layer=part, columns=[])
    if getattr(frame, "crs", None) is None or not frame.geom_type.dropna().eq("Point").all():
        return None
    there = frame.geometry.to_crs("EPSG:4326")
    return pd.DataFrame({"lon": there.x.to_numpy(), "lat": there.y.to_numpy()})
