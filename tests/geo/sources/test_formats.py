"""Formats that other code adds: a table, boundaries and a raster are read as the built-in ones."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
from affine import Affine

from geo.core.columns import AREA_ID, id_text
from geo.core.errors import InputError, Problem
from geo.core.formats import Formats
from geo.sources.boundary import read_areas
from geo.sources.boundary_formats import BOUNDARIES
from geo.sources.raster_header import BandChoice
from geo.sources.registry import SOURCES, open_source
from geo.tables.registry import TABLES, read_table
from geo.tables.table_format import TableFormat
from tests.array_source import ArraySource, write_arrays
from tests.geo.response_table import counts_in


class Feather(TableFormat):
    name = "Feather"
    first_row = 1

    def read(self, path):
        table = pd.read_feather(path)
        return table.set_index(pd.RangeIndex(1, len(table) + 1))


@pytest.fixture(autouse=True)
def registries():
    """Leave the registries as they were."""
    before = [(each, dict(each.by_suffix)) for each in (TABLES, BOUNDARIES, SOURCES)]
    yield
    for registry, readers in before:
        registry.by_suffix.clear()
        registry.by_suffix.update(readers)


def areas():
    shapes = [shapely.box(40 + k, -24, 41 + k, -20) for k in range(3)]
    return gpd.GeoDataFrame({AREA_ID: ["1", "2", "3"]}, geometry=shapes, crs="EPSG:4326")


def test_a_table_of_another_format_is_read_as_any_other(tmp_path):
    path = tmp_path / "cases.feather"
    pd.DataFrame({"area": [3, 1, 2], "cases": [30, -10, 20]}).to_feather(path)
    problems: list[Problem] = []
    assert counts_in(path, areas(), "area", "cases", problems) is None
    assert "is not UTF-8 text" in problems[0].found  # taken for CSV
    TABLES.register(Feather(), ".feather")
    problems.clear()
    assert counts_in(path, areas(), "area", "cases", problems) is None
    (problem,) = problems
    assert problem.place == f"counts ({path}) row 2 (id 1: -10)"
    pd.DataFrame({"area": [3, 1, 2], "cases": [30, 10, 20]}).to_feather(path)
    assert list(counts_in(path, areas(), "area", "cases", [])) == [10, 20, 30]


def test_a_format_that_reads_whole_tables_gives_columns_and_batches_too(tmp_path):
    path = tmp_path / "t.feather"
    table = pd.DataFrame({"bag": ["a", "b"], "x": [1.5, np.nan], "z": [0, 0]})
    table.to_feather(path)
    reader = Feather()
    assert reader.columns(path) == ["bag", "x", "z"]
    (batch,) = reader.batches(path, ["bag"], ["x"])
    assert batch.column("bag").to_pylist() == ["a", "b"]
    assert batch.column("x").to_pylist() == [1.5, None]


def test_a_table_of_no_format_says_which_there_are(tmp_path):
    TABLES.register(Feather(), ".feather")
    path = tmp_path / "t.feather"
    path.write_text("no feather")
    with pytest.raises(InputError, match=r"CSV or Parquet or Excel \(.xlsx\) or vector or Feather"):
        read_table(path, "counts")
    with pytest.raises(InputError, match=r"spreadsheet in the format .xls, .*; save it as .xlsx"):
        read_table(tmp_path / "t.xls", "counts")


def test_boundaries_of_another_format(tmp_path):
    def read_wkt(path, layer):
        del layer
        pairs = [line.split("|") for line in path.read_text().splitlines()]
        if not pairs:
            raise InputError(Problem(str(path), "has no line", "write one for each area"))
        shapes = shapely.from_wkt([text for _, text in pairs])
        return gpd.GeoDataFrame({"code": [i for i, _ in pairs]}, geometry=shapes, crs="EPSG:4326")

    BOUNDARIES.register(read_wkt, ".wkt")
    path = tmp_path / "areas.wkt"
    path.write_text("\n".join(f"0{k}|{shape.wkt}" for k, shape in enumerate(areas().geometry)))
    found = read_areas(path, None, "code", "areas", [])
    assert list(found[AREA_ID]) == list(id_text(["00", "01", "02"]))
    path.write_text("")
    problems: list[Problem] = []
    assert read_areas(path, None, "code", "areas", problems) is None
    assert str(problems[0]) == f"areas ({path}): has no line; write one for each area"


def test_a_source_of_another_format(tmp_path):
    SOURCES.register(ArraySource, ".npz")
    values, at = np.arange(12.0).reshape(3, 4), Affine(1, 0, 40, 0, -1, -20)
    path = write_arrays(tmp_path / "rain.npz", "EPSG:4326", at, january=values, june=-values)
    problems: list[Problem] = []
    assert open_source(path, "covariates.rain", problems) is None
    assert "has 2 times (january, june); choose one with the key `time`" in str(problems[0])
    source = open_source(path, "covariates.rain", [], BandChoice(time="january"))
    np.testing.assert_array_equal(source.read(), values)
    assert source.grid.bounds == (40, -23, 44, -20)


def test_the_longest_suffix_counts():
    formats = Formats("default")
    formats.register("json", ".json")
    formats.register("geojson", ".geo.json")
    assert [formats.of(f"A.{end}") for end in ("JSON", "geo.json", "csv")] == [
        "json",
        "geojson",
        "default",
    ]
