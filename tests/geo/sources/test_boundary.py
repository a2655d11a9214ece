import json

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely

from geo.core.columns import AREA_ID, id_text
from geo.sources.boundary import read_areas
from tests.geo.response_table import counts_in

SQUARE = shapely.box(0, 0, 1, 1)
BOW_TIE = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])


def frame(shapes=None, ids=("1", "2", "3"), crs="EPSG:4326"):
    shapes = [shapely.box(i, 0, i + 1, 1) for i in range(len(ids))] if shapes is None else shapes
    return gpd.GeoDataFrame({"area_id": list(ids), "cases": 5.0}, geometry=shapes, crs=crs)


def areas_of(tmp_path, table, *, layer=None, column="area_id", name="areas.gpkg"):
    path = tmp_path / name
    if name.endswith(".parquet"):
        table.to_parquet(path)
    else:
        table.to_file(path, engine="pyogrio")
    problems = []
    areas = read_areas(path, layer, column, "areas", problems)
    # A polygon that is wrong by itself does not keep the counts from being checked.
    alone = ("invalid polygon", "no geometry", "no area in", " is a ")
    blocking = [p for p in problems if not any(word in p.found for word in alone)]
    assert (areas is None) == bool(blocking)
    assert all(p.place == f"areas ({path})" and p.remedy for p in problems)
    return areas, [p.found for p in problems], [p.remedy for p in problems]


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("a.gpkg", ("1", "2", "3")),
        ("a.shp", (1, 2, 3)),
        ("a.geojson", (1.0, 2.0, 3.0)),
        ("a.parquet", ("1", "2", "3")),
        ("a.parquet", (1.0, 2.0, 3.0)),
    ],
)
def test_every_format_gives_the_same_areas(tmp_path, name, ids):
    areas, problems, _ = areas_of(tmp_path, frame(ids=ids), name=name)
    assert problems == []
    assert list(areas[AREA_ID]) == ["1", "2", "3"]
    assert areas.geometry.name == "geometry"
    assert areas.crs.to_epsg() == 4326
    np.testing.assert_allclose(areas.bounds["minx"], [0, 1, 2])
    assert "cases" in areas


def test_heights_are_dropped_and_multipolygons_kept(tmp_path):
    tall = shapely.force_3d(shapely.MultiPolygon([SQUARE, shapely.box(5, 5, 6, 6)]), 9.0)
    areas, problems, _ = areas_of(tmp_path, frame([tall], ids=["a"]))
    assert problems == []
    assert not areas.has_z.any()
    assert shapely.area(areas.geometry[0]) == 2


def test_file_layer_and_column_are_said_with_the_nearest_name(tmp_path):
    problems = []
    assert read_areas(tmp_path / "no.gpkg", None, "id", "areas", problems) is None
    assert [p.found for p in problems] == ["no such file"]
    _, found, remedy = areas_of(tmp_path, frame(), layer="area")
    assert found == ["has no layer 'area'"]
    assert "did you mean 'areas'?" in remedy[0]
    _, found, remedy = areas_of(tmp_path, frame(), column="areaid")
    assert found == ["has no column 'areaid', which areas.id names"]
    assert "did you mean 'area_id'?" in remedy[0]
    text = tmp_path / "text.gpkg"
    text.write_text("no vector data")
    problems = []
    assert read_areas(text, None, "id", "areas", problems) is None
    assert "cannot be read as vector data" in problems[0].found
    two = tmp_path / "two.gpkg"
    frame().to_file(two, layer="a", engine="pyogrio")
    frame().to_file(two, layer="b", engine="pyogrio")
    problems = []
    assert read_areas(two, None, "area_id", "areas", problems) is None
    assert problems[0].found == "has 2 layers (a, b)"
    assert read_areas(two, "b", "area_id", "areas", []) is not None


@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_all_that_is_wrong_with_areas_is_said_at_once(tmp_path):
    shapes = [SQUARE, BOW_TIE, shapely.Point(0, 0), None, shapely.box(3, 3, 4, 4)]
    table = frame(shapes, ids=["7", "7", "8", None, "9"], crs=None)
    _, found, remedies = areas_of(tmp_path, table)
    text = "\n".join(found)
    assert len(found) == 6
    assert "set `areas: {repair: true}`, which merges them" in remedies[1]
    assert "no id in feature 4" in text
    assert "1 id(s) are repeated: 7 (feature 1 and 2)" in text
    assert "no coordinate reference system" in text
    assert "no geometry in feature 4" in text
    assert "feature 3 (id 8) is a Point" in text
    assert "feature 2 (id 7): crosses itself at (0.5, 0.5)" in text


def test_polygons_that_cross_themselves_are_not_mended(tmp_path):
    table = frame([SQUARE] + [BOW_TIE] * 7, ids=list("abcdefgh"))
    _, (found,), (remedy,) = areas_of(tmp_path, table)
    assert found.startswith("invalid polygon, feature 2 (id b): crosses itself at (0.5, 0.5)")
    assert found.endswith("... (7 in all)")
    assert "`areas: {repair: true}`" in remedy
    assert "Fix geometries" in remedy


def test_metres_called_degrees_are_found(tmp_path):
    table = frame([shapely.box(400_000, 7e6, 410_000, 7.01e6)], ids=["a"])
    _, (found,), _ = areas_of(tmp_path, table)
    assert "which are not degrees" in found


def test_the_real_districts_are_sound(madagascar):
    problems = []
    areas = read_areas(madagascar / "districts.gpkg", "districts", "district_id", "areas", problems)
    counts = counts_in(madagascar / "cases.csv", areas, "district_id", "cases", problems)
    assert problems == []
    assert len(areas) == 109
    assert counts.sum() == pytest.approx(1_237_811, abs=1)
    assert list(counts.index) == list(areas[AREA_ID])
    table = pd.read_csv(madagascar / "cases.csv").set_index("district_id")["cases"]
    np.testing.assert_allclose(counts, table.loc[counts.index.astype(int)])


# --- counts ---------------------------------------------------------------------------------


def sound_areas(ids=("1", "2", "3")):
    return frame(ids=ids).assign(**{AREA_ID: list(ids)})


def counts_of(tmp_path, text, *, ids=("1", "2", "3"), name="cases.csv", value="cases"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    problems = []
    counts = counts_in(path, sound_areas(ids), "area_id", value, problems)
    assert (counts is None) == bool(problems)
    assert all(p.place.startswith(f"counts ({path})") and p.remedy for p in problems)
    return counts, problems


@pytest.mark.parametrize(
    "text",
    [
        "area_id,cases\n3,30\n1,10\n2,20.5\n",
        "area_id;cases\n3;30\n1;10\n2;20.5\n",
        "area_id\tcases\r\n3\t30\r\n1\t10\r\n2\t20.5\r\n",
        "\ufeffarea_id, cases\n3.0,30\n 1 ,1e1\n\n2.000,20.5\n\n",
        'name,area_id,cases\n"a, b",3,30\nc,1,10\nd,2,20.5\n',
    ],
)
def test_counts_come_in_the_order_of_the_areas(tmp_path, text):
    counts, problems = counts_of(tmp_path, text)
    assert problems == []
    assert counts.dtype == np.float64
    assert counts.to_dict() == {"1": 10.0, "2": 20.5, "3": 30.0}
    assert list(counts.index) == ["1", "2", "3"]


def test_counts_from_parquet_and_from_the_areas_themselves(tmp_path):
    path = tmp_path / "c.parquet"
    pd.DataFrame({"area_id": [3, 1, 2], "cases": [30, 10, 20]}).to_parquet(path)
    problems = []
    counts = counts_in(path, sound_areas(), "area_id", "cases", problems)
    assert list(counts) == [10, 20, 30]
    own = counts_in(None, sound_areas(), "area_id", "cases", problems)
    assert list(own) == [5, 5, 5]
    assert problems == []
    table = sound_areas()
    table.loc[1, "cases"] = np.nan
    own = counts_in(None, table, "area_id", "cases", problems)
    np.testing.assert_array_equal(own, [5, np.nan, 5])
    table.loc[1, "cases"] = -5
    assert counts_in(None, table, "area_id", "cases", problems) is None
    assert problems[0].place == "counts (column of the areas) feature 2 (id 2: -5)"


def test_ids_are_compared_as_text():
    values = [10101846, 10101846.0, "10101846", " 10101846.0 ", "007", "7.5", 7.5, None, "", pd.NA]
    assert list(id_text(values)) == ["10101846"] * 4 + ["007", "7.5", "7.5", None, None, None]


@pytest.mark.parametrize(
    ("cell", "place", "found"),
    [
        ("-4", "row 3 (id 2: -4)", "column 'cases' is negative"),
        ("?", "row 3 (id 2: '?')", "column 'cases' is not a number"),
        ("n.a.", "row 3 (id 2: 'n.a.')", "column 'cases' is not a number"),
        ("many", "row 3 (id 2: 'many')", "column 'cases' is not a number"),
        ("1_000", "row 3 (id 2: '1_000')", "column 'cases' is not a number"),
        ('"1,000"', "row 3 (id 2: '1,000')", "column 'cases' is not a number"),
        ("inf", "row 3 (id 2: inf)", "column 'cases' is not finite"),
    ],
)
def test_each_bad_count_is_said_with_its_row(tmp_path, cell, place, found):
    _, (problem,) = counts_of(tmp_path, f"area_id,cases\n1,1\n2,{cell}\n3,3\n")
    assert problem.place.endswith(place)
    assert problem.found == found


@pytest.mark.parametrize("row", ["2,\n", "2,NA\n", "2, nan \n", "2,-\n", "2,..\n", "2,#N/A\n", ""])
def test_an_area_may_have_no_count(tmp_path, row):
    counts, problems = counts_of(tmp_path, f"area_id,cases\n1,1\n{row}3,0\n")
    assert problems == []
    np.testing.assert_array_equal(counts, [1, np.nan, 0])


def test_some_area_must_have_a_count(tmp_path):
    _, (problem,) = counts_of(tmp_path, "area_id,cases\n1,\n2,NA\n")
    assert problem.found == "column 'cases' has no count for any area"


def test_rows_are_counted_as_a_spreadsheet_shows_them(tmp_path):
    _, (problem,) = counts_of(tmp_path, "area_id,cases\n\n1,1\n\n2,-2\n3,3\n")
    assert "row 5 (id 2: -2)" in problem.place


def test_counts_and_areas_must_match(tmp_path):
    _, problems = counts_of(tmp_path, "area_id,cases\n1,1\n1,2\n4,4\n,5\n")
    text = "\n".join(map(str, problems))
    assert len(problems) == 3
    assert "no id in row 5" in text
    assert "1 id(s) are repeated: 1 (row 2 and 3)" in text
    assert "1 count(s) match no area: 4 (row 4)" in text


def test_only_the_first_five_are_listed_with_the_number_of_all(tmp_path):
    ids = [str(i) for i in range(40)]
    rows = "".join(f"{i},-1\n" for i in ids)
    _, (problem,) = counts_of(tmp_path, "area_id,cases\n" + rows, ids=ids)
    assert problem.found == "column 'cases' is negative in 40 rows"
    assert problem.place.count("id ") == 5


def test_dropped_leading_zeros_are_guessed(tmp_path):
    _, problems = counts_of(tmp_path, "area_id,cases\n1,1\n2,2\n", ids=("01", "02"))
    (problem,) = problems
    assert "leading zeros" in problem.remedy


def test_unusable_tables_are_said(tmp_path):
    assert counts_of(tmp_path, "area_id,cases\n")[1][0].found == "has no rows"
    assert counts_of(tmp_path, "")[1][0].found == "is empty"
    neither = counts_of(tmp_path, b"area_id,cases\nF\x81,1\n")[1][0]  # nor Windows-1252
    assert "UTF-8" in neither.found
    parquet = counts_of(tmp_path, b"PAR1 no", name="c.parquet")[1][0]
    assert "cannot be read as a table" in parquet.found
    found = counts_of(tmp_path, "area,case\n1,1\n")[1]
    assert [p.found for p in found] == [
        "has no column 'area_id', which counts.id names",
        "has no column 'cases', which counts.value names",
    ]
    assert "did you mean 'case'?" in found[1].remedy
    problems = []
    assert counts_in(tmp_path / "no.csv", sound_areas(), "a", "b", problems) is None
    assert problems[0].found == "no such file"
    ragged = counts_of(tmp_path, "area_id,cases\n1,1\n2,2,9,9\n3,3\n")[1]
    assert ragged


def test_partial_areas_and_counts_let_the_rest_be_checked(tmp_path):
    """What is wrong is told all the same; what is sound of it can be looked at."""
    path = tmp_path / "areas.geojson"
    frame(ids=["1", "2", "2"]).to_file(path, engine="pyogrio")
    problems = []
    assert read_areas(path, None, "area_id", "areas", problems) is None
    areas = read_areas(path, None, "area_id", "areas", problems, partial=True)
    assert list(areas[AREA_ID]) == ["1", "2", "2"]
    assert problems[0] == problems[1]
    far = frame([shapely.box(5e5 + i, 0, 5e5 + i + 1, 1) for i in range(3)])
    far.to_file(path, engine="pyogrio")
    areas = read_areas(path, None, "area_id", "areas", problems, partial=True)
    assert areas.crs is None  # degrees that are none: no place to look at
    assert "not degrees" in problems[-1].found
    table = tmp_path / "cases.csv"
    table.write_text("area_id,cases\n1,7\n2,many\n3,1\n3,2\n")
    problems = []
    counts = counts_in(table, sound_areas(), "area_id", "cases", problems, partial=True)
    np.testing.assert_array_equal(counts.loc[["1", "2", "3"]], [7, np.nan, np.nan])
    assert len(problems) == 2


@pytest.mark.parametrize("given", [[5, 7], [0, 1], ["a", "b"], [5, 5], [5, None], [None, None]])
def test_ids_beside_the_properties_of_geojson_are_a_column(tmp_path, given):
    path, problems = tmp_path / "a.geojson", []
    collection = json.loads(frame(ids=("1", "2")).to_json(drop_id=True))
    for feature, each in zip(collection["features"], given, strict=True):
        feature |= {} if each is None else {"id": each}
    path.write_text(json.dumps(collection))
    areas = read_areas(path, None, "id", "areas", problems)
    told = {5: "1 id(s) are repeated", None: "no id in feature 2"}.get(given[1], "")
    told = "has no column 'id'" if given == [None, None] else told
    assert [told in p.found for p in problems] == ([True] if told else [])
    assert told or list(areas[AREA_ID]) == [str(each) for each in given]
