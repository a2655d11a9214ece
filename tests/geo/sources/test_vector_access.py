"""Boundary files: what is opened is the named file alone, by its own driver."""

import json
import sqlite3
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import geopandas as gpd
import pytest
import shapely

from geo.core.errors import InputError
from geo.sources.boundary import read_areas
from geo.sources.boundary_formats import read_vector


@pytest.fixture
def frame():
    return gpd.GeoDataFrame(
        {"code": ["a", "b"]}, geometry=[shapely.box(0, 0, 1, 1), shapely.box(1, 0, 2, 1)], crs=4326
    )


def read(path):
    problems = []
    areas = read_areas(path, None, "code", "areas", problems)
    return areas, [f"{p.found}; {p.remedy}" for p in problems]


@pytest.mark.parametrize("suffix", ["gpkg", "geojson", "shp", "fgb", "gdb", "parquet"])
def test_each_promised_format_is_read(frame, tmp_path, suffix):
    path = tmp_path / f"areas.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_file(path, driver="OpenFileGDB" if suffix == "gdb" else None, engine="pyogrio")
    areas, problems = read(path)
    assert problems == []
    assert sorted(areas["code"]) == ["a", "b"]


def test_a_zip_with_one_file_is_read_and_one_with_two_needs_a_name(frame, tmp_path):
    frame.to_file(tmp_path / "areas.shp")
    path = tmp_path / "areas.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("shp", "shx", "dbf", "prj", "cpg"):
            archive.write(tmp_path / f"areas.{part}", f"inner/areas.{part}")
    for name in (path, f"/vsizip/{path}/inner/areas.shp", f"zip://{path}!inner/areas.shp"):
        areas, problems = read(name)
        assert problems == []
        assert len(areas) == 2
    frame.to_file(tmp_path / "other.geojson")
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(tmp_path / "other.geojson", "other.geojson")
    areas, problems = read(path)
    assert areas is None
    assert "holds 2 vector files; name one" in problems[0]
    assert len(read(f"/vsizip/{path}/other.geojson")[0]) == 2


def attacks(secret, url):
    """Contents that GDAL would take for another driver's, by what each would reach."""
    layer = f'<OGRVRTLayer name="x"><SrcDataSource>{secret}</SrcDataSource></OGRVRTLayer>'
    command = f"gdal vector pipeline ! read {secret} ! reproject --dst-crs EPSG:3857"
    return {
        "a list of other files": f"<OGRVRTDataSource>{layer}</OGRVRTDataSource>",
        "a request": f"<OGRWFSDataSource><URL>{url}/wfs</URL></OGRWFSDataSource>",
        "a program": json.dumps({"type": "gdal_streamed_alg", "command_line": command}),
        "a schema": f'<?xml version="1.0"?><ogr:FeatureCollection xmlns:ogr="http://ogr.maptools.'
        f'org/" xmlns:gml="http://www.opengis.net/gml" xmlns:xsi="http://www.w3.org/2001/XMLSchema'
        f'-instance" xsi:schemaLocation="http://ogr.maptools.org/ {url}/s.xsd"/>',
        "a link": '<kml xmlns="http://www.opengis.net/kml/2.2"><NetworkLink><Link><href>'
        f"{url}/k.kml</href></Link></NetworkLink></kml>",
        "a CRS": json.dumps(
            {
                "type": "FeatureCollection",
                "crs": {"type": "link", "properties": {"href": f"{url}/crs", "type": "ogcwkt"}},
                "features": [],
            }
        ),
        "a CRS in other letters": '{"type": "FeatureCollection", "features": [{"type": "Feature", '
        '"properties": {}, "geometry": {"type": "Point", "coordinates": [0, 0], "\\u0063rs": '
        f'{{"t\\u0079pe": "L\\u0069nk", "properties": {{"href": "{url}/crs"}}}}}}}}]}}',
    }


@pytest.mark.parametrize("what", list(attacks("", "")))
@pytest.mark.parametrize("suffix", ["geojson", "gpkg", "shp", "kml", "gml", "txt"])
def test_content_selects_no_other_driver(frame, tmp_path, web, what, suffix):
    secret = tmp_path / "secret.gpkg"
    frame.to_file(secret)
    path = tmp_path / f"areas.{suffix}"
    path.write_text(attacks(secret, web.url)[what])
    before = web.asked()
    areas, problems = read(path)
    assert areas is None
    assert len(problems) == 1
    assert web.asked() == before
    with zipfile.ZipFile(tmp_path / "areas.zip", "w") as archive:
        archive.write(path, path.name)
    assert read(tmp_path / "areas.zip")[0] is None
    assert web.asked() == before


@pytest.mark.parametrize(
    "address",
    ["PG:host=127.0.0.1 dbname=x", "WFS:http://127.0.0.1:9/", "/vsistdin/", "/vsimem/x.geojson",
     "MEM:::DATAPOINTER=1", "ftp://127.0.0.1/x.geojson", "OAPIF:http://127.0.0.1:9/"],
)  # fmt: skip
def test_connection_strings_are_refused(address):
    areas, problems = read(address)
    assert areas is None
    assert len(problems) == 1


def test_a_geopackage_whose_tables_are_elsewhere_is_refused(frame, tmp_path, monkeypatch):
    monkeypatch.setattr("geo.sources.gdal_access.VIEW_S", 0.1)
    path = tmp_path / "areas.gpkg"
    frame.to_file(path)
    for query, why in (
        ("SELECT readfile('/etc/passwd') AS x", "may reach files"),
        (
            "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k FROM n",
            "may never end",
        ),
        (  # SQLite needs no word for it
            "WITH n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT max(k), ST_X(k) FROM n",
            "may never end",
        ),
        (f"SELECT a.* FROM areas a{', areas' * 40}", "may never end"),
    ):
        with sqlite3.connect(path) as opened:
            opened.execute("DROP VIEW IF EXISTS v")
            opened.execute(f"CREATE VIEW v AS {query}")
        areas, problems = read(path)
        assert areas is None
        assert f"has a view (v) that {why}" in problems[0]
    path.unlink()
    frame.to_file(path)
    with sqlite3.connect(path) as opened:
        opened.execute("PRAGMA writable_schema = 1")
        opened.execute(
            "INSERT INTO sqlite_master VALUES ('table', 'w', 'w', 0, "
            "'CREATE VIRTUAL TABLE w USING VirtualOGR(''/etc/passwd'')')"
        )
    areas, problems = read(path)
    assert areas is None
    assert "has a virtual table (w) that may reach files" in problems[0]


def test_an_archive_that_expands_absurdly_or_leaves_itself_is_refused(tmp_path):
    bomb = tmp_path / "bomb.zip"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("areas.geojson", "w", force_zip64=True) as member,
    ):
        for _ in range(300):
            member.write(bytes(1 << 20))
    assert "areas.geojson expands from" in read(bomb)[1][0]
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as archive:
        archive.writestr("../areas.geojson", "{}")
    assert "has a member outside itself" in read(tmp_path / "out.zip")[1][0]


def test_geojson_of_a_server_is_read(frame, web):
    frame.to_file(web.folder / "areas.geojson")
    areas, problems = read(f"{web.url}/areas.geojson?version=2")
    assert problems == []
    assert len(areas) == 2


@pytest.mark.parametrize(
    ("status", "found", "transient"),
    [
        (404, "no such file (HTTP 404)", False),
        (403, "access denied (HTTP 403)", False),
        (429, "cannot be reached (HTTP 429)", True),
        (503, "cannot be reached (HTTP 503)", True),
    ],
)
def test_what_a_server_answers_says_whether_it_passes(status, found, transient):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/areas.geojson"
        with pytest.raises(InputError) as raised:
            read_vector(address, None)
        server.shutdown()
    (problem,) = raised.value.problems
    assert (problem.found, problem.transient) == (found, transient)
