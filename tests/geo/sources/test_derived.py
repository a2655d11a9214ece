"""Shares of classes, slopes and aspects: against counting, GDAL's own programs, and geodesics."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import rasterio
import rasterio.warp
from affine import Affine
from pyproj import CRS, Geod, Transformer
from rasterio.enums import Resampling
from scipy.ndimage import gaussian_filter

from geo.core.errors import InputError
from geo.grids.grid import Grid, Tile
from geo.sources.align import aligned
from geo.sources.class_names import class_names
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import source_of
from tests.geo.sources.source_conformance import SourceConformance

GEOD = Geod(ellps="WGS84")
CLASSES = np.array([[1, 1, 2, 0, 13], [1, 2, 2, 0, 13], [13, 13, 7, 7, 1], [2, 1, 0, 7, 13]])
SLOPE, EAST, NORTH = (BandChoice(terrain=each) for each in ("slope", "eastness", "northness"))
HILLS = gaussian_filter(np.random.default_rng(0).normal(size=(40, 50)), 3) * 3000
HILLS[5, 7] = np.nan
HILLS[20:25, 30:36] = 77.0


class TestShare(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        path = write_tif("a.tif", CLASSES.astype(np.uint8), nodata=0)
        known = np.where(CLASSES == 0, np.nan, np.isin(CLASSES, (1, 7)))
        return source_of(path, BandChoice(share=(1.0, 7.0))), {"": known}


class TestSlope(SourceConformance):
    @pytest.fixture
    def made(self, write_tif):
        at = {"crs": "EPSG:6933", "transform": Affine(100, 0, 1e6, 0, -100, 4e6)}
        path = write_tif("z.tif", np.repeat([[0.0, 100, 200, 300, 400, 500]], 5, axis=0), **at)
        found, expected = source_of(path, SLOPE).read(), np.full((5, 6), np.nan)
        expected[1:-1, 1:-1] = 45.0
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        return source_of(path, SLOPE), {"": found}


@pytest.fixture
def cover(write_tif):
    """Land cover of 48 x 60 pixels, a tenth of it missing; with its path."""
    values = np.random.default_rng(3).choice([0, 1, 2, 13], (48, 60), p=[0.1, 0.4, 0.3, 0.2])
    at = {"crs": "EPSG:32738", "transform": Affine(100, 0, 5e5, 0, -100, 8e6), "nodata": 0}
    return values, write_tif("cover.tif", values.astype(np.uint8), **at)


def test_shares_of_larger_pixels_are_counted(cover):
    values, path = cover
    source = source_of(path, BandChoice(share=(1.0, 13.0)))
    grid = Grid(source.crs, Affine(600, 0, 5e5, 0, -600, 8e6), (8, 10))
    blocks = values.reshape(8, 6, 10, 6).swapaxes(1, 2).reshape(8, 10, 36)
    counted = np.isin(blocks, (1, 13)).sum(axis=2) / (blocks > 0).sum(axis=2)
    np.testing.assert_allclose(aligned(source, grid, resampling="average"), counted, rtol=1e-14)
    each = [source_of(path, BandChoice(share=(float(k),))) for k in (1, 2, 13)]
    total = sum(aligned(one, grid, resampling="average") for one in each)
    np.testing.assert_allclose(total, 1.0, rtol=1e-14)


def test_shares_on_another_grid_are_gdals_average(cover):
    values, path = cover
    grid = Grid(CRS("EPSG:32738"), Affine(730, 0, 500100, 0, -730, 7999800), (5, 6))
    ours = aligned(source_of(path, BandChoice(share=(2.0,))), grid, resampling="average")
    theirs = np.full(grid.shape, np.nan)
    indicator = np.where(values == 0, np.nan, values == 2)
    rasterio.warp.reproject(
        indicator, theirs, src_transform=Affine(100, 0, 5e5, 0, -100, 8e6), src_crs=grid.crs,
        dst_transform=grid.transform, dst_crs=grid.crs, src_nodata=np.nan, dst_nodata=np.nan,
        resampling=Resampling.average,
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def gdaldem(path, into, how):
    """Run GDAL's own program, which its Python packages leave out."""
    library = ctypes.CDLL(rasterio._base.__file__)
    library.GDALOpen.restype = library.GDALDEMProcessing.restype = ctypes.c_void_p
    library.GDALClose.argtypes = [ctypes.c_void_p]
    text, pointer = ctypes.c_char_p, ctypes.c_void_p
    library.GDALDEMProcessing.argtypes = [text, pointer, text, text, pointer, pointer]
    opened = library.GDALOpen(str(path).encode(), 0)
    made = library.GDALDEMProcessing(str(into).encode(), opened, how.encode(), None, None, None)
    library.GDALClose(made)
    library.GDALClose(opened)
    with rasterio.open(into) as file:
        return file.read(1, masked=True).astype(np.float64).filled(np.nan)


def test_slope_and_aspect_are_those_of_gdaldem(write_tif, tmp_path):
    at = {"crs": "EPSG:6933", "transform": Affine(100, 0, 1e6, 0, -100, 4e6)}
    path = write_tif("z.tif", HILLS, nodata=np.nan, **at)
    with rasterio.Env():
        steep = gdaldem(path, tmp_path / "slope.tif", "slope")
        faces = np.radians(gdaldem(path, tmp_path / "aspect.tif", "aspect"))
    np.testing.assert_allclose(source_of(path, SLOPE).read(), steep, atol=1e-4)
    flat = np.isnan(faces) & ~np.isnan(steep)
    assert flat.sum() == 12  # in the middle of the plain: GDAL has no aspect there, we have 0
    for choice, theirs in ((NORTH, np.cos(faces)), (EAST, np.sin(faces))):
        ours = source_of(path, choice).read()
        np.testing.assert_allclose(ours, np.where(flat, 0.0, theirs), atol=1e-5)
    window = Tile(11, 13, 20, 30)
    np.testing.assert_array_equal(
        source_of(path, SLOPE).read(window), source_of(path, SLOPE).read()[window.slices]
    )


@pytest.mark.parametrize("direction", ["east", "north"])
@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:4326", Affine(0.01, 0, 25, 0, -0.01, 70)),
        ("EPSG:4326", Affine(0.01, 0, 25, 0, 0.01, -80)),  # south-up
        ("EPSG:3857", Affine(1000, 0, 3e6, 0, -1000, 1.1e7)),
        ("EPSG:32633", Affine(900, 300, 5e5, 300, -900, 7e6)),  # rotated
    ],
)
def test_a_pixel_is_as_wide_as_on_the_earth(write_tif, crs, transform, direction):
    col, row = np.meshgrid(np.arange(12) + 0.5, np.arange(10) + 0.5)
    x, y = transform @ (col, row)
    z = 100.0 * (x if direction == "east" else y) / abs(transform.a)
    source = source_of(write_tif("z.tif", z, crs=crs, transform=transform), SLOPE)
    there = Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    step = 0.5 * abs(transform.a)
    at = (4, 7)
    ends = [
        there.transform(x[at] + sign * step * (direction == "east"),
                        y[at] + sign * step * (direction == "north"))
        for sign in (-1, 1)
    ]  # fmt: skip
    metres = GEOD.inv(*ends[0], *ends[1])[2]
    expected = np.degrees(np.arctan(100.0 / metres))
    assert source.read()[at] == pytest.approx(
        expected, rel=5e-4
    )  # Web Mercator keeps angles on a sphere


def test_a_raster_around_the_earth_has_no_edge_at_180_degrees(write_tif):
    at = {"crs": "EPSG:4326", "transform": Affine(10, 0, -180, 0, -10, 30)}
    lon = np.radians(-175 + 10 * np.arange(36))
    path = write_tif("z.tif", np.repeat([1e5 * np.sin(lon)], 6, axis=0), **at)
    found = source_of(path, SLOPE).read()
    assert np.isnan(found[[0, -1]]).all()
    assert not np.isnan(found[1:-1]).any()
    np.testing.assert_allclose(found[1:-1, 0], found[1:-1, 18], rtol=1e-12)
    np.testing.assert_array_equal(source_of(path, SLOPE).read(Tile(2, 35, 1, 1)), found[2:3, 35:])


def test_an_elevation_in_feet_is_refused_until_it_is_scaled(write_tif):
    path = write_tif("z.tif", HILLS)
    with pytest.raises(InputError, match=r"is in ft, but slope and aspect need .* metres"):
        source_of(path, SLOPE, RasterHeader(unit="ft"))
    assert source_of(path, SLOPE, RasterHeader(unit="m", scale=0.3048)).describe().unit == "degrees"


TABLE = """<PAMDataset><PAMRasterBand band="1">{}</PAMRasterBand></PAMDataset>"""
CATEGORIES = "<CategoryNames><Category/><Category>Wood</Category></CategoryNames>"
ATTRIBUTES = """<GDALRasterAttributeTable>
<FieldDefn index="0"><Name>n</Name><Type>0</Type><Usage>1</Usage></FieldDefn>
<FieldDefn index="1"><Name>code</Name><Type>0</Type><Usage>{use}</Usage></FieldDefn>
<FieldDefn index="2"><Name>class</Name><Type>2</Type><Usage>{name}</Usage></FieldDefn>
<Row index="0"><F>99</F><F>13</F><F>Urban area</F></Row></GDALRasterAttributeTable>"""


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        (CATEGORIES, {1.0: "Wood"}),
        (ATTRIBUTES.format(use=5, name=2) + CATEGORIES, {13.0: "Urban area"}),
        (ATTRIBUTES.format(use=0, name=0), {13.0: "Urban area"}),
        ("", {}),
    ],
)
def test_names_of_classes_are_those_of_the_table_beside_the_raster(cover, inside, names):
    path = cover[1]
    path.with_name("cover.tif.aux.xml").write_text(TABLE.format(inside), encoding="utf-8")
    assert class_names(str(path)) == names
    with rasterio.open(path) as file:  # GDAL reads it as well
        assert file.count == 1


def test_a_damaged_table_of_classes_is_said(cover):
    cover[1].with_name("cover.tif.aux.xml").write_text("<PAMDataset>", encoding="utf-8")
    with pytest.raises(InputError, match=r"aux\.xml.*is damaged"):
        class_names(str(cover[1]))
