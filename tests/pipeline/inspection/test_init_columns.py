"""What `disagg init` takes: ids that tell rows apart, sheets, labels, dated files, answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import yaml
from affine import Affine

from pipeline.cli.check import all_problems
from pipeline.cli.main import main
from pipeline.inspection.columns import label_columns, pairing_of
from pipeline.inspection.folder import Boundary
from tests.pipeline.series_inputs import MONTHS, areas, counts, people, rain, write_raster


def _table(n_period: int = 1) -> pd.DataFrame:
    return counts(n_period)


def _coded(directory: Path) -> pd.DataFrame:
    """Write areas with numbers and names, and people; return a table of names and cases."""
    own = areas().rename(columns={"id": "name"})
    own.assign(code_i=np.arange(1, 17)).to_file(directory / "areas.gpkg")
    write_raster(directory / "people.tif", people())
    return _table()[["id", "cases"]].rename(columns={"id": "District", "cases": "Cas"})


def _init(directory: Path, *answers: str) -> int:
    given = [each for answer in answers for each in ("--answer", answer)]
    return main(["init", str(directory), "--yes", "--force", *given])


def _found(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((directory / "disagg.yaml").read_text())
    return found


def test_ids_tell_rows_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = _coded(tmp_path).assign(Autre=1)
    total = {"District": "Total", "Cas": table["Cas"].astype(int).sum(), "Autre": 16}
    pd.concat([table, pd.DataFrame([total])]).to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path) == 2
    found = _found(tmp_path)
    assert (found["areas"]["id"], found["counts"]["id"]) == ("name", "District")
    said = capsys.readouterr()
    assert "Total (row 18) in column 'District': a total of other rows; remove the row" in said.err
    assert "Next: correct what is named\n" in said.out  # nothing to mend


def test_ids_may_be_there_once_a_period() -> None:
    table = _table(3).assign(other=["A00", "A01"] * 24)
    pairing = pairing_of(table, Boundary("a.gpkg", None, areas()))
    assert pairing is not None
    assert (pairing.table_id, pairing.once) == ("id", True)


def test_numbers_of_few_areas_are_no_ids() -> None:
    own = areas().assign(code=np.arange(1, 17))
    table = pd.DataFrame({"place": [f"P{k}" for k in range(16)], "n": [1] * 15 + [16]})
    assert pairing_of(table, Boundary("a.gpkg", None, own)) is None


def test_the_sheet_of_the_counts_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _coded(tmp_path)
    with pd.ExcelWriter(tmp_path / "t.xlsx") as writer:
        pd.DataFrame({"nothing here": []}).to_excel(writer, sheet_name="notes", index=False)
        table.to_excel(writer, sheet_name="2024", index=False)
    assert _init(tmp_path) == 0
    assert _found(tmp_path)["counts"]["sheet"] == "2024"
    with pd.ExcelWriter(tmp_path / "t.xlsx") as writer:
        table.to_excel(writer, sheet_name="2023", index=False)
        table.to_excel(writer, sheet_name="2024", index=False)
    capsys.readouterr()
    assert _init(tmp_path) == 2
    assert "answer it: --answer counts=t.xlsx:2023, say" in capsys.readouterr().err
    assert _init(tmp_path, "counts=t.xlsx:2024") == 0
    assert _found(tmp_path)["counts"]["sheet"] == "2024"


@pytest.mark.parametrize(
    "words", [("Yes", "No"), ("true", "false"), ("Positive", "negative"), (True, False), (1, 0)]
)
def test_labels_are_recognised(tmp_path: Path, words: tuple[Any, Any]) -> None:
    table = _coded(tmp_path)
    table["outbreak"] = [words[k % 2] for k in range(16)]
    table[["District", "outbreak"]].to_excel(tmp_path / "t.xlsx", index=False)
    assert _init(tmp_path) == 0
    found = _found(tmp_path)
    assert found["labels"] == {"path": "t.xlsx", "id": "District", "value": "outbreak"}
    assert found["model"] == {"kind": "pooled_gp", "options": {"pooling": "noisy_or"}}
    assert found["output"] == {"dir": "out"}


def test_counts_come_before_labels(tmp_path: Path) -> None:
    table = _coded(tmp_path).assign(reported=["yes", "no"] * 8)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert label_columns(table) == ["reported"]
    assert _init(tmp_path) == 0
    assert _found(tmp_path)["counts"]["value"] == "Cas"
    assert _init(tmp_path, "counts.value=reported") == 0
    assert _found(tmp_path)["labels"]["value"] == "reported"


def test_without_a_response_labels_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _coded(tmp_path)[["District"]].assign(a="x").to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path) == 2
    assert "or labels (1 and 0, yes and no, true and false" in capsys.readouterr().err


def test_whole_cases_come_before_a_rate(tmp_path: Path) -> None:
    table = _coded(tmp_path).rename(columns={"Cas": "Cases"})
    table["Incidence"] = np.random.default_rng(0).random(16)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path) == 0
    assert _found(tmp_path)["counts"]["value"] == "Cases"
    assert _init(tmp_path, "counts.value=Incidence") in (0, 2)  # the check may refuse decimals
    assert _found(tmp_path)["counts"]["value"] == "Incidence"


def test_a_south_up_raster_gives_its_pixel_and_no_grid(tmp_path: Path) -> None:
    _coded(tmp_path).to_csv(tmp_path / "t.csv", index=False)
    path = tmp_path / "people.tif"
    with rasterio.open(path) as source:
        values, t, profile = source.read(), source.transform, source.profile
        bottom = source.bounds.bottom
    profile["transform"] = Affine(t.a, 0.0, t.c, 0.0, -t.e, bottom)
    with rasterio.open(path, "w", **profile) as target:
        target.write(values[:, ::-1])
    assert _init(tmp_path) == 0
    assert _found(tmp_path)["grid"] == {"crs": "EPSG:32736", "resolution": 1000.0}


def _dated(directory: Path, form: str) -> None:
    areas().to_file(directory / "areas.gpkg")
    write_raster(directory / "people.tif", people())
    (directory / "later").mkdir()
    table = counts().assign(month=lambda t: pd.to_datetime(t["month"]))
    table["cases"] = pd.to_numeric(table["cases"])
    table.to_excel(directory / "cases.xlsx", index=False)
    for n, month in enumerate([*MONTHS, "2024-07"]):
        own = directory / "later" if month == "2024-07" else directory
        name = pd.Timestamp(month).strftime(form)
        write_raster(own / f"rain_{name}.tif", rain(n))


@pytest.mark.parametrize("form", ["%Y-%m", "%Y%m", "v2.0.%Y.%m"])
def test_files_of_months_serve_dates_of_excel(tmp_path: Path, form: str) -> None:
    _dated(tmp_path, form)
    assert _init(tmp_path) == 0
    head = form.partition("%")[0]
    path = f"rain_{head}{{period}}.tif"
    ((_, rain_of),) = _found(tmp_path)["covariates"].items()
    assert rain_of == {"path": path}
    assert all_problems(tmp_path / "disagg.yaml")[0] == []
    last = (tmp_path / "disagg.yaml").read_text()
    why = f"is of one date, as {path} is of others: put them in one folder"
    assert f"later/{pd.Timestamp('2024-07').strftime(f'rain_{form}.tif')}: {why}" in last


def test_files_of_other_dates_are_told(tmp_path: Path) -> None:
    _dated(tmp_path, "%Y%m%d")
    for each in tmp_path.glob("rain_*.tif"):
        (tmp_path / each.name.replace("01.tif", "11.tif")).write_bytes(each.read_bytes())
    assert _init(tmp_path) == 0
    assert "has 2 files of 2024-01; a period needs one" in (tmp_path / "disagg.yaml").read_text()
    for each in tmp_path.glob("rain_*.tif"):
        each.rename(tmp_path / each.name.replace("_2024", "_2019"))
    assert _init(tmp_path) == 0
    text = (tmp_path / "disagg.yaml").read_text()
    told = "its dates (20190101 to 20190611) are not of the periods of the counts"
    assert f"{told} (2024-01-01 to 2024-06-01)" in text


def test_an_answer_is_obeyed_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = _coded(tmp_path)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path, "areas.id=code_i") == 2
    said = capsys.readouterr().err
    assert "--answer areas.id: Which column of areas.gpkg has the ids of t.csv?" in said
    assert "'code_i' is none of name" in said
    assert _init(tmp_path, "counts.weight=none") == 2
    assert "these files leave no choice of it" in capsys.readouterr().err
    table.assign(code_i=np.arange(1, 17)).to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path, "areas.id=code_i") == 0
    found = _found(tmp_path)
    assert (found["areas"]["id"], found["counts"]["id"]) == ("code_i", "code_i")
    table.assign(again=table["District"]).to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path, "counts.id=again") == 0
    assert _found(tmp_path)["counts"]["id"] == "again"


def test_a_mend_is_proposed_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _coded(tmp_path)
    table.loc[3, "District"] = "Atlantis"
    table.to_csv(tmp_path / "t.csv", index=False)
    assert _init(tmp_path) == 2
    assert "--fix" in capsys.readouterr().out.splitlines()[-1]


def _twice(directory: Path, capsys: pytest.CaptureFixture[str], **columns: Any) -> str:
    """Return what is said of two rows for each row of a table with these columns."""
    table = _coded(directory).drop(columns="Cas")
    both = pd.concat([table.assign(**{k: v[n] for k, v in columns.items()}) for n in (0, 1)])
    both.assign(cases=np.arange(len(both)) + 7).to_csv(directory / "t.csv", index=False)
    assert _init(directory) == 2
    return capsys.readouterr().err


def test_parts_of_a_count_are_told_from_periods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for years in (("2021", "2021"), (["2021", "2022"] * 8,) * 2):
        said = _twice(tmp_path, capsys, year=years, sex=("M", "F"))
        assert "column 'District' has ids several times in one date of column 'year'" in said
        assert "(such as A00 in 2021)" in said
        assert "column 'sex' tells these rows apart: add them up, or keep one of them" in said
    said = _twice(tmp_path, capsys, year=("2021", "2021"))
    assert "keep one row of each, or add up parts" in said
    said = _twice(tmp_path, capsys, sex=("M", "F"))
    assert "no column of dates; give one row for each area" in said
    said = _twice(tmp_path, capsys, year=("2021", "2021"), month=("3", "4"))
    assert "in one date of column 'year'" in said
    assert "write both in one, such as 2021-03" in said
