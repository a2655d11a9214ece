"""Formats of boundary files: GeoPackage, Shapefile, GeoJSON, GeoParquet, KML."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import geopandas as gpd
import pyogrio
import pyogrio.errors
from pyproj.exceptions import CRSError

from geo.core.columns import suggest
from geo.core.errors import InputError, Problem, name_first, one_line
from geo.core.formats import Formats
from geo.core.trust import is_web_address
from geo.core.web_errors import web_problem
from geo.sources.vector_access import REMEDY, vector_path

#: ``read(path, layer)`` returns the features, or raises InputError for what users can correct.
ReadBoundaries = Callable[[str | Path, str | None], gpd.GeoDataFrame]


def check_layer(path: str | Path, source: str | bytes, layer: str | None) -> None:
    """Raise InputError unless a vector file has a layer, or (for None) a single one.

    ``source`` is what GDAL opens for the file, from :func:`geo.sources.vector_access.vector_path`.
    """
    layers = [str(found) for found in pyogrio.list_layers(source)[:, 0]]
    if not layers:
        raise InputError(Problem(str(path), "has no layer", REMEDY))
    if layer is not None and layer not in layers:
        found, remedy = f"has no layer {layer!r}", suggest(layer, layers, "layer")
        raise InputError(Problem(str(path), found, remedy))
    if layer is None and len(layers) > 1:
        found = f"has {len(layers)} layers ({name_first(layers)})"
        raise InputError(Problem(str(path), found, "choose one with the key `layer`"))


def takes_encoding(path: str | Path) -> bool:
    """Return whether the text of a vector file may be in any encoding: a Shapefile, or MapInfo."""
    if BOUNDARIES.of(path) is not read_vector:
        return False
    return pyogrio.read_info(vector_path(path))["driver"] in ("ESRI Shapefile", "MapInfo File")


def read_vector(
    path: str | Path,
    layer: str | None,
    *,
    close_rings: bool = False,
    encoding: str | None = None,
) -> gpd.GeoDataFrame:
    """Read a layer of a vector file of a format that :mod:`geo.sources.vector_access` knows.

    The geometry of a polygon with an open ring is None, unless ``close_rings``. ``encoding`` is
    that of the text, if the file does not say it.
    """
    place, source = str(path), vector_path(path)
    try:
        if layer is None:
            check_layer(path, source, layer)
        if encoding is not None and not takes_encoding(path):
            raise InputError(Problem(place, "has text of one known encoding", "remove `encoding`"))
        with warnings.catch_warnings():
            # Our checks report both.
            warnings.filterwarnings("ignore", "Non closed ring detected|Several features with id")
            # Other invalid rings are kept: our own check reports where they cross.
            frame = pyogrio.read_dataframe(
                source,
                layer=layer,
                on_invalid="fix" if close_rings else "ignore",
                encoding=encoding,
            )
    except UnicodeDecodeError as error:
        found = f"has text that is not {error.encoding} ({one_line(error)})"
        raise InputError(Problem(place, found, "give its `encoding`, such as cp850")) from error
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, OSError) as error:
        if isinstance(error, pyogrio.errors.DataLayerError):
            check_layer(path, source, layer)
        if is_web_address(place):
            raise InputError(web_problem(place, one_line(error))) from error
        found = f"cannot be read as vector data ({one_line(error)})"
        damaged = "copy or download the file again, or " + REMEDY
        raise InputError(Problem(place, found, damaged)) from error
    except CRSError as error:
        found = f"has a CRS that cannot be understood ({one_line(error)})"
        raise InputError(Problem(place, found, "assign one with an EPSG code")) from error
    if not isinstance(frame, gpd.GeoDataFrame):
        raise InputError(Problem(place, "has no geometry", "give a layer with polygons"))
    return frame


def read_geoparquet(path: str | Path, layer: str | None) -> gpd.GeoDataFrame:
    """Read a GeoParquet file, which has one layer without a name."""
    del layer
    try:
        return gpd.read_parquet(path)
    except (ValueError, OSError, KeyError) as error:
        found = f"cannot be read as GeoParquet ({one_line(error)})"
        raise InputError(Problem(str(path), found, REMEDY)) from error


BOUNDARIES: Formats[ReadBoundaries] = Formats(read_vector)
BOUNDARIES.register(read_geoparquet, ".parquet", ".geoparquet")
