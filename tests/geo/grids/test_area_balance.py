"""The pixels of an area add up to its polygon's geodesic area, or the area is named as torn."""

import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine
from pyproj import Geod
from shapely.geometry import box

from geo.grids.area_balance import area_balance, geodesic_km2
from geo.grids.grid import Grid
from geo.grids.membership import Membership, membership
from geo.grids.reproject import reproject

WORLD = Grid("EPSG:4326", Affine(0.5, 0, -180, 0, -0.5, 90), (360, 720))
FIJI = [(177, -19), (-178, -19), (-178, -16), (177, -16)]
ANTARCTICA = [
    (-180, -90), (-180, -75), (-90, -72), (0, -70), (90, -68), (180, -75), (180, -90),
]  # fmt: skip


def balance(polygons, grid, crs="EPSG:4326"):
    original = gpd.GeoSeries(polygons, crs=crs)
    return area_balance(original, reproject(original, grid), membership(original, grid), grid)


def zone_km2(south, north, degrees):
    """Area between two parallels on a sphere of WGS84's authalic radius: the closed form."""
    a, f = 6378.137, 1 / 298.257223563
    e = np.sqrt(f * (2 - f))

    def height(lat):
        s = np.sin(np.radians(lat))
        return (1 - e**2) * (s / (1 - e**2 * s**2) + np.arctanh(e * s) / e)

    return 0.5 * a**2 * np.radians(degrees) * (height(north) - height(south))


@pytest.mark.parametrize("south", [-60, 0, 35, 80])
def test_a_box_of_degrees_has_the_area_of_its_zone(south):
    polygon = box(10, south, 14, south + 3)
    found = geodesic_km2(gpd.GeoSeries([polygon]), "EPSG:4326")
    assert found[0] == pytest.approx(zone_km2(south, south + 3, 4), rel=1e-5)


def test_holes_and_parts_count_as_geographiclib_says():
    whole = shapely.MultiPolygon(
        [box(0, 0, 0.08, 0.08).difference(box(0.02, 0.02, 0.03, 0.05)), box(1, 1, 1.05, 1.06)]
    )
    m2, _ = Geod(ellps="WGS84").geometry_area_perimeter(shapely.orient_polygons(whole))
    assert geodesic_km2([whole], "EPSG:4326")[0] == pytest.approx(m2 / 1e6, rel=1e-7)


@pytest.mark.parametrize(
    ("crs", "res"), [("EPSG:4326", 0.01), ("EPSG:3857", 1000), ("EPSG:32633", 700)]
)
def test_areas_add_up_in_every_crs(crs, res):
    rng = np.random.default_rng(3)
    polygons = [
        shapely.Point(x, y).buffer(r)
        for x, y, r in rng.uniform([13, 57, 0.05], [17, 60, 0.4], (20, 3))
    ]
    bounds = gpd.GeoSeries(polygons, crs=4326).to_crs(crs).total_bounds
    found = balance(polygons, Grid.from_bounds(crs, tuple(bounds), res))
    np.testing.assert_allclose(found.pixels, found.polygon, rtol=1e-4)
    assert (found.outside == 0).all()
    assert not found.torn.any()


def test_the_plane_of_web_mercator_is_not_taken_for_the_earth():
    polygon = box(10, 59, 11, 60)
    bounds = gpd.GeoSeries([polygon], crs=4326).to_crs(3857).total_bounds
    grid = Grid.from_bounds("EPSG:3857", tuple(bounds), 1000)
    members = membership(gpd.GeoSeries([polygon], crs=4326), grid)
    planar = members.fraction.sum() * 1.0  # pixels of "1 km2"
    found = balance([polygon], grid)
    assert planar / found.polygon[0] > 3.5
    assert found.pixels[0] == pytest.approx(zone_km2(59, 60, 1), rel=1e-5)


def test_an_area_past_the_grid_adds_up_with_what_is_outside():
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 2, 2), 0.05)
    found = balance([box(1, 1, 4, 3), box(0.2, 0.2, 1, 1), box(5, 5, 6, 6)], grid)
    assert not found.torn.any()
    assert found.pixels[0] == pytest.approx(zone_km2(1, 2, 1), rel=1e-6)
    assert found.outside[0] == pytest.approx(zone_km2(1, 3, 3) - zone_km2(1, 2, 1), rel=1e-5)
    assert found.outside[1] == 0
    assert found.pixels[2] == 0  # wholly outside: another problem


def test_an_area_that_the_plane_reads_the_wrong_way_round_the_world_is_torn():
    drawn = gpd.GeoSeries([shapely.Polygon(FIJI), box(10, 10, 20, 20)], crs=4326)
    read = gpd.GeoSeries([box(-178, -19, 177, -16).segmentize(1), drawn[1]], crs=4326)
    found = area_balance(drawn, read, membership(read, WORLD), WORLD)
    assert found.torn.tolist() == [True, False]
    assert found.polygon[0] == pytest.approx(zone_km2(-19, -16, 5), rel=1e-5)
    assert found.pixels[0] == pytest.approx(zone_km2(-19, -16, 355), rel=1e-5)
    # A grid that ends at 180 degrees hides the rest: it counts as outside.
    cut = Grid.from_bounds("EPSG:4326", (176, -20, 180, -15), 0.1)
    found = area_balance(drawn, read, membership(read, cut), cut)
    assert found.torn.tolist() == [True, False]
    assert found.outside[0] == pytest.approx(zone_km2(-19, -16, 354), rel=1e-5)


@pytest.mark.parametrize(
    ("polygon", "grid"),
    [
        (shapely.MultiPolygon([box(177, -19, 180, -16), box(-180, -19, -178, -16)]), WORLD),
        (box(177, -19, 182, -16), Grid.from_bounds("EPSG:4326", (176, -20, 184, -15), 0.1)),
    ],
)
def test_an_area_at_180_degrees_that_is_drawn_right_passes(polygon, grid):
    found = balance([polygon], grid)
    assert not found.torn.any()
    assert found.pixels[0] == pytest.approx(zone_km2(-19, -16, 5), rel=1e-5)


@pytest.mark.parametrize(
    "grid", [WORLD, Grid.from_bounds("EPSG:3031", (-3e6, -3e6, 3e6, 3e6), 20_000)]
)
def test_an_area_around_the_pole_passes_where_the_grid_shows_all_of_it(grid):
    found = balance([shapely.Polygon(ANTARCTICA)], grid)
    assert not found.torn.any()
    assert found.pixels[0] == pytest.approx(found.polygon[0], rel=2e-4)


def test_pixels_that_are_lost_or_counted_again_do_not_add_up():
    polygon = gpd.GeoSeries([box(1, 1, 2, 2)], crs=4326)
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 3, 3), 0.1)
    members = membership(polygon, grid)
    for factor, torn in ((1.0, False), (0.98, True), (1.02, True)):
        some = Membership(members.offsets, members.pixel, factor * members.fraction)
        assert area_balance(polygon, polygon, some, grid).torn.all() == torn


def test_areas_smaller_than_a_pixel_near_a_pole_pass():
    small = [box(10.1, 80.02, 10.3, 80.06), box(10, 84.6, 10.4, 84.9), box(3, 89.6, 60, 89.7)]
    found = balance(small, WORLD)
    assert not found.torn.any()
    # What is allowed is by how much a pixel's area changes to the next row, not more.
    assert (found.slack[:2] < 0.1 * found.polygon[:2]).all()
    off = np.abs(found.pixels - found.polygon)
    assert off[2] > 0.2 * found.polygon[2]
