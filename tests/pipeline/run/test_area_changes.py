"""Areas that were split, merged and renamed between the months of a series, from table to map."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.store.series_source import SeriesSource
from tests.pipeline.run.test_tables import IDS, climate
from tests.pipeline.series_inputs import (
    MONTHS,
    SMALL_OPTIONS,
    area_of_pixel,
    counts,
    people,
    store_of,
    write_inputs,
)
from tests.typed import edit, run_each, take_in

pytestmark = pytest.mark.ci

SPLIT, MERGED = ["A00", "A01", "A04"], "A10"
CHANGES = """period,from,to
2024-03,WEST,A00
2024-03,WEST,A01
2024-03,WEST,A04
2024-04,M1,A10
2024-04,M2,A10
2024-02,old name,A15
"""
MORE = "evaluate:    {schemes: [], calibration: none}\n"


def cases_of_then(n: int) -> pd.DataFrame:
    """Return the counts by the areas of each month."""
    table = counts(n)
    early, late = table["month"] < "2024-03", table["month"] < "2024-04"
    whole = table[early & table["id"].isin(SPLIT)]
    west = whole.assign(cases=whole["cases"].astype(int)).groupby("month", as_index=False)["cases"]
    merged = table[late & (table["id"] == MERGED)]
    half = merged["cases"].astype(int) // 2
    first = (table["month"] < "2024-02") & (table["id"] == "A15")
    kept = table[~(early & table["id"].isin(SPLIT)) & ~(late & (table["id"] == MERGED)) & ~first]
    return pd.concat(
        [
            kept,
            west.sum().assign(id="WEST"),
            merged.assign(id="M1", cases=half),
            merged.assign(id="M2", cases=merged["cases"].astype(int) - half),
            table[first].assign(id="old name"),
        ]
    )


def write(directory: Path, n: int, more: str = MORE) -> Path:
    """Write inputs of the first months, counted by the areas of each."""
    config = write_inputs(directory, n, more=more)
    cases_of_then(n).to_csv(directory / "cases.csv", index=False)
    (directory / "changes.csv").write_text(CHANGES, encoding="utf-8")
    edit(config, {"id: id}\ncounts": "id: id, changes: changes.csv}\ncounts"})
    return config


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = write(tmp_path_factory.mktemp("changes"), 5)
    run_each(config, "ingest", "fit", "predict")
    return config


def _given(label: str, name: str) -> float:
    table = cases_of_then(5).set_index(["month", "id"])["cases"]
    return float(table[label, name])


@pytest.mark.parametrize("cap", ["all", 7])
def test_a_fit_reads_what_each_area_of_the_time_counted(
    ran: Path, tmp_path: Path, cap: int | str
) -> None:
    store = store_of(ran)
    source = store.source(store.thinned(tmp_path, cap, 1))
    there: SeriesSource = source.reference.open()  # as it comes to a worker
    assert there.n_bag == int(there.block_bags.sum()) == source.n_bag
    for number, label in enumerate(MONTHS[:5]):
        bags = there.of_period(number)
        assert bags is not None
        assert bags.area is not None
        before = label < "2024-03"
        west = min(store.ids.index(name) for name in SPLIT)
        ids = [store.ids[k] for k in bags.bag.tolist()]
        assert len(set(ids)) == len(ids)
        if before:
            (lead,) = set(ids) & set(SPLIT)
            assert bags.y[ids.index(lead)] == _given(label, "WEST")
        else:
            assert set(SPLIT) <= set(ids)
        for k, name in enumerate(ids):
            rows = slice(*bags.offsets[k : k + 2])
            own = SPLIT if before and name in SPLIT else [name]
            assert {store.ids[a] for a in bags.area[rows].tolist()} == set(own)
            inside = np.isin([f"A{a:02d}" for a in area_of_pixel().ravel()], own)
            expected = people().ravel()[inside].sum()
            assert bags.weight[rows].sum() == pytest.approx(expected, rel=1e-6)
        assert west >= 0


def test_merged_and_renamed_areas_have_counts_of_their_own(ran: Path) -> None:
    store, table = store_of(ran), counts(5).set_index(["month", "id"])["cases"]
    for label in MONTHS[:5]:
        own = store.at(label)
        y = dict(zip(own.ids, own.y.tolist(), strict=True))
        assert y[MERGED] == float(table[label, MERGED])
        assert y["A15"] == float(table[label, "A15"])
        unknown = {name for name, value in y.items() if np.isnan(value)}
        expected = set(SPLIT) if label < "2024-03" else set()
        assert unknown == expected | ({"A05"} if label == "2024-02" else set())


def test_tables_have_areas_of_today_and_say_what_their_counts_were_a_part_of(ran: Path) -> None:
    table = pd.read_csv(ran.parent / "out/periods.csv", dtype=str).set_index(["period", "id"])
    for label in MONTHS[:5]:
        rows = table.loc[label]
        assert list(rows.index) == IDS
        assert set(rows.index[rows["counted_in"] == "WEST"]) == (
            set(SPLIT) if label < "2024-03" else set()
        )
        assert rows.loc[SPLIT, "observed"].isna().all() == (label < "2024-03")
    early = table.loc["2024-01"]
    assert early["mean"].astype(float).loc[SPLIT].sum() == pytest.approx(
        _given("2024-01", "WEST"), rel=0.15
    )


def test_a_month_is_taken_in_and_an_old_count_is_corrected(ran: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(ran.parent, directory)
    table = cases_of_then(6)
    at = (table["id"] == "WEST") & (table["month"] == "2024-01")
    table.loc[at, "cases"] = 40 + table.loc[at, "cases"].astype(int)
    table.to_csv(directory / "cases.csv", index=False)
    shutil.copy(directory / "rain_2024-01.tif", directory / "rain_2024-06.tif")
    take_in(directory / ran.name)
    before, after = (
        pd.read_csv(each / "out/periods.csv").set_index(["period", "id"])["mean"]
        for each in (ran.parent, directory)
    )
    assert ("2024-06", "A00") in after.index
    rise = after.loc["2024-01"].loc[SPLIT].sum() - before.loc["2024-01"].loc[SPLIT].sum()
    assert 3 < rise < 40  # the months after it say that rates are lower


def test_a_count_of_an_area_at_another_time_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, 4)
    table = cases_of_then(4)
    late = pd.DataFrame([("WEST", "2024-04", "7"), ("A00", "2024-01", "7")], columns=table.columns)
    pd.concat([table, late]).to_csv(tmp_path / "cases.csv", index=False)
    for command in ("check", "ingest"):
        assert main([command, str(config), "--quiet"]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "WEST (row 65; 2024-04), which ended with 2024-03" in said
        assert "A00 (row 66; 2024-01), which begins in 2024-03" in said
    assert not (tmp_path / "out/work/bags.zarr/responses.parquet").exists()


def test_a_wide_table_has_empty_cells_where_an_area_was_not(tmp_path: Path) -> None:
    config = write(tmp_path, 4)
    wide = cases_of_then(4).pivot(index="id", columns="month", values="cases")
    wide.to_csv(tmp_path / "cases.csv")
    edit(config, {"period: month": "periods: columns"})
    assert main(["ingest", str(config), "--quiet"]) == 0
    own = store_of(config).to_fit("2024-02")
    assert own.y[np.isin(own.ids, SPLIT)].sum() == _given("2024-02", "WEST")


def test_a_crosswalk_names_areas_of_any_time(tmp_path: Path) -> None:
    config = write(tmp_path, 4)
    table = cases_of_then(4).replace({"id": {"WEST": "Western district", "A07": "Seven"}})
    table.to_csv(tmp_path / "cases.csv", index=False)
    walk = "name,area_id\nWestern district,WEST\nSeven,A07\n"
    (tmp_path / "walk.csv").write_text(walk, encoding="utf-8")
    edit(config, {"period: month": "period: month, crosswalk: walk.csv"})
    assert main(["ingest", str(config), "--quiet"]) == 0
    own = store_of(config).to_fit("2024-02")
    assert own.y[np.isin(own.ids, SPLIT)].sum() == _given("2024-02", "WEST")


def test_a_problem_of_the_changes_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, 3)
    (tmp_path / "changes.csv").write_text("Period,from,to\n2024-03,WEST,A00\n", encoding="utf-8")
    for command in ("check", "ingest"):
        assert main([command, str(config), "--quiet"]) == 2
        assert capsys.readouterr().err.count("did you mean 'Period'?") == 1


def test_a_table_of_a_covariate_has_the_areas_of_its_time(tmp_path: Path) -> None:
    config = write(tmp_path, 4)
    table = climate()
    early = table["when"] < "202403"
    west = table[early & (table["id"] == "A00")].assign(id="WEST")
    late, first = table["when"] < "202404", table["when"] < "202402"
    others = [
        table[late & (table["id"] == MERGED)].assign(id="M1", mm=10.0),
        table[late & (table["id"] == MERGED)].assign(id="M2", mm=30.0),
        table[first & (table["id"] == "A15")].assign(id="old name"),
    ]
    gone = (early & table["id"].isin(SPLIT)) | (late & (table["id"] == MERGED))
    pd.concat([table[~gone], west, *others]).to_csv(tmp_path / "climate.csv", index=False)
    own = "{table: climate.csv, id: id, value: mm, period: when}"
    edit(config, {'{path: "rain_{period}.tif"}': own})
    assert main(["ingest", str(config), "--quiet"]) == 0
    bags = store_of(config).at("2024-01")
    given = table[table["when"] == "202401"].set_index("id")["mm"]
    for name in (*SPLIT, MERGED, "A15", "A07"):
        block = bags.select(np.array(bags.ids) == name).read_block(0)
        wanted = {MERGED: 20.0, **dict.fromkeys(SPLIT, given["A00"])}.get(name, given.get(name))
        np.testing.assert_allclose(block.x[:, 1], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("time:        {step: month}\n", "", "areas.changes: given without `time`"),
        ("path: cases.csv", "path: cases.csv, of: average", "given with counts that are averages"),
    ],
)
def test_changes_ask_for_counts_of_several_periods(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    config = write(tmp_path, 3)
    text = config.read_text("utf-8").replace(old, new)
    if not new:
        text = text.replace(', periods: ["2024-01"], forecast: 1', "")
        text = text.replace(SMALL_OPTIONS, "")
    config.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_config(config)
