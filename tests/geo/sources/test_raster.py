import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio._env import get_gdal_config

from geo.core.errors import GridError, InputError, Problem, name_first
from geo.core.stopping import Stopped, stoppable
from geo.grids.grid import Grid, Tile
from geo.sources.raster import RasterSource, bounded_cache
from geo.sources.raster_header import BandChoice
from geo.sources.registry import open_source
from geo.sources.source import Source, crs_remedy

AT = (1, 0, 5, 0, -1, 5)


def problems_of(path, **options):
    problems = []
    source = open_source(path, "covariates.rain", problems, **options)
    assert (source is None) == bool(problems)
    for problem in problems:
        assert problem.place.startswith(f"covariates.rain ({path})")
        assert problem.found
        assert problem.remedy
    return [problem.found for problem in problems]


def test_header_and_values(write_tif):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = write_tif("a.tif", values, unit="mm", bounds=(10, 0, 14, 3))
    source = RasterSource(path)
    assert source.describe().unit == "mm"
    assert source.shape == (3, 4)
    assert source.describe().nodata == ()
    assert source.north_up
    with rasterio.open(path) as raster:
        assert source.grid == Grid(raster.crs, raster.transform, raster.shape)
    got = source.read()
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(source.read(Tile(1, 2, 2, 1)), values[1:, 2:3])


@pytest.mark.parametrize(
    ("dtype", "nodata", "stored"),
    [
        ("float32", -3.4e38, np.float32(-3.4e38)),
        ("float32", -3.4e38, np.finfo(np.float32).min),  # another program's "lowest float"
        ("float32", float(np.finfo(np.float32).min), np.float32(-3.4e38)),
        ("float32", 0.1, np.float32(0.1)),
        ("float32", np.nan, np.nan),
        ("float32", None, np.inf),
        ("float64", -9999.0, -9999.0),
        ("int16", -32768, -32768),
        ("uint8", 255, 255),
        ("int32", 2147483647, 2147483647),
    ],
)
def test_missing_values_are_nan_whatever_they_are_stored_as(write_tif, dtype, nodata, stored):
    values = np.array([[1, 2], [3, 4]], dtype)
    values[0, 1] = stored
    got = RasterSource(write_tif("a.tif", values, nodata=nodata)).read()
    np.testing.assert_array_equal(got, [[1, np.nan], [3, 4]])


def test_a_mask_band_and_scale_and_offset(write_tif, tmp_path):
    path = write_tif("a.tif", np.array([[10, 20]], np.int16), nodata=20, scale=0.5, offset=-1)
    np.testing.assert_array_equal(RasterSource(path).read(), [[4.0, np.nan]])
    masked = tmp_path / "m.tif"
    profile = {"driver": "GTiff", "height": 1, "width": 2, "count": 1, "dtype": "uint8"}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(
            masked, "w", crs="EPSG:4326", transform=(1, 0, 5, 0, -1, 5), **profile
        ) as out,
    ):
        out.write(np.array([[7, 8]], np.uint8), 1)
        out.write_mask(np.array([[255, 0]], np.uint8))
    np.testing.assert_array_equal(RasterSource(masked).read(), [[7.0, np.nan]])


def test_a_handle_is_shared_by_threads_and_pickles(write_tif):
    values = np.random.default_rng(0).random((64, 64))
    source = RasterSource(write_tif("a.tif", values, tiled=True, blockxsize=16, blockysize=16))
    wrong = []

    def read(k):
        for row in range(0, 64, 8):
            if not np.array_equal(
                source.read(Tile(row, k, 8, 8)), values[row : row + 8, k : k + 8]
            ):
                wrong.append((row, k))

    threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(), values)


def test_each_unusable_raster_is_said(write_tif, tmp_path):
    values = np.ones((4, 4), np.float32)
    assert problems_of(write_tif("good.tif", values)) == []
    assert problems_of(tmp_path / "none.tif") == ["no such file"]
    assert problems_of(tmp_path) == ["is a directory"]
    text = tmp_path / "text.tif"
    text.write_text("not a raster")
    assert problems_of(text) == ["is not a raster that GDAL can read"]
    found = problems_of(write_tif("no_crs.tif", values, crs=None))
    assert found == ["has no coordinate reference system (CRS)"]
    source = RasterSource(tmp_path / "no_crs.tif")
    assert "it reaches from" in crs_remedy(source.describe())
    about = replace(source.describe(), transform=Affine(0.1, 0, 32.0, 0, -0.1, -14.0))
    assert crs_remedy(about).endswith(
        "from 32 to 32.4 and from -14.4 to -14: if these are degrees, crs: EPSG:4326"
    )
    assert "band 3" in problems_of(write_tif("b.tif", values), choice=BandChoice(3))[0]
    plain = tmp_path / "plain.tif"
    profile = {"driver": "GTiff", "height": 4, "width": 4, "count": 1, "dtype": "uint8"}
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(plain, "w", **profile) as f,
    ):
        f.write(np.ones((4, 4), np.uint8), 1)
    assert len(problems_of(plain)) == 2  # neither CRS nor georeferencing, both at once


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("compress", ["none", "deflate"])
def test_a_truncated_file_is_found_on_opening(write_tif, share, compress):
    values = np.random.default_rng(1).random((200, 200))
    path = write_tif("a.tif", values, tiled=True, blockxsize=64, blockysize=64, compress=compress)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    (found,) = problems_of(path)
    assert "truncated" in found


def test_damage_inside_is_an_error_that_names_file_and_place(write_tif):
    values = np.random.default_rng(1).random((128, 128))
    path = write_tif("a.tif", values, tiled=True, blockxsize=64, blockysize=64, compress="deflate")
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 2000] = bytes(2000)
    path.write_bytes(whole)
    source = open_source(path, "x", [])
    with pytest.raises(InputError, match=r"a\.tif: cannot be read at row 0, column 0: truncated"):
        source.read()


def test_a_grid_needs_a_crs_and_north_up(write_tif):
    path = write_tif("a.tif", np.ones((4, 4)), crs=None)
    with pytest.raises(GridError, match="no CRS"):
        _ = RasterSource(path).grid


def test_a_read_ends_a_thread_whose_results_are_not_wanted(write_tif):
    source = RasterSource(write_tif("a.tif", np.ones((4, 4))))
    with stoppable(lambda: True), pytest.raises(Stopped):
        source.read()
    with stoppable(lambda: False):
        assert source.read().sum() == 16
    assert source.read().sum() == 16


def test_errors_tell_all_and_travel():
    problems = (Problem("a.csv row 7", "is bad", "mend it"), Problem("b", "c", "d"))
    error = InputError(problems)
    assert str(error) == "a.csv row 7: is bad; mend it\nb: c; d"
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == problems
    assert name_first([1, 2, 3], 2) == "1, 2, ... (3 in all)"


def test_the_real_population_has_no_people_at_sea(madagascar):
    values = RasterSource(madagascar / "population.tif").read()
    with rasterio.open(madagascar / "population.tif") as src:
        raw = src.read(1)
    assert np.nanmin(values) == 0.0
    np.testing.assert_array_equal(np.isnan(values), raw < 0)  # a count is never negative
    assert np.nansum(values) == pytest.approx(23_764_992.28, abs=1)


def test_the_cache_of_blocks_is_256_mb() -> None:
    """Rasterio takes its size in bytes: with 256 of them each strip was decoded for every tile."""
    with bounded_cache():
        assert rasterio.env.getenv()["GDAL_CACHEMAX"] == get_gdal_config("GDAL_CACHEMAX") == 2**28


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (9, 12), (4, 12)])
def test_a_coarse_look_is_single_pixels(write_tif, shape, monkeypatch):
    values = np.arange(180.0).reshape(12, 15)
    values[4:6, 3:9] = np.nan
    source, window = RasterSource(write_tif("a.tif", values)), Tile(2, 1, 9, 12)
    got = source.coarse(window, shape)
    assert got.shape == shape
    row, col = (
        ((np.arange(n) + 0.5) * of / n).astype(int) for n, of in zip(shape, (9, 12), strict=True)
    )
    np.testing.assert_array_equal(got, values[2:11, 1:13][np.ix_(row, col)])
    np.testing.assert_array_equal(Source.coarse(source, window, shape), got)
    monkeypatch.setattr("geo.sources.source.N_AT_ONCE", 1)
    np.testing.assert_array_equal(Source.coarse(source, window, shape), got)
