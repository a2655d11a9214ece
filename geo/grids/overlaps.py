"""Pairs of areas that overlap by more than the slivers between generalised borders."""

from __future__ import annotations

from collections.abc import Callable

import geopandas as gpd
import numpy as np
import shapely

from geo.grids.reproject import polygon_parts

HALF_TURN = 180.0  # degrees of longitude; a wider area is drawn the long way
OVERLAPPING = 0.05  # share of the smaller area's surface; generalised borders overlap by less
TWICE = 0.02  # share of the people of the smaller area
SLIVER = 0.005  # share of the smaller area's surface; in less than this no people are counted

#: From polygons to the people in each of them.
People = Callable[[gpd.GeoSeries], np.ndarray]


def name_overlaps(
    geometry: gpd.GeoSeries,
    titles: np.ndarray,
    people: People | None = None,
    total: np.ndarray | None = None,
) -> list[str]:
    """Name each pair of areas that overlap, with the share of the smaller.

    Pairs overlap by their shapes, however thin, if they share more than `OVERLAPPING` of their
    surface or more than `TWICE` of their people.

    Parameters
    ----------
    geometry : GeoSeries
        Valid polygons, in any CRS.
    titles : (n_area,) array
        Their names.
    people : callable, optional
        Counts who lives in some polygons.
    total : (n_area,) float64 array, optional
        People of the areas, if ``people`` is given.

    Returns
    -------
    list of str
        Such as ``"A and B (25 %, 310 people counted twice)"``, ``"A and B (25 %)"`` without
        ``people``, or ``"A and B (the same polygon)"``, in the areas' order.
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
    least = OVERLAPPING if people is None else SLIVER
    near = width * height > least * smaller
    if geometry.crs is not None and geometry.crs.is_geographic:
        # A polygon drawn across 180 degrees the long way covers what it does not mean to.
        long_way = east - west > HALF_TURN
        near &= ~long_way[one] & ~long_way[other]
    one, other, smaller = one[near], other[near], smaller[near]
    shared = shapely.intersection(shapes[one], shapes[other])
    share = shapely.area(shared) / smaller
    kept = np.flatnonzero(share > least)
    kept = kept[np.lexsort((other[kept], one[kept]))]
    one, other, share = one[kept], other[kept], share[kept]
    twice = np.zeros(kept.size)
    if people is not None and total is not None and kept.size:
        parts = [shapely.multipolygons(polygon_parts(each)) for each in shared[kept]]
        twice = people(gpd.GeoSeries(parts, crs=geometry.crs))
        much = (share > OVERLAPPING) | (twice > TWICE * np.minimum(total[one], total[other]))
        one, other, share, twice = one[much], other[much], share[much], twice[much]
    return [
        f"{titles[a]} and {titles[b]} ({_how_much(100 * part, size[a] / size[b], n)})"
        for a, b, part, n in zip(one, other, share, twice, strict=True)
    ]


def _how_much(percent: float, ratio: float, twice: float) -> str:
    same = percent > 99.9 and abs(ratio - 1) < 1e-3
    said = "the same polygon" if same else f"{percent:.2g} %" if percent < 5 else f"{percent:.0f} %"
    return f"{said}, {twice:,.0f} people counted twice" if twice >= 0.5 else said
