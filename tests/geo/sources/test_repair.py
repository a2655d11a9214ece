"""Repairs: rings are mended, parts that share an id become one area, and all of it is told."""

from __future__ import annotations

import json

import geopandas as gpd
import numpy as np
import pytest
import shapely
from pyproj import Geod

from geo.core.columns import AREA_ID
from geo.sources.boundary import read_areas
from geo.sources.repair import Repairs

BOW_TIE = shapely.Polygon([(0, 0), (1000, 1000), (1000, 0), (0, 1000)])


def repaired(tmp_path, shapes, ids, *, crs="EPSG:32738", **columns):
    path = tmp_path / "areas.gpkg"
    gpd.GeoDataFrame({"code": ids, **columns}, geometry=shapes, crs=crs).to_file(path)
    problems, repairs = [], Repairs()
    areas = read_areas(path, None, "code", "areas", problems, repairs=repairs)
    return areas, problems, repairs


def test_sound_areas_stay_as_they_are(tmp_path):
    shapes = [shapely.box(i, 0, i + 1, 1) for i in range(3)]
    areas, problems, repairs = repaired(tmp_path, shapes, ["a", "b", "c"])
    assert problems == []
    assert not repairs
    assert repairs.lines() == []
    assert repairs.to_dict() == {}
    assert all(a.equals_exact(b, 0) for a, b in zip(areas.geometry, shapes, strict=True))


def test_every_repair_is_told_with_the_sizes(tmp_path):
    shapes = [
        shapely.box(0, 0, 1000, 1000),
        BOW_TIE,
        shapely.box(5000, 0, 6000, 1000),
        shapely.box(0, 5000, 1000, 6000),
        shapely.box(500, 5000, 1500, 6000),
        None,
        shapely.Polygon(),
    ]
    ids = ["a", "tie", "isle", "isle", "isle", "isle", "empty"]
    name = ["A", "T", "North", "South", "South", "x", "y"]
    later = [1, 2, np.nan, 4, np.nan, 4, np.nan]
    areas, problems, repairs = repaired(tmp_path, shapes, ids, name=name, same=[1] * 7, later=later)
    assert problems == []
    assert list(areas[AREA_ID]) == ["a", "tie", "isle"]
    assert list(areas["name"]) == ["A", "T", "North"]
    assert list(areas["later"]) == [1, 2, 4]
    # 1 km2; both loops of the eight; a box and two that overlap by half.
    np.testing.assert_allclose(areas.area / 1e6, [1.0, 0.5, 2.5])
    assert areas.is_valid.all()
    assert repairs.mended == ["feature 2 (id tie)"]
    assert repairs.merged == {"isle": 3}
    assert repairs.dropped == ["feature 6 (id isle)", "feature 7 (id empty)"]
    assert repairs.differing == {"name": ["isle"]}
    assert repairs.resized == {
        "tie": (0.0, pytest.approx(0.5)),
        "isle": (pytest.approx(3), pytest.approx(2.5)),
    }
    assert repairs.km2 == (pytest.approx(4), pytest.approx(4))
    text = "\n".join(repairs.lines())
    assert "mended 1 invalid polygon (feature 2 (id tie))" in text
    assert "merged 3 features into 1 area (isle (3))" in text
    assert "dropped 2 features (feature 6 (id isle), feature 7 (id empty)) without a" in text
    assert "kept the first 'name' of 1 area (isle)" in text
    assert "warning: size changed by more than 2 %: 2 areas" in text
    assert "all areas: 4 km2 before, 4 after" in text
    json.dumps(repairs.to_dict())


@pytest.mark.parametrize(
    ("shape", "surface"),
    [  # in units of the figure, by hand
        (shapely.MultiPolygon([shapely.box(0, 0, 2, 2), shapely.box(1, 1, 3, 3)]), 7.0),
        (shapely.MultiPolygon([shapely.box(0, 0, 4, 4), shapely.box(1, 1, 2, 2)]), 16.0),
        (shapely.Polygon([(0, 0), (4, 0), (4, 4), (4, 9), (4, 4), (0, 4)]), 16.0),
        (
            shapely.GeometryCollection(
                [shapely.box(0, 0, 1, 1), shapely.LineString([(0, 0), (5, 5)])]
            ),
            1.0,
        ),
    ],
    ids=["parts that overlap", "a part in a part", "spike", "collection"],
)  # fmt: skip
def test_what_is_mended_has_the_surface_that_is_meant(tmp_path, shape, surface):
    areas, problems, repairs = repaired(tmp_path, [shape], ["a"])
    assert problems == []
    assert areas.area[0] == pytest.approx(surface)
    assert set(areas.geom_type) <= {"Polygon", "MultiPolygon"}
    assert repairs.mended == ["feature 1 (id a)"]


def test_an_open_ring_is_closed(tmp_path):
    ring = [[0, 0], [1, 0], [1, 1], [0, 1]]
    feature = {
        "type": "Feature",
        "properties": {"code": "a"},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    problems = []
    read_areas(path, None, "code", "areas", problems)
    assert [p.found for p in problems] == ["no geometry in feature 1 (id a)"]
    assert "closes open rings" in problems[0].remedy
    repairs = Repairs()
    areas = read_areas(path, None, "code", "areas", [], repairs=repairs)
    assert shapely.area(areas.geometry[0]) == pytest.approx(1.0)
    assert repairs.mended == ["feature 1 (id a)"]
    assert repairs.dropped == []


def test_what_no_repair_can_mend_stays_an_error(tmp_path):
    shapes = [shapely.Point(0, 0), shapely.box(0, 0, 1, 1), shapely.box(1, 0, 2, 1)]
    areas, problems, _ = repaired(tmp_path, shapes, ["a", "b", None])
    assert areas is None
    assert [p.found for p in problems] == ["no id in feature 3", "feature 1 (id a) is a Point"]
    _, problems, _ = repaired(tmp_path / "..", [shapely.Polygon()], ["a"])
    assert problems[0].found == "holds no area with a surface"


def test_sizes_in_degrees_are_those_of_the_sphere(tmp_path):
    shapes = [shapely.box(0, 0, 1, 1), shapely.box(0, 60, 1, 61)]
    _, _, repairs = repaired(tmp_path, shapes, ["a", "a"], crs="EPSG:4326")
    # Another route: geodesic polygons on WGS 84, their sides as short as to follow the parallels.
    fine = [shape.segmentize(0.01) for shape in shapes]
    exact = sum(abs(Geod(ellps="WGS84").geometry_area_perimeter(shape)[0]) for shape in fine)
    assert repairs.km2[1] == pytest.approx(exact / 1e6, rel=1e-4)
