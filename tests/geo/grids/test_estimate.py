"""Pixels of polygons from their geometry alone, against those that are really met."""

import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine
from shapely.affinity import translate

from geo.grids.estimate import estimate_pixels
from geo.grids.grid import Grid
from geo.grids.membership import membership

UTM = "EPSG:32738"


def cells(seed, n=24, *, holes):
    """Make adjoining cells, holes of 24 m across in them and in their borders."""
    rng = np.random.default_rng(seed)
    frame = shapely.box(0, 0, 1000, 800)
    points = shapely.MultiPoint(rng.uniform([0, 0], [1000, 800], (n, 2)))
    parts = shapely.get_parts(shapely.voronoi_polygons(points, extend_to=frame))
    areas = gpd.GeoSeries(shapely.intersection(parts, frame).tolist(), crs=UTM)
    discs = shapely.MultiPoint(rng.uniform([0, 0], [1000, 800], (30, 2))).buffer(12)
    return areas.difference(discs) if holes else areas


@pytest.mark.parametrize(
    ("res", "holes"), [(3.0, True), (10.0, True), (10.0, False), (40.0, False)]
)
def test_estimates_are_near_the_pixels_that_areas_meet(res, holes):
    areas = cells(1, holes=holes)
    # No border on the edges of pixels, which would count as one that cuts them.
    shape = (int(800 / res) + 2, int(1000 / res) + 2)
    grid = Grid(UTM, Affine(res, 0, -0.4 * res, 0, -res, 800 + 0.3 * res), shape)
    met = np.diff(membership(areas, grid).offsets)
    found = estimate_pixels(areas, grid)
    assert found.sum() == pytest.approx(met.sum(), rel=0.03)
    np.testing.assert_allclose(found, met, rtol=0.15)


def test_rectangles_and_parts_of_areas_are_exact():
    grid = Grid(UTM, Affine(1, 0, 0, 0, -1, 100), (100, 100))
    one = shapely.box(2.3, 3.4, 12.8, 7.6)
    both = shapely.MultiPolygon([one, translate(one, 30.1, 40.2)])
    shapes = gpd.GeoSeries([one, both, translate(one, 500, 0)], crs=UTM)
    met = np.diff(membership(shapes, grid).offsets)
    np.testing.assert_array_equal(met, [11 * 5, 2 * 11 * 5, 0])
    surface = shapely.area(np.asarray(shapes.array))
    border = [0.5 * 2 * (10 + 4) + 1, 2 * (0.5 * 2 * (10 + 4) + 1), 0]
    np.testing.assert_allclose(estimate_pixels(shapes, grid), (surface + border) * [1, 1, 0])
    np.testing.assert_allclose(estimate_pixels(shapes, grid), met, rtol=0.1)


def test_what_reaches_past_the_grid_does_not_count():
    grid = Grid(UTM, Affine(1, 0, 0, 0, -1, 100), (100, 100))
    over = gpd.GeoSeries([shapely.box(-50.5, -50.5, 20.4, 30.3)], crs=UTM)
    met = np.diff(membership(over, grid).offsets)
    # The border on the grid's own edge is counted as one that cuts pixels: half of 51 too many.
    assert met[0] <= estimate_pixels(over, grid)[0] <= met[0] + 26
