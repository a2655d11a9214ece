"""Rasters and grids in any turn of longitudes, and at the poles."""

import numpy as np
import pytest
from pyproj import Transformer

from geo.grids.grid import Grid
from geo.grids.longitudes import arc, copies, period, wrapped
from geo.sources.align import aligned
from geo.sources.raster import RasterSource

POLAR = "EPSG:3413"
SOURCES = {
    # bounds, shape, CRS
    "-180": ((-180, -10, 180, 10), (20, 360), "EPSG:4326"),
    "0-360": ((0, -10, 360, 10), (20, 360), "EPSG:4326"),
    "170-190": ((170, -10, 190, 10), (20, 20), "EPSG:4326"),
    "no whole turn": ((173, -10, 187, 10), (20, 20), "EPSG:4326"),
    "UTM zone 1": ((0, 8.9e6, 6e5, 9.5e6), (30, 30), "EPSG:32701"),
    "PDC Mercator": ((2e6, -1e6, 5e6, 1e6), (20, 30), "EPSG:3832"),
}
GRIDS = {
    "-180": ("EPSG:4326", (-180, -15, 180, 15), 1.0),
    "0-360": ("EPSG:4326", (0, -15, 360, 15), 1.5),
    "wider than a turn": ("EPSG:4326", (-180, -15, 180, 15), 0.7),
    "Web Mercator": ("EPSG:3857", (-20037508.342789244, -2e6, 20037508.342789244, 2e6), 2e5),
    "other datum": ("EPSG:4269", (-180, -15, 180, 15), 1.0),
}
POLES = {
    "-180": ((-180, 60, 180, 90), (30, 360), "EPSG:4326"),
    "0-360": ((0, 60, 360, 90), (30, 360), "EPSG:4326"),
    "fine": ((-180, 80, 180, 90), (100, 3600), "EPSG:4326"),
}


def by_tiles(source, grid, size, how):
    whole = np.full(grid.shape, np.inf)
    for tile in grid.tiles(size):
        whole[tile.slices] = aligned(source, grid, tile, how)
    return whole


def made(write_tif, described, seed=0):
    bounds, shape, crs = described
    values = np.random.default_rng(seed).gamma(1.0, 10.0, shape)
    return values, RasterSource(write_tif("p.tif", values, bounds=bounds, crs=crs))


@pytest.mark.parametrize(
    ("source", "grid"),  # each with two others
    [(source, list(GRIDS)[(k + more) % 5]) for k, source in enumerate(SOURCES) for more in (0, 3)],
)
def test_nobody_is_lost_or_counted_twice(write_tif, source, grid):
    values, raster = made(write_tif, SOURCES[source])
    there = Grid.from_bounds(*GRIDS[grid])
    whole = aligned(raster, there, resampling="sum")
    assert np.nansum(whole) == pytest.approx(values.sum(), rel=1e-9)
    np.testing.assert_array_equal(by_tiles(raster, there, 47, "sum"), whole)


MIDDLE, OFF_MIDDLE = (-4e6, -4e6, 4e6, 4e6), (-3.63e6, -3.41e6, 3.77e6, 3.59e6)  # is the pole


@pytest.mark.parametrize(
    ("source", "bounds", "size"),
    [
        ("-180", MIDDLE, 7),
        ("0-360", OFF_MIDDLE, 7),
        ("-180", OFF_MIDDLE, 1000),
        ("0-360", MIDDLE, 1000),
        ("fine", MIDDLE, 1000),
    ],
)
def test_nobody_vanishes_at_a_pole(write_tif, source, bounds, size):
    values, raster = made(write_tif, POLES[source])
    there = Grid.from_bounds(POLAR, bounds, 1e5 if bounds is MIDDLE else 2.1e5)
    got = by_tiles(raster, there, size, "sum")
    assert np.nansum(got) == pytest.approx(values.sum(), rel=1e-9)


@pytest.mark.parametrize("first", [-180, 0])
def test_a_polar_raster_on_a_grid_in_degrees(write_tif, first):
    values, raster = made(write_tif, ((-2e6, -2e6, 2e6, 2e6), (41, 41), POLAR))
    there = Grid.from_bounds("EPSG:4326", (first, 50, first + 360, 90), 1.0)
    whole = aligned(raster, there, resampling="sum")
    assert np.nansum(whole) == pytest.approx(values.sum(), rel=1e-9)
    np.testing.assert_array_equal(by_tiles(raster, there, 16, "sum"), whole)
    # The people of the quarter on each side, by the centres of their pixels.
    x, y = raster.grid.centres()
    lon, _ = Transformer.from_crs(POLAR, 4326, always_xy=True).transform(x, y)
    for west in (-180, -90, 0, 90):
        true = values[(lon > west) & (lon < west + 90)].sum()
        at, _ = there.centres()
        at = (at + 180) % 360 - 180
        found = np.nansum(whole[(at > west) & (at < west + 90)])
        assert found == pytest.approx(true, rel=0.08)


@pytest.mark.parametrize(
    ("how", "first"),
    [
        *(("nearest", 30.0), ("bilinear", 0.0), ("bilinear", -180.0), ("cubic", -180.0)),
        *(("average", 30.0), ("average", 0.0), ("auto", 0.0), ("mode", -180.0)),
    ],
)
def test_a_field_has_no_seam(write_tif, how, first):
    """Every resampling of a raster is that of the same raster rolled to the grid's longitudes."""
    lon = first + 2.0 * (np.arange(180) + 0.5)
    lat = 60 - 2.0 * (np.arange(60) + 0.5)
    field = np.round(10 * np.cos(np.radians(lon))[None, :] * np.cos(np.radians(lat))[:, None], 6)
    rolled = RasterSource(write_tif("a.tif", field, bounds=(first, -60, first + 360, 60)))
    for bounds, res in (
        ((-30, -40, 30, 40), 1.3),
        ((150, -40, 210, 40), 1.3),
        ((-40, -40, 40, 40), 5.3),
    ):
        grid = Grid.from_bounds("EPSG:4326", bounds, res)
        middle = 0.5 * (bounds[0] + bounds[2])
        start = first + 2.0 * round((middle - 180 - first) / 2.0)
        order = np.argsort((lon - start) % 360, kind="stable")
        straight = RasterSource(
            write_tif("b.tif", field[:, order], bounds=(start, -60, start + 360, 60))
        )
        wanted = aligned(straight, grid, resampling=how)
        assert np.isfinite(wanted).all()
        whole = aligned(rolled, grid, resampling=how)
        np.testing.assert_allclose(whole, wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(by_tiles(rolled, grid, 11, how), whole)


@pytest.mark.parametrize("how", ["nearest", "bilinear", "average"])
def test_a_field_at_the_pole(write_tif, how):
    """Sine of the latitude, exact at the pole, on a polar grid with a pixel on the pole."""
    lat = 90 - 0.5 * (np.arange(60) + 0.5)
    field = np.repeat(np.sin(np.radians(lat))[:, None], 720, axis=1)
    source = RasterSource(write_tif("a.tif", field, bounds=(0, 60, 360, 90)))
    grid = Grid.from_bounds(POLAR, (-1.025e6, -1.025e6, 1.025e6, 1.025e6), 5e4)
    got = by_tiles(source, grid, 9, how)
    x, y = grid.centres()
    _, at = Transformer.from_crs(POLAR, 4326, always_xy=True).transform(x, y)
    np.testing.assert_allclose(got, np.sin(np.radians(at)), atol=2e-3)


def test_columns_of_a_turn(write_tif):
    _, source = made(write_tif, SOURCES["0-360"])
    assert period(source.crs, source.transform, 360) == 360
    assert period(source.crs, source.transform @ source.transform.scale(1.0001, 1), 360) == 360
    np.testing.assert_array_equal(
        wrapped(np.array([-1.0, 0.0, 359.5, 360.0]), 360), [359, 0, 359.5, 0]
    )
    assert arc(np.array([350.0, 359.0, 2.0, 10.0]), 360) == (350.0, 370.0)
    assert arc(np.arange(0.0, 360.0, 10.0), 360) == (0.0, 360)
    assert copies(-10, 10, 360, 360) == [(-1, 350, 360), (0, 0, 10)]
    assert copies(-10, 10, 360, None) == [(0, 0, 10)]
