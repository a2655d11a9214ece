"""Tables as offices write them: encodings, delimiters, numbers, titles and totals around them."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import pandas as pd
import pytest
import shapely

from geo.core.columns import AREA_ID
from geo.core.errors import InputError
from geo.core.spelling import Spelling
from geo.core.suppressed import Suppression
from geo.tables.counts import margins_of
from geo.tables.crosswalk import read_crosswalk, write_crosswalk
from geo.tables.name_matching import Area, propose
from geo.tables.response_column import ResponseTable
from geo.tables.table_csv import Csv
from tests.geo.response_table import counts_in

FRAME = pd.DataFrame({"code": ["A", "Bé", "C"], "cases": ["3", "0", ""], "note": ["", "é", ""]})


def _areas(ids=("A", "Bé", "C", "D")):
    shapes = [shapely.box(i, 0, i + 1, 1) for i in range(len(ids))]
    return gpd.GeoDataFrame({AREA_ID: list(ids)}, geometry=shapes, crs="EPSG:4326")


def _read(path, areas=None, **options):
    problems = []
    areas = _areas() if areas is None else areas
    return counts_in(path, areas, "code", "cases", problems, **options), problems


def _column(path):
    return ResponseTable(path, _areas(), "code").column("count", "cases", [])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_csv_of_pandas_is_read_whatever_its_encoding_and_delimiter(tmp_path, encoding, separator):
    FRAME.to_csv(tmp_path / "c.csv", index=False, sep=separator, encoding=encoding)
    counts, problems = _read(tmp_path / "c.csv")
    assert not problems
    assert counts["A"] == 3
    assert counts["Bé"] == 0
    assert counts.isna()[["C", "D"]].all()  # an empty cell, and no row


def test_what_the_rows_do_not_tell_can_be_stated(tmp_path):
    FRAME.to_csv(tmp_path / "c.csv", index=False, encoding="cp850", sep="|")
    counts, problems = _read(tmp_path / "c.csv", spelling=Spelling("cp850", delimiter="|"))
    assert not problems
    assert counts["Bé"] == 0
    FRAME.to_parquet(tmp_path / "c.parquet")
    _, (problem,) = _read(tmp_path / "c.parquet", spelling=Spelling(delimiter=";"))
    assert "`delimiter: ;` is given, but Parquet files have their own" in problem.found


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1.234,5", "12"], [1234.5, 12.0]),
        (["1 234", "12"], [1234.0, 12.0]),
        (["1,234,567", "8"], [1234567.0, 8.0]),
        (["12,5", "3"], [12.5, 3.0]),
        (["1'234", "3"], [1234.0, 3.0]),
        (["1,234", "3"], None),  # a thousand, or one and a quarter?
    ],
)
def test_numbers_that_can_be_read_in_one_way_are(tmp_path, cells, numbers):
    frame = pd.DataFrame({"code": ["A", "C"], "cases": cells})
    frame.to_csv(tmp_path / "c.csv", index=False, sep=";")
    counts, problems = _read(tmp_path / "c.csv", partial=True)
    if numbers is None:
        assert "counts.thousands" in problems[0].remedy
        assert "counts.decimal" in problems[0].remedy
    else:
        assert not problems
        assert counts[["A", "C"]].tolist() == numbers


@pytest.mark.parametrize(("suffix", "skip"), [(".csv", 2), (".xlsx", 1)])
def test_a_title_above_the_names_is_told_and_skipped(tmp_path, suffix, skip):
    path = tmp_path / f"c{suffix}"
    frame = pd.DataFrame([["Cases of 2024", None, None], [None] * 3, [*FRAME], *FRAME.to_numpy()])
    if suffix == ".csv":
        frame.to_csv(path, index=False, header=False, sep=";")
    else:
        frame.to_excel(path, index=False, header=False)  # by openpyxl
    _, problems = _read(path)
    assert f"set skip_rows: {skip}, for the names stand below" in problems[0].remedy
    counts, problems = _read(path, spelling=Spelling(skip_rows=skip))
    assert not problems
    assert counts["A"] == 3


@pytest.mark.parametrize("name", ["Total", "grand total", "Everything"])
def test_a_row_of_totals_is_told(tmp_path, name):
    frame = pd.DataFrame({"code": ["A", "C", name], "cases": ["3", "4", "7"]})
    frame.to_csv(tmp_path / "c.csv", index=False)
    _, (problem,) = _read(tmp_path / "c.csv")
    assert f"{name} (row 4)" in problem.found
    assert "a total of other rows" in problem.found
    assert problem.remedy == "remove the row"


def test_a_total_that_is_none_is_told_by_how_much(tmp_path):
    frame = pd.DataFrame({"code": ["A", "C", "TOTAL"], "cases": ["3", "4", "1207"]})
    frame.to_csv(tmp_path / "c.csv", index=False)
    _, (problem,) = _read(tmp_path / "c.csv")
    assert problem.found.endswith("a total of other rows, 1,200 more than these add up to")
    for cases in (["0.1", "0.2", "0.3"], ["3", "<5", "7"]):  # rounding; a count that is hidden
        frame["cases"] = cases
        frame.to_csv(tmp_path / "c.csv", index=False)
        suppression = Suppression({}, zeros_published=True)
        _, problems = _read(tmp_path / "c.csv", suppression=suppression)
        assert any(each.found.endswith("a total of other rows") for each in problems), cases


def test_suppressed_counts_are_read_beside_numbers_of_any_format(tmp_path):
    frame = pd.DataFrame({"code": ["A", "Bé", "C"], "cases": ["<5", "1.234,0", "s"]})
    frame.to_excel(tmp_path / "c.xlsx", index=False)
    suppression = Suppression({"s": (1, 9)}, zeros_published=True)
    counts, problems = _read(tmp_path / "c.xlsx", suppression=suppression)
    assert not problems
    assert counts.dropna().to_dict() == {"A": 2.5, "Bé": 1234.0, "C": 5.0}
    margins = margins_of(_column(tmp_path / "c.xlsx"), _areas(), suppression)
    assert margins.to_dict() == {"A": 1.5, "Bé": 0.0, "C": 4.0, "D": 0.0}
    _, problems = _read(tmp_path / "c.xlsx")
    assert "is not a number" in problems[0].found


AREAS = [
    Area("01", "Thái Nguyên", "North"), Area("02", "Cần Thơ", "South"),
    Area("03", "Kéran", "North"), Area("04", "Lomé Golfe", "Coast"),
    Area("05", "Springfield", "East"), Area("06", "Springfield", "West"),
    Area("07", "Est-Mono", "East"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parent", "area", "reason"),
    [
        ("THAI NGUYEN", "", "01", "capitals, accents"),
        ("Can Tho City", "", "02", "words such as district"),
        ("Keran District", "", "03", "words such as district"),
        ("Golfe-Lome", "", "04", "another order"),
        ("Thai Nguyne", "", "01", "% of the letters"),
        ("Springfield", "West", "06", "in the same parent"),
        ("Springfield", "", "", "are as near"),
        ("Atlantis", "", "", "none is near"),
    ],
)
def test_a_name_is_proposed_with_its_reason_or_left_blank(name, parent, area, reason):
    (line,) = propose([(name, parent)], AREAS)
    assert line["area_id"] == area
    assert reason in line["reason"]
    assert 0 <= line["score"] <= 1


def test_no_area_is_proposed_for_two_names():
    lines = propose([("Keran", ""), ("Keran Prefecture", "")], AREAS)
    assert [line["area_id"] for line in lines] == ["03", ""]
    assert "nearer to Keran" in lines[1]["reason"]


def test_a_crosswalk_gives_names_their_areas(tmp_path):
    path, table = tmp_path / "walk.csv", tmp_path / "c.csv"
    lines = [
        {"name": "Alpha", "parent": "North", "area_id": "A"},
        {"name": "Alpha", "parent": "South", "area_id": "C"},
        {"name": "Omega", "parent": "", "area_id": ""},
    ]
    write_crosswalk(path, lines)
    with pytest.raises(InputError, match="is there already"):
        write_crosswalk(path, lines)
    frame = pd.DataFrame(
        {"code": ["Alpha", "Alpha", "D"], "in": ["North", "South", ""], "cases": [1, 2, 3]}
    )
    frame.to_csv(table, index=False)
    counts, problems = _read(table, spelling=Spelling(crosswalk=str(path), parent="in"))
    assert not problems
    assert counts.dropna().to_dict() == {"A": 1.0, "C": 2.0, "D": 3.0}
    _, problems = _read(table)
    assert "disagg check --fix" in problems[-1].remedy


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([("x", "Z")], "no area has the id Z (row 2)"),
        ([("x", "A"), ("x", "C")], "another area for the same name in x (row 3)"),
    ],
)
def test_a_crosswalk_that_cannot_be_followed_is_told(tmp_path, lines, found):
    pd.DataFrame(lines, columns=["name", "area_id"]).to_csv(tmp_path / "w.csv", index=False)
    problems = []
    read_crosswalk(tmp_path / "w.csv", "counts.crosswalk", {"A", "C"}, problems)
    assert found in problems[0].found


def _walked(directory, lines, rows, ids, columns=("name", "area_id"), **spelling):
    pd.DataFrame(lines, columns=list(columns)).to_csv(directory / "w.csv", index=False)
    pd.DataFrame(rows, columns=["code", "in", "cases"]).to_csv(directory / "c.csv", index=False)
    walk = Spelling(crosswalk=str(directory / "w.csv"), **spelling)
    return _read(directory / "c.csv", _areas(ids), spelling=walk)


def test_a_crosswalk_that_lost_its_zeros_is_followed(tmp_path):
    lines, rows = [("Alpha", 1), ("Beta", 10)], [("Alpha", "N", 3), ("Beta", "N", 4)]
    counts, problems = _walked(tmp_path, lines, rows, ["001", "010"])
    assert not problems
    assert counts.to_dict() == {"001": 3.0, "010": 4.0}
    _, problems = _walked(tmp_path, lines, rows, ["001", "01", "010"])
    assert "no area has the id 1 (row 2)" in problems[0].found


def test_one_bad_line_of_a_crosswalk_is_one_problem(tmp_path):
    lines = [("Alpha", "A"), ("Beta", "Z")]
    _, (problem,) = _walked(tmp_path, lines, [("Alpha", "N", 3), ("Beta", "N", 4)], ["A", "C"])
    assert "no area has the id Z (row 3)" in problem.found


def test_two_names_of_one_area_are_both_named(tmp_path):
    lines = [("Alpha", "A"), ("Beta", "A")]
    _, (problem,) = _walked(tmp_path, lines, [("Alpha", "N", 3), ("Beta", "N", 4)], ["A", "C"])
    assert "w.csv has one area for two names" in problem.found
    assert "Alpha (row 2) and Beta (row 3) are A" in problem.found


def test_parents_of_a_crosswalk_are_found_or_asked_for(tmp_path):
    lines, columns = [("Alpha", "NORTH", "A")], ("name", "parent", "area_id")
    rows = [("Alpha", "North", 3)]
    _, (problem,) = _walked(tmp_path, lines, rows, ["A"], columns)
    assert "w.csv has names by their parent: set counts.parent" in problem.remedy
    counts, problems = _walked(tmp_path, lines, rows, ["A"], columns, parent="in")
    assert not problems
    assert counts["A"] == 3


@pytest.mark.parametrize(("cell", "told"), [("*", True), ("<5.5", True), ("many", False)])
def test_a_mark_that_nothing_explains_is_told_to_be_explained(tmp_path, cell, told):
    (tmp_path / "c.csv").write_text(f"code,cases\nA,3\nC,{cell}\n")
    _, problems = _read(tmp_path / "c.csv", suppression=Suppression({}))
    assert ("counts.suppressed" in problems[0].remedy) == told


def test_rows_that_were_cut_are_known(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text("id,a,b\nA,1,\nB,2\n\nC,3,4\nSource: ministry\n", encoding="utf-8")
    table = Csv().read(path)
    assert table.attrs["short"] == [3]  # one cell is a note, and an empty one is there
    assert table["b"].tolist() == ["", "", "4", ""]
