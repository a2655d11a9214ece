"""Ids that no area has: one problem of all rows and periods, and what each may be."""

from __future__ import annotations

import pickle

import geopandas as gpd
import pytest
import shapely

from geo.core.columns import AREA_ID
from geo.core.errors import Problem
from geo.tables.unmatched import Unmatched, guesses, together, unmatched

WORDS = "{n} count(s) match no area: ", " in column 'id'"


def _areas(ids: list[str], names: list[str] | None = None) -> gpd.GeoDataFrame:
    frame = gpd.GeoDataFrame({AREA_ID: ids}, geometry=[shapely.Point(0, 0)] * len(ids))
    return frame if names is None else frame.assign(name=names)


def _one(*rows: tuple[str, int, str], file: str = "a.csv", near: str = "") -> Unmatched:
    guessed = {rows[0][0]: near} if near else {}
    return unmatched([f"counts ({file})"], "correct it", rows, WORDS, "count", "row", near=guessed)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("Ihosi", {"Toliara", "Betioky"}, "'Ihosy'"),
        ("Ihosi", {"Toliara", "Betioky", "Ihosy"}, "'Ihosy'"),  # beside its own row
        ("Morondava", {"Toliara"}, ""),
    ],
)
def test_the_area_that_differs_in_few_letters_is_guessed(
    text: str, given: set[str], said: str
) -> None:
    areas = _areas(["Ihosy", "Toliara", "Betioky"])
    assert guesses([text], areas, given).get(text, "") == said


def test_codes_are_guessed_among_areas_without_a_row_alone() -> None:
    areas = _areas([f"M{k:02d}" for k in range(30)])
    every = set(areas[AREA_ID])
    assert guesses(["M1O"], areas, every - {"M10"}) == {"M1O": "'M10'"}
    assert guesses(["M99"], areas, every) == {}
    assert guesses(["M99"], areas, set()) == {}  # three are as near
    assert guesses([f"X{k}" for k in range(30)], areas, set()) == {}  # another column


def test_a_name_in_place_of_an_id_is_guessed() -> None:
    areas = _areas(["MG01", "MG02"], ["Ihosy", "Toliara"])
    assert guesses(["Toliary"], areas, {"MG01"}) == {"Toliary": "'MG02' (Toliara)"}


def test_rows_of_all_periods_are_one_problem() -> None:
    other = Problem("areas (a.gpkg)", "is wrong", "correct it")
    months = [f"2024-{m:02d}" for m in range(1, 13)]
    late = _one(("Ihosi", 93, months[-1]), near="'Ihosy'")
    each = [_one(("Ihosi", 5 + 8 * m, label)) for m, label in enumerate(months)]
    found = together([late, other, *each, _one(("Bety", 9, months[3]))])
    assert [type(one) for one in found] == [Unmatched, Problem]
    assert found[0].found == (
        "13 count(s) match no area: Ihosi (rows 5, 13, 21, 29, 37, 45, 53, 61, 69, 77, 85, 93; "
        "12 periods from 2024-01 to 2024-12), Bety (row 9; 2024-04) in column 'id'"
    )
    assert found[0].remedy == "did you mean 'Ihosy' for 'Ihosi'? correct it"
    assert together(found) == found
    assert together(pickle.loads(pickle.dumps(found))) == found


def test_many_ids_are_counted_after_a_few_and_files_as_well() -> None:
    each = [_one((f"X{k}", 2, f"2024-0{k}"), file=f"{k}.csv") for k in range(1, 9)]
    (found,) = together(each)
    assert found.place == "counts (1.csv) and 7 more files"
    assert "X5 (row 2; 2024-05), ... (8 in all)" in found.found
    assert "X6" not in found.found


def test_what_is_wrong_otherwise_stays_apart() -> None:
    total = unmatched(["counts (a.csv)"], "remove it", [("Total", 7, "2024-01")],
                      (WORDS[0], ": a total of other rows"), "count", "row")  # fmt: skip
    assert len(together([_one(("Ihosi", 5, "2024-01")), total])) == 2
