"""The surface of areas across 180 degrees, from 0 to 360 and at the poles."""

import geopandas as gpd
import numpy as np
import pytest
import shapely
from pyproj import Transformer
from shapely import MultiPolygon, box

from geo.grids.grid import Grid
from geo.grids.membership import membership
from geo.grids.reproject import reproject

FIJI = {
    "split": MultiPolygon([box(177, -20, 180, -15), box(-180, -20, -177, -15)]),
    "past 180": box(177, -20, 183, -15),
    "below -180": box(-183, -20, -177, -15),
}
OVER_180 = {
    "-180": ("EPSG:4326", (-180, -30, 180, 0), 1.0),
    "0-360": ("EPSG:4326", (0, -30, 360, 0), 1.0),
    "past 180": ("EPSG:4326", (170, -30, 190, 0), 0.5),
    "wider than a turn": ("EPSG:4326", (-180, -30, 180, 0), 0.7),
    "other datum": ("EPSG:4269", (-180, -30, 180, 0), 1.0),
    "torn there": ("EPSG:3857", (-20037508.4, -3e6, 20037508.4, 0), 5e4),
    "centred there": ("EPSG:3832", (1e6, -3e6, 6e6, 0), 5e4),
    "azimuthal": ("+proj=laea +lat_0=-18 +lon_0=180", (-1e6, -1e6, 1e6, 1e6), 2e4),
    "UTM": ("EPSG:32701", (-5e5, 7.5e6, 1.5e6, 8.6e6), 2e4),
}
GREENWICH = {
    "split": MultiPolygon([box(0, 10, 5, 20), box(355, 10, 360, 20)]),
    "past 360": box(355, 10, 365, 20),
    "about 0": box(-5, 10, 5, 20),
}


def surface(shape, crs, grid):
    found = membership(gpd.GeoSeries([shape], crs=crs), grid)
    return (grid.area_km2().ravel()[found.pixel] * found.fraction).sum()


def zone(west, south, east, north):
    """Area between meridians and parallels, km2: Snyder's formula for one pixel."""
    one = Grid.from_bounds("EPSG:4326", (0, south, 1, north), (1, north - south))
    return one.area_km2()[0, 0] * (east - west)


@pytest.mark.parametrize("shape", list(FIJI))
@pytest.mark.parametrize("grid", list(OVER_180))
def test_across_180(shape, grid):
    there = Grid.from_bounds(*OVER_180[grid])
    got = surface(FIJI[shape], "EPSG:4326", there)
    assert got == pytest.approx(zone(177, -20, 183, -15), rel=2e-4)


@pytest.mark.parametrize("shape", list(GREENWICH))
@pytest.mark.parametrize("left", [-180, 0, -20])
def test_across_greenwich(shape, left):
    grid = Grid.from_bounds("EPSG:4326", (left, 0, left + (40 if left == -20 else 360), 30), 1.0)
    got = surface(GREENWICH[shape], "EPSG:4326", grid)
    assert got == pytest.approx(zone(-5, 10, 5, 20), rel=1e-6)


@pytest.mark.parametrize("crs", ["EPSG:3413", "EPSG:3995", "EPSG:3031"])
@pytest.mark.parametrize("first", [-180, 0])
@pytest.mark.parametrize("inner", [90, 80])
def test_areas_in_degrees_around_a_pole(crs, first, inner):
    """The middle of the grid is the pole: a step along the parallel there is 90 degrees."""
    sign = -1 if crs == "EPSG:3031" else 1
    south, north = sorted([sign * inner, sign * 75])
    grid = Grid.from_bounds(crs, (-3e6, -3e6, 3e6, 3e6), 5e4)
    got = surface(box(first, south, first + 360, north), "EPSG:4326", grid)
    assert got == pytest.approx(zone(0, south, 360, north), rel=1e-3)
    quarter = surface(box(135, south, 225, north), "EPSG:4326", grid)
    assert quarter == pytest.approx(zone(0, south, 90, north), rel=1e-3)


@pytest.mark.parametrize("crs", ["EPSG:3413", "EPSG:3031"])
@pytest.mark.parametrize("left", [-180, 0])
def test_polar_areas_on_a_grid_in_degrees(crs, left):
    sign = -1 if crs == "EPSG:3031" else 1
    disc = shapely.Point(0, 0).buffer(1e6, quad_segs=400)
    hole = shapely.Point(0, 0).buffer(5e5, quad_segs=400)
    south, north = sorted([sign * 50, sign * 90])
    degrees = Grid.from_bounds("EPSG:4326", (left, south, left + 360, north), 0.5)
    polar = Grid.from_bounds(crs, (-3e6, -3e6, 3e6, 3e6), 2.5e4)
    for shape in (disc, disc.difference(hole), shapely.Point(0, 1.5e6).buffer(1e6)):
        true = surface(shape, crs, polar)
        assert surface(shape, crs, degrees) == pytest.approx(true, rel=2e-3)


@pytest.mark.parametrize("grid", ["-180", "past 180", "torn there"])
def test_projected_areas_across_180(grid):
    to_pdc = Transformer.from_crs(4326, 3832, always_xy=True)
    shape = shapely.transform(FIJI["past 180"], lambda xy: np.column_stack(to_pdc.transform(*xy.T)))
    there = Grid.from_bounds(*OVER_180[grid])
    got = surface(shape, "EPSG:3832", there)
    assert got == pytest.approx(zone(177, -20, 183, -15), rel=2e-4)


def test_what_needs_no_move_is_the_same():
    shapes = gpd.GeoSeries([box(1, 2, 3, 4), None, box(170, 0, 180, 1)], crs="EPSG:4326")
    moved = reproject(shapes, Grid.from_bounds("EPSG:4326", (-180, -90, 180, 90), 1.0))
    assert moved[0].equals_exact(shapes[0])
    assert moved[1] is None
    assert moved[2].equals_exact(shapes[2])
