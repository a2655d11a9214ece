import math
import pickle

import numpy as np
import pytest
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Geod, Transformer

from geo.core.errors import GridError
from geo.grids.grid import Grid, Tile, plane_km, same_crs
from geo.grids.positions import Positions

CRSS = st.sampled_from(["EPSG:4326", "EPSG:32738", "EPSG:3857", "ESRI:54009"])


@st.composite
def grids(draw):
    res = draw(st.floats(0.001, 5.0)), draw(st.floats(0.001, 5.0))
    left, top = draw(st.floats(-1e3, 1e3)), draw(st.floats(-1e3, 1e3))
    shape = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    return Grid(CRS(draw(CRSS)), Affine(res[0], 0, left, 0, -res[1], top), shape)


@settings(max_examples=20, deadline=None)
@given(grids())
def test_a_grid_survives_json_and_pickle(grid):
    for copy in (Grid.from_dict(grid.to_dict()), pickle.loads(pickle.dumps(grid))):
        assert copy == grid
        assert hash(copy) == hash(grid)


@settings(max_examples=20, deadline=None)
@given(grids(), st.integers(1, 70))
def test_tiles_cover_each_pixel_once(grid, size):
    count = np.zeros(grid.shape, int)
    for tile in grid.tiles(size):
        assert max(tile.shape) <= size
        count[tile.slices] += 1
    assert (count == 1).all()


@settings(max_examples=20, deadline=None)
@given(grids(), st.data())
def test_centre_and_number_of_a_pixel(grid, data):
    row = data.draw(st.integers(0, grid.shape[0] - 1))
    col = data.draw(st.integers(0, grid.shape[1] - 1))
    left, bottom, right, top = grid.tile_bounds(Tile(row, col, 1, 1))
    x, y = grid.centres(Tile(row, col, 1, 1))
    assert left < x[0, 0] < right
    assert bottom < y[0, 0] < top
    back = grid.row_col(grid.pixel_index(row, col))
    assert (int(back[0]), int(back[1])) == (row, col)


@settings(max_examples=20, deadline=None)
@given(
    st.floats(-100, 100), st.floats(-100, 100), st.floats(0.1, 50), st.floats(0.1, 50),
    st.floats(0.01, 10),
)  # fmt: skip
def test_grid_from_bounds_is_the_smallest_that_covers_them(left, bottom, width, height, res):
    grid = Grid.from_bounds("EPSG:4326", (left, bottom, left + width, bottom + height), res)
    slack = 1e-5 * res
    got = grid.bounds
    assert got[0] <= left + slack
    assert got[1] <= bottom + slack
    assert got[2] >= left + width - slack
    assert got[3] >= bottom + height - slack
    assert got[0] > left - res - slack
    assert got[2] < left + width + res + slack
    assert math.isclose(got[0] / res, round(got[0] / res), abs_tol=1e-6)


def test_equal_whatever_the_words_of_the_crs():
    transform, shape = Affine(1, 0, 0, 0, -1, 0), (3, 4)
    wkt = CRS("EPSG:4326").to_wkt("WKT1_GDAL")
    assert Grid("EPSG:4326", transform, shape) == Grid(wkt, transform, shape)
    assert Grid("EPSG:4326", transform, shape) == Grid("OGC:CRS84", transform, shape)
    assert Grid("EPSG:4326", transform, shape) != Grid("EPSG:32738", transform, shape)
    assert not same_crs(CRS("EPSG:32738"), CRS("EPSG:32737"))


@pytest.mark.parametrize(
    ("transform", "shape", "says"),
    [
        (Affine(1, 0.5, 0, 0, -1, 0), (5, 5), "rotated"),
        (Affine(1, 0, 0, 0, 1, 0), (5, 5), "north-up"),
        (Affine(-1, 0, 0, 0, -1, 0), (5, 5), "north-up"),
        (Affine(1, 0, 0, 0, -1, 0), (0, 5), "at least one"),
    ],
)
def test_impossible_grids_are_refused(transform, shape, says):
    with pytest.raises(GridError, match=says):
        Grid("EPSG:4326", transform, shape)
    with pytest.raises(GridError, match="not known"):
        Grid("EPSG:99999999", Affine(1, 0, 0, 0, -1, 0), (5, 5))


def test_row_areas_equal_polygons_on_the_ellipsoid():
    grid = Grid.from_bounds("EPSG:4326", (40, -70, 41, 70), 0.5)
    rows = np.arange(grid.shape[0])
    geod = Geod(ellps="WGS84")
    expected = []
    for row in rows:
        left, bottom, right, top = grid.tile_bounds(Tile(int(row), 0, 1, 1))
        # A parallel is no geodesic: followed by many short ones.
        x = np.linspace(left, right, 400)
        lon, lat = np.r_[x, x[::-1]], np.r_[np.full(400, bottom), np.full(400, top)]
        expected.append(abs(geod.polygon_area_perimeter(lon, lat)[0]) / 1e6)
    column = Tile(0, grid.shape[1] // 2, grid.shape[0], 1)
    np.testing.assert_allclose(grid.area_km2(column)[:, 0], expected, rtol=2e-7)
    np.testing.assert_allclose(grid.area_km2()[:, 1], expected, rtol=2e-7)


def test_the_whole_earth_has_its_area():
    grid = Grid.from_bounds("EPSG:4326", (-180, -90, 180, 90), 1.0)
    assert grid.area_km2().sum() == pytest.approx(510_065_621.724, rel=1e-9)  # WGS 84


def test_projected_areas_are_true_areas():
    equal = Grid.from_bounds("EPSG:6933", (4e6, -3e6, 4.2e6, -2.8e6), 1000)
    np.testing.assert_allclose(equal.area_km2(Tile(0, 100, 5, 1)), 1.0, rtol=1e-6)
    for crs, bounds, worst in (
        ("EPSG:3857", (5e6, -2.3e6, 5.01e6, -2.29e6), 0.3),
        ("EPSG:32738", (5e5, 7.8e6, 5.1e5, 7.81e6), 0.002),
    ):
        grid = Grid.from_bounds(crs, bounds, 1000)
        tile = Tile(3, 4, 1, 1)
        left, bottom, right, top = grid.tile_bounds(tile)
        x, y = np.array([left, right, right, left]), np.array([bottom, bottom, top, top])
        lon, lat = Transformer.from_crs(crs, 4326, always_xy=True).transform(x, y)
        true = abs(Geod(ellps="WGS84").polygon_area_perimeter(lon, lat)[0]) / 1e6
        assert abs(true - 1.0) < worst
        assert abs(true - 1.0) > 1e-4  # so that planar area would fail here
        assert grid.area_km2(tile)[0, 0] == pytest.approx(true, rel=1e-6)
        middle = Tile(3, grid.shape[1] // 2, 1, 1)
        assert grid.area_km2(middle)[0, 0] == pytest.approx(true, rel=1e-4)


def test_distances_in_km_are_those_on_the_ellipsoid():
    grid = Grid.from_bounds("EPSG:4326", (42, -26, 52, -10), 0.5)
    row, col = np.array([0, 15, 31]), np.array([0, 10, 19])
    at = Positions.of(grid, None).km(row, col)
    x, y = grid.centres()
    lon, lat = x[row, col], y[row, col]
    for a, b in ((0, 1), (1, 2)):
        true = Geod(ellps="WGS84").inv(lon[a], lat[a], lon[b], lat[b])[2] / 1000
        assert np.hypot(*(at[a] - at[b])) == pytest.approx(true, rel=0.01)
    utm = Grid.from_bounds("EPSG:32738", (4e5, 7e6, 4.1e5, 7.01e6), 1000)
    assert plane_km(utm) == utm.crs
    np.testing.assert_allclose(Positions.of(utm, None).km([0], [0]), [[400.5, 7009.5]])
    feet = Grid.from_bounds("EPSG:2263", (9e5, 1e5, 9.1e5, 1.1e5), 1000)  # US survey feet
    a, b = Positions.of(feet, None).km([0, 0], [0, 1])
    assert np.hypot(*(a - b)) == pytest.approx(0.3048006, rel=1e-3)
    corner = feet.area_km2(Tile(0, 0, 1, 1))[0, 0]
    assert corner == pytest.approx(0.3048006**2, rel=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(4, 6), (5, 7)])
def test_halves_of_a_tile_hold_each_of_its_pixels_once(axis, shape):
    seen = np.zeros((9, 11), int)
    tile = Tile(2, 3, *shape)
    for half in tile.halves(axis):
        seen[half.slices] += 1
    expected = np.zeros_like(seen)
    expected[tile.slices] = 1
    np.testing.assert_array_equal(seen, expected)
