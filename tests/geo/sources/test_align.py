import numpy as np
import pytest
import shapely
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyproj import Geod, Transformer

from geo.core.errors import ResamplingError
from geo.grids.conserve import overlap_sum
from geo.grids.grid import Grid, Tile
from geo.sources import align
from geo.sources.align import RESAMPLINGS, TRANSFORMS, aligned, alignment_method
from geo.sources.raster import RasterSource

quick = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
UTM = "EPSG:32738"
SOUTH = (47.0, -19.0, 49.0, -17.0)  # degrees, in Madagascar


def noisy(n_row, n_col, seed=0, missing=0.2):
    rng = np.random.default_rng(seed)
    values = rng.gamma(0.5, 100.0, (n_row, n_col))
    values[rng.random(values.shape) < missing] = np.nan
    return values


def by_tiles(source, grid, size, *args, **kwargs):
    whole = np.full(grid.shape, np.inf)
    for tile in grid.tiles(size):
        whole[tile.slices] = aligned(source, grid, tile, *args, **kwargs)
    return whole


@quick
@given(
    st.integers(0, 1000), st.floats(0.07, 1.7), st.floats(0.05, 1.9), st.integers(20, 90),
    st.floats(0, 0.9),
)  # fmt: skip
def test_people_are_conserved_in_the_same_crs(write_tif, seed, res_x, res_y, size, missing):
    values = noisy(17, 13, seed, missing)
    source = RasterSource(write_tif("p.tif", values, bounds=(0.3, 0.2, 9.7, 9.9)))
    grid = Grid.from_bounds("EPSG:4326", (-1, -1, 11, 11), (res_x, res_y))
    got = by_tiles(source, grid, size, "sum")
    assert np.nansum(got) == pytest.approx(np.nansum(values), rel=1e-9)
    np.testing.assert_array_equal(got, aligned(source, grid, resampling="sum"))


def test_sum_equals_areas_of_intersection(write_tif):
    values = noisy(5, 4, 3)
    source = RasterSource(write_tif("p.tif", values, bounds=(0.3, 0.2, 9.7, 9.9)))
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 10, 10), (1.3, 0.9))
    got = aligned(source, grid, resampling="sum")
    mean = aligned(source, grid, resampling="average")
    for row in range(grid.shape[0]):
        for col in range(grid.shape[1]):
            a = grid.tile_bounds(Tile(row, col, 1, 1))
            total = valid = 0.0
            for i in range(5):
                for j in range(4):
                    b = source.grid.tile_bounds(Tile(i, j, 1, 1))
                    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
                    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
                    share = width * height / ((b[2] - b[0]) * (b[3] - b[1]))
                    if not np.isnan(values[i, j]):
                        total += share * values[i, j]
                        valid += share
            if valid < 1e-12:
                assert np.isnan(got[row, col])
                assert np.isnan(mean[row, col])
            else:
                assert got[row, col] == pytest.approx(total, rel=1e-9)
                assert mean[row, col] == pytest.approx(total / valid, rel=1e-9)


@pytest.mark.parametrize(
    ("res", "missing"), [(300.0, 0.5), (900.0, 0.0), (5000.0, 0.5), (40_000.0, 0.5)]
)
def test_people_are_conserved_across_crss_and_tiles(write_tif, res, missing):
    values = noisy(30, 26, 1, missing)
    source = RasterSource(write_tif("p.tif", values, bounds=(47.9, -18.1, 48.2, -17.8)))
    there = Transformer.from_crs(4326, UTM, always_xy=True)
    x, y = there.transform(np.array([47.8, 48.3]), np.array([-18.2, -17.7]))
    grid = Grid.from_bounds(UTM, (x[0], y[0], x[1], y[1]), res)
    got = by_tiles(source, grid, 37, "sum")
    assert np.nansum(got) == pytest.approx(np.nansum(values), rel=1e-9)
    np.testing.assert_array_equal(got, aligned(source, grid, resampling="sum"))


def test_people_land_where_they_live(write_tif):
    """The mean position of the people, and where each pixel goes, by another route."""
    values = noisy(40, 40, 5, 0.0)
    source = RasterSource(write_tif("p.tif", values, bounds=(47.9, -18.1, 48.3, -17.7)))
    there = Transformer.from_crs(4326, UTM, always_xy=True)
    lon, lat = source.grid.centres()
    x, y = there.transform(lon, lat)
    grid = Grid.from_bounds(UTM, (x.min() - 3e3, y.min() - 3e3, x.max() + 3e3, y.max() + 3e3), 1500)
    got = np.nan_to_num(aligned(source, grid, resampling="sum"))
    gx, gy = grid.centres()
    for mine, true in ((gx, x), (gy, y)):
        expected = (true * values).sum() / values.sum()
        assert (mine * got).sum() / got.sum() == pytest.approx(expected, abs=15)  # 1 % of a pixel


def test_a_density_is_multiplied_by_the_true_area(write_tif):
    values = np.full((20, 20), 10.0)  # people per km2
    source = RasterSource(write_tif("d.tif", values, bounds=SOUTH))
    true = 10.0 * source.grid.area_km2().sum()
    for grid in (
        source.grid,
        Grid.from_bounds("EPSG:4326", SOUTH, 0.03),
        Grid.from_bounds(UTM, (600_000, 7_850_000, 1_000_000, 8_200_000), 9_000),
    ):
        got = aligned(source, grid, resampling="sum", density=True)
        assert np.nansum(got) == pytest.approx(true, rel=1e-9)
    with pytest.raises(ResamplingError, match="cannot be used for a density; use 'sum'"):
        aligned(source, source.grid, resampling="average", density=True)


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_tiles_equal_the_whole_and_missing_stays_missing(write_tif, resampling):
    values = noisy(50, 45, 2, 0.0)
    values[:, :20] = np.nan
    source = RasterSource(write_tif("a.tif", values, bounds=SOUTH))
    for grid in (
        Grid.from_bounds("EPSG:4326", (46.9, -19.2, 49.1, -17.1), 0.021),
        Grid.from_bounds("EPSG:4326", (46.9, -19.2, 49.1, -17.1), 0.13),
        Grid.from_bounds(UTM, (680_000, 7_900_000, 940_000, 8_130_000), 7_000),
    ):
        whole = aligned(source, grid, resampling=resampling)
        np.testing.assert_array_equal(by_tiles(source, grid, 13, resampling), whole)
        x, y = grid.centres()
        half = grid.res[0]
        if grid.crs.is_projected:
            x, y = Transformer.from_crs(UTM, 4326, always_xy=True).transform(x, y)
            half /= 100_000
        coast = 47 + 2 * 20 / 45
        assert np.isnan(whole[x < coast - half]).all()
        inland = (x > coast + half) & (x < 49 - half) & (y > -19 + half) & (y < -17 - half)
        assert inland.sum() > 50
        assert np.isfinite(whole[inland]).all()


def test_the_same_grid_is_copied_exactly_and_shifts_too(write_tif):
    values = noisy(12, 10, 4, 0.7)  # so that some blocks are missing altogether
    source = RasterSource(write_tif("a.tif", values, bounds=(0, 0, 10, 12)))
    for resampling in RESAMPLINGS:
        np.testing.assert_array_equal(aligned(source, source.grid, resampling=resampling), values)
    shifted = Grid("EPSG:4326", Affine(1, 0, -3, 0, -1, 9), (20, 8))
    expected = np.full((20, 8), np.nan)
    expected[:9, 3:] = values[3:, :5]
    np.testing.assert_array_equal(aligned(source, shifted, resampling="cubic"), expected)
    # A header's rounding (0.12499999999999892) must not leak people into missing neighbours.
    rounded = Grid("EPSG:4326", Affine(1 + 1e-9, 0, 1e-9, 0, -1 - 1e-9, 12), (12, 10))
    np.testing.assert_array_equal(aligned(source, rounded, resampling="sum"), values)
    double = Grid("EPSG:4326", Affine(2 + 1e-9, 0, 1e-9, 0, -2, 12 + 1e-9), (6, 5))
    blocks = values.reshape(6, 2, 5, 2)
    expected = np.where(np.isnan(blocks).all(axis=(1, 3)), np.nan, np.nansum(blocks, axis=(1, 3)))
    np.testing.assert_allclose(aligned(source, double, resampling="sum"), expected, rtol=1e-6)


def plane(x, y):
    return 3.0 * x - 2.0 * y + 7.0


@pytest.mark.parametrize("resampling", ["bilinear", "cubic", "auto"])
def test_a_plane_is_interpolated_exactly(write_tif, resampling):
    x, y = Grid.from_bounds("EPSG:4326", SOUTH, 0.1).centres()
    source = RasterSource(write_tif("a.tif", plane(x, y), bounds=SOUTH))
    grid = Grid.from_bounds("EPSG:4326", (47.4, -18.6, 48.6, -17.4), 0.031)
    np.testing.assert_allclose(
        aligned(source, grid, resampling=resampling), plane(*grid.centres()), rtol=1e-12
    )
    utm = Grid.from_bounds(UTM, (760_000, 7_950_000, 860_000, 8_050_000), 3_000)
    lon_lat = Transformer.from_crs(UTM, 4326, always_xy=True).transform(*utm.centres())
    np.testing.assert_allclose(
        aligned(source, utm, resampling=resampling), plane(*lon_lat), rtol=1e-9
    )


def test_auto_averages_finer_sources_also_across_crss(write_tif):
    x, y = Grid.from_bounds("EPSG:4326", SOUTH, 0.005).centres()
    stripes = plane(x, y) + 100.0 * (np.arange(x.shape[1]) % 2 * 2 - 1)
    source = RasterSource(write_tif("a.tif", stripes, bounds=SOUTH))
    coarse = Grid.from_bounds("EPSG:4326", (47.4, -18.6, 48.6, -17.4), 0.1)
    np.testing.assert_allclose(aligned(source, coarse), plane(*coarse.centres()), rtol=1e-9)
    utm = Grid.from_bounds(UTM, (760_000, 7_950_000, 860_000, 8_050_000), 10_000)
    lon_lat = Transformer.from_crs(UTM, 4326, always_xy=True).transform(*utm.centres())
    error = aligned(source, utm) - plane(*lon_lat)
    assert abs(error).max() < 12  # of stripes of +-100: at most a column of 19 too many
    assert abs(error.mean()) < 0.5


def test_bilinear_at_a_coast_uses_the_valid_neighbours(write_tif):
    values = np.array([[1.0, 2.0, np.nan], [3.0, 4.0, np.nan], [np.nan] * 3])
    source = RasterSource(write_tif("a.tif", values, bounds=(0, 0, 3, 3)))
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 3, 3), 0.5)
    got = aligned(source, grid, resampling="bilinear")
    np.testing.assert_array_equal(np.isnan(got), np.kron(np.isnan(values), np.ones((2, 2))))
    # At (1.75, 2.75), a quarter right and above the centre of the 2: only 2 itself is valid.
    assert got[0, 3] == 2.0
    assert got[1, 1] == pytest.approx(0.75**2 * 1 + 0.75 * 0.25 * (2 + 3) + 0.25**2 * 4)


def test_mode_takes_the_class_of_most_area(write_tif):
    classes = np.array([[1, 1, 2, 2], [1, 5, 5, 2], [7, 7, 3, 3], [7, 9, 4, 4]], np.uint8)
    source = RasterSource(write_tif("c.tif", classes, bounds=(0, 0, 4, 4), nodata=9))
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 4, 4), 2)
    np.testing.assert_array_equal(aligned(source, grid, resampling="mode"), [[1, 2], [7, 3]])


def test_a_huge_source_is_read_in_pieces(write_tif, monkeypatch):
    values = noisy(90, 80, 6)
    source = RasterSource(write_tif("a.tif", values, bounds=SOUTH))
    grid = Grid.from_bounds("EPSG:4326", SOUTH, 0.4)
    whole = aligned(source, grid, resampling="sum")
    monkeypatch.setattr(align, "N_SOURCE_AT_ONCE", 700)
    largest = 0
    read = source.read

    def watched(window):
        nonlocal largest
        largest = max(largest, window.n_row * window.n_col)
        return read(window)

    monkeypatch.setattr(source, "read", watched)
    np.testing.assert_array_equal(aligned(source, grid, resampling="sum"), whole)
    assert largest < 1500


def test_a_south_up_source_is_read_right(write_tif):
    values = noisy(20, 20, 7, 0.0)
    up = RasterSource(write_tif("a.tif", values, bounds=SOUTH))
    flipped = Affine(0.1, 0, 47, 0, 0.1, -19)
    down = RasterSource(write_tif("b.tif", values[::-1], transform=flipped))
    assert not down.north_up
    grid = Grid.from_bounds("EPSG:4326", SOUTH, 0.07)
    for resampling in ("bilinear", "nearest"):
        np.testing.assert_allclose(
            aligned(down, grid, resampling=resampling), aligned(up, grid, resampling=resampling)
        )
    assert np.nansum(aligned(down, grid, resampling="sum")) == pytest.approx(values.sum())
    got, expected = (aligned(s, grid, resampling="sum", density=True) for s in (down, up))
    assert np.nansum(got) == pytest.approx(np.nansum(expected), rel=1e-9)


def test_a_density_on_a_rotated_raster_keeps_its_people(write_tif):
    turned = Affine(0.05, 0.02, 47.5, 0.02, -0.05, -18.0)
    values = np.full((20, 15), 7.0)  # people per km2
    source = RasterSource(write_tif("r.tif", values, transform=turned))
    corners = [turned @ corner for corner in ((0, 0), (15, 0), (15, 20), (0, 20))]
    ring = shapely.segmentize(shapely.Polygon(corners), 0.01)  # straight in degrees, as pixels are
    area = abs(Geod(ellps="WGS84").geometry_area_perimeter(ring)[0]) / 1e6
    grid = Grid.from_bounds("EPSG:4326", (47, -20, 49.5, -17), 0.04)
    got = aligned(source, grid, resampling="sum", density=True)
    assert np.nansum(got) == pytest.approx(7.0 * area, rel=1e-6)


def test_no_overlap_is_all_missing_and_names_are_checked(write_tif):
    source = RasterSource(write_tif("a.tif", np.ones((4, 4)), bounds=(0, 0, 4, 4)))
    far = Grid.from_bounds("EPSG:4326", (50, 50, 52, 52), 1)
    assert np.isnan(aligned(source, far)).all()
    with pytest.raises(ResamplingError, match="did you mean 'bilinear'"):
        aligned(source, far, resampling="bilinaer")


def test_transforms_leave_nothing_infinite():
    values = np.array([-2.0, -1.0, 0.0, 3.0, np.nan])
    nan = np.nan
    for name, expected in {
        "none": values,
        "log1p": [nan, nan, 0.0, np.log(4.0), nan],
        "log": [nan, nan, nan, np.log(3.0), nan],
        "sqrt": [nan, nan, 0.0, np.sqrt(3.0), nan],
    }.items():
        np.testing.assert_allclose(TRANSFORMS[name](values), expected)


def test_the_real_people_are_conserved(madagascar):
    source = RasterSource(madagascar / "population.tif")
    people = np.nansum(source.read())
    for grid, size in (
        (Grid.from_bounds(UTM, (-200_000, 7_000_000, 1_300_000, 9_000_000), 5_000), 128),
        (Grid.from_bounds("EPSG:4326", source.grid.bounds, 0.03), 200),
        (Grid.from_bounds("EPSG:4326", source.grid.bounds, 0.11), 50),
    ):
        assert np.nansum(by_tiles(source, grid, size, "sum")) == pytest.approx(people, rel=1e-6)


def test_a_copy_reads_no_pixel_twice(write_tif, monkeypatch):
    values = noisy(40, 60)
    source = RasterSource(write_tif("c.tif", values, bounds=(0, 0, 60, 40)))
    read, real = [], source.read
    monkeypatch.setattr(source, "read", lambda window: read.append(window) or real(window))
    grid = Grid.from_bounds("EPSG:4326", (5, 3, 70, 33), 1)
    got = by_tiles(source, grid, 16)
    expected = np.full(grid.shape, np.nan)
    expected[:, :55] = values[7:37, 5:]
    np.testing.assert_array_equal(got, expected)
    assert sum(window.n_row * window.n_col for window in read) == 30 * 55


@pytest.mark.parametrize(
    ("name", "crs", "res", "way"),
    [
        ("auto", "EPSG:4326", 1.0, "copy"),
        ("sum", "EPSG:4326", 1.0, "copy"),
        ("auto", "EPSG:4326", 2.0, "average"),
        ("auto", "EPSG:4326", 0.3, "bilinear"),
        ("sum", "EPSG:4326", 0.3, "sum"),
        ("mode", "EPSG:4326", 3.0, "points"),
        ("auto", UTM, 20_000, "warp"),
        ("sum", UTM, 20_000, "points"),
    ],
)
def test_the_way_of_an_alignment_is_known_beforehand(write_tif, name, crs, res, way):
    source = RasterSource(write_tif("w.tif", noisy(20, 20), bounds=(40, -25, 60, -5)))
    bounds = (42, -23, 48, -15) if crs == "EPSG:4326" else (0, 7.5e6, 8e5, 8.2e6)
    assert alignment_method(source, Grid.from_bounds(crs, bounds, res), name) == way


def test_a_pixel_far_larger_than_the_source_is_summed_at_once():
    values = np.arange(1020.0).reshape(30, 34)
    edges = np.array([-1e9, 1e9]), np.array([-1e9, 17.0, 1e9])
    total, valid = overlap_sum(values, Tile(0, 0, 30, 34), *edges)
    np.testing.assert_allclose(total, [[values[:, :17].sum(), values[:, 17:].sum()]])
    np.testing.assert_allclose(valid, [[510, 510]])


@pytest.mark.parametrize(
    ("resampling", "nodata", "other"),
    [
        ("sum", None, None),
        ("sum", -1.0, "EPSG:32631"),
        ("average", -1.0, None),
        ("average", None, "EPSG:32631"),
        ("mode", -1.0, None),
        ("bilinear", None, "EPSG:32631"),
    ],
)
def test_blocks_that_a_file_leaves_out_are_read_as_written_ones(
    write_tif, monkeypatch, nodata, resampling, other
):
    """Whether a file stores its empty blocks is no property of the data."""
    values = np.full((256, 320), 0.0 if nodata is None else nodata, np.float32)
    values[100:140, 90:150] = 3.0
    tiles = {"tiled": True, "blockxsize": 16, "blockysize": 16, "bounds": (1, 1, 4, 3.5)}
    paths = [
        write_tif(f"{sparse}.tif", values, nodata=nodata, sparse_ok=sparse, **tiles)
        for sparse in (True, False)
    ]
    sparse, whole = map(RasterSource, paths)
    grid = Grid.from_bounds("EPSG:4326", (0.7, 0.8, 4.2, 3.7), 0.1)
    if other is not None:
        grid = Grid.from_bounds(other, (250_000, 90_000, 650_000, 400_000), 12_000)
    assert sparse.unwritten(Tile(0, 0, 32, 32)) is not None
    assert sparse.unwritten(Tile(90, 80, 32, 32)) is None
    assert whole.unwritten(Tile(0, 0, 32, 32)) is None
    monkeypatch.setattr(align, "N_SOURCE_AT_ONCE", 900)
    expected = aligned(whole, grid, resampling=resampling)
    monkeypatch.setattr(RasterSource, "read", counted := Counted(RasterSource.read))
    np.testing.assert_array_equal(aligned(sparse, grid, resampling=resampling), expected)
    assert np.isfinite(expected).any()
    assert counted.n_pixel < 0.7 * values.size


class Counted:
    """Counts the pixels that a method reads."""

    def __init__(self, read):
        self.original, self.n_pixel = read, 0

    def __get__(self, source, _):
        def read(window):
            self.n_pixel += window.n_row * window.n_col
            return self.original(source, window)

        return read
