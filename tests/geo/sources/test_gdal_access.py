"""Rasters: what GDAL opens is the named file, by an allowed driver; a VRT leads nowhere."""

import os
import zipfile

import numpy as np
import pytest
import rasterio
import rasterio.vrt
from affine import Affine

from geo.core.errors import InputError
from geo.core.trust import Trust, trusting
from geo.sources.input_files import input_files
from geo.sources.raster import RasterSource
from geo.sources.registry import open_source
from tests.bands import write

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def tif(path, values=VALUES, **options):
    path.parent.mkdir(exist_ok=True)
    place = {"crs": "EPSG:4326", "transform": Affine(1, 0, 0, 0, -1, 3)}
    write(path, values, dtype="float32", **place, **options)
    return path


def vrt(source, relative=0, kind="SimpleSource", band="", extra=""):
    return (
        '<VRTDataset rasterXSize="4" rasterYSize="3"><SRS>EPSG:4326</SRS>'
        "<GeoTransform>0, 1, 0, 3, 0, -1</GeoTransform>"
        f'<VRTRasterBand dataType="Float32" band="1" {band}>{extra}<{kind}>'
        f'<SourceFilename relativeToVRT="{relative}">{source}</SourceFilename>'
        f"<SourceBand>1</SourceBand></{kind}></VRTRasterBand></VRTDataset>"
    )


def said(path):
    problems = []
    source = open_source(path, "population", problems)
    if source is not None:
        source.read()
        source.close()
    return "; ".join(p.found for p in problems)


def test_vrts_of_the_own_folder_are_read(tmp_path):
    tif(tmp_path / "parts/a.tif")
    (tmp_path / "parts/inner.vrt").write_text(vrt("a.tif", 1))
    for source in ("parts/a.tif", "parts/inner.vrt"):
        path = tmp_path / "all.vrt"
        path.write_text(vrt(source, 1))
        np.testing.assert_array_equal(RasterSource(path).read(), VALUES)
    listed = input_files(path, Trust()).files
    assert [os.path.basename(each) for each in listed] == ["all.vrt", "inner.vrt", "a.tif"]


def test_gdals_own_mosaics_and_warps_are_read_as_gdal_reads_them(tmp_path):
    tif(tmp_path / "a.tif")
    with (
        rasterio.open(tmp_path / "a.tif") as source,
        rasterio.vrt.WarpedVRT(source, crs="EPSG:3857") as warped,
    ):
        expected, xml = warped.read(1), warped.tags(ns="xml:VRT")
    plain = xml.get("xml:VRT") or next(iter(xml.values()), "")
    if not plain:
        pytest.skip("this GDAL does not say the XML of a warp")
    (tmp_path / "w.vrt").write_text(plain)
    np.testing.assert_array_equal(np.nan_to_num(RasterSource(tmp_path / "w.vrt").read()), expected)


def test_a_vrt_by_another_name_is_refused(tmp_path):
    tif(tmp_path / "a.tif")
    (tmp_path / "population.tif").write_text(vrt(tmp_path / "a.tif"))
    assert said(tmp_path / "population.tif") == "is a VRT by another name"


def test_a_vrt_leads_to_no_file_outside_its_folder(tmp_path):
    secret = tif(tmp_path / "secret/s.tif")
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    path = inputs / "population.vrt"
    path.write_text(vrt(secret))
    assert "outside its folder" in said(path)
    path.write_text(vrt("../secret/s.tif", 1))
    assert "outside its folder" in said(path)
    (inputs / "link.tif").symlink_to(secret)
    path.write_text(vrt("link.tif", 1))
    assert "outside its folder" in said(path)
    with trusting(Trust.of((str(tmp_path / "secret"),), ())):
        assert said(path) == ""
        kept = RasterSource(path)
    np.testing.assert_array_equal(kept.read(), VALUES)  # it keeps the trust of who opened it
    with trusting(Trust.of((), (str(secret),))):  # an input of the configuration
        assert said(path) == ""


BASE = vrt("a.tif", 1)
ATTACKS = {
    "bytes of a file": BASE.replace('band="1"', 'band="1" subClass="VRTRawRasterBand"'),
    "the class as an element": BASE.replace(
        "<SimpleSource>", "<subClass>VRTRawRasterBand</subClass><SimpleSource>"
    ),
    "the source as an attribute": BASE.replace(
        "<SimpleSource>", '<SimpleSource SourceFilename="/etc/passwd">'
    ),
    "other letters": BASE.replace("SourceFilename", "SOURCEFILENAME"),
    "a pansharpened raster": BASE.replace(
        "<VRTDataset", '<VRTDataset subClass="VRTPansharpenedDataset"', 1
    ),
    "a program": vrt(
        "a.tif", 1, band='subClass="VRTDerivedRasterBand"',
        extra="<PixelFunctionType>f</PixelFunctionType><PixelFunctionLanguage>Python"
        "</PixelFunctionLanguage><PixelFunctionCode>import os</PixelFunctionCode>",
    ),
    "entities": '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + BASE,
    "many entities": '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>' + BASE,
    "a system file": vrt("/etc/passwd"),
    "a system file, relative": vrt("../../../../../../etc/passwd", 1),
    "a device": vrt("/dev/zero"),
    "overviews elsewhere": BASE.replace(
        "<SRS>",
        '<Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">/x</MDI></Metadata><SRS>',
    ),
    "an overview": BASE.replace("<SimpleSource>", "<Overview/><SimpleSource>"),
    "open options": BASE.replace("<SourceBand>", "<OpenOptions/><SourceBand>"),
    "a VRT in the name": vrt(BASE.replace("<", "&lt;")),
    "vrt://": vrt("vrt:///etc/passwd"),
    "an archive": vrt("/vsizip//etc/x.zip/a.tif"),
    "standard input": vrt("/vsistdin/"),
    "a subdataset": vrt('NETCDF:"/etc/x.nc":v'),
    "a connection": vrt("WMS:http://127.0.0.1:9/"),
    "a database": vrt("PG:dbname=x"),
    "itself": vrt("population.vrt", 1),
    "text": vrt("plain.tif", 1),
    "damaged": BASE[:-5],
    "nothing": "",
}  # fmt: skip


@pytest.mark.parametrize("what", ATTACKS)
def test_each_way_out_of_a_vrt_is_refused(tmp_path, what):
    tif(tmp_path / "a.tif")
    (tmp_path / "plain.tif").write_text("root:x:0:0:root:/root:/bin/bash\n" * 20)
    path = tmp_path / "population.vrt"
    path.write_text(BASE)
    assert said(path) == ""
    path.write_text(ATTACKS[what])
    problems = []
    assert open_source(path, "population", problems) is None
    assert len(problems) == 1
    assert input_files(path, Trust()).refused or what == "text"


@pytest.mark.parametrize("name", ["x.vrt", "x.tif", "x.tif.msk", "x.tif.ovr", "x.tif.aux.xml"])
def test_no_request_leaves_for_what_a_file_says(tmp_path, web, name):
    tif(web.folder / "served.tif")
    remote = f"/vsicurl/{web.url}/served.tif"
    if name not in ("x.vrt", "x.tif"):
        tif(tmp_path / "x.tif")
    text = vrt(remote)
    if name.endswith(".aux.xml"):
        text = (
            '<PAMDataset><Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">'
            f"{remote}</MDI></Metadata></PAMDataset>"
        )
    (tmp_path / name).write_text(text)
    before = web.asked()
    assert said(tmp_path / ("x.vrt" if name == "x.vrt" else "x.tif"))
    assert web.asked() == before


def test_a_listed_server_may_be_referred_to_and_another_not(tmp_path, web):
    tif(web.folder / "served.tif")
    path = tmp_path / "x.vrt"
    path.write_text(vrt(f"/vsicurl/{web.url}/served.tif"))
    assert f"refers to {web.url}" in said(path)
    with trusting(Trust.of((), (f"{web.url}/cases.csv",))):
        np.testing.assert_array_equal(RasterSource(path).read(), VALUES)
    with trusting(Trust.of((f"{web.url}/other",), ())):
        assert f"refers to {web.url}" in said(path)
    (web.folder / "nested.tif").write_text(vrt("/etc/passwd"))
    path.write_text(vrt(f"{web.url}/nested.tif"))
    with trusting(Trust.of((web.url,), ())):
        assert "which is no GeoTIFF" in said(path)


def test_a_raster_of_a_server_is_read_alone_and_its_errors_are_the_servers(tmp_path, web):
    tif(web.folder / "rain.tif")
    before = len(web.asked())
    np.testing.assert_array_equal(RasterSource(f"{web.url}/rain.tif").read(), VALUES)
    paths = {line.split()[1] for line in web.asked()[before:]}
    assert paths == {"/rain.tif"}  # no side-car file that no fingerprint knows
    assert said(f"{web.url}/none.tif") == "no such file (HTTP 404)"
    assert "cannot be reached" in said("http://127.0.0.1:9/rain.tif")
    (web.folder / "text.tif").write_text("<html>" + "no raster " * 50)
    assert said(f"{web.url}/text.tif") == "is not a raster that GDAL can read"
    assert said(f"{web.url}/a.vrt") == "is a VRT on a server"


@pytest.mark.parametrize(
    "address",
    ["WMS:http://127.0.0.1:9/", "/vsistdin/", "/vsimem/a.tif", "ftp://127.0.0.1/a.tif",
     "vrt:///etc/passwd", "PG:dbname=x", "/vsigzip//tmp/a.tif.gz",
     "DERIVED_SUBDATASET:LOGAMPLITUDE:a",
     "<VRTDataset rasterXSize='1' rasterYSize='1'/>", "HTTP:x", "GTI:x"],
)  # fmt: skip
def test_connection_strings_are_refused(address):
    assert said(address) == "is not an address that is read"


def test_a_raster_in_an_archive_is_read_and_its_archive_hashed(tmp_path):
    tif(tmp_path / "a.tif")
    with zipfile.ZipFile(tmp_path / "maps.zip", "w") as archive:
        archive.write(tmp_path / "a.tif", "in/a.tif")
        archive.writestr("in/b.vrt", vrt("a.tif", 1))
    for name in (f"/vsizip/{tmp_path}/maps.zip/in/a.tif", f"zip://{tmp_path}/maps.zip!in/a.tif"):
        np.testing.assert_array_equal(RasterSource(name).read(), VALUES)
        assert input_files(name, Trust()).files == [f"{tmp_path}/maps.zip"]
    assert said(f"/vsizip/{tmp_path}/maps.zip/in/b.vrt") == "is a VRT in an archive"
    assert "no file" in said(f"/vsizip/{tmp_path}/none.zip/in/a.tif")


def test_absurd_sizes_are_refused_from_the_header(tmp_path):
    profile = dict(driver="GTiff", count=1, dtype="float32", crs="EPSG:4326", SPARSE_OK=True,
                   transform=Affine(1e-5, 0, 0, 0, -1e-5, 3), BIGTIFF="YES")  # fmt: skip
    path = tmp_path / "huge.tif"
    size = {"width": 10**6, "height": 10**6}
    with rasterio.open(path, "w", tiled=True, blockxsize=4096, blockysize=4096, **size, **profile):
        pass
    assert path.stat().st_size < 2e6
    assert said(path).startswith("claims 1,000,000 x 1,000,000 pixels in a file of ")
    strip = tmp_path / "strip.tif"
    with rasterio.open(
        strip, "w", width=40_000, height=40_000, blockysize=40_000, compress="deflate", **profile
    ):
        pass
    assert "stored in blocks of 40,000 x 40,000 pixels" in said(strip)


def test_many_bands_are_refused(tmp_path):
    bands = "".join(f'<VRTRasterBand dataType="Byte" band="{i}"/>' for i in range(1, 65_600))
    text = f'<VRTDataset rasterXSize="4" rasterYSize="3">{bands}</VRTDataset>'
    (tmp_path / "x.vrt").write_text(text)
    with pytest.raises(InputError, match="65,599 bands"):
        RasterSource(tmp_path / "x.vrt")
