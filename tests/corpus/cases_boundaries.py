"""Boundaries: shapes, ids, coordinates and files."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from shapely import affinity, box

from tests.corpus.case import Country, Doubt, Error, case

REPAIR = "areas: {repair: true}"


def _bow_tie(shapes: list[Any]) -> None:
    w, s, e, n = shapes[4].bounds
    shapes[4] = shapely.Polygon([(w, s), (e, n), (e, s), (w, n)])


@case("boundaries", Error("areas.gpkg", "feature 5 (id M04): crosses itself", REPAIR))
def bow_tie(country: Country) -> None:
    country.shapes(_bow_tie)


@case("boundaries")
def bow_tie_repaired(country: Country) -> None:
    country.shapes(_bow_tie)
    country.change("areas", repair=True)


def _island(country: Country) -> None:
    frame = country.read_areas()
    west, _, _, north = frame.geometry[0].bounds
    extra = gpd.GeoDataFrame(
        {"code": ["M00"]}, geometry=[box(west - 900, north - 900, west - 100, north)], crs=frame.crs
    )
    country.write_areas(pd.concat([frame, extra], ignore_index=True))


def _kml(country: Country) -> str:
    country.read_areas().to_crs("EPSG:4326").to_file(country.directory / "a.kml", driver="KML")
    country.change("areas", path="a.kml")
    return (country.directory / "a.kml").read_text(encoding="utf-8")


@case("boundaries")
def areas_in_kml(country: Country) -> None:
    _kml(country)


@case("boundaries", Error("a.kml", "from another file or server", "export it as a GeoPackage"))
def kml_with_a_link(country: Country) -> None:
    link = "<NetworkLink><Link><href>http://127.0.0.1:1/k.kml</href></Link></NetworkLink>"
    text = _kml(country).replace("<Document ", f"{link}<Document ", 1)
    (country.directory / "a.kml").write_text(text, encoding="utf-8")


@case("boundaries", Doubt("overlap", "areas", "X and Y (the same polygon"))
def areas_within_a_pixel_that_overlap(country: Country) -> None:
    frame = country.read_areas()
    west, south, east, north = frame.geometry[0].bounds
    small = box(west + 100, north - 300, west + 300, north - 100)
    # The pixel around them is not full: others leave the rest of it free.
    rest = [box(west + 2e3, south, east, north), *frame.geometry[1:], small, small]
    codes = ["M00", *frame["code"][1:], "X", "Y"]
    country.write_areas(gpd.GeoDataFrame({"code": codes}, geometry=rest, crs=frame.crs))


@case("boundaries")
def islands_share_an_id_repaired(country: Country) -> None:
    _island(country)
    country.change("areas", repair=True)


@case("boundaries")
def heights(country: Country) -> None:
    country.shapes(lambda s: s.__setitem__(slice(None), [shapely.force_3d(p, 12.0) for p in s]))


@case("boundaries", Error("areas.gpkg", "holds no area", "give a layer with polygons"))
def empty_layer(country: Country) -> None:
    country.write_areas(country.read_areas().iloc[:0])


@case("boundaries", Error("areas.gpkg", "has no geometry", "give a layer with polygons"))
def layer_without_geometry(country: Country) -> None:
    import pyogrio

    frame = country.read_areas().drop(columns="geometry")
    country.areas.unlink()
    pyogrio.write_dataframe(frame, country.areas)


@case("boundaries")
def curved_polygon(country: Country) -> None:
    # CURVEPOLYGON of one CIRCULARSTRING, little-endian WKB after the GeoPackage header.
    x, y = country.read_areas().geometry[4].centroid.coords[0]
    ring = [(x - 3e3, y), (x, y + 3e3), (x + 3e3, y), (x, y - 3e3), (x - 3e3, y)]
    wkb = b"\x01" + np.array([10, 1], "<u4").tobytes()
    wkb += b"\x01" + np.array([8, 5], "<u4").tobytes() + np.array(ring, "<f8").tobytes()
    blob = b"GP\x00\x01" + np.array([32738], "<i4").tobytes() + wkb
    with sqlite3.connect(country.areas) as file:
        names = [r[0] for r in file.execute("select name from sqlite_master where type='trigger'")]
        for name in names:
            file.execute(f'drop trigger "{name}"')
        file.execute("update areas set geom=? where code='M04'", (blob,))
    file.close()


LOCAL = 'LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'


@case("boundaries", Error("areas.gpkg", "neither geographic nor projected", "assign"))
def crs_of_a_building_site(country: Country) -> None:
    country.write_areas(country.read_areas().set_crs(LOCAL, allow_override=True))


@case("boundaries", Error("areas.gpkg", "neither geographic nor projected", "assign"))
def crs_geocentric(country: Country) -> None:
    country.write_areas(country.read_areas().set_crs("EPSG:4978", allow_override=True))


def _swapped(country: Country) -> None:
    frame = country.read_areas().to_crs("EPSG:4326")
    country.write_areas(frame.set_geometry(shapely.transform(frame.geometry, lambda c: c[:, ::-1])))


@case("boundaries", Error("areas.gpkg", "lie outside all 3 rasters", "write longitude first"),
      Doubt("swapped", "areas", "with x and y exchanged they lie on the rasters"))  # fmt: skip
def x_and_y_swapped(country: Country) -> None:
    _swapped(country)


@case("boundaries", Doubt("overlap", "areas", "M03 and M04"))
def the_same_polygon_twice(country: Country) -> None:
    country.shapes(lambda s: s.__setitem__(3, s[4]))


@case("boundaries", Error("areas.gpkg", "M04: outside the grid", "covers all areas"))
def area_far_away(country: Country) -> None:
    country.shapes(lambda s: s.__setitem__(4, affinity.translate(s[4], 4e5, 0)))


@case("boundaries", Doubt("rate", "counts", "far more cases than people in M04 (38 of "))
def area_smaller_than_a_millimetre(country: Country) -> None:
    country.shapes(lambda s: s.__setitem__(4, affinity.scale(s[4], 1e-9, 1e-9)))


@case("boundaries", Error("areas.gpkg", "no finite numbers in feature 5 (id M04)", "draw the area"))
def coordinates_that_are_infinite(country: Country) -> None:
    country.shapes(
        lambda s: s.__setitem__(
            4, shapely.transform(s[4], lambda c: np.where(c > 8e6 - 1.5e4, np.inf, c))
        )
    )


@case("boundaries", Error("areas.gpkg", "no finite numbers in feature 5 (id M04)", "draw the area"))
def coordinates_that_are_infinite_are_not_repaired(country: Country) -> None:
    coordinates_that_are_infinite(country)
    country.change("areas", repair=True)


def _far(country: Country, value: float) -> None:
    def change(shapes: list[Any]) -> None:
        corners = shapely.get_coordinates(shapes[4])
        corners[corners[:, 1] == corners[:, 1].max(), 1] = value
        shapes[4] = shapely.Polygon(corners)

    country.shapes(change)


for _value in (1e12, 1e45):
    case(
        "boundaries",
        Error("areas.gpkg", "further out than any map of the Earth, feature 5 (id M04)", "correct"),
        name=f"a corner at {_value:g} metres",
    )(lambda country, value=_value: _far(country, value))


def _polar(country: Country, shift: float) -> None:
    """Put areas and rasters on the polar plane, `shift` metres from the pole."""
    frame = country.read_areas().set_crs("EPSG:3031", allow_override=True)
    dx, dy = shift - 514300, shift - 7985700
    country.write_areas(frame.set_geometry(frame.geometry.translate(dx, dy)))
    from affine import Affine

    transform = Affine(1000, 0, 5e5 + dx, 0, -1000, 8e6 + dy)
    for path in (country.population, *country.covariates):
        country.raster(path, country.values(path), crs="EPSG:3031", transform=transform)


@case("boundaries")
def around_the_south_pole(country: Country) -> None:
    _polar(country, 0)


def _degrees(country: Country, west: float, south: float, pixel: float) -> gpd.GeoDataFrame:
    """Put rasters and areas on degrees; return the areas."""
    from affine import Affine

    transform = Affine(pixel, 0, west, 0, -pixel, south + 30 * pixel)
    for path in (country.population, *country.covariates):
        country.raster(path, country.values(path), crs="EPSG:4326", transform=transform)
    frame = country.read_areas()
    shapes = frame.geometry.affine_transform(
        [
            pixel / 1e3,
            0,
            0,
            pixel / 1e3,
            west - 5e5 * pixel / 1e3,
            south + 30 * pixel - 8e6 * pixel / 1e3,
        ]
    )
    frame = gpd.GeoDataFrame(
        {"code": frame["code"]}, geometry=np.asarray(shapes.array), crs="EPSG:4326"
    )
    country.write_areas(frame)
    return frame


@case("boundaries")
def across_180_degrees_beyond_it(country: Country) -> None:
    _degrees(country, 179.8, -18, 0.01)


@case(
    "boundaries", Error("areas.gpkg", "M01 (polygon 75.1 km2, pixels 337,947 km2)", "180 degrees")
)
def across_180_degrees_the_long_way(country: Country) -> None:
    frame = _degrees(country, 179.88, -18, 0.01)

    def wrapped(xy: np.ndarray) -> np.ndarray:
        return np.column_stack([np.where(xy[:, 0] > 180, xy[:, 0] - 360, xy[:, 0]), xy[:, 1]])

    country.write_areas(frame.set_geometry(shapely.transform(frame.geometry, wrapped)))


@case("boundaries")
def rasters_from_0_to_360(country: Country) -> None:
    frame = _degrees(country, 200, -18, 0.01)
    country.write_areas(frame.set_geometry(frame.geometry.translate(-360, 0)))


def _named(country: Country, name: str, content: str | bytes) -> None:
    path = country.directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    country.change("areas", path=name)


@case("boundaries", Error("areas.geojson", "whatever its name says", "GeoPackage"))
def ogr_vrt_named_geojson(country: Country) -> None:
    _named(
        country,
        "areas.geojson",
        "<OGRVRTDataSource><OGRVRTLayer name='a'><SrcDataSource>/etc/passwd</SrcDataSource>"
        "</OGRVRTLayer></OGRVRTDataSource>",
    )


@case("boundaries", Error("areas.geojson", "CRS that is a link to a server", "as a name"))
def geojson_whose_crs_is_a_link(country: Country) -> None:
    crs = {"type": "link", "properties": {"href": "http://127.0.0.1:1/crs", "type": "proj4"}}
    _named(
        country,
        "areas.geojson",
        json.dumps({"type": "FeatureCollection", "crs": crs, "features": []}),
    )


@case("boundaries", Error("areas.geojson", "Unterminated object", "copy or download"))
def geojson_cut_short(country: Country) -> None:
    text = country.read_areas().to_crs(4326).to_json()
    _named(country, "areas.geojson", text[: len(text) // 2])


@case("boundaries", Error("areas.geojson", "Failed to read GeoJSON data", "copy or download"))
def geojson_nested_deeply(country: Country) -> None:
    _named(country, "areas.geojson", '{"type": ' + "[" * 100_000)


@case("boundaries", Error("areas.kml", "holds no place", "GeoPackage"))
def kml_without_places(country: Country) -> None:
    _named(country, "areas.kml", "<kml xmlns='http://www.opengis.net/kml/2.2'></kml>")


@case("boundaries", Error("areas.gpkg", "is no gpkg file", "GeoPackage"))
def a_page_instead_of_the_download(country: Country) -> None:
    _named(country, "areas.gpkg", "<!DOCTYPE html><html><body>404</body></html>")


@case("boundaries", Error("areas.zip", "has a member outside itself (../../areas.shp)", "again"))
def archive_with_paths_outside(country: Country) -> None:
    with zipfile.ZipFile(country.directory / "areas.zip", "w") as archive:
        archive.writestr("../../areas.shp", b"\0\0\x27\x0a")
    country.change("areas", path="areas.zip")


@case("boundaries", Error("areas.shp", "has no areas.dbf beside it", "copy all files"))
def shapefile_without_its_table(country: Country) -> None:
    path = country.directory / "areas.shp"
    country.read_areas().to_file(path)
    path.with_suffix(".dbf").unlink()
    country.change("areas", path=path.name)


@case("boundaries", Error("areas.gpkg", "feature 5 (id  abc): crosses itself", REPAIR))
def names_with_control_characters(country: Country) -> None:
    country.rename_areas({"M03": "\x1b[31mred", "M04": "\u202eabc"})
    country.shapes(_bow_tie)


@case("boundaries", Error("areas.gpkg", "has a view (v) that may reach files", "new GeoPackage"))
def view_that_loads_a_library(country: Country) -> None:
    file = sqlite3.connect(country.areas)
    file.execute("create view v as select load_extension('x.so') from areas")
    file.commit()
    file.close()


@case("boundaries", Error("areas.gpkg", "virtual table (v) that may reach files", "new GeoPackage"))
def virtual_table(country: Country) -> None:
    file = sqlite3.connect(country.areas)
    file.execute("pragma writable_schema=on")
    file.execute(
        "insert into sqlite_master (type, name, tbl_name, rootpage, sql) values ('table', 'v', "
        "'v', 0, 'create virtual table v using VirtualOGR(''/etc/passwd'')')"
    )
    file.commit()
    file.close()
