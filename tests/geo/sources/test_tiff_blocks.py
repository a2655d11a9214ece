"""The bytes of a GeoTIFF that a window needs: GDAL reads it from a file that has these alone."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import rasterio
from affine import Affine

from geo.grids.grid import Tile
from geo.sources.raster import RasterSource
from geo.sources.raster_header import BandChoice
from geo.sources.tiff_blocks import tiff_blocks

SHAPE = (300, 420)
LAYOUTS = {
    "strips": {},
    "tiles": {"tiled": True, "blockxsize": 64, "blockysize": 32},
    "deflate, bands apart": {"tiled": True, "compress": "deflate", "interleave": "band"},
    "zstd, BigTIFF, pixels": {"tiled": True, "compress": "zstd", "bigtiff": "YES",
                              "interleave": "pixel", "blockxsize": 64, "blockysize": 64},
    "big-endian": {"compress": "lzw", "endianness": "BIG", "predictor": 3},
    "big-endian BigTIFF": {"endianness": "BIG", "bigtiff": "YES", "tiled": True},
    "cloud-optimised": {"driver": "COG", "compress": "zstd", "blocksize": 128},
    "sparse": {"tiled": True, "sparse_ok": True, "blockxsize": 64, "blockysize": 64},
    "one strip": {"blockysize": 300, "compress": "deflate"},
}  # fmt: skip


def written(path, options):
    values = np.random.default_rng(3).normal(size=(2, *SHAPE)).astype("float32")
    if "sparse_ok" in options:
        values[:, :128] = 0
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(
            path, "w", **{"driver": "GTiff", **options}, width=SHAPE[1], height=SHAPE[0], count=2,
            dtype="float32", crs="EPSG:4326", transform=Affine(0.1, 0, 0, 0, -0.1, 9),
        ) as file,
    ):  # fmt: skip
        file.write(values)
        file.write_mask(values[0] > -1)
        file.update_tags(note="x" * 3000)
        if file.driver == "GTiff":
            file.build_overviews([2])
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gdal_needs_no_other_byte(tmp_path, layout):
    path = written(tmp_path / "a.tif", LAYOUTS[layout])
    data = path.read_bytes()
    here = np.zeros(len(data), bool)

    def read(start, stop):
        here[start:stop] = True
        return data[start:stop]

    blocks = tiff_blocks(read, len(data))
    assert blocks is not None
    with rasterio.open(path) as file:
        assert blocks.block == file.block_shapes[0]
    assert here.sum() < 9000  # the header
    whole = RasterSource(path, BandChoice(2))
    for k, window in enumerate((Tile(0, 0, 1, 1), Tile(100, 90, 60, 70), Tile(299, 300, 1, 120))):
        now = here.copy()
        for start, stop in blocks.spans(window, 2).tolist():
            now[max(start, 0) : stop] = True
        part = tmp_path / f"part{k}.tif"
        # What is not there is spoilt: a reader that looks at it would fail or differ.
        part.write_bytes(np.where(now, np.frombuffer(data, np.uint8), 0xA5).tobytes())
        np.testing.assert_array_equal(
            RasterSource(part, BandChoice(2)).read(window), whole.read(window)
        )
        assert layout == "one strip" or now.mean() < 0.5


def test_what_is_no_plain_geotiff_is_not_read_by_windows(tmp_path):
    good = written(tmp_path / "a.tif", LAYOUTS["tiles"]).read_bytes()

    def blocks(data):
        return tiff_blocks(lambda start, stop: data[start:stop], len(data))

    assert blocks(good) is not None
    (at,) = struct.unpack_from("<I", good, 4)
    (n,) = struct.unpack_from("<H", good, at)
    after = at + 2 + 12 * n
    again = good[:after] + struct.pack("<I", at) + good[after + 4 :]  # a circle of directories
    jpeg = bytearray(good)
    for k in range(n):
        if struct.unpack_from("<H", good, at + 2 + 12 * k) == (259,):
            struct.pack_into("<H", jpeg, at + 2 + 12 * k + 8, 7)
    for odd in (b"", b"II*\0", good[: at + 20], again, bytes(jpeg), b"\x89HDF" + good[4:]):
        assert blocks(odd) is None
