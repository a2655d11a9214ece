"""Fingerprints cover every byte that a run reads, here and on servers."""

import os
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import rasterio.shutil
import shapely
from affine import Affine

from geo.core.trust import Trust, trusting
from geo.sources.boundary import read_areas
from geo.sources.input_files import input_files, side_cars
from geo.sources.registry import open_source
from pipeline.config.values import _resolve
from pipeline.storage import fingerprint
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Storage, StorageError
from pipeline.storage.web_state import web_state
from tests.bands import write
from tests.pipeline.storage.watching import opened_names
from tests.servers import running

QUICK = Storage(retries=0, timeout=5)


def raster(path, driver="GTiff", value=1.0, **options):
    place = {"crs": "EPSG:4326", "transform": Affine(1, 0, 0, 0, -1, 4)}
    write(path, np.full((4, 4), value, np.float32), driver=driver, **place, **options)
    return path


def mosaic(path, *sources):
    each = "".join(
        f'<SimpleSource><SourceFilename relativeToVRT="1">{name}</SourceFilename>'
        "<SourceBand>1</SourceBand></SimpleSource>"
        for name in sources
    )
    path.write_text(
        '<VRTDataset rasterXSize="4" rasterYSize="4"><SRS>EPSG:4326</SRS><GeoTransform>0, 1, 0, 4, '
        f'0, -1</GeoTransform><VRTRasterBand dataType="Float32" band="1">{each}</VRTRasterBand>'
        "</VRTDataset>"
    )
    return path


def changes(path, change, storage=QUICK):
    """Return whether a fingerprint changes, and comes back where the change is undone."""
    before = fingerprint_file(path, storage)
    undo = change()
    after = fingerprint_file(path, storage)
    if undo:
        undo()
        assert fingerprint_file(path, storage) == before
    return after != before


def replace(path, data):
    """Return a change of a file's bytes that gives its undoing."""

    def change():
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(data)
        return path.unlink if before is None else lambda: path.write_bytes(before)

    return change


def test_a_vrt_changes_with_its_sources_and_theirs(tmp_path):
    (tmp_path / "parts").mkdir()
    source = raster(tmp_path / "parts/a.tif")
    inner = mosaic(tmp_path / "parts/inner.vrt", "a.tif")
    outer = mosaic(tmp_path / "all.vrt", "parts/inner.vrt")
    other = raster(tmp_path / "other.tif", value=2.0).read_bytes()
    assert changes(outer, replace(source, other))
    assert changes(outer, replace(inner, inner.read_bytes() + b" "))
    assert changes(outer, replace(source.with_name("a.tif.msk"), other))
    assert changes(outer, lambda: source.unlink())
    assert not changes(outer, replace(tmp_path / "parts/unread.tif", other))


def test_a_vrt_that_is_refused_is_followed_nowhere(tmp_path):
    outside = raster(tmp_path / "outside.tif")
    (tmp_path / "in").mkdir()
    path = mosaic(tmp_path / "in/a.vrt", "../outside.tif")
    assert not changes(path, replace(outside, b"other"))
    with trusting(Trust.of((str(tmp_path),), ())):
        assert changes(path, replace(outside, b"II*\0other"))


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        *(("a.tif", f"a{s}") for s in (".tif.aux.xml", ".tif.msk", ".tif.msk.aux.xml", ".tif.ovr",
                                       ".tif.ovr.aux.xml", ".tif.ovr.ovr", ".tfw", ".TFW",
                                       ".prj", ".wld", ".tifw")),
        *(("a.bil", f"a.{s}") for s in ("hdr", "prj", "stx", "blw", "bil.aux.xml")),
        *(("a.dat", f"a.{s}") for s in ("hdr", "dat.hdr")),
        *(("a.img", f"a.{s}") for s in ("ige", "rrd", "img.aux.xml")),
        *(("a.png", f"a.{s}") for s in ("pgw", "wld", "png.aux.xml")),
        *(("a.shp", f"a.{s}") for s in ("shx", "dbf", "prj", "cpg", "sbn", "qix")),
        *(("a.gpkg", f"a.gpkg{s}") for s in ("-wal", "-journal")),
    ],
)  # fmt: skip
def test_a_side_car_that_appears_changes_or_empties_is_a_change(tmp_path, name, beside):
    path, other = tmp_path / name, tmp_path / beside
    path.write_bytes(b"main")
    assert changes(path, replace(other, b""))
    other.write_bytes(b"x")
    assert changes(path, replace(other, b"y"))
    assert changes(path, replace(other, b""))
    assert not changes(path, replace(tmp_path / "b.tfw", b"of another"))
    assert not changes(path, replace(tmp_path / "a.qml", b"a style"))


def test_archives_parts_directories_and_absent_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("a.tif", "1")
    for path in (f"/vsizip/{tmp_path}/m.zip/a.tif", f"zip://{tmp_path}/m.zip!a.tif"):
        assert changes(path, replace(tmp_path / "m.zip", b"other"))
    (tmp_path / "r.nc").write_bytes(b"CDF\x01")
    assert changes(f"NETCDF:{tmp_path}/r.nc:tp", replace(tmp_path / "r.nc", b"CDF\x02"))
    one, two = (fingerprint_file(f"NETCDF:{tmp_path}/r.nc:{v}") for v in ("tp", "t2m"))
    assert one != two
    (tmp_path / "a.gdb").mkdir()
    table = tmp_path / "a.gdb/a00000001.gdbtable"
    table.write_bytes(b"x")
    assert changes(tmp_path / "a.gdb", replace(table, b"y"))
    empty = tmp_path / "empty.tif"
    empty.touch()
    assert fingerprint_file(empty) != fingerprint_file(tmp_path / "none.tif") == "absent"
    assert fingerprint_file(f"/vsizip/{tmp_path}/none.zip/a.tif") == "absent"
    assert fingerprint_file("WMS:x") != fingerprint_file("WMS:x")  # never up to date by mistake


class Served(BaseHTTPRequestHandler):
    """Answers as `state` says."""

    state: dict = {}

    def log_message(self, *args):
        pass

    def _answer(self, body):
        state = self.state
        status = state.get(f"{self.command} status", state.get("status", 200))
        self.send_response(status)
        data = state.get("body", b"")
        for key in ("ETag", "Last-Modified"):
            if key in state:
                self.send_header(key, state[key])
        self.send_header("Content-Length", str(len(data) if status == 200 else 0))
        self.end_headers()
        if body and status == 200:
            self.wfile.write(data)

    def do_HEAD(self):
        self._answer(False)

    def do_GET(self):
        self.state["gets"] = self.state.get("gets", 0) + 1
        self._answer(True)


@pytest.fixture
def web():
    Served.state = {"body": b"some bytes"}
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Served)) as port:
        yield f"http://127.0.0.1:{port}/cases.csv", Served.state


def test_what_a_server_says_of_its_content_is_the_fingerprint(web):
    url, state = web

    def says(**what):
        def change():
            before = dict(state)
            state.update(what)
            return lambda: (state.clear(), state.update(before))

        return change

    assert changes(url, says(body=b"more bytes!"))
    assert changes(url, says(body=b"same bytes"))  # of equal length: the bytes are read
    assert state.get("gets")
    state["Last-Modified"] = "Sun, 01 Nov 2026 00:00:00 GMT"
    state["gets"] = 0
    assert changes(url, says(**{"Last-Modified": "Mon, 02 Nov 2026 00:00:00 GMT"}))
    assert changes(url, says(body=b"longer than before"))
    state["ETag"] = '"one"'
    assert changes(url, says(ETag='"two"'))
    assert not changes(url, says(**{"Last-Modified": "Tue, 03 Nov 2026 00:00:00 GMT"}))
    assert state["gets"] == 0  # nothing was downloaded for it
    assert changes(url, says(status=404))
    state["status"] = 404
    assert fingerprint_file(url, QUICK) == "absent"


def test_a_server_that_does_not_answer_is_no_unchanged_input(web):
    url, state = web
    for status, cause in ((500, "cannot be reached"), (503, "cannot be reached"), (401, "denied")):
        state["status"] = status
        with pytest.raises(StorageError, match=rf"127.0.0.1.*{cause}.*{status}"):
            fingerprint_file(url, QUICK)
    state["status"] = 200
    state["HEAD status"] = 405
    before = fingerprint_file(url, QUICK)
    state["body"] = b"SOME bytes"
    assert fingerprint_file(url, QUICK) != before
    with pytest.raises(StorageError, match="cannot be reached after 1 attempts"):
        fingerprint_file("http://127.0.0.1:9/x.tif", QUICK)
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        web_state("http://user:secret@127.0.0.1:9/x.tif?token=hidden", QUICK)
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_gdals_names_of_servers_are_addresses():
    class Info:
        context = None

    assert _resolve("/vsis3/bucket/a.tif", Info()) == "s3://bucket/a.tif"
    assert _resolve("/vsicurl/https://host/a.tif", Info()) == "https://host/a.tif"


@pytest.mark.parametrize(
    ("driver", "name"),
    [("GTiff", "a.tif"), ("ENVI", "a.dat"), ("EHdr", "a.bil"), ("HFA", "a.img"), ("PNG", "a.png"),
     ("AAIGrid", "a.asc"), ("RST", "a.rst"), ("SAGA", "a.sdat"), ("netCDF", "a.nc")],
)  # fmt: skip
def test_what_gdal_opens_beside_a_raster_is_in_its_fingerprint(tmp_path, driver, name):
    tif = raster(tmp_path / "source.tif")
    path = tmp_path / "in" / name
    path.parent.mkdir()
    if driver == "PNG":
        place = {"crs": "EPSG:4326", "transform": Affine(1, 0, 0, 0, -1, 4)}
        write(path, np.ones((4, 4), np.uint8), driver="PNG", WORLDFILE="YES", **place)
    else:
        rasterio.shutil.copy(tif, path, driver=driver)
    if driver == "GTiff":
        (path.parent / "a.tif.msk").write_bytes(tif.read_bytes())
        (path.parent / "a.tfw").write_text("1\n0\n0\n-1\n0.5\n3.5\n")
        (path.parent / "a.tif.aux.xml").write_text("<PAMDataset/>")
    with opened_names(path.parent) as found:
        source = open_source(path, "x", [])
        assert source is not None
        source.read()
        source.close()
    assert os.path.basename(path) in found
    assert found <= {os.path.basename(p) for p in input_files(path, Trust()).files}


@pytest.mark.parametrize("suffix", ["gpkg", "shp", "geojson", "fgb"])
def test_what_gdal_opens_beside_boundaries_is_in_their_fingerprint(tmp_path, suffix):
    frame = gpd.GeoDataFrame({"code": ["a"]}, geometry=[shapely.box(0, 0, 1, 1)], crs=4326)
    path = tmp_path / f"a.{suffix}"
    frame.to_file(path, engine="pyogrio")
    (tmp_path / "a.qix").write_bytes(b"")
    with opened_names(tmp_path) as found:
        assert read_areas(path, None, "code", "areas", []) is not None
    assert path.name in found
    assert found <= {path.name, *map(os.path.basename, side_cars(str(path)))}


@pytest.mark.parametrize("name", ["a.zarr", "a.nc"])
def test_a_large_cube_is_known_without_reading_it(tmp_path, monkeypatch, name):
    path = tmp_path / name
    chunk = path / "v" / "0" if name == "a.zarr" else path
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.write_bytes(b"1234")
    content = fingerprint_file(path)
    monkeypatch.setattr(fingerprint, "STATE_BYTES", 3)
    monkeypatch.setattr(fingerprint, "_feed", None)  # reads
    state = fingerprint_file(path)
    assert state != content
    assert fingerprint_file(path) == state
    chunk.write_bytes(b"1235")
    os.utime(chunk, ns=(1, chunk.stat().st_mtime_ns + 1))
    assert fingerprint_file(path) != state
