"""Pairs of areas that overlap by more than the slivers between generalised borders."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import shapely

HALF_TURN = 180.0  # degrees of longitude; a wider area is drawn the long way
OVERLAPPING = 0.05  # share of the smaller area; generalised borders overlap by less


def name_overlaps(geometry: gpd.GeoSeries, ids: np.ndarray) -> list[str]:
    """Name each pair of areas that overlap, with the share of the smaller.

    Parameters
    ----------
    geometry : GeoSeries
        Valid polygons, in any CRS.
    ids : (n_area,) array
        Their ids.

    Returns
    -------
    list of str
        Such as ``"A and B (25 %)"`` or ``"A and B (the same polygon)"``, in the areas' order.
    """
    shapes = np.asarray(geometry.array)
    size = shapely.area(shapes)
    one, other = shapely.STRtree(shapes).query(shapes)
    pair = one < other
    one, other = one[pair], other[pair]
    # Boxes that share less than this leave no room for more.
    west, south, east, north = shapely.bounds(shapes).T
    width = np.minimum(east[one], east[other]) - np.maximum(west[one], west[other])
    height = np.minimum(north[one], north[other]) - np.maximum(south[one], south[other])
    smaller = np.minimum(size[one], size[other])
    near = width * height > OVERLAPPING * smaller
    if geometry.crs is not None and geometry.crs.is_geographic:
        # A polygon drawn across 180 degrees the long way covers what it does not mean to.
        long_way = east - west > HALF_TURN
        near &= ~long_way[one] & ~long_way[other]
    one, other, smaller = one[near], other[near], smaller[near]
    common = shapely.area(shapely.intersection(shapes[one], shapes[other]))
    much = np.flatnonzero(common > OVERLAPPING * smaller)
    much = much[np.lexsort((other[much], one[much]))]
    share = 100 * common[much] / smaller[much]
    return [
        f"{ids[a]} and {ids[b]} ({_how_much(s, size[a] / size[b])})"
        for a, b, s in zip(one[much], other[much], share, strict=True)
    ]


def _how_much(percent: float, ratio: float) -> str:
    same = percent > 99.9 and abs(ratio - 1) < 1e-3
    return "the same polygon" if same else f"{percent:.0f} %"
