import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Geod, Transformer

from geo.grids.grid import Grid, plane_km
from geo.grids.positions import Positions, positions_about

GRIDS = {
    "degrees": ("EPSG:4326", (42, -26, 52, -10), 0.25),
    "the Earth": ("EPSG:4326", (-180, -90, 180, 90), 5.0),
    "past 180": ("EPSG:4326", (170, -30, 195, -10), 0.5),
    "grads": ("EPSG:4807", (0, 50, 5, 55), 0.1),
    "Web Mercator": ("EPSG:3857", (1.5e6, 1e7, 2.5e6, 1.1e7), 25_000),
    "polar": ("EPSG:3031", (-3e6, -3e6, 3e6, 3e6), 1e5),
    "UTM": ("EPSG:32738", (4e5, 7e6, 8e5, 7.4e6), 1e4),
    "feet": ("EPSG:2263", (9e5, 1e5, 9.9e5, 1.9e5), 3000),
}


def by_hand(grid, row, col):
    """Points of the ellipsoid relative to its centre, km, from longitude and latitude."""
    x, y = grid.centres()
    geodetic = grid.crs.geodetic_crs
    lon, lat = x[row, col], y[row, col]
    if not grid.crs.is_geographic:
        lon, lat = Transformer.from_crs(grid.crs, geodetic, always_xy=True).transform(lon, lat)
    unit = geodetic.axis_info[0].unit_conversion_factor
    lon, lat, geod = lon * unit, lat * unit, grid.crs.get_geod()
    n = geod.a / np.sqrt(1 - geod.es * np.sin(lat) ** 2)
    z = n * (1 - geod.es) * np.sin(lat)
    return np.column_stack([n * np.cos(lat) * np.cos(lon), n * np.cos(lat) * np.sin(lon), z]) / 1e3


@pytest.mark.parametrize("name", list(GRIDS))
def test_distances_are_chords_of_the_ellipsoid(name):
    grid = Grid.from_bounds(*GRIDS[name])
    rng = np.random.default_rng(0)
    row, col = (rng.integers(0, n, 300) for n in grid.shape)
    found = positions_about(grid, grid.pixel_index(row, col)).km(row, col)
    true = by_hand(grid, row, col)
    apart = np.linalg.norm(true[:, None] - true[None], axis=2)
    np.testing.assert_allclose(
        np.linalg.norm(found[:, None] - found[None], axis=2), apart, rtol=1e-9, atol=1e-6
    )
    x, y = grid.centres()
    lon, lat = Transformer.from_crs(grid.crs, 4326, always_xy=True).transform(
        x[row, col], y[row, col]
    )
    along = Geod(ellps="WGS84").inv(lon[:-1], lat[:-1], lon[1:], lat[1:])[2] / 1000
    chord = np.linalg.norm(np.diff(found, axis=0), axis=1)
    near = (along > 1) & (along < 1500)
    if near.any():
        np.testing.assert_allclose(chord[near], along[near], rtol=0.0025)


def test_axes_are_east_north_and_up():
    grid = Grid.from_bounds(*GRIDS["degrees"])
    at = positions_about(grid, np.arange(grid.n_pix)).km([32, 32, 0], [0, 39, 20])
    assert at[0, 0] < -500
    assert at[1, 0] > 500
    assert at[2, 1] > 850
    assert np.abs(at[:, 2]).max() < 80
    assert (at[:, 2] < 0).all()


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(GRIDS)), st.integers(1, 60), st.integers(0, 2**31))
def test_a_position_does_not_depend_on_the_other_points(name, size, seed):
    grid = Grid.from_bounds(*GRIDS[name])
    made = positions_about(grid, np.arange(grid.n_pix))
    again = Positions.of(grid, made.crs.to_wkt())  # as predict reads them
    rng = np.random.default_rng(seed)
    row, col = (rng.integers(0, n, 400) for n in grid.shape)
    whole = made.km(row, col)
    for first in range(0, 400, size):
        part = slice(first, first + size)
        np.testing.assert_array_equal(again.km(row[part], col[part]), whole[part])


def test_earlier_grids_keep_their_plane():
    grid = Grid.from_bounds(*GRIDS["degrees"])
    row, col = np.array([0, 5]), np.array([3, 9])
    plane = Positions.of(grid, None)
    assert plane.n_axis == 2
    to_plane = Transformer.from_crs(grid.crs, plane_km(grid), always_xy=True)
    at = to_plane.transform(*(axis[row, col] for axis in grid.centres()))
    np.testing.assert_array_equal(plane.km(row, col), np.column_stack(at) / 1000)
    utm = Grid.from_bounds(*GRIDS["UTM"])
    np.testing.assert_array_equal(Positions.of(utm, None).km([0], [0]), [[405.0, 7395.0]])


@pytest.mark.parametrize("bounds", [(-180, -90, 180, 90), (-180, 60, 180, 90)])
def test_there_is_a_reference_all_around_the_earth(bounds):
    grid = Grid.from_bounds("EPSG:4326", bounds, 5.0)
    at = positions_about(grid, np.arange(grid.n_pix))
    name = at.crs.name.split()
    assert all(math.isfinite(float(v)) for v in name[-2:])
    assert CRS.from_wkt(at.crs.to_wkt()) == at.crs
    assert np.isfinite(at.km(*np.divmod(np.arange(grid.n_pix), grid.shape[1]))).all()
