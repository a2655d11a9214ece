"""Totals of zones in a series: where areas have not reported, their zone's total tells."""

from __future__ import annotations

import shutil
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.ingest.zone_months import kept_together
from tests.pipeline.series_inputs import areas, counts, store_of, write_inputs
from tests.typed import edit, run_each, take_in

MORE = """\
points:
  - {name: total, path: provinces.csv, id: province, value: cases, zone: province, period: month}
evaluate:    {schemes: [], calibration: none}
"""
WEST = ["A00", "A01", "A04", "A05"]
LATE = {"2024-02": ["A00", "A04"], "2024-04": ["A01"]}  # of the west; A05 lacks February anyway


def province_of(name: str) -> str:
    """Return the province of an area: quarters of the country."""
    row, column = divmod(int(name[1:]), 4)
    return f"{'north' if row < 2 else 'south'}-{'west' if column < 2 else 'east'}"


def write(directory: Path, n: int = 4, cases: str = "") -> Path:
    """Write inputs whose western districts are late in two months; the provinces have totals."""
    config = write_inputs(directory, n, more=MORE)
    frame = areas()
    frame.assign(province=[province_of(name) for name in frame["id"]]).to_file(
        directory / "areas.gpkg", driver="GPKG"
    )
    table = counts(n)
    table.loc[(table["id"] == "A05") & (table["month"] == "2024-02"), "cases"] = "9"
    numbers = table.assign(n=table["cases"].astype(int), province=table["id"].map(province_of))
    totals = numbers.groupby(["province", "month"], as_index=False)["n"].sum()
    totals.rename(columns={"n": "cases"}).to_csv(directory / "provinces.csv", index=False)
    late = pd.Series(False, index=table.index)
    for month, names in LATE.items():
        late |= (table["month"] == month) & table["id"].isin(names)
    table.loc[late, "cases"] = cases
    table.to_csv(directory / "cases.csv", index=False)
    return config


def _fitted(config: Path, label: str) -> dict[frozenset[str], tuple[float, float]]:
    """Return value and margin of each bag of a period, by its areas."""
    store = store_of(config)
    source = store.source([store.to_fit(each) for each in store.periods])
    bags = source.of_period(store.periods.index(label))
    assert bags is not None
    found = {}
    for k in range(bags.n_bag):
        rows = slice(*bags.offsets[k : k + 2])
        own = [bags.bag[k]] if bags.area is None else np.unique(bags.area[rows]).tolist()
        half = 0.0 if bags.margin is None else float(bags.margin[k])
        found[frozenset(store.ids[a] for a in own)] = float(bags.y[k]), half
    return found


@pytest.mark.ci
def test_the_rest_of_a_total_is_one_count_of_the_areas_without_one(tmp_path: Path) -> None:
    config = write(tmp_path)
    assert main(["check", str(config), "--quiet"]) == 0
    assert main(["ingest", str(config), "--quiet"]) == 0
    given = counts(4).set_index(["month", "id"])["cases"].replace("", "9").astype(float)
    for label in ("2024-01", "2024-02", "2024-03", "2024-04"):
        found, late = _fitted(config, label), frozenset(LATE.get(label, ()))
        each = {frozenset([f"A{k:02d}"]) for k in range(16)} - {frozenset([n]) for n in late}
        assert set(found) == each | ({late} if late else set())
        for own, (y, margin) in found.items():
            assert y == given[label][list(own)].sum()
            assert margin == 0.0


@pytest.mark.ci
def test_a_month_of_which_totals_alone_have_arrived(tmp_path: Path) -> None:
    config = write(tmp_path)
    table = pd.read_csv(tmp_path / "cases.csv", dtype=str, keep_default_na=False)
    table[table["month"] != "2024-03"].to_csv(tmp_path / "cases.csv", index=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    totals = pd.read_csv(tmp_path / "provinces.csv").set_index(["month", "province"])["cases"]
    found = {province_of(next(iter(own))): y for own, (y, _) in _fitted(config, "2024-03").items()}
    assert found == totals["2024-03"].astype(float).to_dict()


@pytest.mark.ci
def test_a_suppressed_count_is_taken_off_as_its_interval(tmp_path: Path) -> None:
    config = write(tmp_path)
    table = pd.read_csv(tmp_path / "cases.csv", dtype=str, keep_default_na=False)
    at = (table["id"] == "A05") & (table["month"] == "2024-02")
    whole = counts(4).set_index(["month", "id"])["cases"]
    table.loc[at, "cases"] = "<5"  # 0 to 4, in place of 9
    table.to_csv(tmp_path / "cases.csv", index=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    late = sum(int(whole["2024-02", name]) for name in LATE["2024-02"])
    # The total says 9 of A05 and those late; of A05 0 to 4 are known.
    y, margin = _fitted(config, "2024-02")[frozenset(LATE["2024-02"])]
    assert (y - margin, y + margin) == (late + 9 - 4, late + 9)


def _whole_country(directory: Path, row: str) -> Path:
    """Add totals of the country; of the west's late areas the province's total is not given."""
    config = write(directory)
    totals = pd.read_csv(directory / "provinces.csv", dtype=str)
    kept = (totals["month"] != "2024-02") | (totals["province"] != "north-west")
    totals[kept].to_csv(directory / "provinces.csv", index=False)
    frame = gpd.read_file(directory / "areas.gpkg").assign(country="all")
    frame.to_file(directory / "areas.gpkg", driver="GPKG")
    (directory / "country.csv").write_text(f"country,month,n\n{row}\n")
    more = "  - {name: all, path: country.csv, id: country, value: n, zone: country, period: month}"
    edit(config, {"points:\n": f"points:\n{more}\n"})
    return config


@pytest.mark.ci
def test_of_a_country_the_rests_of_its_provinces_are_taken_off(tmp_path: Path) -> None:
    given = counts(4).set_index(["month", "id"])["cases"].replace("", "9").astype(float)
    total = given["2024-02"].sum()
    config = _whole_country(tmp_path, f"all,2024-02,{total:.0f}")
    # A01 is late as well, and its province's total is not given: both are the country's rest.
    assert main(["ingest", str(config), "--quiet"]) == 0
    late = LATE["2024-02"]
    assert _fitted(config, "2024-02")[frozenset(late)] == (given["2024-02"][late].sum(), 0.0)


@pytest.mark.ci
def test_a_suppressed_total_leaves_an_interval(tmp_path: Path) -> None:
    given = counts(4).set_index(["month", "id"])["cases"].replace("", "9").astype(float)
    late = LATE["2024-02"]
    known = given["2024-02"].drop(late).sum()
    config = _whole_country(tmp_path, f"all,2024-02,{known:.0f}-{known + 150:.0f}")
    assert main(["ingest", str(config), "--quiet"]) == 0
    assert _fitted(config, "2024-02")[frozenset(late)] == (75.0, 75.0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("all,2024-02,3\nall,Feb 2024,5", "row 3: a second total of 'all' for 2024-02"),
        ("all,2024-02,<4", "3 in the zone, and"),
        ("all,2023-02,90000", "ends before the periods of the run, 2024-01 to 2024-04"),
    ],
)
def test_totals_of_a_country_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, said: str
) -> None:
    config = _whole_country(tmp_path, rows)
    assert main(["check", str(config)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.ci
def test_a_check_says_what_totals_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path)
    with (tmp_path / "provinces.csv").open("a") as file:
        file.write("north-west,2023-12,5\n")
    assert main(["check", str(config), "--html", str(tmp_path / "page.html")]) == 0
    told = "points.total: 16 totals of 4 zones; 1 of other periods are left out"
    assert told in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Points and zones" in page


@pytest.mark.ci
def test_a_run_uses_totals_and_says_so_and_an_update_takes_a_month_in(tmp_path: Path) -> None:
    config = write(tmp_path)
    run_each(config, "ingest", "fit", "predict")
    table = pd.read_csv(tmp_path / "out/periods.csv", dtype=str).set_index(["period", "id"])
    late = [("2024-02", name) for name in LATE["2024-02"]]
    assert set(table.index[table["counted_in"] == "rest of north-west"]) == set(late)
    assert table.loc[late, "observed"].isna().all()
    # What is left for a single area is its count.
    own = float(table.loc[("2024-04", "A01"), "observed"])
    assert own == float(counts(4).set_index(["month", "id"])["cases"]["2024-04", "A01"])
    whole = counts(4).set_index(["month", "id"])["cases"]
    expected = table["mean"].astype(float).loc["2024-02"][LATE["2024-02"]].sum()
    assert expected == pytest.approx(
        sum(int(whole["2024-02", name]) for name in LATE["2024-02"]), rel=0.15
    )
    directory = tmp_path / "next"
    shutil.copytree(tmp_path, directory, ignore=shutil.ignore_patterns("next"))
    write(directory, 5)
    shutil.copy(tmp_path / "areas.gpkg", directory)  # a file that is written anew is another
    shutil.copy(directory / "rain_2024-01.tif", directory / "rain_2024-05.tif")
    take_in(directory / config.name)
    later = pd.read_csv(directory / "out/periods.csv", dtype=str)
    assert "2024-05" in set(later["period"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("north-west,2024-02,3", "3 in the zone, and 93 at least in its areas"),
        ("north-wets,2024-02,3", "no area has province north-wets (row"),
        ("north-west,2024-02,many", "'many' (row 17), which is no number"),
        ("north-west,2024-13,3", "no date"),
        ("north-west,2024-Q1,3", "column 'month' is no month in 2024-Q1 (row 17)"),
    ],
)
def test_totals_that_cannot_be_are_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    config = write(tmp_path)
    lines = (tmp_path / "provinces.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("north-west,2024-02")]
    (tmp_path / "provinces.csv").write_text("\n".join([*kept, row]) + "\n")
    assert main(["check", str(config), "--quiet"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (", period: month}\nevaluate", "}\nevaluate", "no column with the period"),
        ("zone: province, ", "catchment: 5, ", "points at places, and `time`"),
        ("zone: province", "zone: province, effect: true", "effect given with `time`"),
    ],
)
def test_what_zones_of_months_do_not_have_is_said(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    config = write(tmp_path)
    edit(config, {old: new})
    with pytest.raises(InputError, match=said):
        load_config(config)


def test_groups_that_share_an_area_are_one() -> None:
    found = kept_together([("a", "b"), ("c", "d"), ("e",), ("b", "c"), ("x", "y")])
    assert found["a"] == found["b"] == found["c"] == found["d"]
    assert found["x"] == found["y"] != found["a"]
    assert "e" not in found
