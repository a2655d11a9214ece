"""Distances to a layer: against geodesics to points that are dense along it."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine
from pyproj import CRS, Geod, Transformer

from geo.core.errors import InputError
from geo.grids.grid import Grid, Tile
from geo.sources.distance import DistanceSource, read_features
from tests.geo.sources.source_conformance import SourceConformance

GEOD = Geod(ellps="WGS84")
ROADS = [shapely.LineString([(46, -18), (47, -19), (47.2, -18.1)]), shapely.Point(46.2, -19.8)]


def grid_of(west, north, step, shape=(20, 30), crs="EPSG:4326"):
    return Grid(CRS(crs), Affine(step, 0, west, 0, -step, north), shape)


def geodesics(lines, grid, pixels):
    """Kilometres from some pixels to the nearest of many points along lines in degrees."""
    dense = shapely.get_coordinates(shapely.segmentize(np.array(lines), 0.003))
    there = Transformer.from_crs(grid.crs, "EPSG:4326", always_xy=True)
    lon, lat = there.transform(*(each.ravel()[pixels] for each in grid.centres()))
    n = len(dense)
    each = [
        GEOD.inv(np.full(n, a), np.full(n, b), *dense.T)[2].min()
        for a, b in zip(lon, lat, strict=True)
    ]
    return np.array(each) / 1e3


@pytest.mark.parametrize(
    ("lines", "grid"),
    [
        (ROADS, grid_of(46, -17.5, 0.1)),
        (ROADS, grid_of(3e5, 8.1e6, 9000, crs="EPSG:32738")),
        ([shapely.LineString([(20, 78), (25, 79.5)])], grid_of(10, 84, 0.3)),
        ([shapely.LineString([(179.5, -17), (180.5, -18)])], grid_of(177, -16, 0.15)),
        ([shapely.LineString([(179.5, -17), (-179.5, -18)])], grid_of(-182, -16, 0.15)),
        ([shapely.LineString([(0, 87), (0, 89.9)])], grid_of(-180, 90, 12, (2, 30))),
        ([shapely.LineString([(100, -10), (130, 5)])], grid_of(46, -17.5, 0.1)),  # far away
    ],
    ids=["line and point", "plane", "north", "past 180", "across 180", "pole", "far"],
)
def test_distances_are_those_of_geodesics(lines, grid):
    found = DistanceSource("roads", grid, gpd.GeoSeries(lines, crs="EPSG:4326")).read()
    pixels = np.random.default_rng(0).choice(grid.n_pix, 20, replace=False)
    if lines[0].bounds[0] == -179.5:  # the same line, written without the jump
        lines = [shapely.LineString([(179.5, -17), (180.5, -18)])]
    expected = geodesics(lines, grid, pixels)
    np.testing.assert_allclose(found.ravel()[pixels], expected, rtol=2e-3, atol=0.05)


def test_an_edge_across_180_degrees_goes_the_short_way():
    grid = grid_of(177, -16, 0.15)
    ends = [[(179.5, -17), (180.5, -18)], [(179.5, -17), (-179.5, -18)]]
    a, b = (
        DistanceSource("a", grid, gpd.GeoSeries([shapely.LineString(each)], crs="EPSG:4326")).read()
        for each in ends
    )
    np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("turn", [0, 360])
def test_inside_polygons_it_is_0(turn):
    grid = grid_of(0, 10, 0.5)
    lake = shapely.box(3 + turn, 2, 7 + turn, 6).difference(shapely.box(4 + turn, 3, 5 + turn, 4))
    found = DistanceSource("lake", grid, gpd.GeoSeries([lake], crs="EPSG:4326")).read()
    x, y = grid.centres()
    inside = shapely.contains_xy(shapely.transform(lake, lambda xy: xy - [turn, 0]), x, y)
    np.testing.assert_array_equal(found == 0, inside)
    assert found[inside].size > 40


class TestDistance(SourceConformance):
    @pytest.fixture
    def made(self):
        grid = grid_of(0, 90.5, 0.5, (5, 6))  # its first row lies beyond the pole
        source = DistanceSource("a", grid, gpd.GeoSeries([shapely.Point(1, 89)], crs="EPSG:4326"))
        whole = source.read()
        assert np.isnan(whole[0]).all()
        parts = [source.read(Tile(row, 0, 1, 6)) for row in range(5)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        return source, {"": whole}


@pytest.fixture
def roads(tmp_path):
    kinds = ["primary", "track", "trunk"]
    lines = [shapely.LineString([(k, 0), (k, 1)]) for k in range(3)]
    frame = gpd.GeoDataFrame({"highway": kinds}, geometry=lines, crs="EPSG:4326")
    frame.to_file(tmp_path / "roads.gpkg", layer="roads")
    frame.to_file(tmp_path / "roads.gpkg", layer="paths")
    return str(tmp_path / "roads.gpkg")


def test_features_are_chosen_by_their_columns(roads):
    assert len(read_features(roads, "roads")) == 3
    assert list(read_features(roads, "roads", {"highway": ["primary", "trunk"]}).index) == [0, 2]


@pytest.mark.parametrize(
    ("layer", "where", "said"),
    [
        (None, None, "has 2 layers"),
        ("roads", {"highwy": ["x"]}, "no column 'highwy'; did you mean"),
        ("roads", {"highway": ["x"]}, "no feature whose highway is x.*primary, track, trunk"),
    ],
)
def test_what_a_layer_lacks_is_said(roads, layer, where, said):
    with pytest.raises(InputError, match=said):
        read_features(roads, layer, where)
