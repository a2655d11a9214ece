"""Rasters that miss the areas: one has the wrong place or CRS, or, if all miss them, the areas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import geopandas as gpd
import numpy as np
import shapely
from pyproj import CRS

from geo.core.errors import Problem
from geo.grids.grid import Bounds
from geo.sources.raster_header import crs_text
from geo.sources.source import Source
from pipeline.ingest.extent import Extent, box_in_degrees

N_SOURCE_MAX = 10**11  # pixels of a raster over the areas: more take days to read
N_FILE = 2  # that lie together, from which the areas are what is wrong
FITS = 0.5  # share of the areas' bounds on the rasters, from which a CRS may be theirs
SWAP = "write longitude first, then latitude (QGIS: Swap X and Y coordinates)"


def is_misplaced(
    place: str, source: Source, extent: Extent | None, problems: list[Problem]
) -> bool:
    """Return whether a raster misses the areas or the Earth; append a problem if so."""
    if not source.north_up:
        return False
    remedy = "assign the CRS that it really is in (crs: EPSG:xxxx, beside its path)"
    if not _on_earth(source):
        found = (
            f"spans {_text(source.grid.bounds)} (west south east north), which are not degrees, "
            "but its CRS is geographic"
        )
        problems.append(Problem(place, found, remedy))
        return True
    if extent is not None and extent.is_disjoint(source):
        found = (
            f"does not overlap the areas: it spans {_text(source.grid.bounds)}, they span "
            f"{_text(extent.bounds(source.crs))} (west south east north)"
        )
        remedy = f"give a raster of the same place, or {remedy}"
        if _swapped(extent.areas, [box_in_degrees(source)]):
            remedy = f"in the areas, whose x and y are exchanged, {SWAP}"
        problems.append(Problem(place, found, remedy))
        return True
    n_read = source.grid.n_pix
    if extent is not None:
        n_read = round(n_read * extent.read_share(source))
    if n_read > N_SOURCE_MAX:
        found = f"has {n_read:,} pixels over the areas"
        problems.append(Problem(place, found, "give a coarser raster (gdalwarp -r average)"))
        return True
    return False


def elsewhere(
    place: str, areas: gpd.GeoDataFrame, extent: Extent, rasters: Mapping[str, Source]
) -> Problem | None:
    """Return the problem that the areas lie outside all rasters, which lie together.

    None if any raster meets the areas, or there are fewer than two files: each raster that misses
    the areas is then a problem of its own.

    Parameters
    ----------
    place : str
        Of the areas, in messages.
    areas : GeoDataFrame
    extent : Extent
        Of the areas.
    rasters : mapping of str to Source
        By their path.
    """
    each = list(rasters.values())
    if len(each) < N_FILE or not all(s.north_up and s.crs and _on_earth(s) for s in each):
        return None
    if not all(extent.is_disjoint(source) for source in each):
        return None
    boxes = [box for source in each if (box := box_in_degrees(source)) is not None]
    if len(boxes) < len(each) or not all(a.intersects(b) for a, b in combinations(boxes, 2)):
        return None
    whole = shapely.intersection_all(boxes)
    own = extent.bounds(CRS("OGC:CRS84"))
    found = f"lie outside all {len(each)} rasters, which lie together: "
    found += f"they span {_text(own)}" if np.isfinite(own).all() else "they are nowhere on Earth"
    found += f", the rasters {_text(whole.bounds)} (west south east north, in degrees)"
    remedy = f"{_remedy(areas, whole, each)}; or give areas and rasters of the same place"
    return Problem(place, found, remedy)


def _remedy(areas: gpd.GeoDataFrame, whole: shapely.Geometry, rasters: list[Source]) -> str:
    """Return what brings areas that lie outside all rasters to them."""
    if _swapped(areas, [whole]):
        return f"{SWAP}: with x and y exchanged they lie on the rasters"
    likely = _likely(areas, whole, rasters)
    remedy = "assign the CRS that the coordinates of the areas are in (QGIS: Set layer CRS)"
    return remedy if likely is None else f"{remedy}: in {likely} they lie on the rasters"


def _swapped(areas: gpd.GeoDataFrame, boxes: Sequence[shapely.Geometry | None]) -> bool:
    """Return whether areas in degrees meet each box once their x and y are exchanged."""
    if areas.crs is None or not areas.crs.is_geographic:
        return False
    west, south, east, north = areas.total_bounds
    exchanged = shapely.box(south, west, north, east)
    return all(box is not None and box.intersects(exchanged) for box in boxes)


def _likely(areas: gpd.GeoDataFrame, whole: shapely.Geometry, rasters: list[Source]) -> str | None:
    """Return a CRS in which the coordinates of the areas lie on the rasters; None if none does."""
    zone = gpd.GeoSeries([whole], crs="OGC:CRS84").estimate_utm_crs()
    given = areas.total_bounds
    piece = np.ptp(given) / 16 or 1.0  # of an edge: straight in one CRS is curved in another
    for crs in (CRS("EPSG:4326"), *(CRS(source.crs) for source in rasters), zone):
        corners = gpd.GeoSeries([shapely.box(*given)], crs=crs).segmentize(piece)
        (there,) = corners.to_crs("OGC:CRS84")
        if not np.isfinite(there.bounds).all() or not there.is_valid:
            continue
        if there.area > 0 and there.intersection(whole).area >= FITS * there.area:
            return crs_text(crs)
    return None


def _on_earth(source: Source) -> bool:
    """Return whether the bounds of a raster in degrees are degrees."""
    west, south, east, north = source.grid.bounds
    degrees = source.crs is not None and source.crs.is_geographic
    return not degrees or (west >= -361 and east <= 361 and south >= -91 and north <= 91)


def _text(bounds: Bounds) -> str:
    return " ".join(f"{value:.6g}" for value in bounds)
