import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine
from exactextract import exact_extract
from exactextract.raster import NumPyRasterSource
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Transformer
from shapely.affinity import affine_transform, rotate, scale, translate

from geo.core.errors import GridError
from geo.grids.grid import Grid, Tile
from geo.grids.membership import membership, runs_of_bags
from geo.grids.reproject import reproject

UTM = "EPSG:32738"


def pixel_boxes(grid):
    for row in range(grid.shape[0]):
        for col in range(grid.shape[1]):
            yield grid.pixel_index(row, col), shapely.box(*grid.tile_bounds(Tile(row, col, 1, 1)))


def dense(m, grid):
    table = np.zeros((m.n_bag, grid.n_pix))
    table[m.bag, m.pixel] = m.fraction
    return table


def voronoi(seed, n, bounds):
    """Adjoining polygons whose borders are nowhere on a pixel's edge."""
    points = np.random.default_rng(seed).uniform(
        [bounds[0], bounds[1]], [bounds[2], bounds[3]], (n, 2)
    )
    frame = shapely.box(*bounds)
    cells = shapely.voronoi_polygons(shapely.MultiPoint(points), extend_to=frame)
    return gpd.GeoSeries([c.intersection(frame) for c in cells.geoms], crs=UTM)


@st.composite
def stars(draw):
    """Simple polygons, not convex, some with a hole."""
    n = draw(st.integers(3, 12))
    radii = draw(st.lists(st.floats(0.2, 4.0), min_size=n, max_size=n))
    angle = np.sort(np.linspace(0, 2 * np.pi, n, endpoint=False) + 0.1)
    at = draw(st.floats(-1, 11)), draw(st.floats(-1, 9))
    ring = np.column_stack([np.cos(angle), np.sin(angle)]) * np.array(radii)[:, None] + at
    star = shapely.Polygon(ring)
    if draw(st.booleans()):
        star = star.difference(shapely.Point(at).buffer(0.15))
    return star


@settings(max_examples=20, deadline=None)
@given(stars(), st.floats(0.3, 2.0))
def test_fractions_are_areas_of_intersection(star, res):
    grid = Grid.from_bounds(UTM, (0, 0, 10, 8), res)
    m = membership(gpd.GeoSeries([star], crs=UTM), grid)
    got = dense(m, grid)[0]
    for pixel, box in pixel_boxes(grid):
        assert got[pixel] == pytest.approx(star.intersection(box).area / box.area, abs=2e-6)
    assert (np.diff(m.pixel) > 0).all()
    assert ((m.fraction > 0) & (m.fraction <= 1)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 25), st.floats(0.4, 3.0))
def test_adjoining_areas_add_up_to_one(seed, n, res):
    areas = voronoi(seed, n, (0.37, 0.21, 19.61, 14.93))
    grid = Grid.from_bounds(UTM, (0, 0, 20, 15), res)
    m = membership(areas, grid)
    total = dense(m, grid).sum(axis=0)
    frame = shapely.box(0.37, 0.21, 19.61, 14.93)
    for pixel, box in pixel_boxes(grid):
        assert total[pixel] == pytest.approx(frame.intersection(box).area / box.area, abs=1e-6)
    np.testing.assert_allclose(m.coverage(grid).ravel(), np.minimum(total, 1), atol=2e-6)
    tile = Tile(1, 2, 3, 4) if min(grid.shape) > 6 else grid.whole
    np.testing.assert_array_equal(m.coverage(grid, tile), m.coverage(grid)[tile.slices])


@pytest.mark.parametrize("size", [0.5, 1e-2, 1e-4])
def test_an_area_smaller_than_a_pixel_has_its_share(size):
    grid = Grid.from_bounds(UTM, (400_000, 7_000_000, 410_000, 7_010_000), 1000)
    small = shapely.box(0, 0, 1000 * size, 1000 * size)
    inside = translate(small, 403_100, 7_002_200)
    corner = translate(small, 405_000 - 250 * size, 7_005_000 - 500 * size)
    m = membership(gpd.GeoSeries([inside, corner], crs=UTM), grid)
    assert (m.bag == 0).sum() == 1
    assert m.pixel[0] == grid.pixel_index(7, 3)
    assert m.fraction[0] == pytest.approx(size**2, rel=1e-5)
    assert (m.bag == 1).sum() == 4
    shares = np.array([0.25 * 0.5, 0.75 * 0.5, 0.25 * 0.5, 0.75 * 0.5]) * size**2
    np.testing.assert_allclose(m.fraction[1:], shares, rtol=1e-4)


def test_bags_without_pixels_keep_their_number():
    grid = Grid.from_bounds(UTM, (0, 0, 10, 10), 1)
    one = shapely.box(2, 2, 4, 4)
    shapes = [translate(one, 100, 0), one, shapely.Polygon(), translate(one, -3, 0), None]
    m = membership(gpd.GeoSeries(shapes, crs=UTM), grid)
    assert m.n_bag == 5
    np.testing.assert_array_equal(m.offsets, [0, 0, 4, 4, 6, 6])
    assert m.fraction.sum() == 6
    nothing = membership(gpd.GeoSeries([translate(one, 100, 0)], crs=UTM), grid)
    assert nothing.pixel.size == 0
    np.testing.assert_array_equal(nothing.offsets, [0, 0])


def test_time_and_memory_do_not_depend_on_the_grid(monkeypatch):
    huge = Grid(UTM, Affine(1, 0, 0, 0, -1, 1_000_000), (1_000_000, 1_000_000))
    circle = shapely.Point(700_000.3, 300_000.6).buffer(50)
    m = membership(gpd.GeoSeries([circle], crs=UTM), huge)
    assert m.fraction.sum() == pytest.approx(circle.area, rel=1e-6)
    row, col = huge.row_col(m.pixel)
    assert abs(row - 700_000).max() <= 51
    assert abs(col - 700_000).max() <= 51
    # A window cut in pieces gives the same pixels in the same order.
    monkeypatch.setattr("geo.grids.membership.N_CELL_IN_MEMORY", 64)
    pieces = membership(gpd.GeoSeries([circle], crs=UTM), huge)
    np.testing.assert_array_equal(pieces.pixel, m.pixel)
    np.testing.assert_allclose(pieces.fraction, m.fraction, atol=1e-6)


def test_chunks_of_polygons_change_nothing(monkeypatch):
    areas = voronoi(3, 20, (0.3, 0.2, 19.6, 14.9))
    grid = Grid.from_bounds(UTM, (0, 0, 20, 15), 1)
    whole = membership(areas, grid)
    monkeypatch.setattr("geo.grids.membership.N_POLYGON_AT_ONCE", 3)
    parts = membership(areas, grid)
    np.testing.assert_array_equal(whole.bag, parts.bag)
    np.testing.assert_array_equal(whole.pixel, parts.pixel)
    np.testing.assert_array_equal(whole.fraction, parts.fraction)


def test_another_crs_follows_the_edges():
    # 8 degrees wide: its edges bend by kilometres in this projection.
    crs = "+proj=laea +lat_0=-50 +lon_0=47 +units=m +type=crs"
    box = shapely.box(43, -60, 51, -50)
    there = Transformer.from_crs(4326, crs, always_xy=True)
    x = np.linspace(43, 51, 4000)
    y = np.linspace(-60, -50, 4000)
    ring = np.r_[
        np.c_[x, np.full(4000, -60)],
        np.c_[np.full(4000, 51), y],
        np.c_[x[::-1], np.full(4000, -50)],
        np.c_[np.full(4000, 43), y[::-1]],
    ]
    exact = shapely.Polygon(np.column_stack(there.transform(*ring.T)))
    grid = Grid.from_bounds(crs, exact.buffer(5e4).bounds, 20_000)
    m = membership(gpd.GeoSeries([box], crs="EPSG:4326"), grid)
    assert m.fraction.sum() * 20_000**2 == pytest.approx(exact.area, rel=1e-4)
    chord = shapely.Polygon(np.column_stack(there.transform(*np.array(box.exterior.coords).T)))
    assert abs(chord.area / exact.area - 1) > 3e-3  # what it would be without


def test_neighbours_stay_neighbours_in_another_crs():
    areas = voronoi(5, 12, (400_000, 7_000_000, 480_000, 7_080_000))
    grid = Grid.from_bounds("EPSG:4326", tuple(areas.to_crs(4326).total_bounds), 0.05)
    inner = shapely.box(405_000, 7_005_000, 475_000, 7_075_000)
    m = membership(areas, grid)
    total = dense(m, grid).sum(axis=0)
    surely = membership(gpd.GeoSeries([inner], crs=UTM), grid)
    whole = surely.pixel[surely.fraction == 1]
    assert whole.size > 50
    np.testing.assert_allclose(total[whole], 1.0, atol=1e-6)


def test_no_crs_and_no_place_are_errors():
    grid = Grid.from_bounds(UTM, (0, 0, 10, 10), 1)
    with pytest.raises(GridError, match="no CRS"):
        membership(gpd.GeoSeries([shapely.box(0, 0, 1, 1)]), grid)
    half = Grid.from_bounds("+proj=gnom +lat_0=0 +lon_0=0 +type=crs", (0, 0, 1e6, 1e6), 1e4)
    behind = gpd.GeoSeries([shapely.box(120, 0, 130, 10)], crs="EPSG:4326")
    with pytest.raises(GridError, match=r"1 polygon.*lie outside"):
        reproject(behind, half)


def test_multipolygons_and_transformed_shapes_keep_their_area():
    grid = Grid.from_bounds(UTM, (0, 0, 30, 30), 1)
    base = rotate(scale(shapely.box(0, 0, 5, 3), 1.3, 0.7), 31)
    parts = shapely.MultiPolygon(
        [
            translate(base, 8, 8),
            translate(base, 18, 20),
            affine_transform(base, [1, 0, 0, 1, 20, 6]),
        ]
    )
    m = membership(gpd.GeoSeries([parts], crs=UTM), grid)
    assert m.fraction.sum() == pytest.approx(parts.area, rel=1e-6)


def test_totals_of_areas_are_those_of_their_pixels():
    areas = voronoi(5, 20, (0.3, 0.2, 19.6, 14.9))
    grid = Grid.from_bounds(UTM, (0, 0, 20, 15), 0.7)
    empty = gpd.GeoSeries([shapely.Polygon()], crs=UTM)
    m = membership(gpd.GeoSeries([*empty, *areas[:7], *empty, *areas[7:], *empty], crs=UTM), grid)
    values = np.random.default_rng(0).normal(size=m.pixel.size)
    expected = np.bincount(m.bag, values, m.n_bag)
    np.testing.assert_allclose(m.total(values), expected, atol=1e-12)
    np.testing.assert_array_equal(m.total(values > 0), np.bincount(m.bag, values > 0, m.n_bag))
    for n in (1, 7, 50):
        runs = runs_of_bags(m.offsets, n)
        assert runs[0][0] == 0
        assert [a for a, _ in runs[1:]] == [b for _, b in runs[:-1]]
        assert sum(m.offsets[b] - m.offsets[a] for a, b in runs) == m.pixel.size


def test_nothing_is_lost_by_keeping_fractions_narrow():
    areas = voronoi(2, 20, (0.3, 0.2, 19.6, 14.9))
    grid = Grid.from_bounds(UTM, (0, 0, 20, 15), 1)
    table = exact_extract(
        NumPyRasterSource(np.zeros(grid.shape), *grid.bounds),
        gpd.GeoDataFrame(geometry=areas, crs=UTM),
        ["coverage"],
        output="pandas",
    )
    measured = np.concatenate(list(table["coverage"]))
    assert measured.dtype == np.float64
    np.testing.assert_array_equal(measured.astype(np.float32).astype(np.float64), measured)


def test_a_ring_that_touches_itself_after_rounding_is_measured():
    # Two squares that meet in a point, drawn as one ring: exactextract may crash on such rings.
    ring = [(1, 1), (3, 3), (5, 1), (5, 5), (3, 3), (1, 5), (1, 1)]
    grid = Grid.from_bounds("EPSG:32738", (0, 0, 6, 6), 1)
    found = membership(gpd.GeoSeries([shapely.Polygon(ring)], crs=grid.crs), grid)
    assert found.fraction.sum() == pytest.approx(8.0)
