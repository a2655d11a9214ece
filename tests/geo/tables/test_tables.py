"""Counts in workbooks and vector files: their traps are named with the cell or row."""

from __future__ import annotations

import bz2
import datetime
import gzip
import lzma
import zipfile

import geopandas as gpd
import numpy as np
import openpyxl
import pandas as pd
import pytest
import shapely

from geo.core.columns import AREA_ID, has_column
from geo.core.errors import InputError
from geo.tables import response_column, table_csv
from geo.tables.registry import read_table
from tests.geo.response_table import counts_in


def areas(ids=("1", "2", "3")):
    shapes = [shapely.box(i, 0, i + 1, 1) for i in range(len(ids))]
    return gpd.GeoDataFrame({AREA_ID: list(ids)}, geometry=shapes, crs="EPSG:4326")


def workbook(path, rows, change=None, title="cases"):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = title
    for row in rows:
        sheet.append(row)
    if change is not None:
        change(book, sheet)
    book.save(path)
    return path


def counts_of(path, **options):
    problems = []
    counts = counts_in(path, areas(), "code", "cases", problems, **options)
    return counts, problems


def test_ids_that_nobody_can_mean_are_one_line_before_each_is_looked_at(tmp_path, monkeypatch):
    """Three million ids of other areas were each held against all others, for minutes."""
    monkeypatch.setattr(response_column, "MOST_UNKNOWN", 50)
    monkeypatch.setattr(response_column, "pairing", None)  # it would fail if it were asked
    path = tmp_path / "c.csv"
    path.write_text("code,cases\n1,3\n" + "".join(f"X{k},1\n" for k in range(60)))
    counts, (problem,) = counts_of(path)
    assert counts is None
    assert "60 ids match none of 3 areas, such as X0 (row 3)" in problem.found
    path.write_text("code,cases\n1,3\n" + "A" * 5000 + ",1\n")
    counts, (problem,) = counts_of(path)
    assert "row 3 has an id of 5,000 characters in column 'code'" in problem.found
    assert len(str(problem)) < 300


def test_a_number_that_no_count_has_is_one_short_line(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("code,cases\n1,3\n2,1e300\n3,4\n")
    counts, (problem,) = counts_of(path)
    assert counts is None
    assert "row 3 (id 2: 1e+300)" in str(problem)
    assert "is above 1e+15; correct it" in str(problem)


ROWS = [["code", "cases"], [3, 30], [1, 10], [2, 20.5]]


def test_a_sheet_reads_as_the_csv_does(tmp_path):
    path = workbook(tmp_path / "c.xlsx", ROWS)
    pd.DataFrame(ROWS[1:], columns=ROWS[0]).to_csv(tmp_path / "c.csv", index=False)
    counts, problems = counts_of(path)
    assert problems == []
    pd.testing.assert_series_equal(counts, counts_of(tmp_path / "c.csv")[0])
    # Another reader of the same file.
    other = pd.read_excel(path).set_index("code")["cases"]
    np.testing.assert_array_equal(counts, other.loc[[1, 2, 3]])


def test_a_sheet_may_be_named_and_begin_lower_down(tmp_path):
    def more(book, sheet):
        other = book.create_sheet("2024")
        for row in [[], [], [None, "code", "cases"], [None, "1", " 7 "], [], [None, "2", "NA"]]:
            other.append(row)

    path = workbook(tmp_path / "c.xlsx", ROWS, more)
    counts, problems = counts_of(path, sheet="2024")
    assert problems == []
    np.testing.assert_array_equal(counts, [7, np.nan, np.nan])
    _, rows = read_table(path, "t", sheet="2024")
    assert list(rows) == [4, 6]
    _, (problem,) = counts_of(path, sheet="2023")
    assert problem.found == "has no sheet '2023'"
    assert "did you mean '2024'?" in problem.remedy
    _, (problem,) = counts_of(path, layer="x")
    assert "have no layers" in problem.found
    assert "give `sheet` instead" in problem.remedy


@pytest.mark.parametrize(
    ("cell", "value", "found"),
    [
        ("B3", "=1+9", "row 3 (id 1: 'formula without a value in cell B3"),
        ("B3", "#N/A", "row 3 (id 1: '#N/A in cell B3')"),
        ("B3", "#DIV/0!", "row 3 (id 1: '#DIV/0! in cell B3')"),
        ("B3", datetime.datetime(2024, 3, 1), "row 3 (id 1: '2024-03-01')"),
        ("B3", "1 00", "row 3 (id 1: '1 00')"),
        ("B3", True, "row 3 (id 1: 'True')"),
        ("B3", -1, "row 3 (id 1: -1)"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path, cell, value, found):
    def change(book, sheet):
        sheet[cell] = value
        if str(value).startswith("#"):
            assert sheet[cell].data_type == "e"

    _, (problem,) = counts_of(workbook(tmp_path / "c.xlsx", ROWS, change))
    assert found in problem.place


def test_a_merged_cell_is_no_missing_count(tmp_path):
    """One count for two areas must not become a count of the first, and none of the second."""
    path = workbook(tmp_path / "c.xlsx", ROWS, lambda book, sheet: sheet.merge_cells("B3:B4"))
    _, (problem,) = counts_of(path)
    assert "row 4 (id 2: 'part of the merged cells B3:B4')" in problem.place
    path = workbook(
        tmp_path / "d.xlsx",
        [["Cases by district", None], *ROWS],
        lambda book, sheet: sheet.merge_cells("A1:B1"),
    )
    _, (problem,) = counts_of(path)
    assert problem.found == "sheet 'cases': cells A1:B1 of the header (row 1) are merged"
    assert "if they are a title above the names, set skip_rows: 1" in problem.remedy


def test_merged_ids_of_a_long_sheet_are_said_once_whatever_the_period(tmp_path):
    rows = [["code", "month", "cases"], *([c, m, 1] for c in "12" for m in ("2024-01", "2024-02"))]

    def change(_, sheet):
        sheet.merge_cells("A2:A3")
        sheet.merge_cells("A4:A5")

    path, problems = workbook(tmp_path / "c.xlsx", rows, change), []
    for month in ("2024-01", "2024-02"):
        row_filter = ("month", month)
        assert counts_in(path, areas(), "code", "cases", problems, row_filter=row_filter) is None
    (problem,) = problems
    assert problem.found == "column 'code' has merged cells: A2:A3, A4:A5"
    assert "unmerge them" in problem.remedy


def test_a_first_sheet_without_a_table_names_the_others(tmp_path):
    def change(book, _):
        book.create_sheet("2024").append(["code", "cases"])

    _, (problem,) = counts_of(workbook(tmp_path / "c.xlsx", [["Read me"]], change, "Cover"))
    assert problem.found == "sheet 'Cover' has no rows below its first"
    assert problem.remedy == "name the sheet of the table: `sheet:` one of 2024"


def test_a_computed_formula_has_its_value(tmp_path):
    """As Excel stores it: the formula and its last value."""
    import zipfile

    path = workbook(tmp_path / "c.xlsx", [*ROWS[:2], [1, "=5+5"], ROWS[3]])
    out = tmp_path / "d.xlsx"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name).replace(b"<f>5+5</f><v />", b"<f>5+5</f><v>10</v>")
            data = data.replace(b"<f>5+5</f><v></v>", b"<f>5+5</f><v>10</v>")
            new.writestr(name, data)
    counts, problems = counts_of(out)
    assert problems == []
    assert counts["1"] == 10


def test_dates_may_be_periods(tmp_path):
    day = datetime.datetime(2024, 3, 1)
    rows = [["code", "cases", "day"], [1, 5, day], [1, 6, datetime.datetime(2024, 4, 1)]]
    path = workbook(tmp_path / "c.xlsx", rows)
    counts, problems = counts_of(path, row_filter=("day", "2024-04-01"))
    assert problems == []
    np.testing.assert_array_equal(counts, [6, np.nan, np.nan])


@pytest.mark.parametrize(
    ("cell", "place", "found", "remedy"),
    [
        ("", "row 3", "column 'month' is empty", "give each a period, or drop the rows"),
        ("13/2024", "row 3 ('13/2024')", "column 'month' is no date", "correct it"),
        ("45292", "row 3 ('45292')", "column 'month' is a number of five digits", "2024-01-01"),
    ],
)
def test_the_period_of_every_row_is_read_or_told(tmp_path, cell, place, found, remedy):
    path = tmp_path / "c.csv"
    path.write_text(f"code,cases,month\n1,5,Jan-24\n2,6,{cell}\n3,7,01/2024\n")
    _, (problem,) = counts_of(path, row_filter=("month", "2024-01"))
    assert problem.place == f"counts ({path}) {place}"
    assert problem.found.startswith(found)
    assert remedy in problem.remedy


def test_formats_far_below_the_table_are_no_rows(tmp_path):
    def far(book, sheet):
        sheet["C1048576"].number_format = "0.0"
        sheet["A9"] = " "

    table, rows = read_table(workbook(tmp_path / "c.xlsx", ROWS, far), "t")
    assert list(rows) == [2, 3, 4]
    assert list(table.columns) == ["code", "cases"]


def test_a_workbook_by_address(tmp_path):
    path = workbook(tmp_path / "c.xlsx", ROWS)
    pd.testing.assert_frame_equal(read_table(f"file://{path}", "t")[0], read_table(path, "t")[0])


def test_files_that_are_no_workbook_are_told(tmp_path):
    path = tmp_path / "c.xlsx"
    path.write_text("area,cases\n1,1\n")
    _, (problem,) = counts_of(path)
    assert problem.found == "is no workbook, whatever its name says"
    _, (problem,) = counts_of(workbook(tmp_path / "e.xlsx", []))
    assert problem.found.endswith("is empty")
    assert problem.remedy == "give a table with a header"
    with pytest.raises(InputError, match=r"format \.xls, which is not read; save it as \.xlsx"):
        read_table(tmp_path / "old.xls", "counts")


@pytest.mark.parametrize("name", ["c.gpkg", "c.shp", "c.geojson", "c.fgb", "c.parquet"])
def test_counts_of_any_vector_file(tmp_path, name):
    frame = gpd.GeoDataFrame(
        {"code": ["3", "1", "2"], "cases": [30.0, 10.0, np.nan]},
        geometry=gpd.points_from_xy([0, 1, 2], [0, 0, 0]),
        crs="EPSG:4326",
    )
    path = tmp_path / name
    if name.endswith("parquet"):
        frame.to_parquet(path)
    else:
        frame.to_file(path, engine="pyogrio")
    counts, problems = counts_of(path)
    assert problems == []
    np.testing.assert_array_equal(counts, [10, np.nan, 30])


def test_layers_and_rows_of_vector_files(tmp_path):
    path = tmp_path / "two.gpkg"
    frame = areas().rename(columns={AREA_ID: "code"}).assign(cases=[1, -2, 3])
    frame.to_file(path, layer="districts", engine="pyogrio")
    frame.assign(cases=[4, 5, 6]).to_file(path, layer="cases", engine="pyogrio")
    _, (problem,) = counts_of(path)
    assert problem.found == "has 2 layers (districts, cases)"
    counts, problems = counts_of(path, layer="cases")
    assert problems == []
    assert list(counts) == [4, 5, 6]
    _, (problem,) = counts_of(path, layer="districts")
    assert problem.place.endswith("feature 2 (id 2: -2)")
    _, (problem,) = counts_of(path, layer="case")
    assert "did you mean 'cases'?" in problem.remedy
    _, (problem,) = counts_of(path, sheet="x")
    assert "give `layer` instead" in problem.remedy
    (tmp_path / "c.csv").write_text("code,cases\n1,1\n")
    _, (problem,) = counts_of(tmp_path / "c.csv", sheet="x")
    assert problem.found == "`sheet: x` is given, but CSV files have no sheets"
    (tmp_path / "bad.gpkg").write_text("no")
    _, (problem,) = counts_of(tmp_path / "bad.gpkg")
    assert "cannot be read as vector data" in problem.found


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("packer", [gzip, bz2, lzma], ids=["gz", "bz2", "xz"])
def test_read_compressed_text_whatever_its_separator(tmp_path, packer, separator):
    path = tmp_path / f"counts.csv.{ {gzip: 'gz', bz2: 'bz2', lzma: 'xz'}[packer] }"
    path.write_bytes(packer.compress(f"id{separator}cases\na{separator}1\n".encode()))
    table, rows = read_table(path, "counts")
    assert table.to_dict("list") == {"id": ["a"], "cases": ["1"]}
    assert list(rows) == [2]


def test_a_text_that_expands_absurdly_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(table_csv, "ARCHIVE_BYTES_FREE", 1 << 20)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"id,cases\n" + b"a,1\n" * 2_000_000))
    with pytest.raises(InputError, match=r"expands from 7,8[0-9]+ to more than 2,097,152 bytes"):
        read_table(path, "counts")


@pytest.mark.parametrize("head", [b"", b"id,cases\na,1\n"], ids=["first", "later"])
def test_an_endless_line_is_refused_before_it_is_in_memory(tmp_path, head, monkeypatch):
    monkeypatch.setattr(table_csv, "LINE_BYTES_MAX", 3 << 20)
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(1 << 40)  # a terabyte of zeros, which no disk has: reading it would not end
    with pytest.raises(InputError, match="has a line of more than 3,145,728 bytes"):
        read_table(path, "counts")


def test_a_quote_that_never_ends_is_told_though_it_is_longer_than_a_cell_of_csv(tmp_path):
    path = tmp_path / "quote.csv"
    path.write_bytes(b'id,cases\n"' + b"a\n" * 100_000)
    with pytest.raises(InputError, match=r'a quote \("\) opens in row 2 and never ends'):
        read_table(path, "counts")


def test_a_compressed_table_that_is_cut_off_is_one_line(tmp_path):
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(b"id,cases\na,1\n" * 1000)[:-20])
    with pytest.raises(InputError, match="is damaged, or not compressed as its name says"):
        read_table(path, "counts")


def rewritten(path, sheet):
    """Put a sheet of one's own in place of a workbook's first."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["xl/worksheets/sheet1.xml"] = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        b'<sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>id</t></is></c>'
        b'<c r="B1" t="inlineStr"><is><t>cases</t></is></c></row>'
        b'<row r="2"><c r="A2"><v>1</v></c><c r="B2"><v>1</v></c></row>' + sheet + b"</worksheet>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        (
            b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>',
            "is filled from A1 to XFD1048576, mostly empty",
        ),
        (
            b'</sheetData><mergeCells><mergeCell ref="A3:XFD1048576"/></mergeCells>',
            "has merged cells or links over more than 20,000,000 cells",
        ),
        (
            b'</sheetData><hyperlinks><hyperlink location="a" display="b" ref="A3:XFD1048576"/>'
            b"</hyperlinks>",
            "has merged cells or links over more than 20,000,000 cells",
        ),
    ],
    ids=["a far cell", "merged", "a link"],
)
@pytest.mark.timeout(60)
def test_a_small_workbook_that_claims_billions_of_cells_is_refused(tmp_path, sheet, message):
    path = rewritten(workbook(tmp_path / "w.xlsx", [["id"]]), sheet)
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match=message):
        read_table(path, "counts")


@pytest.mark.parametrize("header", ["code,cases,cases", "code, cases ,cases", "code,code,cases"])
def test_two_columns_of_one_name_are_not_told_apart(tmp_path, header):
    path = tmp_path / "cases.csv"
    path.write_text(f"{header}\nA,1,2\nB,3,4\n")
    table, _ = read_table(path, "counts")
    problems = []
    twice = [
        has_column(table.columns, name, "counts", "key", problems) for name in ("code", "cases")
    ]
    assert twice.count(False) == 1
    assert "has 2 columns" in problems[0].found


AREAS = {"code": ["001", "002", "003", "004"], "name": ["Été-1", "Nord 2", "Sud", "Est"]}


def told(tmp_path, table, own=AREAS, options=None):
    """Return the problems of a table, and the counts, of areas with some columns."""
    path, problems = tmp_path / "c.csv", []
    pd.DataFrame(table).to_csv(path, index=False)
    frame = areas(own["code"]).assign(**own)
    counts = counts_in(path, frame, "code", "cases", problems, **(options or {}))
    return counts, problems


CASES = {"cases": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("table", "own", "remedy"),
    [
        # A number of the feature is no id: the spelling comes first, and it never comes alone.
        ({"code": [1, 2, 3, 4]}, {"OBJECTID": [4, 3, 2, 1]}, "if '1' is '001' and 3 more so, set"),
        ({"code": [1, 2, 3, 4]}, {"OBJECTID": [4, 3, 2, 1], "code": list("ABCD")}, "correct the"),
        (
            {"code": [1, 2, 3, 4], "name": ["Été-1", "Nord 2", "Sud", "Est"]},
            {"OBJECTID": [4, 3, 2, 1], "num": [1, 2, 3, 4], "code": list("ABCD")},
            "column 'num': set areas.id: num and counts.id: code, or correct",
        ),
        (
            {"code": ["A", "B", "C", "D"], "row": [4, 3, 2, 1]},
            {"code": list("1234")},
            "correct the",
        ),
        (
            {"code": ["ETE-1", "NORD 2", "SUD", "EST"]},
            {},
            "column 'name': set areas.id: name and counts.id: code and counts.match: spelling, or",
        ),
        (
            {"code": ["w", "x", "y", "z"], "pcode": ["M 1", "M 2", "M 3", "M 4"]},
            {"code": ["m1", "m2", "m3", "m4"]},
            "column 'pcode' has the areas' ids: set counts.id: pcode and counts.match: spelling",
        ),
    ],
)
def test_the_pairing_that_is_proposed_is_of_the_same_areas(tmp_path, table, own, remedy):
    _, problems = told(tmp_path, table | CASES, AREAS | own)
    assert remedy in problems[-1].remedy
    assert "OBJECTID" not in problems[-1].remedy


def rows_of(**columns):
    """Return a table of two areas with a row for each of some periods."""
    table = pd.DataFrame({"code": ["001", "002"], "cases": [5, 1990]})
    return table.merge(pd.DataFrame(columns), how="cross")


MONTHS = {"year": [2023, 2023, 2024, 2024], "month": [1, 2, 1, 2]}
BOTH = "if columns 'year' and 'month' tell the periods apart, write both in one, such as 2023-03"


@pytest.mark.parametrize(
    ("columns", "period", "remedy"),
    [
        (MONTHS, None, BOTH),
        (MONTHS, "year", BOTH),
        (MONTHS, "month", BOTH),
        ({"year": [2023, 2023], "month": [1, 2]}, None, BOTH),
        ({"month": [1, 2]}, None, "set counts.period: month"),
        ({"date_debut": ["2024-01-01", "2024-02-01"]}, None, "set counts.period: date_debut"),
        ({"periodname": ["January 2024", "May 2024"]}, None, "set counts.period: periodname"),
        ({"reporting": ["202401", "202402"]}, None, "set counts.period: reporting"),
        ({"semaine": ["S1 2024", "S2 2024"]}, None, "write it such as 2024-W05, and set counts.pe"),
        ({"note": ["x", "y"]}, None, "or add them up"),
    ],
)
def test_repeated_ids_propose_the_column_of_their_periods(tmp_path, columns, period, remedy):
    row_filter = None if period is None else (period, str(columns[period][0]))
    _, (problem,) = told(tmp_path, rows_of(**columns), options={"row_filter": row_filter})
    assert "2 id(s) are repeated" in problem.found
    assert remedy in problem.remedy
    assert ("counts.period" in problem.remedy) == ("note" not in columns)


def test_a_total_without_an_id_is_told_as_one(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("code,name,cases\na,1,4\nb,2,5\nc,3,6\nTOTAL,,15\n")
    problems = []
    counts_in(path, areas(), "name", "cases", problems)
    told = f"counts ({path}) row 5: is a total (its column 'code' says TOTAL); remove it"
    assert list(map(str, problems)) == [told]
