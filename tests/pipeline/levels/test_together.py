"""Totals of levels before a split: a count of several areas together counts once, or nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
from shapely.geometry import box

from pipeline.levels.level_tables import Observed
from pipeline.products.together import Together, with_counted_in
from pipeline.store.level_areas import Level, Overlaps
from tests.pipeline.run.test_area_changes import SPLIT, cases_of_then, write
from tests.pipeline.series_inputs import areas
from tests.typed import edit, run_each

IDS = [f"d{k}" for k in range(6)]
NAN = np.nan


def _squares(ids: list[str], names: list[str] | None = None, width: float = 1.0) -> Level:
    shapes = np.array([box(k * width, 0, (k + 1) * width, 1) for k in range(len(ids))], object)
    titles = None if names is None else np.array(names, object)
    return Level("any", np.array(ids, object), titles, gpd.GeoSeries(shapes), shapes, None)


def _observed(
    counts: list[float], unions: dict[str, tuple[list[str], float, bool]], hidden: str = ""
) -> Observed:
    """Return what was reported of six areas in a row: counts, and those of unions."""
    numbers = np.full(6, -1)
    for number, (inside, _, _) in enumerate(unions.values()):
        numbers[np.isin(IDS, inside)] = number
    known = np.isfinite(counts)
    low = [0.0 if name == hidden else NAN for name in IDS]
    table = pd.DataFrame(
        {"observed": counts, "observed_lower": low, "in_training": known | np.isfinite(low)},
        index=IDS,
    )
    Together(
        np.array(list(unions), object),
        np.array(IDS, object),
        numbers,
        np.array([count for _, count, _ in unions.values()]),
        np.full(len(unions), NAN),
        np.array([suppressed for _, _, suppressed in unions.values()]),
    ).keep(table)
    return Observed.of(table.assign(rate=1.0), _squares(IDS))


def _totals(own: Observed, coarse: Level) -> Observed:
    pairs, training = Overlaps.of(_squares(IDS), coarse), _squares(IDS)
    return own.totals(coarse, pairs, np.ones(len(coarse)), training.titles)


def test_a_union_inside_an_area_counts_once_and_one_across_a_border_nowhere() -> None:
    own = _observed([5, NAN, NAN, NAN, NAN, 7], {"X": (["d1", "d2"], 30.0, False),
                                                 "Y": (["d3", "d4"], 40.0, False)})  # fmt: skip
    assert own.why is not None
    assert own.why[1] == "counted together: X (d1 + d2)"
    halves = _totals(own, _squares(["west", "east"], width=3.0))
    np.testing.assert_array_equal(halves.cases, [35, 47])
    thirds = _totals(own, _squares(["a", "b", "c"], width=2.0))
    assert np.isnan(thirds.cases).all()
    assert thirds.why is not None
    each = ["X (d1 + d2)", "X (d1 + d2), Y (d3 + d4)", "Y (d3 + d4)"]
    assert thirds.why.tolist() == [f"in part only: {text}" for text in each]
    assert _totals(own, _squares(["all"], width=6.0)).cases.tolist() == [82]


def test_every_kind_of_reason_is_given() -> None:
    unions = {"X": (["d1", "d2"], NAN, True), "Y": (["d4", "d5"], NAN, False)}
    own = _observed([NAN] * 6, unions, hidden="d0")
    assert own.why is not None
    assert own.why.tolist() == [
        "suppressed",
        *["suppressed: X (d1 + d2)"] * 2,
        "no count was given",
        *["no count: Y (d4 + d5)"] * 2,
    ]
    found = _totals(own, _squares(["a", "b"], width=4.5))
    assert found.why is not None
    assert found.why[0] == "in part only: Y (d4 + d5); no count: d3; suppressed: d0, X (d1 + d2)"
    few = own.totals(
        _squares(["a"], width=4.0), Overlaps.of(_squares(IDS), _squares(["a"], width=4.0)),
        np.array([0.5]), np.array(IDS, object),
    )  # fmt: skip
    assert few.why is not None
    assert few.why[0] == (
        "no count: d3; suppressed: d0, X (d1 + d2); the training areas hold 50 % of its people"
    )


def test_the_table_of_areas_says_in_which_count_each_is() -> None:
    table = pd.DataFrame({"observed": [1.0, NAN, NAN], "fitted": 1.0}, index=["a", "b", "c"])
    assert list(with_counted_in(table)) == ["observed", "fitted"]
    ids = np.array(["a", "b", "c"], object)
    one = np.array([3.0]), np.array([NAN]), np.array([False])
    Together(np.array(["U"], object), ids, np.array([-1, 0, 0]), *one).keep(table)
    told = with_counted_in(table.assign(fitted=2.0))
    assert list(told) == ["observed", "counted_in", "fitted"]
    assert told["counted_in"].tolist() == ["", "U", "U"]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three months, the third after the split; levels that hold the area whole, or cut it."""
    config = write(tmp_path_factory.mktemp("together"), 3)
    frame = areas()
    whole = np.where(frame["id"].isin([*SPLIT, "A02", "A05"]), "west", "rest")
    frame.dissolve(whole).reset_index(names="key")[["key", "geometry"]].to_file(
        config.parent / "whole.gpkg"
    )
    row = np.where(frame.index < 4, "north", "south")
    frame.dissolve(row).reset_index(names="key")[["key", "geometry"]].to_file(
        config.parent / "cut.gpkg"
    )
    levels = (
        "areas: [{path: whole.gpkg, id: key, level: whole}, {path: cut.gpkg, id: key, level: cut}],"
        " reconcile: {to: counts, levels: [whole, training]}"
    )
    edit(config, {"forecast: 1": f"forecast: 1, {levels}"})
    run_each(config, "ingest", "fit", "predict")
    return config.parent / "out/periods/2024-01"


@pytest.mark.ci
def test_a_month_before_a_split_has_the_totals_that_are_known(before: Path) -> None:
    given = cases_of_then(3)
    given = given[given["month"] == "2024-01"].set_index("id")["cases"].astype(float)
    tables: dict[str, Any] = {
        name: pd.read_csv(before / f"levels_{name}.csv", dtype={"id": str}).set_index("id")
        for name in ("training", "whole", "cut", "country")
    }
    west = given[["WEST", "A02", "A05"]].sum()
    assert tables["whole"].loc["west", "observed"] == west
    assert tables["whole"].loc["rest", "observed"] == given.sum() - west
    assert tables["country"].loc["country", "observed"] == given.sum()
    names = "WEST (A00 + A01 + A04)"
    assert (tables["training"].loc[SPLIT, "observed_why"] == f"counted together: {names}").all()
    assert (tables["cut"]["observed_why"] == f"in part only: {names}").all()
    own = pd.read_csv(before / "areas.csv").set_index("id")
    assert set(own.index[own["counted_in"] == "WEST"]) == set(SPLIT)
    assert own["counted_in"].notna().sum() == len(SPLIT)
    # The rest of the level's total is that of the areas that were counted together.
    reconciled = tables["training"].loc[SPLIT, "reconciled_cases"].sum()
    assert reconciled == pytest.approx(given["WEST"], rel=1e-9)
    assert tables["whole"].loc["west", "reconciled_cases"] == pytest.approx(west, rel=1e-9)
