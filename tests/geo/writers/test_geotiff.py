import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from pyproj import CRS
from rasterio.windows import Window
from rio_cogeo.cogeo import cog_validate

from geo.core.errors import GridError
from geo.grids.grid import Grid, Tile, same_crs
from geo.sources.raster import RasterSource
from geo.writers.geotiff import TiledWriter

GRID = Grid.from_bounds("EPSG:32738", (400_000, 7_000_000, 1_100_000, 7_600_000), 1000)


def truth(grid):
    x, y = grid.centres()
    values = np.sin(x / 5e4) + np.cos(y / 7e4)
    return np.where(np.hypot(x - x.mean(), y - y.mean()) < 2.5e5, values, np.nan)


def write(path, grid=GRID, values=None, **options):
    values = truth(grid) if values is None else values
    with TiledWriter(path, grid, **options) as out:
        for tile in grid.tiles(200):
            if np.isfinite(values[tile.slices]).any():  # the others are never written
                out.write(tile, values[tile.slices])
    return values


def test_a_map_is_a_valid_cog_with_its_metadata(tmp_path):
    path = tmp_path / "rate_mean.tif"
    values = write(path, description="rate", unit="per 1000", tags={"seed": 1, "run": "x"})
    valid, errors, warnings = cog_validate(path, strict=True, quiet=True)
    assert (valid, errors, warnings) == (True, [], [])
    with rasterio.open(path) as src:
        assert src.nodatavals == (pytest.approx(np.nan, nan_ok=True),)
        assert src.mask_flag_enums == ([rasterio.enums.MaskFlags.nodata],)  # and no mask besides
        assert src.overviews(1) == [2, 4]
        assert src.block_shapes == [(256, 256)]
        assert src.descriptions == ("rate",)
        assert src.units == ("per 1000",)
        assert src.tags()["seed"] == "1"
        assert src.tags()["run"] == "x"
        assert src.dtypes == ("float32",)
        assert same_crs(CRS.from_user_input(src.crs), GRID.crs)
        assert RasterSource(path).grid == GRID
        assert src.compression.name == "deflate"
        assert src.tags(ns="IMAGE_STRUCTURE")["PREDICTOR"] == "3"
        np.testing.assert_array_equal(src.read(1), values.astype(np.float32))
        # An overview is the average of the valid pixels below it.
        half = src.read(1, out_shape=(300, 350))
        with np.errstate(invalid="ignore"):
            below = values.astype(np.float32).reshape(300, 2, 350, 2)
            n = np.isfinite(below).sum(axis=(1, 3))
            expected = np.where(n, np.nansum(below, axis=(1, 3)) / np.maximum(n, 1), np.nan)
        np.testing.assert_allclose(half[n == 4], expected[n == 4], rtol=1e-5, atol=1e-6)
        assert np.isnan(half[n == 0]).all()
    assert [p.name for p in tmp_path.iterdir()] == ["rate_mean.tif"]


def test_classes_keep_their_type_and_are_not_averaged(tmp_path):
    path = tmp_path / "class.tif"
    values = np.where(np.arange(GRID.n_pix).reshape(GRID.shape) % 2, 7, 3)
    write(path, values=values, dtype="uint8", nodata=0, overview_resampling="nearest")
    assert cog_validate(path, strict=True, quiet=True)[0]
    with rasterio.open(path) as src:
        assert src.nodata == 0
        assert src.dtypes == ("uint8",)
        np.testing.assert_array_equal(src.read(1), values)
        assert set(np.unique(src.read(1, out_shape=(300, 350)))) <= {3, 7}
    with pytest.raises(GridError, match="nodata nan cannot be stored"):
        TiledWriter(path, GRID, dtype="uint8")


def test_an_exception_leaves_nothing(tmp_path):
    path = tmp_path / "a.tif"

    def fail():
        with TiledWriter(path, GRID) as out:
            out.write(Tile(0, 0, 10, 10), np.ones((10, 10)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
    write(path)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["a.tif"]
    assert path.read_bytes() == before


def test_a_failed_translation_leaves_nothing(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        args[1].write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rasterio.shutil, "copy", broken)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "a.tif")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_finite_or_not_written_is_nodata(tmp_path):
    grid = Grid.from_bounds("EPSG:4326", (0, 0, 3, 3), 0.01)
    path = tmp_path / "a.tif"
    with TiledWriter(path, grid, nodata=-1) as out:
        out.write(Tile(0, 0, 1, 4), np.array([[1.0, np.nan, np.inf, 1e300]]))
    with rasterio.open(path) as src:
        got = src.read(1)
        assert src.nodata == -1
    np.testing.assert_array_equal(got[0, :4], [1, -1, -1, -1])
    assert (got[1:] == -1).all()


def test_tiles_must_fit(tmp_path):
    with TiledWriter(tmp_path / "a.tif", GRID) as out:
        with pytest.raises(GridError, match="shape"):
            out.write(Tile(0, 0, 2, 2), np.ones((2, 3)))
        with pytest.raises(GridError, match="inside the grid"):
            out.write(Tile(599, 0, 2, 2), np.ones((2, 2)))


def test_threads_may_write(tmp_path):
    values = truth(GRID)
    tiles = list(GRID.tiles(100))
    with TiledWriter(tmp_path / "a.tif", GRID) as out:
        threads = [
            threading.Thread(target=lambda mine: [out.write(t, values[t.slices]) for t in mine],
                             args=(tiles[k::4],))
            for k in range(4)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with rasterio.open(tmp_path / "a.tif") as src:
        np.testing.assert_array_equal(src.read(1), values.astype(np.float32))


PEAK = """
import sys
from pathlib import Path
import numpy as np
from geo.writers.geotiff import TiledWriter
from geo.grids.grid import Grid
grid = Grid.from_bounds("EPSG:32738", (0, 0, int(sys.argv[1]), int(sys.argv[1])), 1)
block = np.random.default_rng(0).random((512, 512))
with TiledWriter(sys.argv[2], grid) as out:
    for tile in grid.tiles(512):
        out.write(tile, block[: tile.n_row, : tile.n_col])
# Of this program alone: what getrusage tells begins at the memory of the process that started it.
(peak,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024)
"""


@pytest.mark.ci
def test_memory_does_not_grow_with_the_map(tmp_path):
    def peak_mb(n):
        command = [sys.executable, "-c", PEAK, str(n), str(tmp_path / f"{n}.tif")]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return float(done.stdout)

    # The map itself is 100 MB larger; with GDAL's default cache the peak grew by 150.
    assert peak_mb(5000) - peak_mb(512) < 60


def test_the_statistics_are_those_of_all_valid_pixels(tmp_path):
    path = tmp_path / "a.tif"
    values = write(path, values=1e4 + truth(GRID))
    known = values[np.isfinite(values)].astype(np.float32).astype(np.float64)
    with rasterio.open(path) as source:
        tags = {name.removeprefix("STATISTICS_"): float(v) for name, v in source.tags(1).items()}
        by_gdal = source.stats(indexes=1, approx=False)  # its own pass over the pixels
    assert tags["MINIMUM"] == known.min()
    assert tags["MAXIMUM"] == known.max()
    assert tags["MEAN"] == pytest.approx(known.mean(), rel=1e-13)
    assert tags["STDDEV"] == pytest.approx(known.std(), rel=1e-10)
    assert tags["VALID_PERCENT"] == pytest.approx(100 * known.size / values.size, rel=1e-13)
    by_gdal = by_gdal[0]
    assert (by_gdal.min, by_gdal.max) == (tags["MINIMUM"], tags["MAXIMUM"])
    assert by_gdal.mean == pytest.approx(tags["MEAN"], rel=1e-9)
    assert by_gdal.std == pytest.approx(tags["STDDEV"], rel=1e-6)


def test_statistics_leave_out_nodata_and_a_tile_written_twice_counts_once(tmp_path):
    grid = Grid("EPSG:32738", Affine(100, 0, 5e5, 0, -100, 8e6), (4, 6))
    values = np.array([[1, 2, 0, 4, 5, 6]] * 4)
    with TiledWriter(tmp_path / "a.tif", grid, dtype="uint8", nodata=0) as out:
        for _ in range(2):
            for tile in grid.tiles(4):
                out.write(tile, values[tile.slices])
    with rasterio.open(tmp_path / "a.tif") as source:
        tags = source.tags(1)
    assert float(tags["STATISTICS_MEAN"]) == pytest.approx(18 / 5)
    assert float(tags["STATISTICS_VALID_PERCENT"]) == pytest.approx(100 * 5 / 6)
    with TiledWriter(tmp_path / "empty.tif", grid) as out:
        out.write(grid.whole, np.full(grid.shape, np.nan))
    with rasterio.open(tmp_path / "empty.tif") as source:
        assert not any(name.startswith("STATISTICS") for name in source.tags(1))


def test_a_hole_that_gdal_does_not_tell_of_is_found(tmp_path, monkeypatch):
    grid = Grid("EPSG:32738", Affine(100, 0, 5e5, 0, -100, 8e6), (300, 300))
    values = np.arange(90000, dtype=np.float32).reshape(300, 300)
    path = tmp_path / "map.tif"
    whole = TiledWriter._close

    def close_with_a_hole(writer):
        whole(writer)
        with rasterio.open(writer._draft, "r+") as draft:
            draft.write(np.full((8, 8), np.nan, np.float32), 1, window=Window(256, 256, 8, 8))

    def write():
        with TiledWriter(path, grid) as writer:
            for tile in grid.tiles(256):
                rows, cols = tile.slices
                writer.write(tile, values[rows, cols])

    monkeypatch.setattr(TiledWriter, "_close", close_with_a_hole)
    with pytest.raises(OSError, match=r"could not be written whole.*map\.tif"):
        write()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(TiledWriter, "_close", whole)
    write()
    with rasterio.open(path) as source:
        np.testing.assert_array_equal(source.read(1), values)
