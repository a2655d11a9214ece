"""Areas that were split, merged or renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from geo.core.calendar import Calendar
from geo.core.errors import Problem
from geo.tables.area_changes import AreaChanges, Union, read_area_changes

TODAY = ("A", "B1", "B2", "D", "E2")
MONTH = Calendar("month")
TABLE = """period,from,to
2022-06,B,B1
2022-06,B,B2
2023-01,C,D
2023-01,D,D
2023-01,E,E2
"""


def _read(tmp_path: Path, text: str) -> tuple[AreaChanges | None, list[Problem]]:
    path, problems = tmp_path / "changes.csv", list[Problem]()
    path.write_text(text, encoding="utf-8")
    return read_area_changes(path, "areas.changes", TODAY, MONTH, problems), problems


def _moved(found: AreaChanges, label: str) -> list[tuple[str, tuple[str, ...]]]:
    number = MONTH.number(label)
    assert number is not None
    return [(u.name, u.today) for u in found.at(number) if u.before != u.today]


def test_a_split_a_merger_and_another_name_hold_until_their_period(tmp_path: Path) -> None:
    found, problems = _read(tmp_path, TABLE)
    assert found is not None
    assert not problems
    merged = [("C + D", ("D",)), ("E", ("E2",))]
    assert _moved(found, "2022-05") == [("B", ("B1", "B2")), *merged]
    assert _moved(found, "2022-06") == merged
    assert _moved(found, "2022-12") == merged
    assert _moved(found, "2023-01") == []
    assert found.groups == [("B1", "B2")]
    assert found.former == {"B", "C", "E"}
    number = MONTH.number("2022-08")
    assert number is not None
    labels = ["2022-06", "2023-01"]
    assert found.elsewhen(number, labels) == {
        "B": "ended with 2022-06",
        "E2": "begins in 2023-01",
    }


def test_a_border_that_moves_is_a_union_of_the_areas_on_both_sides() -> None:
    found = AreaChanges(("A", "B", "C"), ((10, (("A", "A"), ("A", "B"), ("B", "B"))),))
    assert found.at(9) == (Union(("A", "B"), ("A", "B")), Union(("C",), ("C",)))
    assert found.at(10) == tuple(Union((each,), (each,)) for each in "ABC")


def test_changes_of_changes_are_followed_to_today() -> None:
    """X is split into B and C, then C is joined to D, then D is split: X is of B, D1 and D2."""
    steps = (
        (10, (("X", "B"), ("X", "C"))),
        (20, (("C", "D"), ("D", "D"))),
        (30, (("D", "D1"), ("D", "D2"))),
    )
    found = AreaChanges(("B", "D1", "D2"), steps)
    assert [u.name for u in found.at(5)] == ["D + X"]
    assert found.at(5)[0].today == ("B", "D1", "D2")
    assert [(u.name, u.today) for u in found.at(15)] == [("B", ("B",)), ("C + D", ("D1", "D2"))]
    assert ("B", "D1", "D2") in found.groups


def test_unions_share_out_all_areas_whatever_changed() -> None:
    """Of random chains: every area of any time is in one union, and ground is kept."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        ground = {f"a{k}": {k} for k in range(12)}  # cells of each area, the earliest first
        periods, steps, stages = [10, 20, 30], [], [dict(ground)]
        for t in periods:
            names = sorted(ground)
            chosen = [names[k] for k in rng.choice(len(names), min(4, len(names)), replace=False)]
            cells = [k for name in chosen for k in sorted(ground[name])]
            cut = np.sort(rng.choice(np.arange(1, len(cells)), min(2, len(cells) - 1), False))
            parts = [set(part.tolist()) for part in np.split(rng.permutation(cells), cut)]
            new = {f"t{t}p{k}": part for k, part in enumerate(parts)}
            pairs = [(old, to) for old in chosen for to, own in new.items() if own & ground[old]]
            steps.append((t, tuple(pairs)))
            ground = {k: v for k, v in ground.items() if k not in chosen} | new
            stages.append(dict(ground))
        found = AreaChanges(tuple(sorted(ground)), tuple(steps))
        for number, stage in zip([5, 15, 25, 35], stages, strict=True):
            unions = found.at(number)
            assert sorted(each for u in unions for each in u.before) == sorted(stage)
            assert sorted(each for u in unions for each in u.today) == sorted(ground)
            for u in unions:
                before = set().union(*(stage[each] for each in u.before))
                assert before == set().union(*(ground[each] for each in u.today))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2022-06,B,B3", "row 7: no area is 'B3' from 2022-06 on"),
        ("2022-06,A,B1", "row 7: 'A' ends with 2022-06, and is an area later"),
        ("2022-13,B,B1", "no date"),
        ("2022-06,,B1", "row 7: an empty cell"),
    ],
)
def test_what_cannot_be_is_said_with_its_row(tmp_path: Path, row: str, said: str) -> None:
    found, problems = _read(tmp_path, TABLE + row + "\n")
    assert found is None
    assert any(said in f"{each.place}: {each.found}" for each in problems), problems


def test_a_year_is_its_first_month(tmp_path: Path) -> None:
    found, _ = _read(tmp_path, "period,from,to\n2023,E,E2\n")
    assert found is not None
    assert _moved(found, "2022-12") == [("E", ("E2",))]
    assert _moved(found, "2023-01") == []


def test_a_table_without_its_columns_names_the_nearest(tmp_path: Path) -> None:
    found, problems = _read(tmp_path, "period,from,too\n2023,E,E2\n")
    assert found is None
    assert "'too'" in problems[0].remedy
