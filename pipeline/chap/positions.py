"""Positions of locations, by the polygons that come with a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from geo.core.errors import InputError, Problem, name_first, one_line

_EQUAL_AREA = "EPSG:6933"  # of the centroids; distances are read in a plane of the country's own


def read_positions(path: Path, locations: list[str]) -> np.ndarray:
    """Return the centroid of each location's polygon.

    Parameters
    ----------
    path : Path
        GeoJSON; the ``id`` of a feature is the location.
    locations : list of str

    Returns
    -------
    (n_location, 2) float64, km
        East and north of the middle of all, in an equal-area plane around it.

    Raises
    ------
    InputError
        If the file is no GeoJSON of polygons, or a location is not in it.
    """
    import json

    import geopandas
    from shapely.geometry import shape

    try:
        features = json.loads(path.read_text(encoding="utf-8"))["features"]
        ids = [str(each.get("id", each.get("properties", {}).get("id"))) for each in features]
        polygons = [shape(_flat(each["geometry"])) for each in features]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        found = "does not exist" if not path.exists() else f"is not read: {one_line(error)}"
        remedy = "give a GeoJSON FeatureCollection of polygons"
        raise InputError(Problem(str(path), found, remedy)) from error
    absent = [name for name in locations if name not in ids]
    if absent:
        found = f"no feature with the id {name_first(absent)}"
        remedy = "the id of a feature is the location of the table"
        raise InputError(Problem(str(path), found, remedy))
    frame = geopandas.GeoSeries(polygons, index=ids, crs="EPSG:4326").loc[locations]
    middle = frame.to_crs(_EQUAL_AREA).centroid.to_crs("EPSG:4326")
    lat, lon = float(middle.y.mean()), float(middle.x.mean())
    plane = (
        f"+proj=laea +lat_0={lat:.3f} +lon_0={lon:.3f} +datum=WGS84 +units=km +no_defs +type=crs"
    )
    centre = frame.to_crs(plane).centroid
    return np.column_stack([centre.x, centre.y])


def _flat(geometry: dict[str, Any]) -> dict[str, Any]:
    """Return a geometry without heights: those that CHAP writes are null."""

    def of(part: Any) -> Any:
        return [of(each) for each in part] if isinstance(part[0], list) else part[:2]

    return {**geometry, "coordinates": of(geometry["coordinates"])}
