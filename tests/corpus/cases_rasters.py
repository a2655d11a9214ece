"""Rasters: files, headers and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from affine import Affine

from tests.corpus.case import Country, Doubt, Error, case

VRT = (
    '<VRTDataset rasterXSize="{size}" rasterYSize="{size}"><SRS>EPSG:32738</SRS>'
    "<GeoTransform>5e5,1000,0,8e6,0,-1000</GeoTransform>"
    '<VRTRasterBand dataType="Float64" band="1"><SimpleSource>'
    '<SourceFilename relativeToVRT="0">{source}</SourceFilename>'
    "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
)


def _vrt(country: Country, name: str, source: str, size: int = 34) -> None:
    (country.directory / name).write_text(VRT.format(source=source, size=size))
    country.covariate(path=name)


for _source in ("/etc/passwd", "http://127.0.0.1:1/x.tif"):
    case(
        "raster",
        Error("covariates.wave", "is a VRT by another name", "name it .vrt"),
        name=f"vrt named tif to {_source.partition(':')[0].strip('/')}",
    )(lambda country, source=_source: _vrt(country, "wave.tif", source))

case("raster", Error("covariates.wave", "/etc/passwd", "storage"), name="vrt to a system file")(
    lambda country: _vrt(country, "wave.vrt", "/etc/passwd")
)
case("raster", Error("covariates.wave", "127.0.0.1", "storage"), name="vrt to a server")(
    lambda country: _vrt(country, "wave.vrt", "/vsicurl/http://127.0.0.1:1/x.tif")
)
case(
    "raster",
    Error("covariates.wave", "password=***, outside its folder", "storage"),
    name="vrt with a connection string",
)(lambda country: _vrt(country, "wave.vrt", "PG:host=127.0.0.1 password=hunter2"))
case(
    "raster",
    Error("covariates.wave", "refers to itself", "correct the files"),
    name="vrt of itself",
)(lambda country: _vrt(country, "wave.vrt", f"{country.directory}/wave.vrt"))


def _two_bands(country: Country, **options: Any) -> None:
    path = country.covariates[0]
    values = country.values(path)
    with rasterio.open(path) as file:
        profile = {**file.profile, **options, "count": 2}
    with rasterio.open(path, "w", **profile) as file:
        file.write(np.stack([values, values[::-1]]))
        file.descriptions = ("ndvi", "evi")


@case("raster", Error("covariates.wave", "has 2 variables (ndvi, evi)", "`variable: ndvi`"))
def bands_of_two_quantities(country: Country) -> None:
    _two_bands(country)


@case("raster")
def a_band_by_its_name(country: Country) -> None:
    _two_bands(country)
    country.covariate(variable="evi")


@case("raster", Error("covariates.wave", "has no time '2023-02'", "remove the key `time`"))
def a_time_of_a_raster_without_any(country: Country) -> None:
    country.covariate(time="2023-02")


@case(
    "raster", Error("truth", "has 2 variables (ndvi, evi)", "`variable: ndvi`"), also_ingest=False
)
def a_truth_of_two_bands(country: Country) -> None:
    _two_bands(country)
    country.covariate(variable="evi")
    country.add("truth: {path: wave.tif}\n")


@case("raster")
def a_vrt_as_gdal_writes_it_of_tiles(country: Country) -> None:
    path = country.covariates[0]
    values = np.tile(country.values(path), (9, 9))
    options = {"tiled": True, "blockxsize": 128, "blockysize": 256}
    country.raster(path, values, **options)
    rasterio.shutil.copy(path, country.directory / "wave.vrt", driver="VRT")
    assert "blockYSize" in (country.directory / "wave.vrt").read_text()
    country.covariate(path="wave.vrt")


@case("raster")
def a_raster_in_a_geopackage(country: Country) -> None:
    path = country.covariates[0]
    values = country.values(path).astype("float32")
    country.raster(path, values, dtype="float32", nodata=-9999)
    rasterio.shutil.copy(path, country.directory / "wave.gpkg", driver="GPKG")
    country.covariate(path="wave.gpkg")


@case("raster", Error("covariates.wave", "outside its folder", "storage.trusted"))
def vrt_to_the_folder_above(country: Country) -> None:
    above = country.directory.parent / "above.tif"
    above.write_bytes(country.covariates[0].read_bytes())
    _vrt(country, "wave.vrt", f"{country.directory}/../above.tif")


@case("raster", Error("covariates.wave", "a link to /etc/passwd, outside", "storage.trusted"))
def vrt_to_a_link_out_of_its_folder(country: Country) -> None:
    (country.directory / "link.tif").symlink_to("/etc/passwd")
    _vrt(country, "wave.vrt", f"{country.directory}/link.tif")


@case("raster", Error("covariates.wave", "has <PixelFunctionLanguage>", "gdal_translate"))
def vrt_that_runs_python(country: Country) -> None:
    text = VRT.format(source=f"{country.directory}/wave.tif", size=34)
    code = "<PixelFunctionLanguage>Python</PixelFunctionLanguage><PixelFunctionCode>import os"
    text = text.replace("<SimpleSource>", f"{code}</PixelFunctionCode><SimpleSource>")
    (country.directory / "wave.vrt").write_text(text)
    country.covariate(path="wave.vrt")


@case("raster", Error("covariates.wave", "wave.tif.msk is no TIFF", "remove it"))
def mask_that_is_a_vrt(country: Country) -> None:
    text = VRT.format(source="/etc/passwd", size=34)
    (country.directory / "wave.tif.msk").write_text(text)


@case("raster", Error("covariates.wave", "refers to itself", "correct the files"))
def vrts_in_a_circle(country: Country) -> None:
    _vrt(country, "a.vrt", f"{country.directory}/b.vrt")
    _vrt(country, "b.vrt", f"{country.directory}/a.vrt")


@case("raster", Error("covariates.wave", "nested more than 4 deep", "gdal_translate"))
def vrts_in_a_long_chain(country: Country) -> None:
    for k in range(60):
        _vrt(country, f"v{k}.vrt", f"{country.directory}/v{k + 1}.vrt")
    (country.directory / "v60.vrt").write_text(
        VRT.format(source=f"{country.directory}/wave.tif", size=34)
    )
    country.covariate(path="v0.vrt")


@case("raster")
def vrt_of_a_neighbour(country: Country) -> None:
    _vrt(country, "wave.vrt", f"{country.directory}/wave.tif")


def _huge_vrt(country: Country, name: str, pixel: float, source: str = "wave.tif") -> None:
    size = 10**6
    n = round(30_000 / pixel)
    (country.directory / name).write_text(
        f'<VRTDataset rasterXSize="{size}" rasterYSize="{size}"><SRS>EPSG:32738</SRS>'
        f"<GeoTransform>5e5,{pixel},0,8e6,0,-{pixel}</GeoTransform>"
        '<VRTRasterBand dataType="Float64" band="1"><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">{source}</SourceFilename><SourceBand>1</SourceBand>'
        f'<SrcRect xOff="0" yOff="0" xSize="34" ySize="30"/>'
        f'<DstRect xOff="0" yOff="0" xSize="{round(34_000 / pixel)}" ySize="{n}"/>'
        "</SimpleSource></VRTRasterBand></VRTDataset>"
    )


@case("raster", Error("covariates.wave", "pixels over the areas", "coarser raster"))
def vrt_of_1e6_by_1e6_pixels_over_the_areas(country: Country) -> None:
    _huge_vrt(country, "wave.vrt", 0.03)
    country.covariate(path="wave.vrt")


@case("raster", Error("grid.like", "makes 1,000,000 x 1,000,000 pixels", "cut to the areas"))
def grid_of_1e6_by_1e6_pixels_beyond_the_areas(country: Country) -> None:
    _huge_vrt(country, "huge.vrt", 1000)
    country.change("grid", like="huge.vrt")


@case("raster", Error("grid.like", "no file", "correct the path"))
def no_grid_and_a_huge_population(country: Country) -> None:
    """No grid is made of the population's: its tiles alone would take minutes to list."""
    _huge_vrt(country, "population.vrt", 1000, "population.tif")
    country.change("population", path="population.vrt")
    country.change("grid", like="grid.tif")


@case("raster", Error("covariates.wave", "claims 1,000,000 x 1,000,000 pixels in a file of", "cut"))
def sparse_tiff_of_1e6_by_1e6_pixels(country: Country) -> None:
    with rasterio.open(
        country.covariates[0], "w", driver="GTiff", width=10**6, height=10**6, count=1,
        dtype="uint8", crs="EPSG:32738", transform=Affine(0.03, 0, 5e5, 0, -0.03, 8e6),
        SPARSE_OK=True, tiled=True, blockxsize=16384, blockysize=16384, compress="deflate",
        BIGTIFF="YES",
    ):  # fmt: skip
        pass


@case("raster", Error("covariates.wave", "is not a raster", "GeoTIFF"))
def a_page_instead_of_the_download(country: Country) -> None:
    country.covariates[0].write_text("<!DOCTYPE html><html>404</html>")


@case("raster", Error("covariates.wave", "is empty", "copy or download"))
def empty_file(country: Country) -> None:
    country.covariates[0].write_bytes(b"")


@case("raster", Error("covariates.wave", "is a directory", "raster file"))
def a_folder(country: Country) -> None:
    country.covariates[0].unlink()
    country.covariates[0].mkdir()


@case("raster", Error("covariates.wave", "truncated", "copy or download"))
def cut_short(country: Country) -> None:
    data = country.covariates[0].read_bytes()
    country.covariates[0].write_bytes(data[: len(data) // 2])


@case("raster", Error("covariates.wave", "no georeferencing", "gdal_translate"))
def no_transform(country: Country) -> None:
    country.raster(
        country.covariates[0], country.values(country.covariates[0]), transform=Affine.identity()
    )


@case("raster", Error("covariates.wave", "no coordinate reference system", "crs: EPSG:xxxx"))
def no_crs(country: Country) -> None:
    country.raster(country.covariates[0], country.values(country.covariates[0]), crs=None)


@case("raster")
def no_crs_but_declared(country: Country) -> None:
    no_crs(country)
    country.covariate(crs="EPSG:32738")


@case("raster", Error("covariates.wave", "neither geographic nor projected", "give a geographic"))
def crs_of_a_building_site(country: Country) -> None:
    local = 'LOCAL_CS["site",UNIT["metre",1]]'
    country.raster(country.covariates[0], country.values(country.covariates[0]), crs=local)


@case("raster", Error("covariates.wave", "not degrees", "crs: EPSG:xxxx"))
def metres_under_a_geographic_crs(country: Country) -> None:
    country.raster(country.covariates[0], country.values(country.covariates[0]), crs="EPSG:4326")


@case("raster")
def south_up_covariate(country: Country) -> None:
    path = country.covariates[0]
    turned = Affine(1000, 0, 5e5, 0, 1000, 8e6 - 30e3)
    country.raster(path, country.values(path)[::-1], transform=turned)


@case("raster", Error("covariates.wave", "has 1 band(s), but band 3 is requested", "from 1 to 1"))
def band_that_is_not_there(country: Country) -> None:
    country.covariate(band=3)


@case("raster", Error("population", "down to -99", "nodata"), Doubt("nodata", "population", "-99"))
def negative_people(country: Country) -> None:
    values = country.values(country.population)
    values[5:8, 5:8] = -99
    country.raster(country.population, values, nodata=None)


@case("raster", Error("population", "has no people inside the areas", "check that the file"))
def nobody_anywhere(country: Country) -> None:
    country.raster(country.population, np.zeros((30, 34)))


@case("raster", Error("population", "has no value inside the areas", "nodata"))
def population_all_missing(country: Country) -> None:
    country.raster(country.population, np.full((30, 34), -1.0), nodata=-1)


@case("raster", Error("covariates.wave", "7 on every pixel inside the areas", "leave it out"))
def constant(country: Country) -> None:
    country.raster(country.covariates[0], np.full((30, 34), 7.0))


@case("raster", Error("covariates.wave", "has no value inside the areas", "nodata"))
def all_infinite(country: Country) -> None:
    country.raster(country.covariates[0], np.full((30, 34), np.inf))


@case("raster")
def some_infinite(country: Country) -> None:
    values = country.values(country.covariates[0])
    values[5:7, 5:7] = np.inf
    country.raster(country.covariates[0], values)


@case("raster")
def nodata_nan_in_whole_numbers(country: Country) -> None:
    values = (100 * country.values(country.covariates[0])).astype("int16")
    country.raster(country.covariates[0], values, dtype="int16", nodata=None)
    path = country.covariates[0].with_name("wave.tif.aux.xml")
    path.write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>nan</NoDataValue>'
        "</PAMRasterBand></PAMDataset>"
    )


@case("raster", Error("covariates.wave", "complex numbers", "real-valued"))
def complex_numbers(country: Country) -> None:
    values = country.values(country.covariates[0]).astype("complex64")
    country.raster(country.covariates[0], values, dtype="complex64", nodata=None)


@case("raster", Error("areas", "M04: cases, but no people", "correct the population"))
def cases_where_nobody_lives(country: Country) -> None:
    values = country.values(country.population)
    values[10:19, 10:19] = 0
    country.raster(country.population, values)


@case("raster", Error("areas", "M04 (lacks wave): no usable pixel", "covariates that cover it"))
def area_without_a_covariate(country: Country) -> None:
    values = country.values(country.covariates[0])
    values[10:19, 10:19] = np.nan
    country.raster(country.covariates[0], values)


@case("raster", Doubt("coverage", "areas", "M04 ("))
def most_of_an_area_without_a_covariate(country: Country) -> None:
    values = country.values(country.covariates[0])
    values[10:17, 10:19] = np.nan
    country.raster(country.covariates[0], values)
