"""Footprints as GeoJSON has them: also across 180 degrees, at a pole, and round the globe."""

from __future__ import annotations

import pytest
from pyproj import CRS, Transformer
from shapely.geometry import Point, shape

from geo.grids.footprint import footprint

DEGREES = CRS.from_epsg(4326)


def test_a_rectangle_of_degrees_is_itself():
    found = footprint(DEGREES, (30.0, -9.0, 39.0, -1.0))
    assert found.bbox == [30.0, -9.0, 39.0, -1.0]
    assert found.geometry["type"] == "Polygon"
    ring = found.geometry["coordinates"][0]
    assert ring[0] == ring[-1]
    assert len(ring) == 5
    assert shape(found.geometry).exterior.is_ccw
    assert shape(found.geometry).bounds == (30.0, -9.0, 39.0, -1.0)


def test_a_projected_extent_has_curved_edges():
    crs, bounds = CRS.from_epsg(32738), (1e5, 7.2e6, 1.1e6, 8.7e6)
    found = footprint(crs, bounds)
    to_degrees = Transformer.from_crs(crs, DEGREES, always_xy=True)
    place = shape(found.geometry)
    for x in (1e5 + 1, 6e5, 1.1e6 - 1):
        for y in (7.2e6 + 1e3, 8e6, 8.7e6 - 1e3):
            assert place.buffer(1e-3).contains(Point(to_degrees.transform(x, y)))
    # The middle of the southern edge lies beyond the straight line between its corners.
    outside = Point(to_degrees.transform(6e5, 7.2e6 - 2e3))
    assert not place.contains(outside)
    assert place.bounds == pytest.approx(found.bbox, abs=1e-3)


@pytest.mark.parametrize("bounds", [(177.0, -20.0, 183.0, -12.0), (-183.0, -20.0, -177.0, -12.0)])
def test_across_180_degrees_there_are_two_parts(bounds):
    found = footprint(DEGREES, bounds)
    west, south, east, north = found.bbox
    assert (west, east) == (177.0, -177.0)  # RFC 7946: west > east
    assert (south, north) == (-20.0, -12.0)
    place = shape(found.geometry)
    assert place.geom_type == "MultiPolygon"
    assert place.contains(Point(179.5, -15))
    assert place.contains(Point(-179.5, -15))
    assert not place.contains(Point(0, -15))
    assert place.area == pytest.approx(6 * 8)


def test_a_projected_extent_across_180_degrees_has_two_parts():
    found = footprint(CRS.from_epsg(32701), (1e5, 7.8e6, 6e5, 8.2e6))  # UTM 1 south, Fiji
    assert found.bbox[0] > found.bbox[2]
    assert shape(found.geometry).contains(Point(179.5, -18))
    assert shape(found.geometry).contains(Point(-179.0, -18))


def test_the_globe_from_0_to_360_is_all_longitudes():
    found = footprint(DEGREES, (0.0, -60.0, 360.0, 80.0))
    assert found.bbox == [-180.0, -60.0, 180.0, 80.0]
    assert shape(found.geometry).area == pytest.approx(360 * 140)


def test_around_a_pole_the_cap_is_a_band_of_all_longitudes():
    found = footprint(CRS.from_epsg(3031), (-1e6, -1e6, 1e6, 1e6))
    assert found.bbox[1] == -90.0
    assert shape(found.geometry).contains(Point(120, -85))
    assert shape(found.geometry).contains(Point(-30, -85))


def test_an_extent_that_ends_at_180_degrees_stays_whole():
    found = footprint(DEGREES, (170.0, -10.0, 180.0, 0.0))
    assert found.bbox == [170.0, -10.0, 180.0, 0.0]
    assert found.geometry["type"] == "Polygon"
