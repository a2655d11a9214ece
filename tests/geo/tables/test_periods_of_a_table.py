"""A table of many periods is looked at once, however many of them are read."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pytest
from shapely.geometry import box

from geo.core import columns
from geo.core.columns import AREA_ID
from geo.core.errors import Problem
from geo.core.spelling import Spelling
from geo.tables import registry
from geo.tables.registry import tables_kept
from tests.geo.response_table import counts_in

PERIODS = ("2024-01", "2024-02", "2024-03")
AREAS = gpd.GeoDataFrame(
    {AREA_ID: ["a", "b"]}, geometry=[box(k, 0, k + 1, 1) for k in range(2)], crs="EPSG:32738"
)


def counts_of(path, wide=False):
    """Return the counts of each period, and the problems of all."""
    problems: list[Problem] = []
    spelling = Spelling(wide=("month", "cases")) if wide else Spelling()
    found = [
        counts_in(path, AREAS, "id", "cases", problems, row_filter=("month", each),
                    partial=True, spelling=spelling)
        for each in PERIODS
    ]  # fmt: skip
    return found, problems


@pytest.fixture
def long(tmp_path):
    path = tmp_path / "long.csv"
    rows = [f"{area},{period},{10 * k + n}" for k, period in enumerate(PERIODS)
            for n, area in enumerate("ab")]  # fmt: skip
    path.write_text("\n".join(["id,month,cases", *rows]) + "\n")
    return path


@pytest.fixture
def wide(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(["id," + ",".join(PERIODS), "a,0,10,20", "b,1,11,21"]) + "\n")
    return path


@pytest.mark.parametrize("form", ["long", "wide"])
def test_all_periods_cost_one_look(form, request, monkeypatch):
    path = request.getfixturevalue(form)
    alone, problems = counts_of(path, form == "wide")
    assert not problems
    np.testing.assert_array_equal(np.array(alone), [[0, 1], [10, 11], [20, 21]])
    looks = []
    for module, name in ((columns, "read_periods"), (registry, "long_form")):
        function = getattr(module, name)

        def counting(*args, name=name, function=function):
            looks.append(name)
            return function(*args)

        monkeypatch.setattr(module, name, counting)
    with tables_kept():
        kept, problems = counts_of(path, form == "wide")
    assert not problems
    np.testing.assert_array_equal(np.array(kept), np.array(alone))
    assert sorted(looks) == (["long_form"] if form == "wide" else []) + ["read_periods"]


def test_problems_of_all_rows_are_told_for_each_period(long):
    """Whoever reads one period hears of a row without one, as without what is kept."""
    long.write_text(long.read_text() + "a,,5\n")
    alone = counts_of(long)[1]
    with tables_kept():
        assert counts_of(long)[1] == alone
    assert len(alone) == len(PERIODS)
    assert "column 'month' is empty" in str(alone[0])
