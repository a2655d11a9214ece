"""The area that has most of each pixel, against exact shares of polygons."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import shapely

from geo.grids.grid import Grid, Tile
from geo.grids.membership import Membership, membership
from geo.grids.owners import NONE, Owners
from geo.sources.area_source import AreaSource


def test_a_pixel_is_of_the_area_with_most_of_it() -> None:
    grid = Grid.from_bounds("EPSG:32629", (0.0, 0.0, 8.0, 6.0), 1.0)
    # Corners that cut pixels into unequal parts; one area is smaller than a pixel.
    shapes = [
        shapely.Polygon([(0.2, 0.3), (4.4, 0.1), (3.3, 5.8), (0.4, 5.1)]),
        shapely.Polygon([(4.4, 0.1), (7.6, 0.9), (6.9, 5.2), (3.3, 5.8)]),
        shapely.box(7.7, 5.1, 7.8, 5.2),
    ]
    members = membership(gpd.GeoSeries(shapes, crs="EPSG:32629"), grid)
    owners = Owners.of(members)
    expected = np.full(grid.shape, NONE)
    for row in range(6):
        for col in range(8):
            pixel = shapely.box(col, 5 - row, col + 1, 6 - row)
            shares = [pixel.intersection(each).area for each in shapes]
            if max(shares) > 0:
                expected[row, col] = int(np.argmax(shares))
    np.testing.assert_array_equal(owners.inside(grid, grid.whole), expected)
    for tile in (Tile(1, 2, 3, 5), Tile(5, 7, 1, 1), Tile(0, 0, 1, 8)):
        np.testing.assert_array_equal(owners.inside(grid, tile), expected[tile.slices])
    source = AreaSource("a.csv", grid, owners, np.array([2.5, -1.0, 7.0]), "a", "mm")
    found = source.read()
    assert np.isnan(found[expected == NONE]).all()
    np.testing.assert_array_equal(found[expected == 1], -1.0)
    assert source.describe().unit == "mm"


def test_of_equals_the_first_has_the_pixel() -> None:
    grid = Grid.from_bounds("EPSG:32629", (0.0, 0.0, 2.0, 1.0), 1.0)
    half = np.array([0.5, 0.5], np.float32)
    members = Membership(np.array([0, 1, 1, 2]), np.array([1, 1], np.int32), half)
    assert Owners.of(members).inside(grid, grid.whole).tolist() == [[NONE, 0]]
